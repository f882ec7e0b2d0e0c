"""The worlds of some seeds, done for real: the same flow, kills and stops, by processes of the system, slower.

A run takes some seconds, because real processes take longer to start than simulated ones: every day one seed is
done, and fifty by `make test-all`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from dataclasses import replace

import pytest

import flux
from flux.plan.plan import CONTROLLER, EGRESS, INGRESS
from flux.simulation.process_world import ProcessWorld

pytestmark = pytest.mark.usefixtures("deadline")

SEEDS = range(7_000, 7_050)
EVERY_DAY = 1
SLOWER = 8  # Than the simulated run.
WHOLE_WITHIN_S = 5.0
FOR_GOOD_S = 100.0
ENDS = (CONTROLLER, INGRESS, EGRESS)


class Causer:
    """Causes in a real run what a simulated one had: ``kill site-1``, ``stop egress.2 for 0.150 s``."""

    def __init__(self, run: flux.Run) -> None:
        self._run = run
        self._timers: list[threading.Timer] = []
        self.caused = 0

    def cause(self, text: str) -> None:
        kind, role, seconds = re.match(r"(\w+) ([\w-]+)[.\d]*(?: for ([\d.]+) s)?", text).groups()  # type: ignore[union-attr]
        is_for_good = kind == "kill" or float(seconds) > 0.5
        is_site = role not in ENDS
        if is_site and (role := self._site(role, is_for_good)) is None:
            return  # None may die now.
        if kind == "kill":
            self._run.kill(role)
        else:
            self._stop(role, float(seconds))
        self.caused += 1
        if is_site and is_for_good:
            self._run.add_site()

    def _site(self, wanted: str, is_for_good: bool) -> str | None:
        """Return the site, or another if it is not there; None if one that is lost would be the last copy."""
        until = time.monotonic() + WHOLE_WITHIN_S
        while not (shown := self._run.status()).whole and is_for_good:
            if time.monotonic() > until or shown.ended:
                return None
            time.sleep(0.02)
        there = [each.name for each in shown.processes if each.state == "up" and each.name not in ENDS]
        return wanted if wanted in there else next((each for each in there if not is_for_good or len(there) > 2), None)

    def _stop(self, role: str, seconds: float) -> None:
        [pid] = [each.pid for each in self._run.status().processes if each.name == role]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            timer = threading.Timer(min(seconds, FOR_GOOD_S), _go_on, [pid])
            self._timers.append(timer)
            timer.start()

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.function(*timer.args)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "seed", [seed if seed < SEEDS[EVERY_DAY] else pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS]
)
def test_real_processes_give_what_simulated_ones_give(seed: int) -> None:
    world = ProcessWorld(seed, kinds=("kill", "stop"))
    simulated = world.run()
    assert not simulated.violations
    drawn = replace(world.flow, rate=world.flow.rate / SLOWER, sink="collect")
    flow = drawn.build(flux.sinks.Collect())
    with flow.start(drawn.sites, drawn.standby, pool_rows=drawn.pool_rows) as run:
        began, causer = time.monotonic(), Causer(run)
        try:
            for line in simulated.faults:
                at, text = re.match(r" *[*\d]+ at ([\d.]+) s: (.*)", line).groups()  # type: ignore[union-attr]
                time.sleep(max(0.0, began + SLOWER * float(at) - time.monotonic()))
                if run.status().ended:
                    break
                if not text.startswith("loss of power"):
                    causer.cause(text)
            report = run.wait(timeout=50)
        finally:
            causer.close()
    assert drawn.difference(report.table.to_pylist()) is None
    assert causer.caused or not simulated.faults
