"""Journals and recordings that the commit before version 5 wrote: refused with what to do, and nothing is changed.

Translated by the table of renames, its recordings replay to the same effects: only names changed. Since then rule 3
did, which says what producers keep for a copy in transfer. So that of the ingress is replayed up to the first of these.
"""

from __future__ import annotations

import importlib.util
import shutil
from io import BytesIO
from itertools import takewhile
from pathlib import Path

import msgpack
import pytest

from flux.controller.view_journal import ViewJournal
from flux.protocols.messages import VERSION
from flux.site.egress.sink_journal import SinkJournal
from flux.site.ingress.sequence_journal import SequenceJournal
from flux.site.recording import replay
from flux.storage.journal import Journal
from flux.types.errors import FluxError

BEFORE = Path(__file__).parent / "before"
DOCS = Path(__file__).parent.parent.parent / "docs"
OPENED_BY = {
    "controller.journal": ViewJournal,
    "numbering.journal": SequenceJournal.open,
    "egress.journal": SinkJournal,
}
RECORDINGS = sorted(path.name for path in BEFORE.glob("*.recording"))


@pytest.mark.parametrize("name", OPENED_BY)
def test_a_journal_of_another_release_is_refused_and_not_changed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    shutil.copy(BEFORE / name, path)
    for opener in (OPENED_BY[name], Journal.open):
        with pytest.raises(
            FluxError, match=f"its version is 1, and this release of Flux reads version {VERSION}"
        ) as error:
            opener(path)  # type: ignore[operator]
        assert "Finish the run with the release that began it" in str(error.value)
    assert path.read_bytes() == (BEFORE / name).read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_of_another_release_is_refused(name: str) -> None:
    with pytest.raises(FluxError, match="Replay it with the release that wrote it"):
        replay(BEFORE / name)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_translated_recording_replays_to_the_same_effects(name: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("translate_recording", DOCS / "translate_recording.py")
    assert spec is not None and spec.loader is not None
    translate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(translate)
    translate.main(str(DOCS / "renames.rst"), str(BEFORE / name), str(tmp_path / name))
    if name == "ingress.recording":
        end_before_a_copy_is_begun(tmp_path / name)
    assert replay(tmp_path / name) > 10


def end_before_a_copy_is_begun(path: Path) -> None:
    records = list(msgpack.Unpacker(BytesIO(path.read_bytes())))
    kept = list(takewhile(lambda record: "'Standby'" not in str(record), records))
    assert 50 < len(kept) < len(records)
    path.write_bytes(b"".join(map(msgpack.packb, kept)))


def test_every_kind_of_process_is_among_the_recordings() -> None:
    assert RECORDINGS == ["controller.recording", "egress.recording", "ingress.recording", "site-2.recording"]
