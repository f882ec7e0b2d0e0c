"""Feeds rows to a hosted operator in any batches, and moves its partitions about; shared by the tests here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from flux.hosting import Hosted, host
from flux.model.batch import Batch
from flux.model.operator import OperatorStep, output_of
from flux.wire.state_codec import decode, encode

PARTITIONS = 4
SHAPES = ("few keys", "one key", "all keys distinct")


def step_of(operator: Any, schema: Any, key: tuple[str, ...] = (), level: int = 0, **parameters: Any) -> OperatorStep:
    output = output_of(operator, parameters, key, schema)
    return OperatorStep(operator, parameters, "step", key, PARTITIONS, level, output)


def opened(step: OperatorStep, held: Sequence[int] = range(PARTITIONS)) -> Hosted:
    hosted = host(step)
    hosted.open(held)
    return hosted


def batch_of(rows: Sequence[tuple[Any, ...]], schema: Any, partition: Sequence[int], first_sn: int = 0) -> Batch:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    arrow = pa.RecordBatch.from_arrays(columns, schema=schema)
    sn = np.arange(first_sn, first_sn + len(rows))
    return Batch(arrow, sn, None, np.array(partition, np.uint16))


def tuples(batch: Batch | None) -> list[tuple[Any, ...]]:
    return [] if batch is None else [tuple(row.values()) for row in batch.arrow.to_pylist()]


def rows_of(
    shape: str, key: st.SearchStrategy[tuple[Any, ...]], *others: st.SearchStrategy[Any]
) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Rows of few keys, of one key alone, or of as many keys as rows."""
    values = st.tuples(*others)
    if shape == "one key":
        return key.flatmap(lambda only: st.lists(values.map(lambda rest: (*only, *rest)), max_size=60))
    if shape == "all keys distinct":
        wide = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
        drawn = st.lists(st.tuples(wide, values), max_size=60, unique_by=lambda row: row[0])
    else:
        drawn = st.lists(st.tuples(key, values), max_size=60)
    return drawn.map(lambda rows: [(*own, *rest) for own, rest in rows])


def cuts(rows: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Ways to cut rows into batches, as (start, stop)."""
    places = st.lists(st.integers(0, rows), max_size=6).map(lambda found: [0, *sorted(found), rows])
    return places.map(lambda found: list(pairwise(found)))


def moved(old: Hosted, new: Hosted, pid: int) -> None:
    """Take a partition from one site to another, as bytes."""
    old.init_trans(pid)
    state = old.get_partition_state(pid)
    pieces = list(state) if isinstance(state, GeneratorType) else [state]
    packed = [encode(piece, "test") for piece in pieces]
    old.end_trans(pid)
    old.drop_partition(pid)
    new.init_trans(pid)
    for piece in packed:
        new.install_partition_state(pid, decode(piece))
    new.end_trans(pid)


def outputs(
    step: OperatorStep,
    rows: Sequence[tuple[Any, ...]],
    schema: Any,
    partition: Callable[[tuple[Any, ...]], int],
    batches: Sequence[tuple[int, int]],
    moves: Sequence[int] = (),
) -> list[tuple[int, tuple[Any, ...]]]:
    """Return (sn, row) of all output of two sites that share the partitions; `moves[i]` moves after batch i."""
    sites = [opened(step, [0, 1]), opened(step, [2, 3])]
    at = {0: 0, 1: 0, 2: 1, 3: 1}
    found: list[tuple[int, tuple[Any, ...]]] = []
    for i, (start, stop) in enumerate(batches):
        whole = batch_of(rows[start:stop], schema, [partition(row) for row in rows[start:stop]], start)
        for number, site in enumerate(sites):
            here = np.array([j for j in range(len(whole)) if at[int(whole.partition[j])] == number], np.int64)
            out = site.process(whole.take(here))
            if out is not None:
                found.extend(zip(out.sn.tolist(), tuples(out), strict=True))
        if i < len(moves):
            pid = moves[i]
            old, at[pid] = at[pid], 1 - at[pid]
            moved(sites[old], sites[at[pid]], pid)
    return sorted(found, key=lambda entry: entry[0])
