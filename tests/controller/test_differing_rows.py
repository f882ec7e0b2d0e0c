"""An error about copies that differ names the rows, with what each copy emitted, or says why it cannot."""

from __future__ import annotations

import os
import re
import time
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.exchange.rows import Rows
from flux.site import emitted_rows
from flux.site.digests import EVERY
from flux.site.emitted_rows import EmittedRows
from flux.types.errors import OperatorError
from flux.types.hashing import partition_of

ODD = 1_234  # The value, in the row of this number, at which the operators of this file differ.


class OneDiffers(flux.Operator):
    """Emits the number of its process for one row."""

    output: ClassVar = {"v": "int64", "t": "string"}

    def process(self, batch: flux.Batch) -> flux.Batch:
        v = batch["v"]
        return batch.emit({"v": np.where(v == ODD, os.getpid(), v), "t": pa.array([f"t{n}" for n in v.tolist()])})


class OneIsMissing(flux.KeyedOperator):
    """Emits nothing for one row on one of its sites."""

    output: ClassVar = {"v": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [] if row.v == ODD and is_second() else [{"v": row.v}]


class OneIsSkipped(flux.KeyedOperator):
    """Raises for one row on one of its sites."""

    output: ClassVar = {"v": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if row.v == ODD and is_second():
            raise ValueError("this site does not take it")
        return None, [{"v": row.v}]


class ManyDiffer(flux.Operator):
    """Emits the number of its process for each row."""

    output: ClassVar = {"v": "int64"}

    def process(self, batch: flux.Batch) -> flux.Batch:
        return batch.emit({"v": np.full(len(batch), os.getpid())})


_marks: list[Any] = []


def is_second() -> bool:
    """Return whether this process is the second that asks."""
    path, own = _marks[0] / "first", _marks[0] / f"own-{os.getpid()}"
    own.write_text(str(os.getpid()))
    try:
        os.link(own, path)  # With its content: a file that is made and then written may be read in between.
    except FileExistsError:
        return path.read_text() != str(os.getpid())
    return False


class OneIsSlow(flux.KeyedOperator):
    """Takes a second for its last row on one of its sites, and emits another one then."""

    output: ClassVar = {"v": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        if row.v < 2_000 or not is_second():
            return None, [{"v": row.v}]
        time.sleep(1.0)  # While the other copy of the partition takes the stream to its end.
        return None, [{"v": -1}]


def error_of(operator: Any, rows: int, order: Any = "sn", **settings: Any) -> OperatorError:
    flow = flux.Dataflow("differing")
    table = pa.table({"k": np.arange(1, rows + 1) % 50, "v": np.arange(1, rows + 1)})
    stream = flow.source(flux.sources.Table(table, batch_rows=1_000))
    stream.exchange("k", partitions=4, order=order).apply(operator).sink(flux.sinks.Null())
    with pytest.raises(OperatorError, match="emitted different rows") as caught:
        flow.run(sites=2, **settings)
    return caught.value


@pytest.mark.parametrize("rows", [2_000, 2 * EVERY])
def test_the_row_that_differs_is_named_with_what_both_copies_emitted(rows: int) -> None:
    error = error_of(OneDiffers, rows)
    assert error.row == ODD
    row = r"\{'v': (\d+), 't': 't1234'\}"
    found = re.search(rf"for row 1,234 (site-\d) emitted {row} and (site-\d) emitted {row}\. The operator", str(error))
    assert found is not None and found[1] != found[3] and found[2] != found[4]


def test_after_order_any_the_row_is_named_too() -> None:
    error = error_of(OneDiffers, 2_000, order="any")
    assert error.row == ODD and "for row 1,234 site-" in str(error)


def test_of_many_rows_the_first_are_shown_and_the_others_counted() -> None:
    error = error_of(ManyDiffer, 2_000)
    partition = np.flatnonzero(partitions_of(2_000) == error.partition) + 1
    assert error.row == partition[0]
    assert re.findall(r"for row ([\d,]+) site", str(error)) == [f"{sn:,}" for sn in partition[:3]]
    assert f"and {len(partition) - 3:,} more differ" in str(error)


def partitions_of(rows: int) -> Any:
    return partition_of([pa.array(np.arange(1, rows + 1) % 50)], 4)


@pytest.mark.parametrize(("operator", "shown"), [(OneIsSkipped, "(skipped)"), (OneIsMissing, "no row")])
def test_a_row_that_one_copy_lacks_is_named(
    operator: Any, shown: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}._marks", [tmp_path])
    error = error_of(operator, 2_000, on_error="skip")
    assert error.row == ODD
    assert f"emitted {shown}" in str(error) and "emitted {'v': 1234}" in str(error)


def test_a_copy_that_lags_at_the_end_is_compared(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._marks", [tmp_path])
    error = error_of(OneIsSlow, 2_000)
    assert error.row == 2_000
    assert "emitted {'v': -1}" in str(error) and "emitted {'v': 2000}" in str(error)


def test_rows_that_are_no_longer_kept_are_said_not_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitted_rows, "KEPT_MAX_BYTES", 0)  # Sites are forks.
    error = error_of(OneDiffers, 2_000)
    assert error.row == 1
    assert re.search(r"which rows differ is not known, as .*site-\d does not keep (them|earlier ones)", str(error))


def rows_of(first: int, last: int, *, odd: int | None = None) -> Rows:
    sn = np.arange(first, last + 1)
    user = pa.record_batch({"v": np.where(sn == odd, -1, sn), "f": np.where(sn % 2 == 0, -0.0, np.nan)})
    return Rows.of(user, sn, None, (sn % 2).astype(np.uint16), np.zeros(len(sn), np.uint16))


def kept(*cuts: int, odd: int | None = None) -> EmittedRows:
    rows = EmittedRows(ordered=True)
    for after, upto in zip((0, *cuts), cuts, strict=False):
        rows.keep(rows_of(after + 1, upto, odd=odd), after, upto, frozenset({0, 1}), [])
    return rows


def test_words_do_not_depend_on_how_rows_were_batched() -> None:
    assert kept(100).words(1, 0, 100) == kept(7, 50, 51, 100).words(1, 0, 100)
    after, words = kept(100).words(0, 20, 60)
    assert after == 20 and [sn for sn, _ in words] == list(range(22, 61, 2))


def test_words_differ_where_rows_do() -> None:
    one, other = kept(100).words(1, 0, 100), kept(30, 100, odd=51).words(1, 0, 100)
    assert emitted_rows.differing_numbers(one[1], other[1]) == [51]
    assert kept(30, 100, odd=51).texts(1, [51, 52]) == ["{'v': -1, 'f': nan}", "no row"]


def test_what_is_released_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitted_rows, "KEPT_MAX_NUMBERS", 30)
    rows = kept(10, 20, 30, 40, 50, 60)
    after, words = rows.words(0, 0, 60)
    assert after == 20 and [sn for sn, _ in words] == list(range(22, 61, 2))


def test_what_was_emitted_before_a_copy_was_elsewhere_is_not_compared() -> None:
    rows = kept(10, 20)
    rows.keep(rows_of(21, 40), 20, 40, frozenset({0}), [])
    rows.keep(rows_of(41, 60), 40, 60, frozenset({0, 1}), [])
    assert [rows.words(partition, 0, 60)[0] for partition in (0, 1)] == [0, 40]
