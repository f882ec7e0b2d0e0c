"""The time of a world: what falls due while a process is at work is done before other tasks go on."""

from __future__ import annotations

import time

import trio

from flux.simulation.replaced_calls import SimulatedSystem


class Busy:
    """A process that keeps the world busy for a second, in five pieces, and is never idle."""

    async def run(self) -> None:
        for _ in range(5):
            time.sleep(0.2)
            await trio.lowlevel.checkpoint()


def test_a_process_that_is_stopped_goes_on_when_that_is_due_however_busy_another_one_is() -> None:
    system = SimulatedSystem("1")
    kernel = system.kernel
    errors: list[str] = []

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            stopped, _ = (kernel.start(nursery, name, name, Busy, errors.append) for name in ("stopped", "busy"))
            kernel.stop(stopped)
            kernel.at(0.1, lambda: kernel.go_on(stopped))

    with system.in_place():
        trio.run(live, clock=kernel.clock, instruments=[kernel.gatekeeper])
    went_on = [line for line in kernel.trace if "goes on" in line]
    assert not errors
    assert went_on == ["  0.200000 stopped: goes on"], "after the piece of work in which it was due"
