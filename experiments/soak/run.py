"""Random faults on an endless stream, for minutes or days: is the output exact, and how long is there none?

A soak is one run after the other. In each, fault follows fault, at random, so long as no partition can lose its last
copy; many strike while copies are being rebuilt. Sites that are gone are replaced. The output is compared with a plain
run's. A run ends after a minute or two, or by a fault of which an error may be the end. Then the error must be that of
the fault, and the output up to there must be right. A run that stalls, loses, repeats, reorders or ends with another
error ends the soak, with exit status 1; `--record` keeps what its processes did.

A fault counts as survived only if there was something to lose: every site that it struck held a copy at that moment,
and at least 1,000 rows were in flight. The others are counted apart, as light.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flux
from experiments import results
from experiments.memory import resident_mb
from experiments.soak.faults import Faults, ending
from experiments.soak.full_disks import RUN_DISK_BYTES, SINK_DISK_BYTES, SmallDisk, enter_namespace
from experiments.soak.placements import Restless
from experiments.soak.state_readers import always_fork
from experiments.soak.stream import Checked, Lines, Mismatch, Packets, flow
from experiments.soak.striker import Strike, Striker, has_something_to_lose
from experiments.soak.watching import Stalled, Watch
from flux.plan.policy import BALANCE_NAMES

PROGRESS_EVERY_S = 10.0
WHOLE_FIRST = 0.35  # Of the faults; the others strike as soon as output comes.
POOL_ROWS = 32_768
PATIENCE_S = 120.0
RUN_MAX_S = 120.0
FILE_RUN_MAX_S = 45.0  # One that writes to a file, which grows.
RESTLESS = "restless"  # The name of the policy that moves copies at random.


@dataclass
class Tally:
    """What a soak has done up to now: faults that were survived, by kind, and those to the present run."""

    done: list[str] = field(default_factory=list)  # The names of the faults to this run.
    faults: Counter[str] = field(default_factory=Counter)  # Those that count.
    light: Counter[str] = field(default_factory=Counter)  # Those with too little to lose.
    ended: Counter[str] = field(default_factory=Counter)  # Those that ended a run with the error that they may.
    unacknowledged_rows: list[int] = field(default_factory=list)  # At each strike.
    during_recovery: int = 0  # Those that struck when copies were missing.
    struck: int = 0  # Processes killed, stopped or limited: some faults strike several.
    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # By kind.
    memory_max_mb: float = 0.0
    runs: int = 0
    outputs: int = 0
    checked: int = 0
    balance_rounds: int = 0
    balance_moves: int = 0  # Copies that balance moved; those that replace lost ones are not among them.
    changes: int = 0  # Of the code, that were committed.
    refused: Counter[str] = field(default_factory=Counter)  # Why others were not.

    @property
    def last(self) -> str:
        """The name of the last fault that was begun."""
        return self.done[-1] if self.done else "start"


@dataclass(frozen=True)
class Settings:
    """What all runs of a soak have in common."""

    sites: int = 4
    partitions: int = 8
    rate: float = 60_000
    record: str | None = None
    may_mount: bool = False
    only: str = ""
    balance: str = "auto"


def main(arguments: list[str] | None = None) -> None:
    """Soak, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N")
    parser.add_argument("--sites", type=int, default=4, help="sites that hold partitions; one more is spare")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rate", type=float, default=60_000, help="rows per second")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; default: drawn, and printed")
    parser.add_argument("--only", default="", metavar="TEXTS", help="faults whose names contain one, such as cut,disk")
    parser.add_argument("--balance", choices=(*BALANCE_NAMES, RESTLESS), default="auto", help="default: auto")
    parser.add_argument("--record", metavar="DIR", help="record every process's messages and effects there; it grows")
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    minutes = 0.5 if options.quick else options.minutes
    tell = _silent if options.json else _print
    why_not = enter_namespace(sys.argv[1:]) if arguments is None else "the soak was called by another program"
    if why_not is not None:
        tell(f"full disks are left out, because no small one can be mounted: {why_not}")
    tell(f"soak of {minutes:g} minutes, seed {seed}")
    settings = Settings(
        sites=options.sites,
        partitions=options.partitions,
        rate=options.rate,
        record=options.record,
        may_mount=why_not is None,
        only=options.only,
        balance=options.balance,
    )
    figures = {"seed": seed, **soak(minutes, settings, random.Random(seed), tell)}
    path = results.write("soak", "soak", [figures], seed=seed)
    print(json.dumps(figures) if options.json else f"{figures}\nwritten to {path}")
    if figures["wrong"] is not None:
        raise SystemExit(1)


