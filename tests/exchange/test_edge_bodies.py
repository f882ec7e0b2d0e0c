"""Rows of a body are counted by consumer partition, and cut down to the partitions that are needed. Rule 37."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flux.exchange.edge_bodies import EdgeBodies, LaneBody, cut_body, make_body, row_counts
from flux.exchange.rows import PARTITION, SN, Rows
from flux.model.punctuation import Punctuation

MARK = Punctuation(7, "watermark", 1)
partitions = st.lists(st.integers(0, 5), max_size=30)


def rows(partition: list[int]) -> Rows:
    """Rows 1, 2, ... for these consumer partitions, and a punctuation."""
    count = len(partition)
    sn = np.arange(1, count + 1, dtype=np.int64)
    user = pa.record_batch({"n": pa.array(sn)})
    return Rows.of(user, sn, None, np.zeros(count, np.uint16), np.array(partition, np.uint16), (MARK,))


def numbers(body: LaneBody, edge: int) -> list[tuple[int, int]]:
    """The number and partition of each row."""
    part = body.on(edge)
    return list(zip(part.hidden(SN).tolist(), part.hidden(PARTITION).tolist(), strict=True)) if len(part) else []


@given(partitions, partitions)
def test_rows_are_counted_by_edge_and_partition(one: list[int], two: list[int]) -> None:
    counts = row_counts([3, 4], make_body([3, 4], {3: rows(one), 4: rows(two)}))
    expected = [(edge, p, part.count(p)) for edge, part in ((3, one), (4, two)) for p in sorted(set(part))]
    assert list(counts) == expected


@given(partitions, partitions, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_a_body_is_cut_to_the_partitions_that_are_needed(
    one: list[int], two: list[int], needed_one: set[int], needed_two: set[int]
) -> None:
    body = make_body([3, 4], {3: rows(one), 4: rows(two)})
    needed = {3: needed_one, 4: needed_two}
    counts = tuple(count for count in row_counts([3, 4], body) if count[1] in needed[count[0]])
    cut = cut_body([3, 4], body, counts)
    for edge, part in ((3, one), (4, two)):
        assert numbers(cut, edge) == [(n, p) for n, p in enumerate(part, 1) if p in needed[edge]]
        assert cut.on(edge).punctuations == (MARK,)
    assert isinstance(body, EdgeBodies) and isinstance(cut, EdgeBodies)
    assert cut.token == body.token, "a recording takes both for one"


def test_rows_in_a_file_stay_there_as_they_are() -> None:
    body = rows([0, 1])
    spilled = body.spill(body.encode())
    assert cut_body([3], spilled, ((3, 0, 1),)) is spilled
