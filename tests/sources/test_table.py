"""What `flux.sources.Table` promises: every row, once, in order, in batches of a good size."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import flux
from flux.sources import Source, SourceBatch, SourceContext, Table
from flux.types.errors import FluxError, PlanError


def batches_of(source: Source, clock: trio.abc.Clock | None = None) -> list[SourceBatch]:
    async def main() -> list[SourceBatch]:
        return [batch async for batch in source.batches(SourceContext(Path("unused")))]

    return trio.run(main, clock=clock)


def rows_of(source: Source) -> list[Any]:
    return [row for batch in batches_of(source) for row in batch.rows.to_pylist()]


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def consecutive(sizes: list[int]) -> list[pa.RecordBatch]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [numbers(start, size) for start, size in zip(starts, sizes, strict=True)]


def test_a_pyarrow_table_yields_its_rows_in_order() -> None:
    table = pa.Table.from_batches(consecutive([3, 1, 5]))
    source = Table(table)
    assert source.schema == table.schema
    assert rows_of(source) == table.to_pylist()


def test_a_record_batch_yields_its_rows() -> None:
    assert rows_of(Table(numbers(0, 4))) == numbers(0, 4).to_pylist()


def test_tables_and_record_batches_may_be_mixed() -> None:
    first, second = consecutive([2, 3])
    source = Table([first, pa.Table.from_batches([second])])
    assert rows_of(source) == numbers(0, 5).to_pylist()


def test_a_generator_is_pulled_once_for_its_schema_and_loses_no_row() -> None:
    pulled = []

    def generate() -> Iterator[pa.RecordBatch]:
        for batch in consecutive([2, 2, 2]):
            pulled.append(batch)
            yield batch

    source = Table(generate())
    assert len(pulled) == 1
    assert source.schema.names == ["n"]
    assert rows_of(source) == numbers(0, 6).to_pylist()


def test_a_generator_that_is_used_up_says_so() -> None:
    source = Table(iter(consecutive([2])))
    source.bind(Path("unused"))
    # In another process: this one's iterator looks untouched.
    with pytest.raises(PlanError, match="used up by an earlier run"):
        source.bind(Path("unused"))


def test_a_list_may_be_run_again() -> None:
    source = Table(consecutive([2, 2]))
    source.bind(Path("unused"))
    source.bind(Path("unused"))
    assert rows_of(source) == rows_of(source) == numbers(0, 4).to_pylist()


NOON = datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    "values",
    [
        *([b"a", "a"], ["a", b"a"], [NOON.date(), 1], [NOON.date(), NOON], [NOON, 1.5], [timedelta(1), 2]),
        *([NOON.time(), 1], [NOON, NOON.replace(tzinfo=UTC)], [1, Decimal("0.1")], [np.datetime64(NOON), np.int8(3)]),
    ],
    ids=repr,
)
def test_a_value_of_dicts_that_would_become_another_is_refused(values: list[Any]) -> None:
    with pytest.raises(PlanError, match="column 'v' do not make one Arrow type"):
        Table([{"v": value} for value in values])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2.5], pa.float64()),
        ([np.int8(1), 2, np.float64(2.5)], pa.float64()),
        ([np.int8(1), 300], pa.int64()),
        ([pd.Timestamp(NOON), NOON], pa.timestamp("us")),
        ([[1], (2,)], pa.list_(pa.int64())),
        ([{"a": 1}, {"b": 2}], pa.struct({"a": pa.int64(), "b": pa.int64()})),
    ],
)
def test_values_of_dicts_that_are_of_one_sort_make_a_column(values: list[Any], kind: Any) -> None:
    assert Table([{"v": value} for value in values]).schema.field("v").type == kind


def test_dicts_get_the_columns_of_all_of_them() -> None:
    source = Table([{"a": 1}, {"a": 2, "b": "x"}])
    assert source.schema.names == ["a", "b"]
    assert rows_of(source) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_an_empty_table_has_columns_and_no_batches() -> None:
    assert batches_of(Table(pa.table({"n": pa.array([], pa.int64())}))) == []


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=30), batch_rows=st.integers(1, 40))
def test_any_batching_keeps_every_row_in_order_within_the_size(sizes: list[int], batch_rows: int) -> None:
    batches = [batch.rows for batch in batches_of(Table(consecutive(sizes), batch_rows=batch_rows))]
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(sum(sizes)))


def test_batches_larger_than_asked_are_cut_without_a_copy() -> None:
    data = numbers(0, 100)
    batches = [batch.rows for batch in batches_of(Table(data, batch_rows=40))]
    assert [batch.num_rows for batch in batches] == [40, 40, 20]
    assert {batch["n"].buffers()[1].address for batch in batches} == {data["n"].buffers()[1].address}


def test_much_smaller_batches_are_put_together() -> None:
    batches = batches_of(Table(consecutive([1] * 100), batch_rows=40))
    assert [batch.rows.num_rows for batch in batches] == [40, 40, 20]


def test_batches_of_a_fair_size_are_passed_on_as_they_are() -> None:
    data = consecutive([30, 35, 30])
    assert [batch.rows for batch in batches_of(Table(data, batch_rows=40))] == data


def test_a_batch_is_32_ki_rows_unless_told() -> None:
    assert batches_of(Table(numbers(0, 40_000)))[0].rows.num_rows == 32 * 1024


def test_dictionaries_that_differ_from_batch_to_batch_are_put_together() -> None:
    data = [pa.record_batch({"w": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "b"])]
    assert [row["w"] for row in rows_of(Table(data))] == ["a", "b", "c", "b"]


def test_a_rate_is_kept_in_batches_of_a_fiftieth_of_a_second() -> None:
    source = Table(numbers(0, 1000), rate=1000)
    times: list[tuple[float, int]] = []

    async def main() -> None:
        begin = trio.current_time()
        async for batch in source.batches(SourceContext(Path("unused"))):
            times.append((trio.current_time() - begin, batch.rows.num_rows))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [rows for _, rows in times] == [20] * 50
    assert [t_s for t_s, _ in times] == pytest.approx([index * 0.02 for index in range(50)])


def test_a_late_batch_does_not_delay_the_ones_after_it() -> None:
    source = Table(numbers(0, 100), rate=1000)
    times: list[float] = []

    async def main() -> None:
        begin = trio.current_time()
        async for _ in source.batches(SourceContext(Path("unused"))):
            times.append(trio.current_time() - begin)
            if len(times) == 1:
                await trio.sleep(0.05)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert times == pytest.approx([0, 0.05, 0.05, 0.06, 0.08])


def test_a_generator_that_blocks_does_not_stop_the_ingress() -> None:
    released = threading.Event()

    def generate() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 1)
        assert released.wait(timeout=60)
        yield numbers(1, 1)

    async def main() -> list[SourceBatch]:
        received: list[SourceBatch] = []

        async def receive() -> None:
            async for batch in source.batches(SourceContext(Path("unused"))):
                received.append(batch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            # The loop runs while the generator waits for it: that is the claim.
            await trio.lowlevel.checkpoint()
            released.set()
        return received

    source = Table(generate())
    assert sum(batch.rows.num_rows for batch in trio.run(main)) == 2


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (42, "it is a int"),
        ("file.csv", "it is a str"),
        ({"n": [1]}, r"use pyarrow\.table\(data\)"),
        ([], "data is empty"),
        ([1, 2], "that holds a int"),
        ([{"a": 1}, 2], "row 1 is a int"),
        ([{1: "a"}], "column names of row 0 must be strings"),
        ([{}], "no columns"),
        ([{"a": 1}, {"a": "x"}], "column 'a' do not make one Arrow type"),
        (pa.table([[1], [2]], names=["a", "a"]), "'a' occurs more than once"),
        (pa.table({}), "no columns"),
    ],
)
def test_data_that_cannot_be_a_source_is_a_plan_error_that_says_why(data: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Table(data)


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), "fast", True])
def test_a_rate_that_is_no_rate_is_a_plan_error(rate: Any) -> None:
    with pytest.raises(PlanError, match="rate must be a number of rows per second above 0"):
        Table(numbers(0, 1), rate=rate)


@pytest.mark.parametrize("batch_rows", [0, -1, 1.5, "many", True])
def test_batch_rows_that_is_no_count_is_a_plan_error(batch_rows: Any) -> None:
    with pytest.raises(PlanError, match="batch_rows must be a whole number"):
        Table(numbers(0, 1), batch_rows=batch_rows)


def test_a_later_item_with_other_columns_is_named_with_both_schemas() -> None:
    source = Table([numbers(0, 1), pa.record_batch({"m": pa.array([1], pa.int32())})])
    with pytest.raises(PlanError, match="item 1 of data has columns m int32; the first had n int64"):
        rows_of(source)


def test_a_later_item_of_another_kind_is_named() -> None:
    source = Table([numbers(0, 1), {"n": 1}])
    with pytest.raises(PlanError, match="item 1 of data is a dict"):
        rows_of(source)


def test_what_a_generator_raises_is_reported_with_its_place() -> None:
    def generate() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 1)
        raise OSError("disk on fire")

    source = Table(generate())
    with pytest.raises(FluxError, match="raised OSError at item 1: disk on fire"):
        rows_of(source)


def test_rows_that_came_are_sent_on_while_the_next_are_awaited() -> None:
    sent_on = threading.Event()

    def generate() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 1)
        assert sent_on.wait(60)
        yield numbers(1, 1)

    async def main() -> list[int]:
        received = []
        async for batch in Table(generate()).batches(SourceContext(Path("unused"))):
            received.append(batch.rows.num_rows)
            sent_on.set()
        return received

    assert trio.run(main) == [1, 1]


def test_an_iterator_is_pulled_no_more_than_a_batch_ahead() -> None:
    pulled = []

    def generate() -> Iterator[pa.RecordBatch]:
        for index in range(10):
            pulled.append(index)
            yield numbers(index, 1)

    async def main() -> None:
        ahead = 0
        taken = 0
        async for batch in Table(generate(), batch_rows=1).batches(SourceContext(Path("unused"))):
            taken += batch.rows.num_rows
            await trio.testing.wait_all_tasks_blocked()
            ahead = max(ahead, len(pulled) - taken)
        # One is held, and the iterator may be at the next.
        assert taken == 10 and ahead <= 2

    trio.run(main)


def test_an_iterator_that_exits_is_blamed() -> None:
    def generate() -> Iterator[pa.RecordBatch]:
        yield numbers(0, 1)
        raise SystemExit("enough")

    with pytest.raises(FluxError, match="raised SystemExit at item 1: enough"):
        rows_of(Table(generate()))


def test_columns_are_decoded_and_later_items_may_be_stored_otherwise() -> None:
    plain = pa.table({"app": ["web", "mail"]})
    encoded = pa.table({"app": plain.column("app").dictionary_encode()})
    source = Table([encoded, plain])
    assert source.schema == plain.schema
    assert {batch.rows.schema for batch in batches_of(source)} == {plain.schema}
    assert rows_of(source) == plain.to_pylist() * 2


def test_what_fields_say_beside_their_type_is_kept_and_alike_in_all_batches() -> None:
    said = pa.schema([pa.field("n", pa.int64(), nullable=False, metadata={"unit": "s"})], metadata={"of": "us"})
    bare = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    source = Table([pa.table({"n": [1]}, schema=said), pa.table({"n": [2]}, schema=bare)], batch_rows=1)
    assert all(batch.rows.schema.equals(said, check_metadata=True) for batch in batches_of(source))


@pytest.mark.parametrize("kind", [pa.list_(pa.string_view(), 1), pa.dense_union([pa.field("a", pa.string_view())])])
def test_a_column_that_cannot_be_decoded_is_a_plan_error_that_names_it(kind: Any) -> None:
    with pytest.raises(PlanError, match="column 'v': rows with values of type"):
        Table(pa.table({"v": pa.array([], kind) if pa.types.is_fixed_size_list(kind) else pa.nulls(0, kind)}))


def test_a_source_without_batches_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="async def batches"):
        Source().batches(SourceContext(Path("unused")))


# Tables of other libraries.


class Exported:
    """Any table that speaks Arrow's protocol, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


