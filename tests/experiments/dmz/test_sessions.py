"""Sessions against a plain loop: any batching, any partitioning by key, moves at any point."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.dmz import Sessions
from flux.types.errors import OperatorError, PlanError
from tests.operators.feeding import PARTITIONS, SHAPES, batch_of, cuts, opened, outputs, rows_of, step_of, tuples

FIXED = pa.schema([("src", "int32"), ("dst", "int32"), ("data", pa.binary(4)), ("ts", "int64")])
VARIABLE = FIXED.set(2, pa.field("data", pa.binary()))
WIDE = FIXED.set(0, pa.field("src", pa.int64())).set(2, pa.field("data", pa.large_binary()))

HOSTS = st.tuples(st.integers(0, 2), st.integers(0, 2))
DATA = st.sampled_from([b"S\x00..", b"S\xff..", b"E...", b"x..."])


def plain(rows: list[tuple[Any, Any, bytes | None, int | None]]) -> list[tuple[int, tuple[int, Any, int | None]]]:
    started: dict[tuple[Any, Any], tuple[int, int | None]] = {}
    out = []
    for sn, (src, dst, data, ts) in enumerate(rows):
        if data is not None and data[:1] == b"S":
            started[src, dst] = (data[1], ts)
        elif data is not None and data[:1] == b"E" and (src, dst) in started:
            app, since = started.pop((src, dst))
            out.append((sn, (app, src, None if ts is None or since is None else ts - since)))
    return out


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=50)
@given(st.sampled_from([FIXED, VARIABLE, WIDE]), st.integers(1, 7), st.data())
def test_output_is_that_of_a_plain_loop_for_any_batching_and_any_moves(
    shape: str, schema: Any, salt: int, data: st.DataObject
) -> None:
    rows = data.draw(rows_of(shape, HOSTS, DATA, st.integers(0, 50)))
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    step = step_of(Sessions, schema, ("src", "dst"))
    found = outputs(step, rows, schema, lambda row: (row[0] * salt + row[1]) % PARTITIONS, batches, moves)
    assert found == plain(rows)


def test_state_holds_open_sessions_only() -> None:
    hosted = opened(step_of(Sessions, FIXED, ("src", "dst")))
    rows = [(1, 1, b"S\x05..", 10), (2, 2, b"S\x06..", 11), (1, 1, b"E...", 12), (3, 3, b"E...", 13)]
    hosted.process(batch_of(rows, FIXED, [0, 0, 0, 0]))
    _, state = hosted.get_partition_state(0)  # What the host keeps goes first.
    assert state["keys"].to_pylist() == [{"src": 2, "dst": 2}]
    assert {name: column.tolist() for name, column in state["values"].items()} == {
        "app": [6],
        "ts": [11],
        "no_ts": [False],
    }
    assert len(list(hosted.get_partition_state(1))) == 1


def test_short_data_is_payload_or_application_zero() -> None:
    hosted = opened(step_of(Sessions, VARIABLE))
    rows = [(2, 1, b"", 9), (1, 1, b"S", 10), (2, 1, b"E", 11), (1, 1, b"E", 12), (1, 1, b"", 13)]
    assert tuples(hosted.process(batch_of(rows, VARIABLE, [0] * 5))) == [(0, 1, 2)]


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint32(), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()])
@pytest.mark.parametrize("batches", [[(0, 2)], [(0, 1), (1, 2)]])
def test_durations_are_in_the_unit_of_ts(kind: Any, batches: list[tuple[int, int]]) -> None:
    schema = FIXED.set(3, pa.field("ts", kind))
    rows = [(1, 1, b"S\x05..", 10), (1, 1, b"E...", 25)]
    found = outputs(step_of(Sessions, schema, ("src", "dst")), rows, schema, lambda row: 0, batches)
    assert found == [(1, (5, 1, 15))]


@pytest.mark.parametrize(
    ("kind", "src"),
    [
        (pa.uint32(), 3_232_235_777),
        (pa.int64(), -(2**40)),
        (pa.uint64(), 2**64 - 1),
        (pa.float64(), 1.5),
        (pa.bool_(), True),
        (pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        (pa.date32(), datetime.date(2026, 1, 1)),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_source_is_told_as_it_came_whatever_its_type(kind: Any, src: Any, is_known: bool) -> None:
    schema = FIXED.set(0, pa.field("src", kind))
    step = step_of(Sessions, schema if is_known else None, ("src",))
    found = opened(step).process(batch_of([(src, 1, b"S\x05..", 1), (src, 1, b"E...", 3)], schema, [0, 0]))
    assert found is not None and found.arrow.schema.field("src").type == kind
    assert tuples(found) == [(5, src, 2)]


@pytest.mark.parametrize("kind", [pa.float64(), pa.uint64(), pa.string(), pa.decimal128(5, 1), pa.time64("us")])
def test_a_ts_that_is_no_integer_of_64_bits_is_refused(kind: Any) -> None:
    schema = FIXED.set(3, pa.field("ts", kind))
    value = "10" if kind == pa.string() else datetime.time(1) if kind == pa.time64("us") else 10
    says = f"column 'ts' is {re.escape(str(kind))}; expected integers"
    with pytest.raises(PlanError, match=says):
        step_of(Sessions, schema, ("src",))
    # Where the plan did not know what comes, the run says it.
    with pytest.raises(OperatorError, match=says):
        opened(step_of(Sessions, None, ("src",))).process(batch_of([(1, 1, b"S...", value)], schema, [0]))


def test_a_duration_beyond_64_bits_is_refused_with_its_place() -> None:
    rows = [(1, 1, b"S...", -(2**62)), (2, 2, b"x...", 0), (1, 1, b"E...", 2**62)]
    with pytest.raises(OperatorError, match="longer than 64 bits") as caught:
        opened(step_of(Sessions, FIXED)).process(batch_of(rows, FIXED, [3, 2, 3]))
    assert (caught.value.partition, caught.value.row) == (3, 2)


HOST_NAMES = FIXED.set(0, pa.field("src", pa.string())).set(1, pa.field("dst", pa.uint64()))
WITH_NULLS = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 2**64 - 1, None]),
    st.none() | DATA,
    st.none() | st.integers(0, 50),
)


@given(st.sampled_from([pa.binary(4), pa.binary(), pa.large_binary()]), st.lists(WITH_NULLS, max_size=40), st.data())
def test_a_null_is_a_host_like_any_other_or_payload_or_a_time_that_is_not_known(
    kind: Any, rows: list[Any], data: st.DataObject
) -> None:
    schema = HOST_NAMES.set(2, pa.field("data", kind))
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    partition = dict(zip(["a", "b", None], range(3), strict=True))
    step = step_of(Sessions, schema, ("src",))
    assert outputs(step, rows, schema, lambda row: partition[row[0]], batches, moves) == plain(rows)


def test_a_session_of_which_the_begin_is_not_known_is_not_too_long_for_64_bits() -> None:
    rows = [(1, 1, b"S...", None), (1, 1, b"E...", -(2**63)), (1, 1, b"S...", 2**63 - 1), (1, 1, b"E...", None)]
    assert tuples(opened(step_of(Sessions, FIXED)).process(batch_of(rows, FIXED, [3] * 4))) == [(46, 1, None)] * 2


def test_an_exchange_by_other_columns_is_refused() -> None:
    with pytest.raises(PlanError, match="src and dst"):
        opened(step_of(Sessions, FIXED, ("ts",)))


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(PlanError, match="timeout"):
        opened(step_of(Sessions, FIXED, timeout=3))
