"""A run inside a trio program: the same handle, awaited, while the program's loop goes on."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import flux
from tests.runtime.fakes import ROWS, Passing, flow, gated
from tests.runtime.waiting import DEADLINE_S, is_gone

ALL = [{"n": n} for n in range(1, ROWS + 1)]


def run_trio(main: Callable[[], Any]) -> Any:
    async def within_the_deadline() -> Any:
        with trio.fail_after(DEADLINE_S):
            return await main()

    return trio.run(within_the_deadline)


def pids(run: flux.Run | flux.AsyncRun) -> list[int]:
    handle = run._run if isinstance(run, flux.AsyncRun) else run
    assert handle._driver is not None
    return [handle._driver._spawner.pid, *(each.pid for each in handle._driver.processes if each.pid is not None)]


def test_every_method_of_a_run_can_be_awaited_with_the_same_arguments() -> None:
    methods = {name for name, value in vars(flux.Run).items() if inspect.isfunction(value) and not name.startswith("_")}
    for name in methods:
        awaited, plain = getattr(flux.AsyncRun, name), getattr(flux.Run, name)
        assert inspect.iscoroutinefunction(awaited), name
        assert inspect.signature(awaited) == inspect.signature(plain), name


def test_processes_can_be_killed_added_and_drained(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (20,)))

    async def main() -> flux.Report:
        async with flux.open_cluster(flow(), sites=2) as run:
            await run.wait_for_output(20)
            await run.kill("ingress")
            assert await run.add_site() == "site-3"
            await run.drain("site-1")
            states = {each.name: each.state for each in (await run.status()).processes}
            assert (states["site-1"], states["site-3"]) == ("drained", "up")
            (tmp_path / "20").touch()
            return await run.wait(timeout=DEADLINE_S)

    report = run_trio(main)
    assert report.table.to_pylist() == ALL
    assert [failure.site for failure in report.failures] == ["ingress"]


def test_the_programs_loop_goes_on_and_a_wait_can_be_cancelled(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (20,)))

    async def main() -> None:
        async with flux.open_cluster(flow(), sites=2) as run, trio.open_nursery() as nursery:

            @nursery.start_soon
            async def wait_for_ever() -> None:
                await run.wait()

            for _ in range(10):
                await trio.sleep(0.001)
            with trio.move_on_after(0.01) as scope:
                await run.wait_for_output(21)
            assert scope.cancelled_caught
            (tmp_path / "20").touch()
            nursery.cancel_scope.cancel()
        assert all(is_gone(pid) for pid in pids(run))

    run_trio(main)


def test_a_wait_that_takes_too_long_is_a_timeout(fake: Callable[..., None], tmp_path: Path) -> None:
    fake(EgressProcess=gated(tmp_path, (20,)))

    async def main() -> None:
        async with flux.open_cluster(flow(), sites=2) as run:
            with pytest.raises(TimeoutError, match=r"waited 0\.25 s for 21 rows of output"):
                await run.wait_for_output(21, timeout=0.25)
            (tmp_path / "20").touch()

    run_trio(main)


@pytest.mark.parametrize("leave", ["error", "cancel"])
def test_however_the_block_is_left_nothing_stays_behind(fake: Callable[..., None], tmp_path: Path, leave: str) -> None:
    fake(EgressProcess=gated(tmp_path, (20,)))
    seen: list[int] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with flux.open_cluster(flow(), sites=2) as run:
                seen.extend(pids(run))
                if leave == "error":
                    raise ZeroDivisionError
                scope.cancel()
                await run.wait()

    if leave == "error":
        with pytest.raises(ZeroDivisionError):
            run_trio(main)
    else:
        run_trio(main)
    assert seen and all(is_gone(pid) for pid in seen)


def test_no_task_of_the_program_goes_on_in_a_process_of_the_run(tmp_path: Path) -> None:
    ended_in = tmp_path / "ended_in"

    async def note_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with ended_in.open("a") as file:
                file.write(f"{os.getpid()}\n")

    rows = [{"n": n} for n in range(100)]
    made = flux.Dataflow("real")
    made.source(flux.sources.Table(rows)).exchange("n", partitions=4).apply(Passing).sink(flux.sinks.Collect())

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_the_end)
            await trio.testing.wait_all_tasks_blocked()
            async with flux.open_cluster(made, sites=2) as run:
                report = await run.wait()
            nursery.cancel_scope.cancel()
        return report

    assert run_trio(main).table.to_pylist() == rows
    assert ended_in.read_text().split() == [str(os.getpid())]


def test_the_blocking_handle_is_refused_inside_trio() -> None:
    async def main() -> None:
        with pytest.raises(flux.PlanError, match=r"async with flux\.open_cluster"):
            flow().start(sites=2)

    run_trio(main)


def test_a_flow_that_cannot_start_says_why() -> None:
    async def main() -> None:
        with pytest.raises(flux.PlanError, match="sites=1"):
            async with flux.open_cluster(flow(), sites=1):
                pass

    run_trio(main)