def soak(minutes: float, settings: Settings, draw: random.Random, tell: Callable[[str], None]) -> dict[str, Any]:
    """Fault after fault for so long; return the figures, with what went wrong, if anything did."""
    tally = Tally()
    wrong: str | None = None
    always_fork()
    began = time.monotonic()
    end = began + 60 * minutes
    while wrong is None and (not tally.runs or time.monotonic() < end):
        to_file = tally.runs % 2 == 1
        until = min(end, time.monotonic() + (FILE_RUN_MAX_S if to_file else RUN_MAX_S))
        wrong = soak_a_run(until, to_file, settings, draw, tally, tell)
        tally.runs += 1
    return {
        "minutes": (time.monotonic() - began) / 60,
        "runs": tally.runs,
        "faults": dict(tally.faults),
        "faults_survived": sum(tally.faults.values()),
        "faults_light": dict(tally.light),
        "runs_ended": dict(tally.ended),
        "unacknowledged_rows": _spread(tally.unacknowledged_rows),
        "faults_during_recovery": tally.during_recovery,
        "processes_struck": tally.struck,
        "balance": settings.balance,
        "balance_rounds": tally.balance_rounds,
        "balance_moves": tally.balance_moves,
        "changes": tally.changes,
        "changes_refused": dict(tally.refused),
        "gap_s": _spread([gap for gaps in tally.gaps_s.values() for gap in gaps]),
        "gap_max_s": {kind: round(max(gaps), 2) for kind, gaps in tally.gaps_s.items()},
        "outputs": tally.outputs,
        "outputs_checked": tally.checked,
        "memory_max_mb": round(tally.memory_max_mb, 1),
        "wrong": wrong,
    }


def soak_a_run(
    until: float, to_file: bool, settings: Settings, draw: random.Random, tally: Tally, tell: Callable[[str], None]
) -> str | None:
    """Fault after fault to one run, which writes to a file or to this program; return what went wrong."""
    with _directory(settings.may_mount) as (directory, of_run, of_sink):
        packets = Packets(directory / "end")
        output = Lines((directory if of_sink is None else of_sink.path) / "out.jsonl") if to_file else Checked()
        sink = output.sink if isinstance(output, Lines) else output
        dataflow = flow(packets, sink, settings.partitions, rate=settings.rate)
        tally.done.clear()
        last: int | None = None
        try:
            with (
                dataflow.start(
                    sites=settings.sites,
                    standby=1,
                    pool_rows=POOL_ROWS,
                    record=settings.record,
                    crash_limit=None,
                    balance=Restless() if settings.balance == RESTLESS else settings.balance,
                ) as run,
                _counted_rounds(run, tally),
            ):
                output.start()
                striker = Striker(run, Watch(run, PATIENCE_S), draw)
                faults = Faults(striker, of_run, of_sink if to_file else None, to_file, settings.only)
                soaking = Soak(striker, faults, output, settings.sites + 1, tally, tell)
                soaking.go_on_until(until)
                packets.end(striker.watch.numbered() + 8 * POOL_ROWS)
                striker.watch.wait_end()  # On a busy machine so many rows take minutes.
                run.wait(timeout=PATIENCE_S)
                last = packets.last()
                tally.outputs += run.status().outputs
        except (Mismatch, Stalled, TimeoutError, flux.FluxError) as error:
            ended_by = ending(str(error), tally.done)
            if not isinstance(error, flux.FluxError) or ended_by is None:
                return _said(f"{type(error).__name__} in the fault {tally.last!r}: {error}", tell)
            tally.ended[ended_by] += 1
            tell(f"run {tally.runs + 1} was ended by {ended_by}, as it may be: {error!s:.100}...")
        try:
            output.finish(last)
        except Mismatch as error:
            return _said(f"Mismatch after the fault {tally.last!r}: {error}", tell)
        tally.checked += output.checked
        if last is None:
            tally.outputs += output.checked
        return None


