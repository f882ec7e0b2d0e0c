"""Random faults on an endless stream, for minutes or days: is the output exact, and how long is there none?

A fault is the SIGKILL of any process, a SIGSTOP past the detection time, or two at once, when no partition can lose its
last copy; many of them strike while copies are being rebuilt. Sites that are gone are replaced, so that it can go on
for ever. The output is compared with a plain run's as it comes. A run that stalls, loses, repeats or reorders ends with
exit status 1; `--record` keeps what its processes did.

A fault counts as survived only if there was something to lose: every site that it struck held a copy at that moment,
and at least 1,000 rows were on their way. The others are told apart, as light.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flux
from experiments import results
from experiments.memory import resident_mb
from experiments.soak.faults import Faults, Strike, has_something_to_lose
from experiments.soak.stream import Checked, Mismatch, Packets, flow
from experiments.soak.watching import Stalled, Watch

PROGRESS_EVERY_S = 10.0
WHOLE_FIRST = 0.35  # Of the faults; the others strike as soon as output comes.
POOL_ROWS = 32_768
PATIENCE_S = 120.0


@dataclass
class Tally:
    """What has come of a soak so far: faults that were survived, by kind, and the last one that was begun."""

    last: str = ""
    faults: Counter[str] = field(default_factory=Counter)  # Those that count.
    light: Counter[str] = field(default_factory=Counter)  # Those with too little to lose.
    unacknowledged_rows: list[int] = field(default_factory=list)  # At each strike.
    during_recovery: int = 0  # Those that struck when copies were missing.
    struck: int = 0  # Processes killed or stopped: some faults strike two.
    gaps_s: list[float] = field(default_factory=list)
    memory_max_mb: float = 0.0


def main(arguments: list[str] | None = None) -> None:
    """Soak, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--sites", type=int, default=4, help="sites that hold partitions; one more is spare")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rate", type=float, default=60_000, help="rows per second")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; default: drawn, and printed")
    parser.add_argument("--record", metavar="DIR", help="record every process's messages and effects there; it grows")
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    minutes = 0.5 if options.quick else options.minutes
    tell = (lambda line: None) if options.json else (lambda line: print(line, flush=True))
    tell(f"soak of {minutes:g} minutes, seed {seed}")
    figures = soak(minutes, options.sites, options.partitions, options.rate, random.Random(seed), options.record, tell)
    figures = {"seed": seed, **figures}
    path = results.write("soak", "soak", [figures], seed=seed)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if figures["wrong"] is not None:
        raise SystemExit(1)


