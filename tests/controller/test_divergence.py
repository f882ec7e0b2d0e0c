"""An operator whose copies emit different rows ends the run by name; one that is sound never does."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.controller.divergence import Difference, Divergence
from flux.exchange.rows import Rows
from flux.plan import Policy
from flux.site.digests import EVERY, Digests
from flux.types.errors import OperatorError


class Random(flux.KeyedOperator):
    """Emits something of its own process for one row in a hundred."""

    output: ClassVar = {"v": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"v": os.getpid() if row.v % 100 == 77 else row.v}]


def flow_of(rows: int, operator: Any = Random) -> flux.Dataflow:
    flow = flux.Dataflow("diverging")
    table = pa.table({"k": np.arange(rows) % 50, "v": np.arange(rows)})
    stream = flow.source(flux.sources.Table(table, batch_rows=1_000))
    stream.exchange("k", partitions=4).apply(operator).sink(flux.sinks.Null())
    return flow


@pytest.mark.parametrize("rows", [500, 3 * EVERY])
def test_copies_that_emit_different_rows_end_the_run(rows: int) -> None:
    with pytest.raises(OperatorError, match="not deterministic") as caught:
        flow_of(rows).run(sites=2)
    assert caught.value.step == "Random"
    assert caught.value.partition in range(4)
    assert caught.value.row is not None and 1 <= caught.value.row <= rows


class RandomText(flux.KeyedOperator):
    """Emits a text of its own process for one row; texts of others are as long."""

    output: ClassVar = {"v": "string"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"v": f"{os.getpid() if row.v == 2 else 0:09}"}]


class RandomList(flux.KeyedOperator):
    """Emits a list of its own process for one row."""

    output: ClassVar = {"v": pa.list_(pa.int64())}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"v": [os.getpid() if row.v == 2 else 0]}]


@pytest.mark.parametrize("operator", [RandomText, RandomList])
def test_a_text_or_a_list_that_differs_in_a_short_run_ends_it(operator: Any) -> None:
    with pytest.raises(OperatorError, match="not deterministic"):
        flow_of(4, operator).run(sites=2)


def error_of(order: Any) -> str:
    flow = flux.Dataflow("diverging")
    stream = flow.source(flux.sources.Table([{"k": 1, "v": 2}]))
    stream.exchange("k", partitions=2, order=order).apply(Random).sink(flux.sinks.Null())
    divergence = Divergence(flow._logical.plan(2, 0, "pairs", 1_000, Policy()))
    assert divergence.compare("site-1", 1, 5, [0, 1], [7, 8]) is None
    difference = divergence.compare("site-2", 1, 5, [0, 1], [7, 9])
    assert difference == Difference(stage=1, partition=1, after=0, position=5, first="site-1", second="site-2")
    found = divergence.error(difference, "they are not kept")
    assert (found.step, found.partition, found.row) == ("Random", 1, 1)
    return str(found)


def test_behind_order_any_the_order_is_what_is_said_to_be_the_likely_cause() -> None:
    told = error_of("any")
    assert 'order="any"' in told and told.index('order="any"') < told.index("not deterministic")
    assert 'Leave order="any" out of the exchange' in told
    assert 'order="any"' not in error_of("sn")


def rows_of(first: int, last: int) -> Rows:
    sn = np.arange(first, last + 1)
    user = pa.record_batch({"v": sn * 7, "s": pa.array([f"s{n % 13}" for n in sn])})
    producer = (sn % 3).astype(np.uint16)
    return Rows.of(user, sn, None, producer, np.zeros(len(sn), np.uint16))


@pytest.mark.parametrize("cuts", [(), (1,), (EVERY - 1, EVERY, EVERY + 1), (5, 70_000, 130_000)])
def test_a_digest_does_not_depend_on_how_rows_were_cut(cuts: tuple[int, ...]) -> None:
    last = 2 * EVERY + 10
    whole, cut = Digests(3), Digests(3)
    expected = whole.add(rows_of(1, last), 0, last)
    found = []
    after = 0
    for upto in (*cuts, last):
        found += cut.add(rows_of(after + 1, upto), after, upto)
        after = upto
    assert [position for position, _ in expected] == [EVERY, 2 * EVERY]
    assert [(position, sums.tolist()) for position, sums in found] == [(p, s.tolist()) for p, s in expected]
    assert [cut.get(p) for p in range(3)] == [whole.get(p) for p in range(3)]


def test_a_digest_does_not_depend_on_whether_a_row_stands_beside_one_that_became_several() -> None:
    # Only then has it a `sub`, and it is zero.
    alone, beside = Digests(3), Digests(3)
    rows = rows_of(1, 5)
    alone.add(rows, 0, 5)
    hidden = np.arange(1, 6), np.zeros(5, np.uint64), (np.arange(1, 6) % 3).astype(np.uint16), np.zeros(5, np.uint16)
    beside.add(Rows.of(rows.user, *hidden), 0, 5)
    assert [alone.get(p) for p in range(3)] == [beside.get(p) for p in range(3)]


def test_a_digest_tells_a_value_a_place_and_a_partition_apart() -> None:
    def digests(user: Any, sn: list[int], producer: list[int]) -> list[int]:
        made = Digests(2)
        rows = Rows.of(user, np.array(sn), None, np.array(producer, np.uint16), np.zeros(len(sn), np.uint16))
        made.add(rows, 0, 10)
        return [made.get(0), made.get(1)]

    user = pa.record_batch({"v": [1, 2]})
    seen = [
        digests(user, [1, 2], [0, 0]),
        digests(user, [1, 3], [0, 0]),
        digests(user, [1, 2], [0, 1]),
        digests(pa.record_batch({"v": [2, 1]}), [1, 2], [0, 0]),
    ]
    assert len({tuple(digest) for digest in seen}) == 4


def one_digest(values: Any, rows: int = 1_000, first: int = 1) -> int:
    made = Digests(1)
    none = np.zeros(rows, np.uint16)
    sn = np.arange(first, first + rows)
    made.add(Rows.of(pa.record_batch({"v": values}), sn, None, none, none), first - 1, first + rows - 1)
    return made.get(0)


ONE_OTHER = {
    "int64": (pa.int64(), 7, -7),
    "int8": (pa.int8(), 7, -7),
    "uint16": (pa.uint16(), 7, 8),
    "float64": (pa.float64(), 0.5, 0.25),
    "float32": (pa.float32(), 0.5, float("nan")),
    "float16": (pa.float16(), np.float16(0.5), np.float16(0.25)),
    "boolean": (pa.bool_(), True, False),
    "a date": (pa.date32(), 1, 2),
    "a timestamp": (pa.timestamp("us", "UTC"), 1, 2),
    "an interval": (pa.duration("ns"), 1, 2),
    "a decimal": (pa.decimal128(30, 2), 1, 10**25),
    "a large decimal": (pa.decimal256(60, 2), 1, 10**55),
    "a null": (pa.int64(), 7, None),
    "a null float": (pa.float64(), 7.0, None),
    "a length": (pa.string(), "seven", "eight!"),
    "a length in bytes": (pa.large_binary(), b"seven", b"eight!"),
    "a span": (pa.month_day_nano_interval(), (1, 2, 3), (1, 2, 4)),
    "a null decimal": (pa.decimal256(60, 2), 0, None),
    "nothing": (pa.bool_(), None, False),
    "a null text": (pa.string(), "", None),
    "a text": (pa.string(), "seven", "eight"),
    "a word": (pa.dictionary(pa.int8(), pa.string()), "seven", "eight"),
    "a list": (pa.list_(pa.int64()), [7, 8], [7, 9]),
    "a list of another length": (pa.list_(pa.int64()), [7], []),
    "a struct": (pa.struct({"a": pa.int64(), "b": pa.string()}), {"a": 7, "b": "x"}, {"a": 7, "b": "y"}),
    "a map": (pa.map_(pa.string(), pa.int64()), [("a", 7)], [("a", 8)]),
    "a null list": (pa.list_(pa.int64()), [], None),
    "a list of nanoseconds": (pa.list_(pa.timestamp("ns")), [7], [8]),
    "a list beyond Python's times": (pa.list_(pa.timestamp("s")), [10**12], [10**12 + 1]),
}


@pytest.mark.parametrize("kind", ONE_OTHER)
def test_one_other_value_among_many_is_another_digest(kind: str) -> None:
    of, usual, other = ONE_OTHER[kind]
    same = pa.array([usual] * 1_000, of)
    for place in (0, 500, 999):
        values = [usual] * 1_000
        values[place] = other
        assert one_digest(pa.array(values, of)) != one_digest(same)
    assert one_digest(same) == one_digest(pa.concat_arrays([same[:7], same[7:]]))


@pytest.mark.parametrize("of", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())])
def test_text_that_differs_in_some_rows_is_another_digest(of: Any) -> None:
    """Far into a stream, as many as are sampled, of a hundred or so; here every third row differs."""
    usual = pa.array(["abc"] * 1_000).cast(of)
    other = pa.array(["abd" if row % 3 == 1 else "abc" for row in range(1_000)]).cast(of)
    assert one_digest(usual, first=1 << 20) != one_digest(other, first=1 << 20)


def test_a_nested_value_that_differs_in_some_rows_is_another_digest() -> None:
    usual = pa.array([[1, 2]] * 10_000)
    other = pa.array([[1, 3] if row % 3 == 1 else [1, 2] for row in range(10_000)])
    assert one_digest(usual, 10_000, first=1 << 20) != one_digest(other, 10_000, first=1 << 20)


def test_a_value_in_one_column_is_not_the_same_in_another() -> None:
    def digest(first: list[int], second: list[int]) -> int:
        made = Digests(1)
        none = np.zeros(2, np.uint16)
        user = pa.record_batch({"a": first, "b": second})
        made.add(Rows.of(user, np.array([1, 2]), None, none, none), 0, 2)
        return made.get(0)

    assert len({digest([1, 2], [3, 4]), digest([3, 4], [1, 2]), digest([1, 4], [3, 2]), digest([2, 1], [3, 4])}) == 4
    small = {digest([a, 0], [b, 0]) for a in range(30) for b in range(30)}
    assert len(small) == 900, "columns with multipliers that have much in common are confused"


def test_zeros_and_things_that_are_no_numbers_count_alike_whatever_their_bits() -> None:
    some = np.array([0.0, np.nan, 1.0] * 100)
    others = np.where(some == 0, -0.0, some)
    others[np.isnan(others)] = np.uint64(0xFFF8_0000_0000_0001).view(np.float64)
    assert one_digest(pa.array(some), 300) == one_digest(pa.array(others), 300)


@pytest.mark.parametrize("of", [pa.int64(), pa.bool_(), pa.string(), pa.binary(3), pa.list_(pa.int8()), pa.float16()])
def test_a_null_counts_alike_whatever_its_type(of: Any) -> None:
    """Of undeclared output one copy may have been told the type by another partition, and the other not yet."""

    def digest(column: Any, others: Any) -> int:
        made = Digests(1)
        none = np.zeros(100, np.uint16)
        user = pa.record_batch({"v": column} | others)
        made.add(Rows.of(user, np.arange(1, 101), None, none, none), 0, 100)
        return made.get(0)

    text = {"t": pa.array([str(n) for n in range(100)])}
    for others in ({}, text):
        assert digest(pa.nulls(100), others) == digest(pa.nulls(100, of), others)


def test_what_lies_behind_a_null_does_not_count() -> None:
    valid = pa.array([True, False]).buffers()[1]
    some, others = (
        pa.Array.from_buffers(pa.int64(), 2, [valid, pa.py_buffer(np.array([1, behind]))]) for behind in (7, 8)
    )
    assert one_digest(some, 2) == one_digest(others, 2)


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_digest_does_not_depend_on_which_rows_a_null_or_a_later_descendant_came_with(cut: int) -> None:
    # A batch without nulls has no column of them, and one whose rows are all first descendants has no `sub`.
    columns = {"a": [1, None, 3, 4, 5], "t": ["x", "yy", None, "", "z"], "b": [1.5, 2.5, 3.5, None, 0.0]}
    subs = np.array([0, 0, 0, 0, 7], np.uint64)

    def digest(*spans: tuple[int, int]) -> int:
        made = Digests(1)
        for start, stop in spans:
            sub = subs[start:stop] if subs[start:stop].any() else None
            zeros = np.zeros(stop - start, np.uint16)
            part = pa.record_batch({name: values[start:stop] for name, values in columns.items()})
            part = part.cast(pa.schema({"a": pa.int64(), "t": pa.string(), "b": pa.float64()}))
            made.add(Rows.of(part, np.arange(start + 1, stop + 1), sub, zeros, zeros), start, stop)
        return made.get(0)

    assert digest((0, cut), (cut, 5)) == digest((0, 5))
