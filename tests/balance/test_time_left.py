"""How long there is room for the rows that are kept for a site, and for which sites producers wait."""

from __future__ import annotations

import pytest

from flux.balance.time_left import GROWTH_MIN_S, GROWTH_WINDOW_S, KeptRows, KeptSample, time_left_s
from flux.protocols.balance_messages import Work


def work(node: str, *kept: tuple[str, int, int], view: int = 1) -> Work:
    return Work(node=node, number=1, view=view, elapsed_s=0.1, busy_s=0.0, kept=kept)


def observed(
    *kept: tuple[float, int], rows_max: int = 1_000, node: str = "ingress", to: KeptRows | None = None
) -> KeptRows:
    """What is known when so many rows were kept for site-2 at these times."""
    known = KeptRows() if to is None else to
    for at_s, rows in kept:
        known = known.observe(work(node, ("site-2", rows, rows_max)), at_s)
    return known


def left_s(known: KeptRows) -> float | None:
    found = known.of("site-2")
    assert found is not None
    return found.time_left_s


def test_the_time_left_follows_from_how_fast_it_grows() -> None:
    known = observed((0.0, 100), (0.5, 200), (1.0, 300))
    assert left_s(known) == pytest.approx(3.5)


def test_only_the_last_seconds_count() -> None:
    idle = [(t / 10, 100) for t in range(50)]
    rising = [(5.0 + t / 10, 100 + 10 * t) for t in range(31)]
    assert left_s(observed(*idle, *rising)) == pytest.approx(6.0, rel=0.1)
    assert len(observed(*idle, *rising).samples["ingress", "site-2"]) <= 10 * GROWTH_WINDOW_S + 1


@pytest.mark.parametrize("kept", [[(0.0, 100)], [(0.0, 100), (1.0, 100)], [(0.0, 200), (1.0, 100)]])
def test_no_time_is_known_if_it_does_not_grow(kept: list[tuple[float, int]]) -> None:
    assert left_s(observed(*kept)) is None


def test_reports_of_an_instant_show_no_growth() -> None:
    assert left_s(observed((0.0, 100), (GROWTH_MIN_S / 2, 900))) is None


def test_what_was_kept_under_another_bound_does_not_count() -> None:
    """A site becomes slow, and more may be kept for it: until then its backlog could not grow."""
    pinned = observed((0.0, 64), (1.0, 64), rows_max=64)
    assert left_s(pinned) == 0.0
    assert left_s(observed((1.1, 100), (1.6, 600), rows_max=4_096, to=pinned)) == pytest.approx(3.496)


def test_a_producer_that_waits_does_so_until_there_is_room_for_more_than_an_ack() -> None:
    known = observed((0.0, 900), (1.0, 1_000))
    assert known.of("site-2").is_waited_for  # type: ignore[union-attr]
    assert left_s(observed((1.5, 950), to=known)) == 0.0
    assert left_s(observed((1.5, 899), to=known)) is None


def test_the_producer_that_waits_first_is_shown() -> None:
    known = observed((0.0, 0), (1.0, 100))
    known = observed((0.0, 0), (1.0, 500), node="site-1", to=known)
    found = known.of("site-2")
    assert found is not None and (found.rows, found.time_left_s) == (500, pytest.approx(1.0))
    assert left_s(known.without(["site-1"])) == pytest.approx(9.0)
    assert known.of("site-3") is None


def test_a_report_without_a_site_takes_back_what_was_known_of_it() -> None:
    known = observed((0.0, 1_000)).observe(work("ingress", ("site-1", 0, 64)), 0.1)
    assert known.of("site-2") is None and known.waiting == frozenset()


def test_reports_of_earlier_views_can_be_left_out() -> None:
    known = KeptRows().observe(work("ingress", ("site-2", 64, 64), view=3), 0.0)
    assert known.of("site-2", view=4) is None
    assert known.of("site-2", view=3) is not None


def test_a_bound_of_no_rows_is_reached() -> None:
    assert time_left_s([KeptSample(at_s=0.0, rows=0, rows_max=0)]) == 0.0