SOLD = pa.table({"app": ["web", None], "n": [1, 2], "at": pa.array([0, 1], pa.timestamp("us"))})


def check_polars() -> None:
    """Check frames of Polars, in a process of its own: forks of a program that has its threads hang."""
    import polars

    frame = polars.from_arrow(SOLD)
    source = Table(frame)
    assert source.schema.names == ["app", "n", "at"] and source.schema.field("n").type == pa.int64()
    assert rows_of(source) == SOLD.to_pylist()
    assert rows_of(Table([frame, frame])) == SOLD.to_pylist() * 2
    assert polars.from_arrow(pa.table(Exported(SOLD)))["app"].to_list() == ["web", None]


def test_frames_of_polars_are_tables_and_it_takes_tables() -> None:
    program = "from tests.sources.test_table import check_polars; check_polars()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("make", [Exported, pa.Table.to_pandas])
def test_frames_of_other_libraries_are_tables(make: Any) -> None:
    for data, times in ((make(SOLD), 1), ([make(SOLD), make(SOLD)], 2), (iter([make(SOLD)]), 1)):
        source = Table(data)
        assert source.schema.names == ["app", "n", "at"] and source.schema.field("n").type == pa.int64()
        assert rows_of(source) == SOLD.to_pylist() * times


def test_the_index_of_a_pandas_frame_is_a_column_unless_it_counts_rows() -> None:
    frame = pd.DataFrame({"n": [1, 2, 3]}, index=pd.Index(["a", "b", "c"], name="key"))
    assert rows_of(Table(frame)) == [{"n": 1, "key": "a"}, {"n": 2, "key": "b"}, {"n": 3, "key": "c"}]
    assert Table(frame.reset_index(drop=True)).schema.names == ["n"]


def test_a_reader_of_batches_is_read_once_as_an_iterator() -> None:
    source = Table(pa.RecordBatchReader.from_batches(SOLD.schema, SOLD.to_batches()))
    assert source.is_endless and rows_of(source) == SOLD.to_pylist()


def test_pandas_takes_the_table_of_a_report() -> None:
    flow = flux.Dataflow("frames")
    flow.source(Table(SOLD)).filter(lambda row: row.n > 0).sink(flux.sinks.Collect())
    table = flow.run().table
    assert table.to_pandas()["n"].tolist() == [1, 2]
    assert pa.table(Exported(table)).equals(table)
