"""The ingress's journal: whenever the process dies, the same rows get the same numbers again."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flux.site.ingress import sequence_journal
from flux.site.ingress.sequence_journal import SequenceJournal, Span
from flux.storage.journal import Journal
from flux.types.errors import FluxError

WHEN = 1.5


@dataclass
class Model:
    """What was numbered, as plain lists; row i of the source has the offset i behind row i - 1."""

    path: Path
    rows: int = 0  # The source's, so far.
    upto: int = 0
    spans: list[tuple[int, int, int, str | None]] = field(default_factory=list)  # after, upto, offset, mark
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # File size, spans and released at that time.

    def note(self, released: int) -> None:
        self.steps.append((self.path.stat().st_size, len(self.spans), released))


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["rows", "mark", "shed", "release", "release at once"]), st.integers(1, 40)), max_size=25
)


def perform(steps: Sequence[Step], path: Path, *, keep: bool = False) -> Model:
    journal, model = SequenceJournal.open(path), Model(path)
    for kind, number in steps:
        before = model.upto
        if kind == "rows":
            kept = pa.record_batch({"row": range(model.rows, model.rows + number)}) if keep else None
            model.rows += number
            model.upto += number
            journal.number(model.upto, model.rows, when=WHEN, digest=number, kept=kept)
            model.spans.append((before, model.upto, model.rows, None))
        elif kind == "mark":
            model.upto += 1
            assert journal.mark("watermark", number, when=WHEN) == model.upto
            model.spans.append((before, model.upto, model.rows, "watermark"))
        elif kind == "shed":
            model.rows += number
            journal.leave_out(number, model.rows, when=WHEN)
            model.spans.append((before, model.upto, model.rows, f"shed {number}"))
        else:
            journal.release(min(journal.released + number, model.upto), at_once=kind == "release at once")
        model.note(journal.released)
    journal.close()
    return model


def given_again(journal: SequenceJournal) -> list[tuple[int, list[int] | str]]:
    """What a source that counts its rows gives under this replay: each span's upto, and its rows or mark."""
    replay = journal.replay
    position = replay.offsets.get(0, 0) + replay.skip_rows.get(0, 0)
    result: list[tuple[int, list[int] | str]] = []
    for span in replay.spans:
        if span.shed:
            position += span.shed
            assert position == span.offset, "the offset behind what was shed is where that ends"
            continue
        if span.mark is not None:
            result.append((span.upto, span.mark))
            continue
        count = span.upto - span.after
        result.append((span.upto, list(range(position, position + count))))
        position += count
        assert position == span.offset, "the offset behind a span is where its rows end"
    return result


def expected_again(spans: list[tuple[int, int, int, str | None]], released: int) -> list[tuple[int, list[int] | str]]:
    result: list[tuple[int, list[int] | str]] = []
    for after, upto, offset, mark in spans:
        if upto > released and not (mark or "").startswith("shed"):
            rows = list(range(offset - (upto - max(after, released)), offset))
            result.append((upto, rows if mark is None else mark))
    return result


