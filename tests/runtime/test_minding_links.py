"""A connection that is dead and does not say so is given up; one that nobody has had the time to read is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from flux.site.shell import Shell


class SilentLink:
    """A link on which nothing has come for a long time."""

    peer = "site-2"
    silent_s = 60.0

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.dropped = False

    def send(self, header: dict[str, Any]) -> None:
        self.sent.append(header)

    def drop(self) -> None:
        self.dropped = True


def minded(late_s: float) -> SilentLink:
    """The link when a process has looked after it once, so many seconds later than it wanted to."""
    link, clock = SilentLink(), trio.testing.MockClock()
    shell = SimpleNamespace(links={link.peer: link}, log=lambda text: None)

    async def mind() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Shell._mind_links, shell)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(0.5 + late_s)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(mind, clock=clock)
    return link


def test_a_silent_connection_is_given_up() -> None:
    link = minded(late_s=0.0)
    assert link.sent == [{"kind": "ping"}]
    assert link.dropped


def test_a_process_that_was_kept_from_its_links_reads_them_first() -> None:
    link = minded(late_s=10.0)
    assert link.sent == [{"kind": "ping"}], "others must hear from it"
    assert not link.dropped
