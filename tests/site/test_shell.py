"""The shell's loop, without processes around it."""

from __future__ import annotations

import trio

from flux.protocols.messages import Connected, Consume

from .test_worker import worker


class _Role:
    """Counts what it is to perform."""

    def __init__(self) -> None:
        self.performed: list[Consume] = []

    def start(self, nursery: trio.Nursery) -> None:
        return None

    def may_begin(self, job: Consume) -> bool:
        return True

    def perform(self, job: Consume) -> None:
        self.performed.append(job)

    def tidy(self) -> bool:
        return False


def job() -> Consume:
    return Consume(stage=1, cohort=0, partitions=frozenset({0}), after=0, upto=1, frames=())


def performed(*, stops: bool) -> int:
    """Return how many jobs a site performs that has its turn when it is woken; it may be stopped just then."""
    shell = worker("site-1").shell
    shell.role = role = _Role()  # type: ignore[assignment]

    async def wake_it() -> None:
        async with trio.open_nursery() as nursery:
            shell.nursery = nursery
            nursery.start_soon(shell._guarded_loop)
            await trio.testing.wait_all_tasks_blocked()
            shell.jobs.append(job())
            shell.enqueue(Connected())
            if stops:
                shell._working.cancel()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(wake_it)
    return len(role.performed)


def test_a_site_that_is_stopped_as_it_is_woken_begins_no_work() -> None:
    """Its operators are closed by then."""
    assert performed(stops=False) == 1
    assert performed(stops=True) == 0
