"""The order of rows that stem from one input row, whatever the number of steps on the way that make several of one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flux
from flux.exchange.merge import merge, settle
from flux.exchange.routes import Route
from flux.exchange.rows import SUB, Rows
from flux.model.batch import Batch, punctuation_rows
from flux.operators import TimeWindow
from flux.site.digests import Digests
from flux.testing import simulate
from flux.wire.frames import BadFrame
from tests.whole_flow import flow_of

Path_ = tuple[int, ...]  # Of a row: the input, and the index among its siblings at each step.


def fanned(paths: Sequence[Path_], copies: Sequence[int]) -> list[tuple[Path_, int]]:
    """The rows that a step makes: their paths, and of which row each is made."""
    return [((*path, i), place) for place, (path, n) in enumerate(zip(paths, copies, strict=True)) for i in range(n)]


def emitted(batch: Batch, made: Sequence[tuple[Path_, int]], level: int) -> Batch:
    out = batch.for_step(level, None, "step").emit(
        {"path": [repr(path) for path, _ in made]}, np.array([place for _, place in made], np.int64)
    )
    assert out is not None
    return out


def first(count: int) -> Batch:
    arrow = pa.record_batch({"path": [repr((i,)) for i in range(count)]})
    return Batch(arrow, np.arange(1, count + 1), None, np.zeros(count, np.uint16))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_stand_in_the_order_of_their_descent_however_deep_and_however_cut(data: st.DataObject) -> None:
    whole, paths = first(2), [(0,), (1,)]
    for level in range(data.draw(st.integers(1, 11))):
        copies = data.draw(st.lists(st.integers(0, 2), min_size=len(paths), max_size=len(paths)))
        made = fanned(paths, copies)[:24]
        if not made:
            return
        # The rows of each of two batches, and of none: the places are those of the whole.
        cut = data.draw(st.integers(0, len(paths)))
        parts = []
        for start, stop in ((0, cut), (cut, len(paths))):
            own = [(path, place - start) for path, place in made if start <= place < stop]
            if own:
                parts.append(emitted(whole.slice(start, stop), own, level))
        shuffled = data.draw(st.permutations(range(len(made))))
        whole = Batch.concat(parts).take(np.array(shuffled, np.int64)).ordered()
        paths = [path for path, _ in made]
        assert whole["path"].tolist() == [repr(path) for path in paths] == [repr(path) for path in sorted(paths)]


def deep_rows(given: Sequence[tuple[int, Path_, int]], words: int, punctuations: tuple[Any, ...] = ()) -> Rows:
    """Rows of (sn, index at levels 0, 4 and 8, producer), with so many words for each."""
    numbers = np.array([[index << 48 for index in path] for _, path, _ in given], np.uint64).reshape(len(given), -1)
    sub = numbers[:, :words] if words > 1 else numbers[:, 0]
    producer = np.array([producer for _, _, producer in given], np.uint16)
    user = pa.record_batch({"v": pa.array([repr(row) for row in given], pa.string())})
    return Rows.of(user, np.array([sn for sn, _, _ in given], np.int64), sub, producer, producer, punctuations)


DEEP = st.lists(
    st.tuples(st.integers(1, 4), st.tuples(*[st.integers(0, 2)] * 3), st.integers(0, 2)), min_size=1, max_size=20
).map(sorted)


@settings(deadline=None)
@given(st.lists(DEEP, min_size=1, max_size=3))
def test_lanes_are_merged_by_all_words_and_what_a_lane_lacks_is_zero(lanes: list[list[Any]]) -> None:
    parts, model = [], []
    for width, lane in enumerate(lanes, start=1):
        # A lane of a shallower branch: the levels that it has not come to are zero.
        own = sorted((sn, (*path[:width], *(0,) * (3 - width)), producer) for sn, path, producer in lane)
        parts.append(deep_rows(own, width))
        model += own
    parts = [Rows.received(part.wide, []) for part in parts]
    whole = merge(parts)
    assert whole.user.column("v").to_pylist() == [repr(row) for row in sorted(model)]


@settings(deadline=None)
@given(DEEP, st.randoms(use_true_random=False))
def test_settled_rows_go_by_all_words(model: list[Any], rng: Any) -> None:
    shuffled = sorted(rng.sample(model, len(model)), key=lambda row: row[0])
    assert settle(deep_rows(shuffled, 3)).user.column("v").to_pylist() == [repr(row) for row in sorted(model)]


def test_any_rows_go_to_the_same_partition_whatever_words_of_zeros_are_behind() -> None:
    route, sn = Route(partitions=7, by="any"), np.arange(500)
    rows = pa.record_batch({"n": sn})
    one = np.arange(500, dtype=np.uint64) << np.uint64(48)
    wide = np.stack([one, np.zeros(500, np.uint64)], axis=1)
    deep = np.stack([one, one], axis=1)
    assert route.partition(rows, sn, one).tolist() == route.partition(rows, sn, wide).tolist()
    # Descendants of one row are dealt out too.
    one_row = route.partition(rows, np.ones(500, np.int64), np.stack([np.zeros(500, np.uint64), one], axis=1))
    assert len(set(one_row.tolist())) == 7 and route.partition(rows, sn, deep).max() < 7


def test_a_digest_tells_deep_rows_apart_and_words_of_zeros_count_nothing() -> None:
    def digest(sub: Any) -> int:
        digests, zeros = Digests(1), np.zeros(4, np.uint16)
        digests.add(Rows.of(pa.record_batch({"n": range(4)}), np.arange(1, 5), sub, zeros, zeros), 0, 4, [])
        return digests.get(0)

    one = np.array([0, 1, 2, 3], np.uint64)
    zero = np.zeros(4, np.uint64)
    assert digest(one) == digest(np.stack([one, zero], 1)) == digest(np.stack([one, zero, zero], 1))
    assert len({digest(np.stack(each, 1)) for each in ([one, one], [one, zero], [zero, one], [zero, one, one])}) == 4


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], None], pa.list_(pa.uint64(), 2)),
        pa.array([[1, None], [1, 2]], pa.list_(pa.uint64(), 2)),
        pa.array([[1, 2], [1, 2]], pa.list_(pa.int64(), 2)),
        pa.array([[1, 2], [1, 2]], pa.list_(pa.uint64())),
        pa.array([[1], [2]], pa.list_(pa.uint64(), 1)),
    ],
)
def test_words_that_are_not_what_they_should_be_are_refused(column: Any) -> None:
    zeros = np.zeros(2, np.uint16)
    wide = Rows.of(pa.record_batch({"n": [1, 2]}), np.arange(1, 3), None, zeros, zeros).wide
    assert wide is not None
    with pytest.raises(BadFrame, match="__sub"):
        Rows.received(wide.append_column(SUB, column), [])


@pytest.mark.parametrize("level", [0, 3, 4, 9])
def test_rows_of_a_punctuation_are_numbered_at_any_level(level: int) -> None:
    partition = np.array([2, 1, 2, 2, 1], np.uint16)
    out = punctuation_rows(pa.record_batch({"n": range(5)}), 7, partition, level)
    assert out["n"].tolist() == [1, 0, 4, 2, 3]
    assert out.take(np.array([4, 3, 2, 1, 0])).ordered()["n"].tolist() == [1, 0, 4, 2, 3]


def test_more_rows_of_one_than_can_be_kept_in_order_name_step_row_and_remedy() -> None:
    flow = flux.Dataflow("many")
    rows = flow.source(flux.sources.Table([{"n": 1}, {"n": 70_000}]))
    rows.flat_map(lambda row: [{"n": 0}] * row.n, {"n": "int64"}).sink(flux.sinks.Null())
    with pytest.raises(flux.OperatorError, match=r"emitted 70000 rows for one; at most 65536 .* list column") as raised:
        flow.run(sites=2)
    assert (raised.value.step, raised.value.row) == ("flat_map(<lambda>)", 2)


# Whole flows.

COLUMNS = {"k": "int64", "path": "int64"}


def twice(row: Any) -> list[dict[str, int]]:
    """Two rows of most, one or none of some; the digits of a path are the order of descent."""
    count = (row.path * 7 + row.k) % 4
    return [{"k": (row.k * 5 + i) % 11, "path": row.path * 10 + i + 1} for i in range(min(count, 2))]


class Twice(flux.Operator):
    output = COLUMNS

    def process(self, batch: Batch) -> Batch | None:
        made = [(place, each) for place, row in enumerate(batch.rows()) for each in twice(row)]
        columns = {name: [each[name] for _, each in made] for name in COLUMNS}
        return batch.emit(columns, np.array([place for place, _ in made], np.int64))


def deep_flow(source: flux.sources.Source, **source_settings: Any) -> flux.Stream:
    stream = flux.Dataflow("deep").source(source, **source_settings)
    for number in range(4):
        stream = stream.flat_map(twice, COLUMNS).exchange("k", partitions=3).apply(Twice)
        if number == 1:
            stream = stream.exchange(by="any", partitions=2).apply(Twice)
    return stream


def plainly(rows: Sequence[dict[str, int]], steps: int) -> list[dict[str, int]]:
    for _ in range(steps):
        rows = [made for row in rows for made in twice(flux.model.batch.row_type(("k", "path"))(row["k"], row["path"]))]
    return list(rows)


def inputs(count: int) -> list[dict[str, int]]:
    return [{"k": i % 7, "path": i % 9 + 1} for i in range(count)]


def gated(rows: Sequence[dict[str, int]], gate: Path) -> Iterator[pa.RecordBatch]:
    whole = pa.Table.from_pylist(list(rows))
    yield from whole.slice(0, len(rows) // 2).to_batches(max_chunksize=30)
    while not gate.exists():
        time.sleep(0.01)
    yield from whole.slice(len(rows) // 2).to_batches(max_chunksize=30)


def test_nine_steps_that_make_several_rows_of_one_keep_their_order_though_a_site_dies(tmp_path: Path) -> None:
    rows, gate = inputs(400), tmp_path / "gate"
    stream = deep_flow(flux.sources.Table(gated(rows, gate), batch_rows=50))
    stream.sink(flux.sinks.Collect())
    wanted = plainly(rows, 9)
    assert len(wanted) > 1_500

    with flow_of(stream).start(sites=3, standby=1) as run:
        run.wait_for_output(100)
        run.kill("site-2")
        gate.touch()
        report = run.wait(timeout=120)

    assert report.table is not None and report.table.to_pylist() == wanted
    assert [failure.site for failure in report.failures] == ["site-2"]


def test_a_deep_flow_gives_the_same_in_simulated_worlds() -> None:
    stream = deep_flow(flux.sources.Table(inputs(12)))
    stream.sink(flux.sinks.Collect())
    assert simulate(flow_of(stream), seeds=4, rows=12).outputs > 50


@pytest.mark.parametrize("order", ["sn", "any"])
def test_branches_of_different_depths_come_together_alike_in_simulated_worlds(order: Any) -> None:
    rows = flux.Dataflow("branches").source(flux.sources.Table(inputs(12)))
    deep = rows
    for _ in range(5):
        deep = deep.flat_map(twice, COLUMNS)
    both = deep.union(rows.flat_map(twice, COLUMNS)).exchange("k", partitions=3, order=order).apply(Twice)
    both.union(rows).exchange("k", partitions=3).apply(Twice).sink(flux.sinks.Collect())
    assert simulate(flow_of(both), seeds=4, rows=12).outputs > 20


def test_branches_of_different_depths_come_together_in_the_order_of_their_descent() -> None:
    """Rows of one input go by the numbers of their descent, whatever their depths; of equal ones, by their branches."""
    rows = flux.Dataflow("branches").source(flux.sources.Table([{"k": 1, "path": 1}, {"k": 2, "path": 2}]))
    both = rows.map(lambda row: {"k": row.k, "path": 0}, COLUMNS)
    for _ in range(5):
        both = both.flat_map(lambda row: [{"k": row.k, "path": 2 * row.path + i} for i in (0, 1)], COLUMNS)
    shallow = rows.flat_map(lambda row: [{"k": row.k, "path": -1 - i} for i in (0, 1)], COLUMNS)
    both.union(shallow).sink(flux.sinks.Collect())
    table = flow_of(rows).run(sites=2).table
    assert table is not None
    # Of 32 descendants the first 16 stem from the first child: the shallow second child comes before the 17th.
    of_one = [0, -1, *range(1, 16), 16, -2, *range(17, 32)]
    assert table.to_pylist() == [{"k": k, "path": path} for k in (1, 2) for path in of_one]


def test_windows_may_close_behind_four_steps_that_make_several_rows_of_one() -> None:
    rows = [{"k": i % 7, "path": i % 9 + 1, "ts": i} for i in range(60)]
    stream = flux.Dataflow("windows").source(flux.sources.Table(rows), event_time="ts", watermark_every_ms=10)
    output = {"k": "int64", "path": "int64", "ts": "int64"}
    for _ in range(5):
        stream = stream.flat_map(lambda row: [{**each, "ts": row.ts} for each in twice(row)], output)
    counted = stream.exchange("k", partitions=3).apply(TimeWindow, time="ts", size_ms=20, aggregates={"n": "count"})
    counted.sink(flux.sinks.Collect())
    table = flow_of(stream).run(sites=2).table
    assert table is not None
    assert sum(table["n"].to_pylist()) == len(plainly(rows, 5))
    windows = table["window_start"].to_pylist()
    assert windows == sorted(windows) and set(windows) == {0, 20, 40}
