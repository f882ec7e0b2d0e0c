"""The soak's own reference, its check and what it counts: they must be right, and able to fail."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from experiments import dmz
from experiments.soak import watching
from experiments.soak.faults import MAY_END, ending
from experiments.soak.full_disks import FullDisks
from experiments.soak.journal_cuts import JournalCuts, cut_length
from experiments.soak.kills import Kills
from experiments.soak.limits import Limits, limit, open_files
from experiments.soak.placements import MOVES_MAX, REST_S, Placements, Restless
from experiments.soak.run import Settings, soak
from experiments.soak.state_readers import StateReaders
from experiments.soak.stops import Stops
from experiments.soak.stream import CHUNK_ROWS, Checked, Lines, Mismatch, Packets, packets, plain
from experiments.soak.striker import Strike, has_something_to_lose
from experiments.soak.watching import Stalled, Watch
from flux.balance.statistics import PartitionStatistics, SiteStatistics, Statistics
from flux.protocols.messages import View
from flux.storage.journal import Journal

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


def test_only_an_error_of_a_fault_that_was_done_may_end_a_run() -> None:
    error = "flux.sinks.Jsonl cannot write out: No space left on device. All is safe. Make room there or choose another"
    assert ending(error, ["kill_a_site", "fill_the_disk_of_the_sink", "kill_an_end"]) == "fill_the_disk_of_the_sink"
    assert ending(error, ["kill_a_site", "cut_the_sinks"]) is None
    assert ending("no row came", ["fill_the_disk_of_the_sink"]) is None


def test_every_fault_that_may_end_a_run_exists() -> None:
    kinds = (Kills, Stops, JournalCuts, StateReaders, Limits, Placements, FullDisks)
    assert all(any(hasattr(kind, name) for kind in kinds) for name in MAY_END)


def test_a_cut_takes_a_part_of_the_last_records_and_nothing_before_them(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "journal")
    starts = [journal.append(bytes([nth]) * 40) for nth in range(10)]
    journal.close()
    lengths = {cut_length(tmp_path / "journal", random.Random(seed), 3) for seed in range(300)}
    assert starts[7:] == sorted(lengths & set(starts))
    assert min(lengths) == starts[7] and max(lengths) < journal.size and len(lengths) > 30


def test_a_limit_on_a_process_ends_with_the_fault() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
        with limit(child.pid, resource.RLIMIT_NOFILE, 64):
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (64, before[1])
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == before
    finally:
        child.communicate(b"\n")
    with limit(child.pid, resource.RLIMIT_NOFILE, 64):
        assert open_files(child.pid) == 0


@pytest.mark.parametrize("spoil", [lambda lines: lines[:50] + lines[51:], lambda lines: lines[:50] + lines[49:]])
def test_the_check_of_a_file_notices_what_is_lost_or_repeated(tmp_path: Path, spoil: object) -> None:
    assert callable(spoil)
    names = ("app", "src", "max_dur", "avg_dur")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in plain(packets(ROWS))]
    path = tmp_path / "out"
    for text, last in ((lines, ROWS), (lines[:500], None)):
        path.write_text("".join(f"{line}\n" for line in text))
        Lines(path).finish(last)
        path.write_text("".join(f"{line}\n" for line in spoil(text)))
        with pytest.raises(Mismatch):
            Lines(path).finish(last)
    path.write_text("".join(f"{line}\n" for line in lines[:500]))
    with pytest.raises(Mismatch, match="more were expected"):
        Lines(path).finish(ROWS)


@pytest.mark.long
def test_a_soak_under_load_counts_faults_and_checks_every_row() -> None:
    figures = soak(0.1, Settings(sites=3, partitions=4, rate=50_000), random.Random(1), lambda line: None)
    assert figures["wrong"] is None
    assert figures["faults_survived"] == sum(figures["faults"].values()) > 0
    assert figures["outputs_checked"] == figures["outputs"] > 0


class ComingOutput:
    """The state of a run whose output comes a row further each second, up to `most` rows; it ends with row 300."""

    error = None

    def __init__(self, most: int) -> None:
        self.now, self._most = 0.0, most

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def safe_upto(self) -> int:
        return min(int(self.now), self._most)

    @property
    def ended(self) -> bool:
        return self.safe_upto >= 300


def wait_for_the_end(state: ComingOutput, directory: Path) -> None:
    """Wait, with a patience of a minute."""
    status = SimpleNamespace(processes=[SimpleNamespace(name="ingress", incarnation=2, state="up")])
    run: Any = SimpleNamespace(_driver=SimpleNamespace(run_state=state), status=lambda: status, directory=directory)
    watch = Watch(run, patience_s=60.0)
    watch._view = View(number=7, nodes=("ingress",), dead=frozenset(), copies=())
    with patch.object(watching, "time", SimpleNamespace(monotonic=lambda: state.now, sleep=state.sleep)):
        watch.wait_end()


def test_the_end_of_a_stream_is_waited_for_as_long_as_output_comes(tmp_path: Path) -> None:
    wait_for_the_end(state := ComingOutput(most=300), tmp_path)
    assert 300 <= state.now < 301


def test_a_stream_that_gives_no_output_and_does_not_end_is_stalled_and_it_is_said_what_there_is(tmp_path: Path) -> None:
    state = ComingOutput(most=100)
    with pytest.raises(Stalled, match=r"or the end of the stream\. .* up are ingress \(2\); the view is View\("):
        wait_for_the_end(state, tmp_path)
    assert 160 <= state.now < 161


def test_the_restless_policy_moves_movable_copies_to_sites_without_one() -> None:
    parts = [
        PartitionStatistics(stage=1, partition=p, work=1.0, copies=("a", "b"), is_movable=p != 3) for p in range(4)
    ]
    sites = [SiteStatistics(name=name, speed=1.0, time_s=1.0, is_reserved=name == "d") for name in "abcd"]
    seen = set()
    for tick in range(200):
        statistics = Statistics(at_s=REST_S + tick / 10, sites=tuple(sites), partitions=tuple(parts))
        moves = Restless().plan(statistics)
        assert moves == Restless().plan(statistics)
        assert 1 <= len(moves) <= MOVES_MAX
        assert all(move.to == "c" and move.partition != 3 and move.slot in (0, 1) for move in moves)
        seen |= {(move.partition, move.slot) for move in moves}
    assert len(seen) == 6


def test_a_soak_is_balanced_unless_it_is_said_otherwise() -> None:
    assert Settings().balance == "auto"
