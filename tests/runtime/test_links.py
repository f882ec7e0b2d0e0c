"""Connections over TCP that break or are slow, under load: who lives is not taken for dead, and nothing is lost.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .ordeal import Ordeal, ordeal
from .relay import Relay, relayed

ENDS = ("site-1", "site-2")  # Of the connection with the relay in it.
BREAKS = 3
SLOW_PAUSE_S = 0.05
SLOW_BYTES = 1 << 20


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    with relayed(monkeypatch, *ENDS) as relay:
        yield relay


@pytest.fixture
def under(relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ordeal]:
    with ordeal(tmp_path, monkeypatch, relay=relay) as under:
        yield under


def finish(under: Ordeal) -> None:
    assert set(ENDS) <= set(under.watch.sites()), "who is hard to reach is not dead"
    under.finish()


@pytest.mark.parametrize("breaks", [Relay.cut, Relay.half_open], ids=["cut", "half-open"])
def test_a_connection_that_breaks_goes_on_where_it_broke(
    under: Ordeal, relay: Relay, breaks: Callable[[Relay], None]
) -> None:
    for _ in range(BREAKS):
        under.await_load(*ENDS)
        relay.break_by(breaks)
        under.watch.wait_whole()
    finish(under)


def test_a_slow_connection_delays_and_loses_nothing(under: Ordeal, relay: Relay) -> None:
    under.await_load(*ENDS)
    relay.pause_s = SLOW_PAUSE_S
    relay.await_traffic(SLOW_BYTES)
    under.await_load("site-3")
    under.run.kill("site-3")
    under.settle()  # What was lost is rebuilt meanwhile.
    relay.pause_s = 0.0
    finish(under)
