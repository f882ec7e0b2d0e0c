"""Ordeal: a run under load whose processes are killed at crash points, one after the other.

A point is armed, something is done that makes processes come to it, and whoever comes first dies. The death counts
only if a site that died held a copy then, and at least 1,000 rows were on their way at that moment; else the point is
not met. Afterwards the pairs must be whole again, and sites that are gone are replaced: this can go on for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import flux
from experiments.soak.stream import Checked, Packets, flow
from experiments.soak.watching import UNACKNOWLEDGED_MIN, Watch
from flux.driver.processes import Process
from flux.plan.plan import INGRESS
from flux.site.crash_points import SITE, VARIABLE

from .relay import Relay

SITES, SPARE = 3, 2
POOL_ROWS = 8_192
PATIENCE_S = 60.0

Point = tuple[str, str]  # The kind of process, and where it is to die.


class Ordeal:
    """The run `run`, with the directory in which its crash points are armed."""

    def __init__(self, run: flux.Run, packets: Packets, sink: Checked, armed: Path) -> None:
        self.run = run
        self.watch = Watch(run, PATIENCE_S)
        self.met: set[Point] = set()
        self.deaths_that_counted = 0
        self._packets = packets
        self._sink = sink
        self._armed = armed

    # What is done to it.

    def arm(self, who: str, point: str) -> None:
        """Let the next process `who`, a name or "site", that comes to `point` die there."""
        (self._armed / f"{who}:{point}").touch()

    def is_armed(self, kind: str) -> bool:
        """Whether a point of a kind of process waits for somebody to come."""
        return any(path.name.startswith(kind) and not path.suffix for path in self._armed.iterdir())

    def is_taken(self, point: str) -> bool:
        """Whether somebody has come to a point that was armed."""
        return any(path.suffix and path.stem.endswith(f":{point}") for path in self._armed.iterdir())

    def disarm(self, kind: str) -> None:
        """No process of a kind is to die any more."""
        for path in self._armed.iterdir():
            if path.name.startswith(kind) and not path.suffix:
                path.unlink(missing_ok=True)

    def begin_drain(self) -> Process:
        """Have a site emptied; return it when those that get its copies hold one each."""
        before = self.watch.holders()
        leaving = self.run._begin_drain(before[0])
        self.watch.until(lambda: leaving.gone or self.watch.holders() != before, f"{leaving.name} to give away a copy")
        return leaving

    def await_load(self, *sites: str) -> None:
        """Return when there is something to lose by a fault: rows are on their way, and these sites hold copies."""
        self.watch.until(lambda: self._unacknowledged(time.monotonic()), f"{UNACKNOWLEDGED_MIN:,} rows on their way")
        assert all(map(self.watch.held, sites)), f"of {sites}, {self.watch.holders()} hold copies"

    def settle(self) -> None:
        """Wait until nobody is missing, and replace the sites that are gone."""
        assert self.run._driver is not None
        draining = self.run._driver.run_state.draining
        self.watch.until(lambda: not draining, "sites to be drained")
        self.bury()
        self.watch.wait_whole()
        self.replace()
        self.watch.wait_whole()
        self.look()

    def bury(self) -> None:
        """Wait until those are gone who came to their points: they may live for a moment, and all would seem well."""
        for path in self._armed.iterdir():
            if path.suffix:
                self._victim(path)

    def replace(self) -> None:
        """Start sites in the place of those that are gone."""
        while len(self.watch.sites()) < SITES + SPARE:
            self.run.add_site()

    def process(self, name: str) -> Process:
        """The live process `name`."""
        assert self.run._driver is not None
        with self.run._driver.changed:
            return self.run._driver.processes.live(name)

    # What came of it.

    def look(self) -> None:
        """Note which of the armed points were met by a death that counts; the run may be over."""
        self._sink.raise_if_wrong()
        for path in self._armed.iterdir():
            if path.suffix:
                who, _, point = path.stem.partition(":")
                victim = self._victim(path)
                if victim is not None and self.counts(victim, point):
                    self.met.add((SITE if who.startswith(SITE) else who, point))
                    print(f"{victim.node} was killed at {point}", flush=True)
                path.unlink()

    def _victim(self, taken: Path) -> Process | None:
        """The process that came to a crash point, when it is dead; None if it had been emptied, and was to end."""
        pid = int(taken.suffix[1:])
        self.watch.until(lambda: self.watch.ended(pid) is not None, f"process {pid} to die at a crash point")
        victim = self.watch.ended(pid)
        return victim if victim is not None and victim.state == "dead" else None

    def counts(self, victim: Process, point: str = "") -> bool:
        """Whether there was something to lose. Who says that a donor died has only been promised a copy."""
        assert victim.gone_at is not None
        held = not victim.is_site or self.watch.held(victim.name) or point.endswith("copy-failed")
        counts = held and self._unacknowledged(victim.gone_at)
        self.deaths_that_counted += counts
        return counts

    def _unacknowledged(self, at: float) -> bool:
        return self.watch.unacknowledged(at) >= UNACKNOWLEDGED_MIN

    def finish(self) -> flux.Report:
        """Let the stream end; every row of the output must be that of the plain run."""
        self._packets.end(self.watch.numbered() + 8 * POOL_ROWS)
        if self.is_armed(INGRESS):
            self.watch.until(lambda: not self.is_armed(INGRESS), "the ingress to come to its end")
            self.look()
        report = self.run.wait(timeout=PATIENCE_S)
        last = self._packets.last()
        assert last is not None
        self._sink.finish(last)
        return report


@contextmanager
def ordeal(
    directory: Path, monkeypatch: pytest.MonkeyPatch, relay: Relay | None = None, **settings: Any
) -> Iterator[Ordeal]:
    """A run that is whole and under load. Processes that crash again and again are started again all the same."""
    armed = directory / "armed"
    armed.mkdir()
    monkeypatch.setenv(VARIABLE, f"@{armed}")
    packets, sink = Packets(directory / "end"), Checked()
    dataflow = flow(packets, sink, partitions=6, batch_rows=1_024)
    with dataflow.start(
        **{"sites": SITES, "standby": SPARE, "pool_rows": POOL_ROWS, "crash_limit": None} | settings
    ) as run:
        sink.start()
        if relay is not None:
            relay.start()
        under = Ordeal(run, packets, sink, armed)
        under.watch.wait_whole()
        under.look()
        yield under
