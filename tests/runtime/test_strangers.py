"""Strangers at the sockets of a run under load: each is closed with one line in the log, and the output is exact."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from flux.site.shell import FENCED
from flux.wire.connections import Identity
from flux.wire.requests import listens

from .ordeal import Ordeal, ordeal
from .strangers import CONFUSED, DEAD, STRANGERS, Stranger, visit
from .waiting import wait_until


def visit_all(under: Ordeal, nodes: list[str], strangers: dict[str, Stranger], name: str) -> None:
    """All strangers at all sockets at once, under a name; the run goes on meanwhile."""
    own: Identity = under.run._config.identity(name)
    threads = [
        threading.Thread(target=visit, args=(str(under.run.directory / f"{node}.sock"), stranger, own), daemon=True)
        for node in nodes
        for stranger in strangers.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a stranger was not sent away"


def lines_about(caplog: pytest.LogCaptureFixture, node: str, stranger: Stranger) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "node", "") == node and "closed a connection" in record.getMessage()
        if stranger.log in record.getMessage()
    ]


def assert_one_line_each(caplog: pytest.LogCaptureFixture, nodes: list[str], strangers: dict[str, Stranger]) -> None:
    for node in nodes:
        for kind, stranger in strangers.items():
            wait_until(lambda: bool(lines_about(caplog, node, stranger)), f"{node} says nothing of {kind}")  # noqa: B023
            assert len(lines_about(caplog, node, stranger)) == 1, f"{node} says more than once of {kind}: {caplog.text}"


def assert_nobody_crashed(under: Ordeal) -> None:
    """But for those that were killed. On a busy machine some are taken for dead, which is not the strangers' doing."""
    crashed = [death for death in under.watch.deaths() if death.killed_at is None and death.exited != FENCED]
    assert crashed == []


def test_strangers_are_sent_away_and_harm_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with ordeal(tmp_path, monkeypatch) as under:
        nodes = ["program", "controller", "ingress", "egress", *under.watch.sites()]
        visit_all(under, nodes, STRANGERS, "site-1")
        assert_one_line_each(caplog, nodes, STRANGERS)
        closed = [record for record in caplog.records if "closed a connection" in record.getMessage()]
        assert len(closed) == len(nodes) * len(STRANGERS)
        assert all(record.levelno == logging.WARNING and "\n" not in record.getMessage() for record in closed)
        under.settle()
        under.finish()
        assert_nobody_crashed(under)


def test_who_was_declared_dead_is_sent_away_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with ordeal(tmp_path, monkeypatch) as under:
        under.run.kill("site-2")
        under.settle()
        nodes = ["program", "controller", "ingress", "egress", *under.watch.sites()]
        visit_all(under, nodes, {"dead": DEAD}, "site-2")
        assert_one_line_each(caplog, nodes, {"dead": DEAD})
        under.finish()
        assert_nobody_crashed(under)


def test_who_confuses_the_controller_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with ordeal(tmp_path, monkeypatch) as under:
        before = under.process("controller").pid
        for kind, stranger in CONFUSED.items():
            caplog.clear()
            visit_all(under, ["controller"], {kind: stranger}, "site-99")
            line = "closed the connection to site-99: "
            wait_until(lambda: line in caplog.text and stranger.log in caplog.text, f"nothing is said of {kind}")  # noqa: B023
        assert under.process("controller").pid == before
        under.finish()
        assert_nobody_crashed(under)


def test_who_only_looks_whether_somebody_listens_is_not_worth_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with ordeal(tmp_path, monkeypatch) as under:
        for node in ("program", "controller", "site-1"):
            assert listens(under.run._config.address(node))
        under.finish()
    assert "closed a connection" not in caplog.text
