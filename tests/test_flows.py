"""Small flows on two sites, end to end: what each layer promises must hold when all of them meet."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import flux

pytestmark = pytest.mark.usefixtures("deadline")
ROWS = [{"k": index % 5} for index in range(100)]


class Same(flux.Operator):
    """Passes rows on."""

    def process(self, batch: Any) -> Any:
        return batch


class Tally(flux.Operator):
    """Emits nothing but, at the end, how often each key came."""

    output = {"k": "int64", "n": "int64"}

    def open(self, context: Any) -> None:
        self.seen: dict[int, int] = {}

    def process(self, batch: Any) -> None:
        for row in batch.rows():
            self.seen[row.k] = self.seen.get(row.k, 0) + 1

    def on_punctuation(self, p: Any) -> Any:
        keys = sorted(self.seen)
        return {"k": keys, "n": [self.seen[key] for key in keys]} if p.kind == "end" else None

    def get_state(self) -> dict[int, int]:
        return self.seen

    def install_state(self, state: dict[int, int]) -> None:
        self.seen = state


class Total(flux.Operator):
    """Emits, at the end, the sum of all tallies, and nothing of partitions that saw none."""

    output = {"total": "int64"}

    def open(self, context: Any) -> None:
        self.total = 0

    def process(self, batch: Any) -> None:
        self.total += int(batch["n"].sum())

    def on_punctuation(self, p: Any) -> Any:
        return {"total": [self.total]} if p.kind == "end" and self.total else None

    def get_state(self) -> int:
        return self.total

    def install_state(self, state: int) -> None:
        self.total = state


def flow_of(data: Any, operator: Any, *key: str, sink: flux.sinks.Sink | None = None, **how: Any) -> flux.Dataflow:
    flow = flux.Dataflow("small")
    events = flow.source(data if isinstance(data, flux.sources.Source) else flux.sources.Table(data, **how))
    events.exchange(*(key or ("k",)), partitions=4).apply(operator).sink(sink or flux.sinks.Collect())
    return flow


def table_of(flow: flux.Dataflow, **settings: Any) -> Any:
    return flow.run(sites=2, **settings).table


# The end of the stream.


def test_rows_emitted_at_the_end_reach_the_next_stage_before_its_end() -> None:
    flow = flux.Dataflow("totals")
    tallies = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=3).apply(Tally)
    tallies.exchange("n", partitions=1).apply(Total).sink(flux.sinks.Collect())
    assert table_of(flow).to_pylist() == [{"total": 100}]


def test_rows_emitted_at_the_end_reach_the_next_step_of_the_segment_before_its_end() -> None:
    flow = flux.Dataflow("totals")
    tallies = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=1).apply(Tally)
    tallies.apply(Total).sink(flux.sinks.Collect())
    assert table_of(flow).to_pylist() == [{"total": 100}]


# What a schema says arrives.


def test_a_field_without_nulls_and_metadata_arrive_as_declared() -> None:
    class Declared(Same):
        output = pa.schema([pa.field("k", pa.int64(), nullable=False, metadata={"unit": "s"})], metadata={"of": "us"})

        def process(self, batch: Any) -> Any:
            return batch.emit({"k": batch["k"]})

    found = table_of(flow_of(ROWS, Declared))
    assert found.schema.equals(Declared.output, check_metadata=True)
    assert found.num_rows == len(ROWS)


def test_a_source_without_nulls_passes_through_exchanges_and_a_library_operator() -> None:
    fields = [pa.field("k", pa.int64(), nullable=False), pa.field("dur", pa.int64(), nullable=False)]
    data = pa.table({"k": [1, 1, 1], "dur": [1, 2, 3]}, schema=pa.schema(fields))
    found = table_of(flow_of(data, flux.operators.CountWindow))
    assert not found.schema.field("k").nullable
    assert found.column("max_dur").to_pylist() == [2, 3]
    assert table_of(flow_of(data, Same)).schema == data.schema


STORED_OTHERWISE = {
    "dictionary": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "dictionary in a list": pa.ListArray.from_arrays([0, 1, 2, 2, 3], pa.array(["x", "y", "x"]).dictionary_encode()),
    "string view": pa.array(["x", "y", "x" * 20, None], pa.string_view()),
    "binary view": pa.array([b"x", b"y", b"x" * 20, None], pa.binary_view()),
    "list view": pa.array([[1], [2, 3], [], None], pa.list_view(pa.int64())),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays([2, 4], ["a", "b"]),
    "struct": pa.array([{"a": "x"}, None, {"a": "y"}, {"a": None}], pa.struct([("a", pa.string_view())])),
}


@pytest.mark.parametrize("name", STORED_OTHERWISE)
def test_columns_arrive_by_value_however_they_were_stored(name: str) -> None:
    column = STORED_OTHERWISE[name]
    found = table_of(flow_of(pa.table({"k": [1, 2, 3, 4], "v": column}), Same))
    assert found.column("v").to_pylist() == column.to_pylist()


def test_a_source_of_the_users_own_may_yield_dictionaries() -> None:
    class Apps(flux.sources.Source):
        schema = pa.schema({"k": pa.dictionary(pa.int8(), pa.string())})

        async def batches(self, context: Any) -> Any:
            for apps in (["web", "mail"], ["mail", "mail"]):
                column = pa.array(apps).dictionary_encode().cast(self.schema.field("k").type)
                yield flux.sources.SourceBatch(pa.RecordBatch.from_arrays([column], schema=self.schema))

    found = table_of(flow_of(Apps(), Same))
    assert found.to_pylist() == [{"k": app} for app in ("web", "mail", "mail", "mail")]
    assert found.schema.field("k").type == pa.string()


def test_emitted_dictionaries_are_decoded() -> None:
    class Encoded(flux.Operator):
        def process(self, batch: Any) -> Any:
            return batch.emit({"v": pa.array(["x"] * len(batch)).dictionary_encode()})

    assert table_of(flow_of(ROWS, Encoded)).column("v").to_pylist() == ["x"] * len(ROWS)


# Names and types that cannot be.


@pytest.mark.parametrize("name", ["__sn", "__sub", "__producer", "__partition"])
def test_a_column_with_a_name_of_flux_is_refused_wherever_it_comes_from(name: str) -> None:
    class Declared(Same):
        output = {name: "int64"}

    class Undeclared(flux.Operator):
        def process(self, batch: Any) -> Any:
            return batch.emit({name: batch["k"]})

    class Own(flux.sources.Source):
        schema = pa.schema({name: pa.int64()})

    with pytest.raises(flux.PlanError, match=name):
        flux.sources.Table([{name: 1}])
    with pytest.raises(flux.PlanError, match=name):
        flux.Dataflow("own").source(Own())
    with pytest.raises(flux.PlanError, match=rf"Declared: .*{name}"):
        flow_of(ROWS, Declared)
    with pytest.raises(flux.OperatorError, match=name):
        table_of(flow_of(ROWS, Undeclared))


@pytest.mark.parametrize("declared", [pa.dictionary(pa.int8(), pa.string()), pa.string_view()])
def test_a_declared_output_must_be_a_type_that_rows_travel_as(declared: Any) -> None:
    class Declared(Same):
        output = {"v": declared}

    with pytest.raises(flux.PlanError, match=r"output column 'v': .* Declare string"):
        flow_of(ROWS, Declared)


# Runs of one flow.


def test_a_collect_serves_one_run_at_a_time_and_keeps_its_rows() -> None:
    flow = flow_of(ROWS, Same, rate=400)
    with flow.start(sites=2) as run:
        run.wait_for_output(1)
        with pytest.raises(flux.PlanError, match=r"in use by a run .* Collect\(\) each"):
            flow.start(sites=2)
        # Refused twice: the first refusal must not have given the sink back.
        with pytest.raises(flux.PlanError, match="in use"):
            flow.start(sites=2)
        first = run.wait()
    assert first.table.to_pylist() == ROWS
    assert flow.run(sites=2).table.to_pylist() == ROWS
    assert first.table.to_pylist() == ROWS


def test_a_run_that_fails_gives_its_collect_back() -> None:
    class Fails(flux.Operator):
        def process(self, batch: Any) -> Any:
            raise ValueError("no")

    sink = flux.sinks.Collect()
    with pytest.raises(flux.OperatorError):
        table_of(flow_of(ROWS, Fails, sink=sink))
    assert table_of(flow_of(ROWS, Same, sink=sink)).to_pylist() == ROWS


def test_a_second_run_over_an_iterator_is_refused_before_it_starts() -> None:
    flow = flow_of(iter([pa.table({"k": [1, 2]}), pa.table({"k": [3]})]), Same)
    assert table_of(flow).column("k").to_pylist() == [1, 2, 3]
    with pytest.raises(flux.PlanError, match="used up by an earlier run"):
        flow.start(sites=2)


def test_rows_of_a_live_iterator_do_not_wait_for_the_next_ones() -> None:
    reading, writing = os.pipe()

    def live() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": [1]})
        os.read(reading, 1)  # Blocks until the first row is out at the other end.
        yield pa.record_batch({"k": [2]})

    with flow_of(live(), Same).start(sites=2) as run:
        run.wait_for_output(1)
        os.write(writing, b".")
        assert run.wait().table.column("k").to_pylist() == [1, 2]
    os.close(reading)
    os.close(writing)


# Operators.


@pytest.mark.parametrize("how", [{}, {"batch_rows": 7}])
def test_undeclared_output_takes_its_type_from_the_first_value_wherever_batches_are_cut(how: dict[str, int]) -> None:
    class Later(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            seen = (state or 0) + 1
            return seen, [{"v": 1 if seen < 20 else 1.5}]

    class Whole(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            seen = (state or 0) + 1
            return seen, [{"v": seen if seen % 2 else float(seen)}]

    # Also if the number is the same: a copy that comes later, and learns by itself, would take it for a float.
    for operator in (Later, Whole):
        with pytest.raises(flux.OperatorError, match=r"'v': expected int64, got a list of .*float") as caught:
            table_of(flow_of(ROWS, operator, **how))
        assert caught.value.row is not None


@pytest.mark.parametrize("availability", ["none", "pairs"])
def test_undeclared_output_that_differs_between_partitions_is_an_operator_error(availability: str) -> None:
    class ByPartition(flux.Operator):
        def open(self, context: Any) -> None:
            self.value = 1.5 if context.partition % 2 else 1

        def process(self, batch: Any) -> Any:
            return batch.emit({"v": [self.value] * len(batch)})

        def get_state(self) -> float:
            return self.value

        def install_state(self, state: float) -> None:
            self.value = state

    rows = [{"k": index} for index in range(100)]
    with pytest.raises(flux.OperatorError, match=r"'v': expected int64, got|Declare `output`"):
        # Of the four partitions each site has two, odd or even, when there is one copy.
        table_of(flow_of(rows, ByPartition), availability=availability)


@pytest.mark.parametrize("sink", ["Collect", "Jsonl", "Callback"])
def test_two_types_that_two_sites_were_told_are_both_named_whatever_the_sink(sink: str, tmp_path: Path) -> None:
    class ByPartition(flux.Operator):
        def open(self, context: Any) -> None:
            self.value = 1.5 if context.partition % 2 else 1

        def process(self, batch: Any) -> Any:
            return batch.emit({"v": [self.value] * len(batch)})

    to = {
        "Collect": flux.sinks.Collect,
        "Jsonl": partial(flux.sinks.Jsonl, tmp_path / "out.jsonl"),
        "Callback": partial(flux.sinks.Callback, lambda rows: None),
    }[sink]
    rows = [{"k": index} for index in range(100)]
    with pytest.raises(flux.OperatorError, match=r"v (int64|double) .* and v (int64|double).*Declare `output`"):
        flow_of(rows, ByPartition, sink=to()).run(sites=2, availability="none")


HALF = [{"k": index % 5, "n": None} for index in range(50)] + [{"k": index % 5, "n": index} for index in range(50)]


@pytest.mark.parametrize("batch_rows", [3, 50, 100])
def test_none_in_the_undeclared_output_of_a_map_is_none_wherever_batches_are_cut(
    batch_rows: int, tmp_path: Path
) -> None:
    flow = flux.Dataflow("some are None")
    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    source = flux.sources.Table(pa.Table.from_pylist(HALF, schema), batch_rows=batch_rows)
    mapped = flow.source(source).map(lambda row: {"v": row.n, "l": [] if row.n is None else [row.n]})
    mapped.sink(flux.sinks.Collect())
    mapped.sink(flux.sinks.Jsonl(tmp_path / "out.jsonl"))
    expected = [{"v": row["n"], "l": [] if row["n"] is None else [row["n"]]} for row in HALF]
    assert table_of(flow).to_pylist() == expected
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == expected


def test_none_in_undeclared_output_is_none_on_a_site_that_was_told_no_type() -> None:
    class Early(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return (state or 0) + 1, [{"k": key[0], "v": state if row.n is None else None}]

    reading, writing = os.pipe()

    def live() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(HALF[:50], schema)
        os.read(reading, 1)  # Blocks until a site is dead.
        yield pa.RecordBatch.from_pylist(HALF[50:], schema)

    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    with flow_of(live(), Early).start(sites=2, standby=1) as run:
        run.wait_for_output(50)
        run.kill("site-1")  # Its copies are made anew on a site that saw no value.
        os.write(writing, b".")
        values = run.wait().table.column("v").to_pylist()
    os.close(reading)
    os.close(writing)
    assert values == [index // 5 if index >= 5 else None for index in range(50)] + [None] * 50


def test_an_operator_that_exits_is_an_operator_error_with_its_row() -> None:
    class Exits(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            sys.exit("give up")

    with pytest.raises(flux.OperatorError, match=r"Exits.on_tuple .* raised SystemExit: give up") as caught:
        table_of(flow_of(ROWS, Exits))
    assert caught.value.row is not None


def test_what_a_factory_makes_says_what_is_emitted() -> None:
    flow = flux.Dataflow("made")
    tallies = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=2).apply(lambda: Tally())
    tallies.exchange("k", partitions=2).apply(Same).sink(flux.sinks.Collect())
    assert sorted(row["n"] for row in table_of(flow).to_pylist()) == [20] * 5


def test_windows_made_by_a_factory_are_planned_as_they_were_made() -> None:
    rows = [{"k": 1, "v": value} for value in (3, 5)]
    found = table_of(flow_of(rows, lambda: flux.operators.CountWindow(history=1, value="v")))
    assert found.to_pylist() == [{"k": 1, "max_v": 3, "avg_v": 3.0}, {"k": 1, "max_v": 5, "avg_v": 5.0}]


def test_a_factory_that_raises_is_a_plan_error() -> None:
    def broken() -> Any:
        raise ValueError("no such model")

    with pytest.raises(flux.PlanError, match=r"operator broken: .* raised ValueError: no such model"):
        flow_of(ROWS, broken)


NAMED = {"unit price": "float64", "class": "int64"}


class Priced(flux.KeyedOperator):
    output = NAMED

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return state, [{"unit price": row["unit price"] + 1, "class": row.get("class")}]


class Doubled(flux.Operator):
    output = {"unit price": "float64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"unit price": [2 * row["unit price"] for row in batch.rows()]})


def test_columns_whose_names_are_not_identifiers_are_there_in_every_form() -> None:
    flow = flux.Dataflow("names")
    rows = flow.source(flux.sources.Table([{"unit price": float(n), "class": n % 3} for n in range(10)]))
    kept = rows.filter(lambda row: row["unit price"] > 4).map(lambda row: row._asdict(), output=NAMED)
    twice = kept.flat_map(lambda row: [row._asdict()] * (row["class"] == 0), output=NAMED)
    priced = twice.exchange("class", partitions=2).apply(Priced)
    priced.exchange("class", partitions=2).apply(Doubled).sink(flux.sinks.Collect())
    assert flow.run().table.to_pylist() == [{"unit price": 14.0}, {"unit price": 20.0}]
