"""Rows that make an operator raise are left out as if they had never come, however the rows are cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux.site.row_skipper
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import KeyedOperator, Operator, PooledOperator, Punctuation
from flux.site.row_skipper import SHOWN_MAX, RowSkipper
from flux.types.errors import OperatorError, StateError
from tests.operators.feeding import PARTITIONS, batch_of, cuts, step_of, tuples

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
POISON = -1
ROWS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([POISON, 1, 2, 3])), max_size=30)


class Sums(Operator):
    """The running sum of a partition. It sums, and only then looks at the rows: a batch that fails has changed it."""

    output = {"k": "int64", "sum": "int64"}  # noqa: RUF012

    def __init__(self) -> None:
        self.total = 0

    def process(self, batch: Batch) -> Batch | None:
        sums = self.total + np.cumsum(batch["n"])
        self.total = int(sums[-1])
        if (batch["n"] == POISON).any():
            raise ValueError("poison")
        return batch.emit({"k": batch["k"], "sum": sums})

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        self.total += 100
        return None

    def get_state(self) -> Any:
        return self.total

    def install_state(self, state: Any) -> None:
        self.total = state


class PooledSums(PooledOperator):
    """The same for all partitions at once."""

    output = {"k": "int64", "sum": "int64"}  # noqa: RUF012

    def __init__(self) -> None:
        self.totals = dict.fromkeys(range(PARTITIONS), 0)

    def process(self, batch: Batch) -> Batch | None:
        sums = []
        for pid, row in zip(batch.partition.tolist(), batch.rows(), strict=True):
            self.totals[pid] += row.n
            sums.append(self.totals[pid])
        if POISON in batch["n"]:
            raise ValueError("poison")
        return batch.emit({"k": batch["k"], "sum": sums})

    def on_punctuation(self, p: Punctuation) -> None:
        for pid in p.partitions or range(PARTITIONS):
            self.totals[pid] += 100

    def get_partition_state(self, pid: int) -> Any:
        yield self.totals[pid]

    def install_partition_state(self, pid: int, state: Any) -> None:
        self.totals[pid] = state

    def drop_partition(self, pid: int) -> None:
        self.totals[pid] = 0


class KeyedSums(KeyedOperator):
    """The same by key; the state is changed in place before the row is looked at, and the error comes late."""

    output = {"k": "int64", "sum": "int64"}  # noqa: RUF012

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]]]:
        totals = state or [0]
        totals[0] += row.n

        def outputs() -> Iterable[Mapping[str, Any]]:
            if row.n == POISON:
                raise ValueError("poison")
            yield {"k": row.k, "sum": totals[0]}

        return totals, outputs()


def expected(rows: list[tuple[int, int]], by_key: bool, punctuations: set[int]) -> list[tuple[int, int]]:
    totals: dict[int, int] = {}
    out = []
    for i, (k, n) in enumerate(rows):
        if i in punctuations and not by_key:
            totals = {group: totals.get(group, 0) + 100 for group in range(PARTITIONS)}
        group = k if by_key else k % PARTITIONS
        if n != POISON:
            totals[group] = totals.get(group, 0) + n
            out.append((k, totals[group]))
    return out


def fresh(operator: Any, held: Iterable[int] = range(PARTITIONS)) -> RowSkipper:
    step = RowSkipper(host(step_of(operator, SCHEMA, ("k",))))
    step.open(held)
    return step


def batch(rows: list[tuple[int, int]], first_sn: int = 0) -> Batch:
    return batch_of(rows, SCHEMA, [k % PARTITIONS for k, _ in rows], first_sn)


@pytest.mark.parametrize("kept_bytes", [0, 4 << 20])
@pytest.mark.parametrize("operator", [Sums, PooledSums, KeyedSums])
@settings(max_examples=60)
@given(rows=ROWS, data=st.data())
def test_output_is_that_of_the_other_rows_for_any_batching(
    operator: Any, kept_bytes: int, rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    batches = data.draw(cuts(len(rows)))
    punctuations = {start for start, _ in batches if data.draw(st.booleans())} if operator is not KeyedSums else set()
    step = fresh(operator)
    out: list[Any] = []
    counts: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flux.site.row_skipper, "KEPT_MIN_BYTES", kept_bytes)
        punctuated: set[int] = set()
        for start, stop in batches:
            if start in punctuations - punctuated:
                punctuated.add(start)
                step.punctuate(Punctuation(start, "clock"))
            if start < stop:
                out += tuples(step.process(batch(rows[start:stop], start)))
            counts |= step.take_skipped()[0]
    assert out == expected(rows, operator is KeyedSums, punctuations)
    assert sum(counts.values()) == sum(n == POISON for _, n in rows)


@pytest.mark.parametrize("operator", [Sums, PooledSums, KeyedSums])
def test_every_copy_gives_a_skipped_row_the_same_number_also_after_a_move(operator: Any) -> None:
    rows = [(0, 1), (0, POISON), (0, 2), (0, POISON), (0, 3)]
    whole, moved, standby = fresh(operator), fresh(operator), fresh(operator, [])
    whole.process(batch(rows))
    moved.process(batch(rows[:2]))
    _, first = moved.take_skipped()
    for piece in list(moved.get_partition_state(0)):
        standby.install_partition_state(0, piece)
    assert standby.take_skipped() == ({0: 1}, []), "who had skipped it may not have told"
    out = standby.process(batch(rows[2:], 2))
    totals, second = standby.take_skipped()
    assert (totals, [*first, *second]) == whole.take_skipped()
    assert standby.skipped_totals() == whole.skipped_totals() == totals
    assert [(row.nth, row.sn) for row in (*first, *second)] == [(1, 1), (2, 3)]
    assert tuples(out) == [(0, 3), (0, 6)]


def test_state_that_a_fork_does_not_have_is_not_read_in_one_when_rows_may_be_skipped() -> None:
    class Elsewhere(Sums):
        state_in_memory = False

    assert [fresh(operator).state_in_memory for operator in (Sums, Elsewhere)] == [True, False]


def test_a_skipped_row_is_shown_with_its_content_and_the_error_and_many_are_counted() -> None:
    step = fresh(Sums)
    step.process(batch([(3, POISON)] * (SHOWN_MAX + 5)))
    totals, skipped = step.take_skipped()
    assert totals == {3: SHOWN_MAX + 5}
    shown = [row.shown for row in skipped if row.shown is not None]
    assert len(shown) == SHOWN_MAX
    values, error = shown[0]
    assert values == "{'k': 3, 'n': -1}"
    assert "Sums.process" in error and "ValueError: poison" in error


def test_too_little_memory_is_not_the_rows_fault() -> None:
    class Greedy(Sums):
        def process(self, batch: Batch) -> Batch | None:
            raise MemoryError

    with pytest.raises(OperatorError, match="MemoryError"):
        fresh(Greedy).process(batch([(0, 1)]))


def test_an_operator_whose_state_cannot_be_taken_is_told_so_at_its_first_row() -> None:
    class Closed(Sums):
        def get_state(self) -> Any:
            return object()

    with pytest.raises(StateError, match=r'on_error="skip" restores the state.* cannot be moved'):
        fresh(Closed).process(batch([(0, 1)]))


def test_an_operator_that_refuses_what_it_had_taken_is_not_deterministic() -> None:
    class Moody(Sums):
        calls = 0

        def process(self, batch: Batch) -> Batch | None:
            type(self).calls += 1
            if type(self).calls > 1:
                raise ValueError("not today")
            return super().process(batch)

    step = fresh(Moody)
    step.process(batch([(0, 1)]))
    with pytest.raises(OperatorError, match=r"had processed before.*not deterministic"):
        step.process(batch([(0, 1)]))


def test_what_is_raised_for_a_punctuation_stops_the_run() -> None:
    class Late(Sums):
        def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
            raise ValueError("too late")

    with pytest.raises(OperatorError, match="too late"):
        fresh(Late).punctuate(Punctuation(1, "end"))
