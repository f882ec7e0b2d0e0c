"""The soak's own reference, its check and what it counts: they must be right, and able to fail."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from experiments import dmz
from experiments.soak.run import Settings, soak
from experiments.soak.stream import CHUNK_ROWS, Checked, Mismatch, Packets, packets, plain
from experiments.soak.striker import Strike, has_something_to_lose

ROWS = 3 * CHUNK_ROWS - 100


def table(rows: list[tuple[int, int, int, float]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), dmz.OUTPUT, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=dmz.OUTPUT)


def test_the_plain_run_of_a_stream_is_that_of_its_rows() -> None:
    assert list(plain(packets(ROWS))) == dmz.loop(list(packets(ROWS)))


def test_packets_are_the_same_from_any_offset_and_end_where_it_was_said(tmp_path: Path) -> None:
    given = Packets(tmp_path / "end")
    given.end(ROWS)
    pieces, offset = [], 0
    while (piece := given(offset, 1_000)) is not None:
        pieces.append(piece)
        offset += piece.num_rows
    assert dmz.to_rows(pieces) == list(packets(ROWS))
    again = given(12_345, 10)
    assert again is not None
    assert dmz.to_rows([again]) == list(islice(packets(), 12_345, 12_355))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[:50] + rows[51:],
        lambda rows: rows[:50] + rows[49:],
        lambda rows: [*rows[:50], rows[51], rows[50], *rows[52:]],
        lambda rows: rows[:-1],
    ],
    ids=["lost", "repeated", "reordered", "cut short"],
)
def test_the_check_notices_what_is(spoil: object) -> None:
    assert callable(spoil)
    sink = Checked()
    sink.start()
    sink.write(table(spoil(list(plain(packets(ROWS))))), 0, ROWS)
    with pytest.raises(Mismatch):
        sink.finish(ROWS)


def test_the_check_passes_what_is_right() -> None:
    sink = Checked()
    sink.start()
    rows = list(plain(packets(ROWS)))
    sink.write(table(rows[:1_000]), 0, 1)
    sink.write(table(rows[1_000:]), 1, ROWS)
    sink.finish(ROWS)
    assert sink.checked == len(rows)


HOLDER, SPARE = Strike(at=1.0, held=True), Strike(at=2.0, held=False)


@pytest.mark.parametrize(
    ("strikes", "rows", "counts"),
    [
        ([HOLDER], [1_000], True),
        ([HOLDER, HOLDER], [1_000, 5_000], True),
        ([HOLDER], [999], False),
        ([HOLDER, HOLDER], [5_000, 999], False),
        ([HOLDER, SPARE], [5_000, 5_000], False),
        ([], [], False),
    ],
)
def test_a_fault_counts_only_if_there_was_something_to_lose(
    strikes: list[Strike], rows: list[int], counts: bool
) -> None:
    assert has_something_to_lose(strikes, rows) is counts


@pytest.mark.long
def test_a_soak_under_load_counts_faults_and_checks_every_row() -> None:
    figures = soak(0.1, Settings(sites=3, partitions=4, rate=50_000), random.Random(1), lambda line: None)
    assert figures["wrong"] is None
    assert figures["faults_survived"] == sum(figures["faults"].values()) > 0
    assert figures["outputs_checked"] == figures["outputs"] > 0
