"""What `Generator` promises, and every source that replays: behind an offset come the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.sources import Generator, Source, SourceContext, Table
from flux.types.errors import FluxError, PlanError

from .reading import batches_of, check_offsets, counting, numbers, values_of


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=10), batch_rows=st.integers(1, 20))
def test_a_table_goes_on_behind_any_of_its_offsets(sizes: list[int], batch_rows: int) -> None:
    data = [numbers(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    check_offsets(lambda: Table(data, batch_rows=batch_rows), Path("unused"))
    assert values_of(Table(data), Path("unused"), after=sum(sizes) // 2) == list(range(sum(sizes) // 2, sum(sizes)))


def test_an_iterator_is_read_anew_behind_the_offset() -> None:
    assert values_of(Table(iter([numbers(0, 3), numbers(3, 3)])), Path("unused"), after=4) == [4, 5]


def test_a_table_that_has_become_shorter_says_so() -> None:
    with pytest.raises(FluxError, match="resume after row 9, but this time the data has 4 rows"):
        values_of(Table(numbers(0, 4)), Path("unused"), after=9)


# Generator.


def test_an_array_that_a_generator_uses_again_gives_the_rows_it_had() -> None:
    """Rows are kept until all have them, by the memory they are in."""
    used = np.zeros(5, np.int64)

    def again(offset: int) -> Iterator[dict[str, Any]]:
        for first in range(offset, 30, 5):
            used[:] = range(first, first + 5)
            yield {"n": used}

    assert values_of(Generator(again), Path("unused")) == [*range(30)]


@pytest.mark.parametrize("values", [["a", b"a"], [date(2024, 1, 1), 1], [np.datetime64(1, "s"), np.int8(3)]], ids=repr)
def test_a_column_of_which_values_would_become_others_is_refused(values: list[Any]) -> None:
    with pytest.raises(FluxError, match=r"the columns that .* gave do not make a table"):
        Generator(lambda offset, count: {"v": values})


def yielding(offset: int) -> Iterator[Any]:
    while True:
        yield {"n": [offset, offset + 1]}
        offset += 2


def yielding_from_the_start() -> Iterator[Any]:
    yield from yielding(0)


def in_forms(offset: int, count: int) -> Any:
    """Each piece in another form, of another size."""
    rows = numbers(offset, min(count, 1 + offset % 3))
    return [rows, rows.to_batches()[0], rows.to_pylist(), rows.to_pydict(), {"n": rows["n"].to_numpy()}][offset % 5]


@pytest.mark.parametrize("fn", [counting, yielding, yielding_from_the_start, in_forms])
@pytest.mark.parametrize("batch_rows", [1, 7, None])
def test_a_generator_gives_its_rows_and_goes_on_behind_any_offset(fn: Any, batch_rows: int | None) -> None:
    def make() -> Source:
        return Generator(fn, rows=23, batch_rows=batch_rows)

    assert values_of(make(), Path("unused")) == list(range(23))
    check_offsets(make, Path("unused"))


def test_a_generator_ends_when_there_are_no_more_rows() -> None:
    assert values_of(Generator(lambda o, c: counting(o, min(c, 5 - o)) if o < 5 else None), Path("unused")) == [
        *range(5)
    ]
    assert values_of(Generator(lambda o, c: [{"n": o}] if o < 5 else []), Path("unused")) == [*range(5)]


def test_a_generator_is_paced() -> None:
    times: list[float] = []

    async def main() -> None:
        times.append(trio.current_time())
        async for _ in Generator(counting, rows=100, rate=1000).batches(SourceContext(Path("unused"))):
            times.append(trio.current_time())

    # Calls in threads are not seen by a clock that jumps when all tasks wait, so it is not exact here.
    trio.run(main, clock=trio.testing.MockClock(rate=10))
    # What is late, because others have the processor, is made up for: only the beginning counts.
    assert len(times) == 6 and times[-1] - times[0] >= 0.079


def test_columns_may_come_in_any_order_and_are_cast() -> None:
    schema = pa.schema({"a": pa.int8(), "b": pa.string()})
    source = Generator(lambda o, c: {"b": ["x"], "a": [1]}, rows=1, schema=schema)
    [batch] = batches_of(source, Path("unused"))
    assert batch.rows.schema == schema and batch.rows.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (3, "fn must be a function"),
        (lambda o, c: None, "gave nothing, so the columns are unknown"),
        (lambda o, c: 7, "gave a int; a dict of columns"),
        (lambda o, c: {"a": [1], "b": [1, 2]}, "do not make a table"),
        (lambda o, c: 1 / 0, r"fn\(offset=0, count=1\) raised ZeroDivisionError"),
    ],
)
def test_a_function_that_gives_no_rows_is_an_error_that_says_why(fn: Any, says: str) -> None:
    with pytest.raises(FluxError, match=says):
        Generator(fn)


@pytest.mark.parametrize(
    ("later", "says"),
    [
        (lambda o, c: {"m": [1]}, "gave the columns m int64; expected n int64"),
        (lambda o, c: {"n": ["x"]}, "which do not fit n int64"),
        (lambda o, c: counting(o, c + 1), "more than it was asked for"),
        (lambda o, c: [][0], r"fn\(offset=1, count=\d+\) raised IndexError"),
    ],
)
def test_what_comes_later_must_fit_what_came_first(later: Any, says: str) -> None:
    source = Generator(lambda o, c: counting(0, 1) if o == 0 else later(o, c))
    with pytest.raises(FluxError, match=says):
        batches_of(source, Path("unused"))


@pytest.mark.parametrize("settings", [{"rows": 0}, {"rows": 1.5}, {"rate": 0}, {"batch_rows": 0}])
def test_settings_that_make_no_sense_are_plan_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"Generator: {next(iter(settings))} must be"):
        Generator(counting, **settings)
