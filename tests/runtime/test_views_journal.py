"""The journal of views: a controller that is started again has the last one, and every other that a node has missed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from flux.controller.views import Views
from flux.protocols.messages import View

FIRST = View(
    number=1,
    nodes=("ingress", "site-1", "site-2", "egress"),
    dead=frozenset(),
    copies=((("ingress",),), (("site-1", "site-2"),), (("egress",),)),
)
JOINED = replace(FIRST, number=2, nodes=(*FIRST.nodes, "site-3"))
DIED = replace(JOINED, number=3, dead=frozenset({"site-2"}))


def written(path: Path) -> Views:
    views = Views(path)
    for node in JOINED.nodes:
        views.addresses[node] = f"unix:{node}"
    for view in (FIRST, JOINED, DIED):
        views.append(view)
    return views


def again(path: Path) -> Views:
    """As a controller finds it that is started in the place of the one that wrote it, which would hold the lock."""
    written(path)
    return Views(Path(shutil.copy(path, f"{path}.found")))


def test_a_new_journal_has_no_view(tmp_path: Path) -> None:
    views = Views(tmp_path / "journal")
    assert views.last is None
    assert views.behind(0, "site-1") == []


def test_the_last_view_is_found_again(tmp_path: Path) -> None:
    assert again(tmp_path / "journal").last == DIED


def test_a_node_gets_what_it_has_missed_in_order(tmp_path: Path) -> None:
    for views in (written(tmp_path / "one"), again(tmp_path / "other")):
        assert views.behind(0, "site-1") == [FIRST, JOINED, DIED]
        assert views.behind(2, "site-1") == [DIED]
        assert views.behind(3, "site-1") == []


def test_a_node_gets_no_view_from_before_it_came(tmp_path: Path) -> None:
    assert again(tmp_path / "journal").behind(0, "site-3") == [JOINED, DIED]


def test_addresses_are_those_of_the_living(tmp_path: Path) -> None:
    for views in (written(tmp_path / "one"), again(tmp_path / "other")):
        assert set(views.addresses) == {"ingress", "site-1", "site-3", "egress"}
