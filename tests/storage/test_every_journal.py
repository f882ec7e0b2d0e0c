"""Every journal of Flux: one format, one error for damage, and one for a record of another shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from flux.controller.view_journal import ViewJournal
from flux.sinks import Parquet
from flux.site.egress.sink_journal import SinkJournal
from flux.site.ingress.sequence_journal import SequenceJournal
from flux.sources.segments import Segments
from flux.spark.source.staging_store import StagingStore
from flux.storage.journal import Journal
from flux.types.errors import FluxError


def open_parquet(path: Path) -> None:
    sink = Parquet(path.parent)
    (path.parent / "run").mkdir(exist_ok=True)
    sink.open(path.parent / "run")
    sink.write(pa.record_batch({"n": [1]}), 0, 1)


OPENED_BY: dict[str, Callable[[Path], Any]] = {
    "controller.journal": ViewJournal,
    "numbering.journal": SequenceJournal.open,
    "egress.journal": SinkJournal,
    "staging.journal": lambda path: StagingStore(path.parent),
    "files.journal": Segments,
    ".flux-open": open_parquet,
}
SHAPES = (["unknown", 1], ["unknown"], [1, 2, 3, 4], 7, {"a": 1}, None, [])


@pytest.mark.parametrize("name", OPENED_BY)
@pytest.mark.parametrize("content", SHAPES, ids=str)
def test_a_record_of_another_shape_is_an_error_that_names_the_journal(name: str, content: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    journal, _ = Journal.open(path)
    journal.append(msgpack.packb(content))
    journal.close()
    before = path.read_bytes()
    with pytest.raises(FluxError, match=rf"{name} has a record of another shape at byte \d+: .*Nothing was changed"):
        OPENED_BY[name](path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", OPENED_BY)
def test_a_flipped_bit_is_an_error_that_names_the_journal_and_the_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    journal, _ = Journal.open(path)
    for number in range(2):
        journal.append(msgpack.packb(["record", number]))
    journal.close()
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = whole[:position] + bytes([whole[position] ^ 2]) + whole[position + 1 :]
        path.write_bytes(damaged)
        with pytest.raises(FluxError, match=rf"{name} is (damaged at byte \d|of another release)"):
            OPENED_BY[name](path)
        assert path.read_bytes() == damaged