def soak(
    minutes: float,
    sites: int,
    partitions: int,
    rate: float,
    draw: random.Random,
    record: str | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Fault after fault for so long; return the figures, with what went wrong, if anything did."""
    tally = Tally()
    wrong: str | None = None
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        packets, sink = Packets(Path(directory) / "end"), Checked()
        dataflow = flow(packets, sink, partitions, rate=rate)
        began = time.monotonic()
        with dataflow.start(sites=sites, standby=1, pool_rows=POOL_ROWS, record=record) as run:
            sink.start()
            soaking = Soak(run, sink, draw, sites + 1, tally, tell)
            try:
                soaking.go_on_until(began + 60 * minutes)
                packets.end(soaking.watch.numbered() + 8 * POOL_ROWS)
                run.wait(timeout=PATIENCE_S)
                last = packets.last()
                assert last is not None
                sink.finish(last)
            except (Mismatch, Stalled, TimeoutError, flux.FluxError) as error:
                wrong = f"{type(error).__name__} in the fault {tally.last!r}: {error}"
                tell(wrong)
            status = run.status()
    return {
        "minutes": (time.monotonic() - began) / 60,
        "faults": dict(tally.faults),
        "faults_survived": sum(tally.faults.values()),
        "faults_light": sum(tally.light.values()),
        "unacknowledged_rows": _spread(tally.unacknowledged_rows),
        "faults_during_recovery": tally.during_recovery,
        "processes_struck": tally.struck,
        "gap_s": _spread(tally.gaps_s),
        "outputs": status.outputs,
        "outputs_checked": sink.checked,
        "memory_max_mb": round(tally.memory_max_mb, 1),
        "wrong": wrong,
    }


class Soak:
    """Faults to the run `run`, one after the other."""

    def __init__(
        self, run: flux.Run, sink: Checked, draw: random.Random, sites: int, tally: Tally, tell: Callable[[str], None]
    ) -> None:
        self.watch = Watch(run, PATIENCE_S)
        self._run = run
        self._sink = sink
        self._draw = draw
        self._sites = sites
        self._tally = tally
        self._tell = tell
        self._told_at = time.monotonic()
        self._faults = Faults(run, self.watch, draw)

    def go_on_until(self, end: float) -> None:
        """Fault behind fault: some when the pairs are whole again, the others while copies are rebuilt."""
        self.watch.wait_whole()
        while time.monotonic() < end:
            time.sleep(self._draw.uniform(0.0, 0.3))
            self._strike()
            self._replace()
            if self._draw.random() < WHOLE_FIRST:
                self.watch.wait_whole()
            self._progress()
        self.watch.wait_whole()

    def _strike(self) -> None:
        fault, was_whole = self._faults.next(), self.watch.is_whole()
        self._tally.last = fault.__name__
        began, before = time.monotonic(), len(self._faults.strikes)
        kind = fault()
        if kind is None:  # Too many are missing.
            self.watch.wait_whole()
            return
        self._tally.last = kind
        self.watch.wait_output()
        self._sink.raise_if_wrong()
        self._tally.struck = len(self._faults.strikes)
        self._tally.gaps_s.append(self._longest_gap_s(began))
        if self._counts(self._faults.strikes[before:]):
            self._tally.faults[kind] += 1
            self._tally.during_recovery += not was_whole
        else:
            self._tally.light[kind] += 1

    def _counts(self, strikes: list[Strike]) -> bool:
        """Whether there was something to lose."""
        for strike in strikes[-1:]:
            self.watch.wait_told(strike.at)
        rows = [self.watch.unacknowledged(strike.at) for strike in strikes]
        self._tally.unacknowledged_rows += rows
        return has_something_to_lose(strikes, rows)

    def _replace(self) -> None:
        """Sites that are gone have successors."""
        while len(self.watch.sites()) < self._sites:
            self._run.add_site()

    # What is seen.

    def _longest_gap_s(self, began: float) -> float:
        """The longest time without a row at the sink since `began`."""
        assert self._run._driver is not None
        with self._run._driver.changed:
            came = [when for when, _, rows in self._run._driver.run_state.history.outputs if rows and when > began]
        return max(later - earlier for earlier, later in itertools.pairwise([began, *came, time.monotonic()]))

    def _progress(self) -> None:
        self._tally.memory_max_mb = max(self._tally.memory_max_mb, self._memory_mb())
        if time.monotonic() < self._told_at + PROGRESS_EVERY_S:
            return
        self._told_at = time.monotonic()
        status = self._run.status()
        faults, light = (sum(counter.values()) for counter in (self._tally.faults, self._tally.light))
        self._tell(
            f"{status.t_s:6.0f} s: {faults:,} faults survived and {light:,} light ones, "
            f"{self._sink.checked:,} rows of output exact, {status.output_rate:,.0f} rows/s, "
            f"longest gap {max(self._tally.gaps_s):.2f} s, memory {self._memory_mb():.0f} MB"
        )

    def _memory_mb(self) -> float:
        """Of the program and all processes of the run; pages that they share count in each."""
        pids = [os.getpid(), *(p.pid for p in self._run.status().processes if p.state == "up")]
        return sum(resident_mb(pid) for pid in pids if pid is not None)


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    in_order = sorted(values)
    return {
        "p10": round(in_order[int(0.1 * (len(in_order) - 1))], 3),
        "median": round(statistics.median(in_order), 3),
        "p90": round(in_order[int(0.9 * (len(in_order) - 1))], 3),
        "max": round(in_order[-1], 3),
    }