@given(steps=STEPS, data=st.data())
def test_a_crash_at_any_byte_gives_the_same_rows_the_same_numbers(steps: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numbering")
        model = perform(steps, path)
        size = data.draw(st.integers(0, path.stat().st_size), label="bytes left")
        with path.open("r+b") as file:
            file.truncate(size)
        journal = SequenceJournal.open(path)
        whole = [(spans, released) for at, spans, released in model.steps if at <= size]
        spans, released = whole[-1] if whole else (0, 0)
        kept = model.spans[:spans]
        assert journal.upto == (kept[-1][1] if kept else 0)
        assert journal.shed == sum(int(mark[5:]) for *_, mark in kept if mark and mark.startswith("shed"))
        assert journal.rows == sum(upto - after for after, upto, _, mark in kept if mark is None)
        # A position that was not written at once may be an older one: that only gives more again.
        assert journal.released <= released
        assert given_again(journal) == expected_again(kept, journal.released)
        journal.number(journal.upto + 1, 0, when=WHEN)
        journal.close()
        assert SequenceJournal.open(path).upto == (kept[-1][1] if kept else 0) + 1, "it is written on behind the cut"


@given(steps=STEPS, cut=st.integers(0, 400))
def test_a_journal_that_is_shortened_all_the_time_says_the_same(steps: list[Step], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        perform(steps, Path(folder, "long"))
        patch.setattr(sequence_journal, "SHORTEN_AT_BYTES", cut)
        perform(steps, Path(folder, "short"))
        long, short = (SequenceJournal.open(Path(folder, name)) for name in ("long", "short"))
        assert (short.upto, short.offsets, short.ended) == (long.upto, long.offsets, long.ended)
        assert (short.rows, short.shed) == (long.rows, long.shed)
        assert short.released == long.released
        assert short.replay == long.replay


@given(steps=STEPS)
def test_rows_that_are_kept_are_given_again(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = perform(steps, Path(folder, "numbering"), keep=True)
        journal = SequenceJournal.open(Path(folder, "numbering"))
        rows = [span.kept_rows()["row"].to_pylist() for span in journal.replay.spans if span.kept is not None]
        again = expected_again(model.spans, journal.released)
        assert rows == [what for _, what in again if isinstance(what, list)]


def test_an_endless_stream_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_journal, "SHORTEN_AT_BYTES", 4_000)
    journal = SequenceJournal.open(tmp_path / "numbering")
    largest = 0
    for upto in range(10, 20_000, 10):
        journal.number(upto, upto, when=WHEN)
        journal.release(upto - 30)
        largest = max(largest, (tmp_path / "numbering").stat().st_size)
    assert largest < 5_000
    journal.close()
    assert [span.upto for span in SequenceJournal.open(tmp_path / "numbering").replay.spans] == [19_970, 19_980, 19_990]
    assert [path.name for path in tmp_path.iterdir()] == ["numbering"]


def test_what_is_not_released_is_not_shortened_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_journal, "SHORTEN_AT_BYTES", 100)
    journal = SequenceJournal.open(tmp_path / "numbering")
    for upto in range(1, 200):
        journal.number(upto, upto, when=WHEN)
    journal.release(1)
    journal.close()
    assert len(SequenceJournal.open(tmp_path / "numbering").replay.spans) == 198


def test_what_was_shed_behind_all_that_is_released_is_not_given_under_later_numbers(tmp_path: Path) -> None:
    journal = SequenceJournal.open(tmp_path / "numbering")
    journal.number(10, 10, when=WHEN)
    journal.release(10)
    journal.leave_out(5, 15, when=WHEN)
    journal.number(20, 25, when=WHEN)
    journal.close()
    replay = SequenceJournal.open(tmp_path / "numbering").replay
    assert (replay.offsets, replay.skip_rows, [span.upto for span in replay.spans]) == ({0: 15}, {0: 0}, [20])


def test_rows_after_what_was_released_beyond_a_lost_end_are_read_from_the_end_of_the_journal(tmp_path: Path) -> None:
    # Its end was lost, copies acknowledged what they had, and some of the lost numbers were given again.
    journal = SequenceJournal.open(tmp_path / "journal")
    journal.number(10, 10, when=WHEN)
    journal.release(50)
    journal.number(30, 30, when=WHEN)
    journal.close()
    again = SequenceJournal.open(tmp_path / "journal")
    assert (again.upto, again.released, again.offsets) == (30, 50, {0: 30})
    assert (again.replay.offsets, again.replay.spans) == ({0: 30}, ())


def test_a_new_journal_has_nothing_to_give_again(tmp_path: Path) -> None:
    journal = SequenceJournal.open(tmp_path / "numbering")
    assert (journal.released, journal.upto, journal.offsets, journal.ended) == (0, 0, {}, False)
    assert journal.replay.spans == ()


def test_the_end_of_the_stream_is_known_after_it_was_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_journal, "SHORTEN_AT_BYTES", 1)
    journal = SequenceJournal.open(tmp_path / "numbering")
    journal.number(3, 3, when=WHEN)
    journal.mark("end", when=WHEN)
    journal.release(4)
    journal.close()
    journal = SequenceJournal.open(tmp_path / "numbering")
    assert journal.ended and journal.upto == journal.released == 4 and journal.replay.spans == ()


def test_a_span_keeps_what_was_said_of_it(tmp_path: Path) -> None:
    journal = SequenceJournal.open(tmp_path / "numbering")
    journal.number(3, ["file", 3], when=WHEN, digest=7)
    journal.mark("clock", 99, when=WHEN)
    journal.close()
    assert SequenceJournal.open(tmp_path / "numbering").replay.spans == (
        Span(after=0, upto=3, offset=["file", 3], when=WHEN, digest=7),
        Span(after=3, upto=4, offset=None, when=WHEN, mark="clock", value=99),
    )


