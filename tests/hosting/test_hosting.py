"""How operators of each form are driven: order, partitions, state, errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.hosting import host
from flux.model.batch import Batch
from flux.model.operator import Context, KeyedOperator, Operator, PooledOperator, Punctuation
from flux.testing.harness import ship
from flux.types.errors import OperatorError, PlanError, StateError
from tests.operators.feeding import PARTITIONS, batch_of, cuts, opened, outputs, step_of, tuples

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
ROWS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=30)


class Running(Operator):
    """Emits each row n times, with a running sum of its partition."""

    output = {"k": "int64", "sum": "int64"}  # noqa: RUF012

    def open(self, context: Context) -> None:
        self.total = 0
        self.partition = context.partition

    def process(self, batch: Batch) -> Batch | None:
        assert set(batch.partition.tolist()) == {self.partition}
        sums = self.total + np.cumsum(batch["n"])
        self.total = int(sums[-1])
        origin = np.repeat(np.arange(len(batch)), batch["n"])
        return batch.emit({"k": batch["k"][origin], "sum": sums[origin]}, origin)

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        return {"k": [-1, -2], "sum": [self.total, p.sn]} if p.kind == "end" else None

    def get_state(self) -> Any:
        return self.total

    def install_state(self, state: Any) -> None:
        self.total += state


class RunningByKey(KeyedOperator):
    """The same by key, one row at a time."""

    output = {"k": "int64", "sum": "int64"}  # noqa: RUF012

    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        total = (state or 0) + row.n
        # Forgetting at five shows that None forgets.
        return (None if total == 5 else total), ({"k": key[0], "sum": total} for _ in range(row.n))


def plain(rows: list[tuple[int, int]], by_key: bool) -> list[tuple[int, tuple[int, int]]]:
    totals: dict[int, int] = {}
    out = []
    for sn, (k, n) in enumerate(rows):
        group = k if by_key else k % PARTITIONS
        total = totals[group] = totals.get(group, 0) + n
        if by_key and total == 5:
            del totals[group]
        out += [(sn, (k, total))] * n
    return out


@pytest.mark.parametrize("operator", [Running, RunningByKey])
@given(rows=ROWS, data=st.data())
def test_output_is_that_of_a_plain_loop_for_any_batching_and_any_moves(
    operator: Any, rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    batches = data.draw(cuts(len(rows)))
    moves = data.draw(st.lists(st.integers(0, PARTITIONS - 1), max_size=len(batches)))
    step = step_of(operator, SCHEMA, ("k",))
    found = outputs(step, rows, SCHEMA, lambda row: row[0] % PARTITIONS, batches, moves)
    assert found == plain(rows, operator is RunningByKey)


@given(ROWS)
def test_outputs_stand_in_order_of_sn_sub_and_partition(rows: list[tuple[int, int]]) -> None:
    """Also where producers gave several rows the same place, as those of a punctuation have."""
    whole = batch_of(rows, SCHEMA, [row[0] % PARTITIONS for row in rows])
    same_place = Batch(whole.arrow, whole.sn // 3, whole.sub, whole.partition)
    for operator in (Running, RunningByKey):
        out = opened(step_of(operator, SCHEMA, ("k",), level=1)).process(same_place)
        if out is not None:
            sub = np.zeros(len(out), np.uint64) if out.sub is None else out.sub
            places = list(zip(out.sn.tolist(), sub.tolist(), out.partition.tolist(), strict=True))
            assert places == sorted(places)
            assert out.partition.tolist() == (out["k"] % PARTITIONS).tolist()


def test_outputs_of_a_punctuation_take_its_sn_and_their_index_as_sub() -> None:
    hosted = opened(step_of(Running, SCHEMA), [2, 0])
    hosted.process(batch_of([(0, 3), (2, 1)], SCHEMA, [0, 2]))
    assert hosted.punctuate(Punctuation(8, "watermark", 5)) is None
    out = hosted.punctuate(Punctuation(9, "end"))
    assert out is not None and out.sub is not None
    assert out.partition.tolist() == [0, 2, 0, 2]
    assert (out.sub >> np.uint64(48)).tolist() == [0, 0, 1, 1]
    assert tuples(out) == [(-1, 3), (-1, 1), (-2, 9), (-2, 9)]


def test_without_a_declared_output_the_first_one_is_kept_to() -> None:
    class Guess(Operator):
        def process(self, batch: Batch) -> Batch | None:
            return batch.emit({"x": batch["n"].astype(np.int16) if batch["n"][0] < 5 else ["word"] * len(batch)})

    hosted = opened(step_of(Guess, SCHEMA))
    first = hosted.process(batch_of([(0, 1)], SCHEMA, [0]))
    assert first is not None and first.arrow.schema == pa.schema([("x", pa.int16())])
    with pytest.raises(OperatorError, match=r"'x': expected int16, got a list of str"):
        hosted.process(batch_of([(0, 7)], SCHEMA, [1]))


def test_a_step_may_pass_rows_on_as_they_are() -> None:
    class Pass(PooledOperator):
        def process(self, batch: Batch) -> Batch | None:
            return batch

    out = opened(step_of(Pass, SCHEMA)).process(batch_of([(1, 2), (3, 4)], SCHEMA, [1, 0]))
    assert tuples(out) == [(1, 2), (3, 4)]


# Errors.


def failing_line(function: Any) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + 1}"


class FailsOnRow(Operator):
    def process(self, batch: Batch) -> Batch | None:
        return batch.emit({"x": [1 // row.n for row in batch.rows()]})


class FailsOnBatch(Operator):
    def process(self, batch: Batch) -> Batch | None:
        raise ZeroDivisionError("by hand")


class FailsOnTuple(KeyedOperator):
    def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> tuple[Any, Iterable[Mapping[str, Any]] | None]:
        return 1 // row.n, None


@pytest.mark.parametrize("operator", [FailsOnRow, FailsOnTuple])
def test_what_a_row_raises_names_step_line_partition_and_row(operator: Any) -> None:
    rows = batch_of([(0, 1), (1, 1), (1, 0), (1, 1)], SCHEMA, [0, 1, 1, 1], first_sn=40)
    function = operator.process if operator is FailsOnRow else operator.on_tuple
    with pytest.raises(OperatorError) as caught:
        opened(step_of(operator, SCHEMA, ("k",))).process(rows)
    assert (caught.value.step, caught.value.partition, caught.value.row) == ("step", 1, 42)
    for part in (operator.__name__, failing_line(function), "ZeroDivisionError", "{'k': 1, 'n': 0}"):
        assert part in str(caught.value)


def test_what_a_batch_raises_names_its_range() -> None:
    with pytest.raises(OperatorError, match="sn 40 to 41") as caught:
        opened(step_of(FailsOnBatch, SCHEMA)).process(batch_of([(0, 1), (1, 1)], SCHEMA, [3, 3], first_sn=40))
    assert (caught.value.partition, caught.value.row) == (3, None)
    assert failing_line(FailsOnBatch.process) in str(caught.value)


def test_a_batch_kept_from_before_cannot_be_returned() -> None:
    class Late(Operator):
        def open(self, context: Context) -> None:
            self.kept: Batch | None = None

        def process(self, batch: Batch) -> Batch | None:
            out, self.kept = self.kept, batch.emit({"k": batch["k"]})
            return out

    hosted = opened(step_of(Late, SCHEMA))
    assert hosted.process(batch_of([(0, 1)], SCHEMA, [0])) is None
    with pytest.raises(OperatorError, match="not emitted from the batch it was given"):
        hosted.process(batch_of([(0, 1)], SCHEMA, [0], first_sn=1))


@pytest.mark.parametrize("returned", [{"k": [1]}, [1], 7])
def test_only_batches_are_returned(returned: Any) -> None:
    class Wrong(Operator):
        def process(self, batch: Batch) -> Any:
            return returned

    with pytest.raises(OperatorError, match=r"expected what batch.emit"):
        opened(step_of(Wrong, SCHEMA)).process(batch_of([(0, 1)], SCHEMA, [0]))


@pytest.mark.parametrize("emitted", [{"k": 1, "sum": 2}, [{"k": 1}], [7], [{"k": 1, "sum": 2, "x": 3}]])
def test_a_keyed_operator_emits_dicts_of_its_columns(emitted: Any) -> None:
    class Wrong(RunningByKey):
        def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> Any:
            return None, emitted

    with pytest.raises(OperatorError, match="iterable of dicts with the keys k, sum"):
        opened(step_of(Wrong, SCHEMA, ("k",))).process(batch_of([(0, 1)], SCHEMA, [0]))


def test_a_keyed_operator_may_emit_the_dict_that_it_keeps() -> None:
    class Counts(KeyedOperator):
        output = {"n": "int64"}  # noqa: RUF012

        def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> Any:
            state = state or {"n": 0}
            state["n"] += 1
            return state, [state]

    out = opened(step_of(Counts, SCHEMA, ("k",))).process(batch_of([(1, 1)] * 3, SCHEMA, [0] * 3))
    assert tuples(out) == [(1,), (2,), (3,)]


def test_a_keyed_operator_needs_a_key() -> None:
    with pytest.raises(PlanError, match="exchange"):
        host(step_of(RunningByKey, SCHEMA))


def test_something_else_is_no_operator() -> None:
    with pytest.raises(PlanError, match="'dict'"):
        host(step_of(dict, SCHEMA))


# State.


def test_all_nan_are_one_key_also_after_a_move() -> None:
    schema = pa.schema([("k", pa.float64()), ("n", pa.int64())])

    class CountNan(KeyedOperator):
        output = {"count": "int64"}  # noqa: RUF012

        def on_tuple(self, key: tuple[Any, ...], row: Any, state: Any) -> Any:
            return (state or 0) + 1, [{"count": (state or 0) + 1}]

    step = step_of(CountNan, schema, ("k",))
    rows = batch_of([(float("nan"), 1), (float("nan"), 1)], schema, [0, 0])
    here, there = opened(step), opened(step)
    assert tuples(here.process(rows)) == [(1,), (2,)]
    there.install_partition_state(0, here.get_partition_state(0))
    assert tuples(there.process(rows)) == [(3,), (4,)]


def test_state_without_get_state_is_refused_rather_than_lost() -> None:
    class Forgetful(Operator):
        def open(self, context: Context) -> None:
            self.seen = 0

    class Stateless(Operator):
        pass

    with pytest.raises(StateError, match="seen"):
        opened(step_of(Forgetful, SCHEMA)).get_partition_state(0)
    assert opened(step_of(Stateless, SCHEMA)).get_partition_state(0) is None


def test_a_partition_is_made_by_its_first_state_and_may_come_in_pieces() -> None:
    hosted = opened(step_of(Running, SCHEMA), [])
    for piece in (3, 4):
        hosted.install_partition_state(2, piece)
    assert tuples(hosted.process(batch_of([(0, 1)], SCHEMA, [2]))) == [(0, 8)]


@pytest.mark.parametrize("count", [0, 2])
def test_a_generator_of_no_pieces_moves_a_partition_too(count: int) -> None:
    class InPieces(Running):
        def get_state(self) -> Any:
            yield from [1] * count

    here, there = opened(step_of(InPieces, SCHEMA)), opened(step_of(InPieces, SCHEMA), [])
    for piece in here.get_partition_state(2):
        there.install_partition_state(2, piece)
    assert tuples(there.process(batch_of([(0, 1)], SCHEMA, [2]))) == [(0, 1 + count)]


def test_states_of_many_keys_move_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.hosting.per_key._PIECE_KEYS", 3)
    step = step_of(RunningByKey, SCHEMA, ("k",))
    here, there = opened(step), opened(step, [])
    rows = batch_of([(k, 1) for k in range(10)], SCHEMA, [2] * 10)
    here.process(rows)
    pieces = list(here.get_partition_state(2))
    assert [piece["keys"].num_rows for piece in pieces] == [3, 3, 3, 1]
    for piece in pieces:
        there.install_partition_state(2, piece)
    assert tuples(there.process(rows)) == [(k, 2) for k in range(10)]


@pytest.mark.parametrize("factory", [Running, lambda: Running()])
def test_an_operator_says_whether_a_fork_has_its_state(factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host(step_of(factory, SCHEMA)).state_in_memory
    monkeypatch.setattr(Running, "state_in_memory", False)
    assert not host(step_of(factory, SCHEMA)).state_in_memory


def test_what_a_generator_of_pieces_raises_names_it() -> None:
    class Breaks(Running):
        def get_state(self) -> Any:
            yield 1
            raise ValueError("no more")

    with pytest.raises(OperatorError, match=r"Breaks\.get_state .* raised ValueError: no more") as caught:
        list(opened(step_of(Breaks, SCHEMA)).get_partition_state(2))
    assert caught.value.partition == 2


@pytest.mark.parametrize("place", ["open", "process", "on_punctuation"])
def test_an_operator_that_exits_is_an_operator_error(place: str) -> None:
    def leave(*_: Any) -> None:
        raise SystemExit("give up")

    def run() -> None:
        hosted = opened(step_of(type("Exits", (Running,), {place: leave}), SCHEMA))
        hosted.process(batch_of([(0, 1)], SCHEMA, [2]))
        hosted.punctuate(Punctuation(5, "end"))

    with pytest.raises(OperatorError, match="raised SystemExit: give up"):
        run()


def test_rows_passed_on_keep_what_their_fields_say() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False, metadata={"unit": "s"}), ("v", pa.int64())])

    class Same(Operator):
        def process(self, batch: Batch) -> Batch:
            return batch

    out = opened(step_of(Same, schema)).process(batch_of([(0, 1), (1, 2)], schema, [0, 2]))
    assert out is not None
    assert out.arrow.schema.equals(schema, check_metadata=True)


def test_dropping_and_closing_close_instances() -> None:
    closed = []

    class Closes(Operator):
        def open(self, context: Context) -> None:
            self.partition = context.partition

        def close(self) -> None:
            closed.append(self.partition)

    hosted = opened(step_of(Closes, SCHEMA), [0, 1, 2])
    hosted.drop_partition(1)
    hosted.close()
    assert closed == [1, 0, 2]


def test_parameters_reach_the_operator() -> None:
    seen = []

    class Sees(Operator):
        def open(self, context: Context) -> None:
            seen.append(context)

    opened(step_of(Sees, SCHEMA, ("k",), limit=3), [1])
    assert seen == [Context({"limit": 3}, 1, PARTITIONS, "step", ("k",))]


def quiet(form: type[Any], calls: list[Any]) -> type[Any]:
    """An operator of a form that notes when it is told of a movement."""
    methods: dict[str, Any] = {
        name: lambda self, *args, name=name: calls.append((name, *args))
        for name in ("init_trans", "end_trans", "install_state", "install_partition_state", "drop_partition")
    }
    for name in ("get_state", "get_partition_state"):
        methods[name] = lambda self, *args, name=name: calls.append((name, *args)) or 1
    return type("Quiet", (form,), methods)


@pytest.mark.parametrize(
    ("form", "taken", "put"),
    [
        (Operator, [("get_state",)], [("install_state", 1)]),
        (KeyedOperator, [], []),
        (PooledOperator, [("get_partition_state", 3)], [("install_partition_state", 3, 1)]),
    ],
)
def test_an_operator_is_told_before_its_state_moves_and_afterwards(form: type[Any], taken: Any, put: Any) -> None:
    """Reference: 3.1, fig. 3.9."""
    calls: list[Any] = []
    step = step_of(quiet(form, calls), SCHEMA, ("k",))
    donor, standby = opened(step), opened(step, [])
    partition = (3,) if form is PooledOperator else ()
    donor.init_trans(3)
    state = donor.get_partition_state(3)
    donor.end_trans(3)
    assert calls == [("init_trans", *partition), *taken, ("end_trans", *partition)]
    calls.clear()
    standby.init_trans(3)
    standby.install_partition_state(3, state)
    standby.end_trans(3)
    assert calls == [("init_trans", *partition), *put, ("end_trans", *partition)]


class Last(KeyedOperator):
    """Tells the time of the row before, and how long ago that was."""

    output = {"k": pa.timestamp("ns"), "before": pa.timestamp("ns"), "ago": pa.duration("ns")}  # noqa: RUF012

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        before, ago = state or (row.ts, None)
        return (row.ts, row.ts - before), [{"k": key[0], "before": before, "ago": ago}]


@pytest.mark.parametrize("finer", [0, 1])
def test_times_in_nanoseconds_are_kept_as_keys_and_states_that_move(finer: int) -> None:
    kind = pa.timestamp("ns")
    schema = pa.schema({"k": kind, "ts": kind})
    here, there = opened(step_of(Last, schema, ("k",)), [0]), opened(step_of(Last, schema, ("k",)), [])
    first, second, third = (1_000_000_000_000 + 1_000 * i + finer * i for i in range(3))
    for site, ts in ((here, first), (here, second), (there, third)):
        if site is there:
            ship(here, 0, there)
        rows = pa.record_batch([pa.array([5_000 + finer], kind), pa.array([ts], kind)], schema=schema)
        out = site.process(Batch(rows, np.array([ts]), None, np.array([0], np.uint16)))
    assert out is not None
    found = [column.cast(pa.int64()).to_pylist()[0] for column in out.arrow.columns]
    assert found == [5_000 + finer, second, second - first]


class Told(PooledOperator):
    """Emits what it is told to."""

    def process(self, batch: Batch) -> Batch | None:
        return batch.emit({"v": self.values[: len(batch)], "n": batch["n"]})

    values: list[Any] = []  # noqa: RUF012


def told_in_turn(values: list[Any], cut: Iterable[int]) -> list[Any]:
    """What comes of rows that are told these values, cut into batches so."""
    hosted = opened(step_of(Told, SCHEMA))
    emitted: list[Batch] = []
    ends = sorted({*cut, len(values)})
    for start, stop in zip([0, *ends], ends, strict=False):
        Told.values = values[start:stop]
        rows = batch_of([(0, n) for n in range(start, stop)], SCHEMA, [0] * (stop - start))
        emitted += filter(None, [hosted.process(rows)])
    return Batch.concat(emitted).arrow.column("v").to_pylist()


@given(
    st.sampled_from([[1, 2], [1.5, 2.5], ["a", "b"], [[1], []], [[], [None], [2]], [{"x": None}, {"x": [1]}]]).flatmap(
        lambda some: st.lists(st.none() | st.sampled_from(some), min_size=1, max_size=8)
    ),
    st.sets(st.integers(1, 8)),
)
def test_none_is_none_in_undeclared_output_wherever_batches_are_cut(values: list[Any], cut: set[int]) -> None:
    assert told_in_turn(values, [end for end in cut if end < len(values)]) == values


@pytest.mark.parametrize("values", [[None, 1, 1.5], [None, [], [1], ["a"]], [None, {"x": 1}, {"y": 1}]])
def test_what_does_not_fit_what_was_told_is_refused_wherever_batches_are_cut(values: list[Any]) -> None:
    for cut in ((), (1,), (2,), (1, 2)):
        with pytest.raises(OperatorError, match=r"'v': expected"):
            told_in_turn(values, cut)


def test_partitions_of_which_some_have_told_nothing_yet_are_put_together() -> None:
    class OfPartition(Operator):
        def open(self, context: Context) -> None:
            self.value = (None, 7, None)[context.partition or 0]

        def process(self, batch: Batch) -> Batch | None:
            return batch.emit({"v": [self.value] * len(batch)})

        def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
            return {"v": [self.value]}

    hosted = opened(step_of(OfPartition, SCHEMA), [0, 1, 2])
    caused = hosted.punctuate(Punctuation(1, "end"))
    assert caused is not None and caused.arrow.column("v").to_pylist() == [None, 7, None]
    hosted = opened(step_of(OfPartition, SCHEMA), [0, 1, 2])
    out = hosted.process(batch_of([(0, 0), (0, 0), (0, 0)], SCHEMA, [0, 1, 2]))
    assert out is not None and out.arrow.column("v").to_pylist() == [None, 7, None]
