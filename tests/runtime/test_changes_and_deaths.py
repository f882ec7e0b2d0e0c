"""Every kind of process is killed at every crash point of a change: it is made or refused, and never half.

All points are met in one long run. Each of them is armed, and a change is asked for; the run is made whole again before
the next. In the end the output must be that of a plain run that changes its code where the committed changes say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.plan.plan import CONTROLLER, EGRESS, INGRESS
from flux.run import Run
from flux.site import crash_points
from flux.site.crash_points import SITE

from .test_matrix import OF_CHANGES, Point
from .test_reconfigure import Numbers, Sums, collected, expected, flow_of, module, numbers  # noqa: F401 - fixtures.
from .waiting import wait_until

SITES = 4
# What no process comes to, and why.
NEVER: dict[Point, str] = {
    **{
        (INGRESS, f"{when}-send-to-controller-{what}"): "it has no copies, and names a later position if it must"
        for when in ("before", "after")
        for what in ("cannot", "past", "passed")
    },
    **{(EGRESS, f"{when}-send-to-controller-cannot"): "it has nothing to import" for when in ("before", "after")},
    (CONTROLLER, "step-checkpoint-retained"): "nobody takes checkpoints yet",
    (CONTROLLER, "step-attempt-overdue"): "it needs an attempt of a second; worlds have them",
}
OF_A_REFUSAL = ("cannot", "abort-change")
POINTS = sorted(OF_CHANGES - NEVER.keys())
EVERY_DAY = [
    (SITE, "after-send-to-controller-bound"),
    (SITE, "before-rehearse"),
    (EGRESS, "after-send-to-controller-bound"),
    (INGRESS, "after-send-to-controller-prepared"),
    (CONTROLLER, "step-bound"),
    (CONTROLLER, "after-ask"),
    (CONTROLLER, "before-report-change"),
]


class Changing:
    """A run under change, and what was committed in it."""

    def __init__(self, run: Run, armed: Path) -> None:
        self.run = run
        self.armed = armed
        self.positions = [0]
        self.added = [1]
        self.refused: list[str] = []
        self._by = itertools.count(10)

    def meet(self, point: Point) -> None:
        """Ask for changes until a process has come to the point, and died of it."""
        kind, name = point
        path = self.armed / f"{kind}:{name}"
        path.touch()
        for _ in range(10):
            self._ask(name)
            if not path.exists():
                break
        else:
            raise AssertionError(f"no process came to {point}; refused: {self.refused[-3:]}")
        [taken] = self.armed.glob(f"{path.name}.*")
        self._make_whole(int(taken.suffix[1:]))

    def _ask(self, name: str) -> None:
        by = next(self._by)
        what = flux.change(by=by)
        if name.endswith("cannot"):
            what = flux.change(by=by, migrate="rules_of_tests:fails")
        scheduler = "epoch" if by % 2 else "sn"  # The ingress is bound by the one.
        try:
            # It is aborted if nobody has an answer yet.
            change = self.run.reconfigure({"Sums": what}, scheduler, timeout=0 if name.endswith("abort-change") else 60)
        except flux.ChangeError as error:
            self.refused.append(error.reason)
            return
        self.positions.append(change.position)
        self.added.append(by)

    def _make_whole(self, dead: int) -> None:
        """Wait until the death of this process is known and made good: two deaths at once may be too many."""

        def up() -> dict[int | None, str]:
            status = self.run.status()
            assert status.error is None, status.error
            return {p.pid: p.name for p in status.processes if p.state == "up"}

        wait_until(lambda: dead not in up(), "a death is not noticed")
        if sum(name.startswith("site-") for name in up().values()) < SITES:
            self.run.add_site()
        wait_until(lambda: up() and self.run.status().whole, "the run is not whole")

    def check(self, report: flux.Report) -> None:
        cuts = zip(self.positions, self.added, strict=True)
        assert collected(report) == expected(report.inputs, {cut: adding(by) for cut, by in cuts})


def adding(by: int) -> Any:
    return lambda n: n + by


@contextmanager
def changing(tmp_path: Path, patch: pytest.MonkeyPatch, rows: Numbers, fails: Any) -> Iterator[Changing]:
    fails("def fails(state):\n    raise ValueError('not this one')\n")
    armed = tmp_path / "armed"
    armed.mkdir()
    patch.setenv(crash_points.VARIABLE, f"@{armed}")
    with flow_of(rows, Sums).start(sites=SITES, crash_limit=None) as run:
        run.wait_for_output(2_000)
        under = Changing(run, armed)
        yield under
        under.check(rows.end(run))


@pytest.mark.parametrize(
    "points", [EVERY_DAY, pytest.param(POINTS, marks=pytest.mark.long)], ids=["some points", "every point"]
)
def test_a_death_at_a_point_of_a_change_leaves_it_made_or_refused(
    points: list[Point],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    numbers: Numbers,  # noqa: F811
    module: Any,  # noqa: F811
) -> None:
    with changing(tmp_path, monkeypatch, numbers, module) as under:
        for point in points:
            under.meet(point)


def test_the_points_named_here_exist() -> None:
    assert NEVER.keys() | set(EVERY_DAY) <= OF_CHANGES