@contextmanager
def _counted_rounds(run: flux.Run, tally: Tally) -> Iterator[None]:
    """Count what balance and changes have done when the run is over, however it ends."""
    try:
        yield
    finally:
        assert run._driver is not None
        with run._driver.changed:
            rounds = [each.last for each in run._driver.run_state.balance.rounds]
            changes = [*run._driver.run_state.known_changes.by_number.values()]
        tally.changes += sum(change.is_committed for change in changes)
        tally.refused.update(_reason(change.reason) for change in changes if change.reason is not None)
        tally.balance_rounds += len(rounds)
        tally.balance_moves += sum(each.moves - each.dropped - each.failed for each in rounds)


def _reason(text: str) -> str:
    """The beginning of why a change was refused, without the site that refused it."""
    return text.partition(": ")[2][:60] or text[:60]


def _silent(line: str) -> None:
    """Print nothing: the figures are one JSON document."""


def _print(line: str) -> None:
    print(line, flush=True)


def _said(wrong: str, tell: Callable[[str], None]) -> str:
    tell(wrong)
    return wrong


@contextmanager
def _directory(may_mount: bool) -> Iterator[tuple[Path, SmallDisk | None, SmallDisk | None]]:
    """A directory for one run, and two small disks in it: that of the run's own directory, and that of its sink."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        if not may_mount:
            yield directory, None, None
            return
        of_run = stack.enter_context(SmallDisk.mounted(directory / "run", RUN_DISK_BYTES))
        of_sink = stack.enter_context(SmallDisk.mounted(directory / "sink", SINK_DISK_BYTES))
        before, tempfile.tempdir = tempfile.tempdir, str(of_run.path)
        try:
            yield directory, of_run, of_sink
        finally:
            tempfile.tempdir = before


class Soak:
    """Faults to one run, one after the other."""

    def __init__(
        self,
        striker: Striker,
        faults: Faults,
        output: Checked | Lines,
        sites: int,
        tally: Tally,
        tell: Callable[[str], None],
    ) -> None:
        self._striker = striker
        self._faults = faults
        self._watch = striker.watch
        self._run = striker.run
        self._output = output
        self._draw = striker.draw
        self._sites = sites
        self._tally = tally
        self._tell = tell
        self._told_at = time.monotonic()

    def go_on_until(self, end: float) -> None:
        """Fault after fault: some when the pairs are whole again, the others while copies are rebuilt."""
        self._watch.wait_whole()
        while time.monotonic() < end:
            time.sleep(self._draw.uniform(0.0, 0.3))
            self._strike()
            self._replace()
            if self._draw.random() < WHOLE_FIRST:
                self._watch.wait_whole()
            self._progress()
        self._watch.wait_whole()

    def _strike(self) -> None:
        fault, was_whole = self._faults.next(), self._watch.is_whole()
        self._tally.done.append(fault.__name__)
        began, before = time.monotonic(), len(self._striker.strikes)
        kind = fault()
        if kind is None:  # Too many are missing.
            self._watch.wait_whole()
            return
        self._watch.wait_output()
        self._output.raise_if_wrong()
        strikes = self._striker.strikes[before:]
        self._tally.struck += len(strikes)
        self._tally.gaps_s[kind].append(self._longest_gap_s(began))
        if self._counts(strikes):
            self._tally.faults[kind] += 1
            self._tally.during_recovery += not was_whole
        else:
            self._tally.light[kind] += 1

    def _counts(self, strikes: list[Strike]) -> bool:
        """Whether there was something to lose."""
        for strike in strikes[-1:]:
            self._watch.wait_told(strike.at)
        rows = [self._watch.unacknowledged(strike.at) for strike in strikes]
        self._tally.unacknowledged_rows += rows
        return has_something_to_lose(strikes, rows)

    def _replace(self) -> None:
        """Sites that are gone have successors."""
        while len(self._watch.sites()) < self._sites:
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
        gap_s = max((gap for gaps in self._tally.gaps_s.values() for gap in gaps), default=0.0)
        self._tell(
            f"run {self._tally.runs + 1}, {status.t_s:4.0f} s: {faults:,} faults survived and {light:,} light ones, "
            f"{status.output_rate:,.0f} rows/s, longest gap {gap_s:.2f} s, memory {self._memory_mb():.0f} MB"
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
