"""How long rows wait for the merge by sequence number, and so what `order="any"` could save.

    python -m experiments.merge_wait [--rows N] [--rate ROWS_PER_S] [--sites N]

A consumer takes rows in the order of their sequence numbers: a frame waits until every other producer has come as
far. Here every process notes, for each frame, the time from its arrival to the moment at which the merge lets it
through; the time it then waits for a busy operator is not counted. Without the order it would not wait at all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from experiments import dmz
from flux.protocols.fh_cons import FhCons
from flux.protocols.machine import Rule
from flux.protocols.messages import Data, Effect

NAMES = {1: "first stage", 2: "second stage", 3: "egress"}


def note_waits(directory: Path) -> None:
    """Have every consumer that is made from now on write down how long its frames wait for the merge."""
    receive = FhCons.receive
    waiting: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def timed(cons: FhCons, message: Data) -> Iterable[Effect]:
        effects = receive(cons, message)
        lane, now = cons.lanes[message.lane_id], time.monotonic()
        held = waiting.setdefault((cons.stage, lane.cohort), [])
        held.append((message.upto, now))
        frontier = cons.frontier(lane.cohort)
        passed = [now - came for upto, came in held if upto <= frontier]
        waiting[cons.stage, lane.cohort] = [(upto, came) for upto, came in held if upto > frontier]
        if passed:
            with (directory / f"{cons.stage}.{os.getpid()}").open("ab") as file:
                np.asarray(passed).tofile(file)
        return effects

    FhCons.RULES = tuple(
        Rule(on=rule.on, guard=rule.guard, action=timed, cites=rule.cites) if rule.action is receive else rule
        for rule in FhCons.RULES
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rate", type=float, default=None, help="rows per second; as fast as it goes if left out")
    parser.add_argument("--sites", type=int, default=4)
    arguments = parser.parse_args()
    packets = dmz.packets(arguments.rows, batch_rows=8_192)
    with tempfile.TemporaryDirectory() as directory:
        note_waits(Path(directory))
        report = dmz.flow(packets, partitions=16, rate=arguments.rate).run(sites=arguments.sites)
        rate = report.inputs / report.duration_s
        print(f"{report.inputs:,} rows on {arguments.sites} sites, {rate:,.0f} rows/s; waiting for the merge, in ms:")
        for stage, name in NAMES.items():
            files = sorted(Path(directory).glob(f"{stage}.*"))
            waits = np.concatenate([np.fromfile(file) for file in files]) * 1000
            p50, p90, p99 = np.percentile(waits, (50, 90, 99))
            print(f"  {name:12} p50 {p50:7.2f}  p90 {p90:7.2f}  p99 {p99:7.2f}  ({waits.size:,} frames)")


if __name__ == "__main__":
    main()
