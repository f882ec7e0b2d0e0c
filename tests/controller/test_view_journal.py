"""The journal of views: a controller that is started again has the last one, and every other that a node has missed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flux.controller import view_journal as module
from flux.controller.view_journal import ViewJournal
from flux.protocols.messages import View
from flux.storage.journal import Journal
from flux.types.errors import FluxError

FIRST = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"),), (("egress",),)),
)
JOINED = replace(FIRST, number=2, nodes=(*FIRST.nodes, "site-3"))
DIED = replace(JOINED, number=3, dead=frozenset({"site-2"}))


def written(path: Path) -> ViewJournal:
    views = ViewJournal(path)
    for node in JOINED.nodes:
        views.addresses[node] = f"unix:{node}"
    for view in (FIRST, JOINED, DIED):
        views.append(view)
    return views


def again(path: Path) -> ViewJournal:
    """As a controller finds it that is started in the place of the one that wrote it, which would hold the lock."""
    written(path)
    return ViewJournal(Path(shutil.copy(path, f"{path}.found")))


def test_a_new_journal_has_no_view(tmp_path: Path) -> None:
    views = ViewJournal(tmp_path / "journal")
    assert views.last is None
    assert views.views_after(0, "site-1") == []


def test_the_last_view_is_found_again(tmp_path: Path) -> None:
    assert again(tmp_path / "journal").last == DIED


def test_a_node_gets_what_it_has_missed_in_order(tmp_path: Path) -> None:
    for views in (written(tmp_path / "one"), again(tmp_path / "other")):
        assert views.views_after(0, "site-1") == [FIRST, JOINED, DIED]
        assert views.views_after(2, "site-1") == [DIED]
        assert views.views_after(3, "site-1") == []


def test_a_node_gets_no_view_from_before_it_came(tmp_path: Path) -> None:
    assert again(tmp_path / "journal").views_after(0, "site-3") == [JOINED, DIED]


def test_addresses_are_those_of_the_living(tmp_path: Path) -> None:
    for views in (written(tmp_path / "one"), again(tmp_path / "other")):
        assert set(views.addresses) == {"ingress", "site-1", "site-3", "egress"}


# What everybody has seen is left out.

LIVING = ("ingress", "site-1", "egress")


def numbered(number: int) -> View:
    return replace(DIED, number=number, nodes=("ingress", "site-1", "site-2", "egress"))


def grown(path: Path, upto: int = 100, slow: str = "", slow_seen: int = 0) -> ViewJournal:
    """A journal of so many views that all have seen, but for a `slow` node; it is shortened when it is a few long."""
    views = ViewJournal(path)
    for number in range(1, upto + 1):
        views.append(numbered(number))
        for node in LIVING:
            views.record_seen(node, min(number, slow_seen) if node == slow else number)
    return views


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes from which on journals are shortened here: about four views."""
    monkeypatch.setattr(module, "SHORTEN_BYTES", 1_000)
    return 1_000


def found(path: Path) -> ViewJournal:
    return ViewJournal(Path(shutil.copy(path, f"{path}.found")))


def test_a_journal_stays_short(tmp_path: Path, short: int) -> None:
    grown(tmp_path / "journal", upto=1_000)
    assert (tmp_path / "journal").stat().st_size < 2 * short
    assert found(tmp_path / "journal").last == numbered(1_000)


def test_it_keeps_what_a_living_node_has_not_seen(tmp_path: Path, short: int) -> None:
    for views in (
        grown(tmp_path / "journal", upto=50, slow="site-1", slow_seen=20),
        found(tmp_path / "journal"),
    ):
        assert [view.number for view in views.views_after(20, "site-1")] == list(range(21, 51))
        assert views.last == numbered(50)


def test_it_is_shortened_when_the_last_has_seen_them(tmp_path: Path, short: int) -> None:
    views = grown(tmp_path / "journal", upto=50, slow="site-1")
    assert (tmp_path / "journal").stat().st_size > 10 * short
    views.record_seen("site-1", 50)
    views.append(numbered(51))
    assert (tmp_path / "journal").stat().st_size < short
    assert found(tmp_path / "journal").last == numbered(51)


def test_it_does_not_wait_for_the_dead(tmp_path: Path, short: int) -> None:
    views = grown(tmp_path / "journal", upto=50, slow="site-1")
    without = replace(numbered(51), nodes=("ingress", "site-1", "egress"), dead=frozenset({"site-1"}))
    views.append(without)
    assert (tmp_path / "journal").stat().st_size < short


def test_the_next_controller_shortens_it_when_it_has_heard_from_all(tmp_path: Path, short: int) -> None:
    grown(tmp_path / "journal", upto=50, slow="site-1", slow_seen=20)
    views = found(tmp_path / "journal")
    for node in ("ingress", "egress"):
        views.record_seen(node, 50)
    views.append(numbered(51))
    assert [view.number for view in views.views_after(0, "site-1")][-31:] == list(range(21, 52))
    views.record_seen("site-1", 51)
    views.append(numbered(52))
    views.append(numbered(53))
    assert (tmp_path / "journal.found").stat().st_size < short
    assert [view.number for view in views.views_after(51, "site-1")] == [52, 53]
    views.append(numbered(54))
    assert found(tmp_path / "journal.found").last == numbered(54), "it goes on in the file that took the other's place"


CALLS = ("open", "pwrite", "fsync", "rename", "close", "unlink")


def dies_at(point: int) -> Callable[[], None]:
    """From now on this process dies in the n-th of its calls to the system that has to do with files."""
    left = count(-point)

    def dying(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            if next(left) == 0:
                if name == "pwrite":  # It may have got half way.
                    fd, data, offset = arguments
                    own(fd, bytes(data)[: len(data) // 2], offset)
                os._exit(1)
            return own(*arguments, **settings)

        return call

    def arm() -> None:
        for name in CALLS:
            setattr(os, name, dying(name, getattr(os, name)))

    return arm


def survived(path: Path, arm: Callable[[], None]) -> bool:
    """Append to a journal that is due to be shortened, in a process of its own; whether that came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            views = ViewJournal(path)
            for node in LIVING:
                views.record_seen(node, 49)
            arm()
            views.append(numbered(51))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_dies_while_it_shortens_leaves_a_whole_journal(tmp_path: Path, short: int) -> None:
    grown(tmp_path / "before", upto=50, slow="site-1")
    for point in count():
        path = Path(shutil.copy(tmp_path / "before", tmp_path / f"journal-{point}"))
        ended = survived(path, dies_at(point))
        views = ViewJournal(path)
        assert views.last in ([numbered(51)] if ended else [numbered(50), numbered(51)])
        assert views.last is not None
        needed = [view.number for view in views.views_after(49, "site-1")]
        assert needed == list(range(50, views.last.number + 1))
        views.append(numbered(views.last.number + 1))
        if ended:
            break
    assert point >= 8, "append, and open, two writes, two syncs, a rename and closes"
    assert path.stat().st_size < short


def test_a_journal_of_another_release_is_said_to_be(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    journal.append(msgpack.packb([1, {"$": "View", "number": 1}, {}]))
    journal.close()
    with pytest.raises(FluxError, match="has a record of another shape at byte 15: BadFrame: View has the fields"):
        ViewJournal(tmp_path / "journal")