def test_a_part_of_a_span_has_no_digest(tmp_path: Path) -> None:
    journal = SequenceJournal.open(tmp_path / "numbering")
    journal.number(5, 5, when=WHEN, digest=7)
    journal.release(2, at_once=True)
    journal.close()
    replay = SequenceJournal.open(tmp_path / "numbering").replay
    assert replay.skip_rows == {0: 2}
    assert replay.spans == (Span(after=2, upto=5, offset=5, when=WHEN),)


# The file below it.


def test_damage_within_a_journal_is_an_error_that_names_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal, _ = Journal.open(path)
    second = [journal.append(bytes([number]) * 50) for number in range(3)][1]
    journal.close()
    whole = path.read_bytes()
    for at in range(second, second + 62):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(FluxError, match=rf"{path} is damaged at byte {second}"):
            Journal.open(path)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("something of somebody else's")
    with pytest.raises(FluxError, match="does not begin as a journal"):
        Journal.open(path)
    assert path.read_text() == "something of somebody else's"


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    with pytest.raises(FluxError, match="in use by a process that still lives"):
        Journal.open(tmp_path / "journal")
    journal.shorten([b"base"], journal.size)
    with pytest.raises(FluxError, match="in use by a process that still lives"):
        Journal.open(tmp_path / "journal")
    journal.close()
    again, records = Journal.open(tmp_path / "journal")
    assert [record.content for record in records] == [b"base"]
    again.close()


def test_a_half_shortened_journal_is_not_seen(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    journal.append(b"kept")
    journal.close()
    (tmp_path / "journal.new").write_bytes(b"half of somethi")
    journal, records = Journal.open(tmp_path / "journal")
    assert [record.content for record in records] == [b"kept"]
    journal.shorten([b"base"], records[0].position)
    journal.close()
    assert [record.content for record in Journal.open(tmp_path / "journal")[1]] == [b"base", b"kept"]


def test_a_full_disk_is_said_plainly_and_tears_nothing(tmp_path: Path, limit_file_size: Any) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    journal.append(b"safe")
    with limit_file_size(100), pytest.raises(FluxError, match=r"journal cannot write .*journal: .* is safe"):
        journal.append(bytes(200))
    journal.append(b"behind")
    journal.close()
    assert [record.content for record in Journal.open(tmp_path / "journal")[1]] == [b"safe", b"behind"]


def test_watermarks_among_rows_are_given_again_and_the_last_is_known_after_it_was_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_journal, "SHORTEN_AT_BYTES", 1)
    journal = SequenceJournal.open(tmp_path / "numbering")
    journal.number(5, 4, when=WHEN, punctuations=((3, 100),), reached=100)
    journal.number(10, 7, when=WHEN, punctuations=((7, 200), (10, 300)), reached=300)
    journal.release(8, at_once=True)
    journal.close()
    journal = SequenceJournal.open(tmp_path / "numbering")
    replay = journal.replay
    assert (replay.offsets, replay.skip_rows, journal.reached) == ({0: 4}, {0: 2}, {0: 300})
    [span] = replay.spans
    assert (span.rows, span.punctuations, span.numbers().tolist()) == (1, ((10, 300),), [9])
    journal.release(10)
    journal.close()
    assert SequenceJournal.open(tmp_path / "numbering").reached == {0: 300}


def test_the_last_watermark_and_idle_sources_are_there_again_also_in_a_shortened_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.site.ingress.sequence_journal.SHORTEN_AT_BYTES", 0)
    path = tmp_path / "numbering.journal"
    journal = SequenceJournal.open(path)
    journal.number(3, (1, 0), when=0.0, source=0, punctuations=((3, 20),), reached=20)
    journal.number(4, (1, 0), when=0.0, source=1, reached=10)
    journal.mark("watermark", 40, when=0.0, idle={0, 1})
    journal.number(6, (2, 0), when=0.0, source=1)
    for upto in (0, 4, 6):
        journal.release(upto)
        journal.close()
        journal = SequenceJournal.open(path)
        assert (journal.watermark, journal.idle) == (40, {0}), f"released up to {upto}"
    journal.close()


@pytest.mark.parametrize("position", range(9))
def test_a_part_of_a_span_has_the_numbers_without_watermarks_that_it_had_in_the_whole(position: int) -> None:
    whole = Span(after=0, upto=8, offset=None, when=0.0, punctuations=((3, 10), (6, 20)))
    rows = dict(zip(whole.numbers().tolist(), range(whole.first_unmarked, whole.first_unmarked + 6), strict=True))
    part = whole.slice_after(position)
    found = zip(part.numbers().tolist(), range(part.first_unmarked, part.first_unmarked + part.rows), strict=True)
    assert dict(found) == {sn: number for sn, number in rows.items() if sn > position}
