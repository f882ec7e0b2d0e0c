"""A run in which every partition loses both its first copies while rows are under way; shared by the tests.

There are two sites and a standby, so each partition has a copy on either site, whatever its keys. One site is killed;
when the standby has rebuilt what was lost, the other is killed too, and all goes on from state that was moved. The rows
come in three parts, in which they trickle: each kill strikes when its part has begun, and the next part waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

import flux

from .waiting import wait_until

VICTIMS = ("site-1", "site-2")
PARTS = len(VICTIMS) + 1
SIZES = (1, 7, 3, 12)
WITH_EMPTY_BATCHES = (0, 1, 0, 7, 0, 0, 3, 12, 0)
_PIECE_S = 0.01


def _gate(directory: Path, part: int) -> Path:
    return directory / f"part-{part}"


def trickling(rows: pa.Table, sizes: Sequence[int], directory: Path) -> Iterator[pa.Table]:
    """The rows in batches of these sizes, over and over; a part waits until the file that is its gate is there.

    The first batch waits for nothing, because it is asked for its columns when the source is made.
    """
    start, *_ = sizes
    yield rows.slice(0, start)
    for size in islice(cycle(sizes), 1, None):
        gate = _gate(directory, start * PARTS // rows.num_rows)
        time.sleep(_PIECE_S)
        while not gate.exists():
            time.sleep(_PIECE_S)
        yield rows.slice(start, size)
        start += size
        if start >= rows.num_rows:
            return


def through_kills(
    flow: Callable[[flux.sources.Source], flux.Dataflow],
    rows: pa.Table,
    directory: Path,
    sizes: Sequence[int] = SIZES,
    **options: Any,
) -> flux.Report:
    """Run the flow over the rows, and return the report when both sites that it began on have been killed."""
    source = flux.sources.Table(trickling(rows, sizes, directory), batch_rows=max(sizes))
    with flow(source).start(sites=len(VICTIMS), standby=1, **options) as run:
        for part, victim in enumerate(VICTIMS):
            wait_until(lambda: run.status().whole, "what was lost with the site before was not rebuilt")
            _gate(directory, part).touch()
            # The last batch of the part before may reach into this one.
            _until_rows_come(run, part * rows.num_rows // PARTS + max(sizes))
            run.kill(victim)
            assert run.status().inputs < rows.num_rows
        _gate(directory, PARTS - 1).touch()
        report = run.wait(timeout=120)
    assert [failure.site for failure in report.failures] == list(VICTIMS)
    assert report.inputs == rows.num_rows
    return report


def _until_rows_come(run: flux.Run, before: int) -> None:
    wait_until(lambda: run.status().inputs > before, f"the source gave no more than {before} rows")
