"""The hand-off without Spark: what tasks, commits and the end of a query may do to the ingress."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ingress import DEADLINE_S, SECRET, Ingress, IngressFactory

from flux.spark.source import staging, staging_protocol
from flux.spark.source.staging_store import BATCH_ROWS_MAX, BATCH_ROWS_MIN, Published, StagingStore, resize
from flux.spark.source.writer import Staged, StagingConnection, StagingRefused, StagingWriter, ask_once
from flux.storage.journal import MAGIC, Journal
from flux.types.errors import FluxError
from flux.wire.strangers import STRANGERS_MAX

QUERY = "6a1d7a52-0000-4000-8000-000000000001"


def stage(
    ingress: Ingress, batch: int, partition: int, attempt: str, values: list[int], *, finish: bool = True
) -> Staged:
    """Do what a task does; without `finish` it dies after its rows, before it says that they are all."""
    rows = pa.record_batch({"value": pa.array(values, pa.int64())})
    connection = StagingConnection(ingress.address, SECRET.hex())
    try:
        connection.ask({"do": "stage", "query": QUERY, "batch": batch, "partition": partition, "attempt": attempt})
        connection.send_chunk(memoryview(rows.schema.serialize()))
        connection.send_chunk(memoryview(rows.serialize()))
        size_bytes = connection.end_chunks() if finish else 0
    finally:
        connection.close()
    return Staged(QUERY, partition, attempt, len(values), size_bytes)


def writer(ingress: Ingress) -> StagingWriter:
    return StagingWriter({"address": ingress.address, "secret": SECRET.hex()})


def values(ingress: Ingress) -> list[tuple[int, list[int]]]:
    return [(batch_id, table["value"].to_pylist()) for batch_id, table in ingress.taken]


def staged_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.suffix in (".arrow", ".part"))


def test_a_batch_is_its_named_attempts_in_partition_order(ingress: IngressFactory, tmp_path: Path) -> None:
    one = ingress()
    second = stage(one, 0, 1, "b", [3, 4])
    stage(one, 0, 0, "failed", [1])
    first = stage(one, 0, 0, "retried", [1, 2])

    writer(one).commit([first, second], 0)

    assert values(one) == [(0, [1, 2, 3, 4])]
    assert staged_files(tmp_path) == []


def test_commit_returns_only_when_the_batch_is_done(ingress: IngressFactory) -> None:
    one = ingress(hold=True)
    message = stage(one, 0, 0, "a", [1])
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(writer(one).commit, [message], 0)
        one.wait_for_taken(1)
        assert not commit.done()
        one.release()
        commit.result(DEADLINE_S)


def test_a_batch_committed_twice_is_published_once(ingress: IngressFactory) -> None:
    one = ingress()
    writer(one).commit([stage(one, 0, 0, "a", [1])], 0)
    writer(one).commit([stage(one, 0, 0, "again", [1])], 0)
    writer(one).commit([stage(one, 1, 0, "a", [2])], 1)
    assert values(one) == [(0, [1]), (1, [2])]


def test_a_second_commit_of_a_batch_under_way_waits_for_the_same_end(ingress: IngressFactory) -> None:
    one = ingress(hold=True)
    message = stage(one, 0, 0, "a", [1])
    with ThreadPoolExecutor() as pool:
        commits = [pool.submit(writer(one).commit, [message], 0) for _ in range(2)]
        one.wait_for_taken(1)
        one.release()
        for commit in commits:
            commit.result(DEADLINE_S)
    assert values(one) == [(0, [1])]


def test_a_task_that_dies_half_way_leaves_no_trace(ingress: IngressFactory, tmp_path: Path) -> None:
    one = ingress()
    stage(one, 0, 0, "died", [1, 2], finish=False)
    writer(one).commit([stage(one, 0, 0, "retried", [1, 2, 3])], 0)
    assert values(one) == [(0, [1, 2, 3])]
    assert staged_files(tmp_path) == []


def test_attempts_of_earlier_batches_are_removed_by_a_later_commit(ingress: IngressFactory, tmp_path: Path) -> None:
    one = ingress()
    stage(one, 0, 0, "late", [1])
    writer(one).commit([stage(one, 1, 0, "a", [2])], 1)
    assert staged_files(tmp_path) == []


def test_abort_drops_what_was_staged(ingress: IngressFactory, tmp_path: Path) -> None:
    one = ingress()
    message = stage(one, 0, 0, "a", [1])
    writer(one).abort([message, None], 0)
    assert staged_files(tmp_path) == []
    with pytest.raises(StagingRefused, match=r"attempt a of partition 0 .* not staged here; restart the query"):
        writer(one).commit([message], 0)
    assert values(one) == []


def test_abort_after_publication_changes_nothing(ingress: IngressFactory) -> None:
    one = ingress(hold=True)
    message = stage(one, 0, 0, "a", [1])
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(writer(one).commit, [message], 0)
        one.wait_for_taken(1)
        writer(one).abort([message], 0)
        one.release()
        commit.result(DEADLINE_S)
    assert values(one) == [(0, [1])]


def test_a_commit_without_rows_needs_no_ingress() -> None:
    nobody = StagingWriter({"address": "127.0.0.1:1", "secret": SECRET.hex()})
    nobody.commit([Staged(QUERY, 0, "a", 0, 0), None], 7)


def test_a_published_batch_outlives_the_ingress(ingress: IngressFactory) -> None:
    first = ingress(hold=True)
    message = stage(first, 0, 0, "a", [1, 2])
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(ask_once, first.address, SECRET.hex(), commit_request(message, 0))
        first.wait_for_taken(1)
        first.kill()
        with pytest.raises(ConnectionError):
            commit.result(DEADLINE_S)

    second = ingress()
    second.wait_for_taken(1)
    ask_once(second.address, SECRET.hex(), commit_request(message, 0))
    assert values(second) == [(0, [1, 2])]


def test_what_was_done_stays_done_after_a_restart(ingress: IngressFactory) -> None:
    first = ingress()
    writer(first).commit([stage(first, 0, 0, "a", [1])], 0)
    first.kill()
    second = ingress()
    writer(second).commit([stage(second, 0, 0, "again", [1])], 0)
    writer(second).commit([stage(second, 1, 0, "a", [2])], 1)
    assert values(second) == [(1, [2])]


def test_a_torn_record_of_the_journal_is_forgotten(ingress: IngressFactory, tmp_path: Path) -> None:
    first = ingress()
    writer(first).commit([stage(first, 0, 0, "a", [1])], 0)
    first.kill()
    journal = tmp_path / "staging.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[len(MAGIC) : len(MAGIC) + 20])

    store = StagingStore(tmp_path)
    assert store.is_done(QUERY, 0) and not store.is_done(QUERY, 1) and not store.undone
    assert journal.read_bytes() == whole


def test_a_flipped_bit_in_the_journal_is_an_error_and_drops_no_batch(tmp_path: Path) -> None:
    # It marked batches as done whose rows were then dropped: the number of a batch is one digit.
    store = StagingStore(tmp_path)
    for batch_id in range(3):
        store.publish(Published(QUERY, batch_id, ()))
    store.finish(Published(QUERY, 0, ()))
    journal = tmp_path / "staging.journal"
    whole = journal.read_bytes()
    for position in range(len(whole)):
        journal.write_bytes(whole[:position] + bytes([whole[position] ^ 2]) + whole[position + 1 :])
        with pytest.raises(FluxError, match=r"journal .*staging.journal is (damaged at byte|of another release)"):
            StagingStore(tmp_path)


def test_a_record_of_another_shape_is_an_error_that_names_the_journal(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path / "staging.journal")
    journal.append(msgpack.packb(["rows", 1, 2]))
    journal.close()
    with pytest.raises(
        FluxError, match=r"staging.journal has a record of another shape at byte 15: .*Nothing was changed"
    ):
        StagingStore(tmp_path)


def test_the_end_of_the_query_ends_the_batches(ingress: IngressFactory) -> None:
    one = ingress()
    writer(one).commit([stage(one, 0, 0, "a", [1])], 0)
    ask_once(one.address, SECRET.hex(), {"do": "end", "error": None})
    one.wait_for_end()
    assert one.error is None and values(one) == [(0, [1])]


def test_a_failed_query_raises_its_reason_also_after_a_restart(ingress: IngressFactory) -> None:
    one = ingress()
    ask_once(one.address, SECRET.hex(), {"do": "end", "error": "the disk is on fire"})
    one.wait_for_end()
    again = ingress()
    again.wait_for_end()
    for ended in (one, again):
        assert isinstance(ended.error, FluxError) and str(ended.error) == "the disk is on fire"


def test_a_run_that_stops_refuses_the_commit_that_waits(ingress: IngressFactory) -> None:
    one = ingress(hold=True)
    message = stage(one, 0, 0, "a", [1])
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(writer(one).commit, [message], 0)
        one.wait_for_taken(1)
        ask_once(one.address, SECRET.hex(), {"do": "stop"})
        with pytest.raises(StagingRefused, match="stopped before every copy had received batch 0"):
            commit.result(DEADLINE_S)


def test_commit_does_not_wait_for_a_run_that_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    late = StagingWriter({"address": address, "secret": SECRET.hex()})
    with pytest.raises(ConnectionRefusedError, match=r"no ingress answers .* still alive"):
        late.commit([Staged(QUERY, 0, "a", 1, 8)], 0)


def test_a_wrong_secret_is_refused_in_one_clear_line(ingress: IngressFactory, tmp_path: Path) -> None:
    one = ingress()
    stranger = StagingWriter({"address": one.address, "secret": bytes(32).hex()})
    with pytest.raises(PermissionError) as raised:
        stranger.commit([Staged(QUERY, 0, "a", 1, 8)], 0)
    assert "secret of this query is not the one of this run" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert staged_files(tmp_path) == []


def test_a_task_sends_nothing_to_an_ingress_that_does_not_know_the_secret() -> None:
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        thread = threading.Thread(target=_pretend_to_be_the_ingress, args=(impostor, got))
        thread.start()
        with pytest.raises(PermissionError, match="does not know the secret"):
            StagingConnection(f"127.0.0.1:{impostor.getsockname()[1]}", SECRET.hex())
        thread.join(DEADLINE_S)
    assert got == [b""]


def _pretend_to_be_the_ingress(listener: socket.socket, got: list[bytes]) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(staging_protocol.pack({"version": staging_protocol.VERSION, "challenge": bytes(32)}))
        connection.recv(4096)
        connection.sendall(staging_protocol.pack({"ok": True, "proof": bytes(32)}))
        got.append(connection.recv(4096))


@pytest.mark.parametrize("field", ["query", "attempt"])
@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "", ".hidden", "a/b", "a" * 200, 7, None])
def test_a_name_that_could_leave_the_directory_is_refused(ingress: IngressFactory, field: str, name: Any) -> None:
    request = {"do": "stage", "query": QUERY, "batch": 0, "partition": 0, "attempt": "a", field: name}
    with pytest.raises(StagingRefused, match=f"{field}: a name of letters"):
        ask_once(ingress().address, SECRET.hex(), request)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"do": "unpickle"}, "stage, commit, abort, stop or end was expected"),
        ({"do": "commit", "query": QUERY, "batch": -1, "attempts": []}, "batch: a whole number"),
        ({"do": "commit", "query": QUERY, "batch": 0, "attempts": [[0, "a"]]}, "attempts: a list of"),
        (
            {"do": "commit", "query": QUERY, "batch": 0, "attempts": [[1, "a", 1, 1], [0, "b", 1, 1]]},
            "in the order of partitions",
        ),
        ({"do": "end", "error": 5}, "error: a text"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    ingress: IngressFactory, request_: dict[str, Any], expected: str
) -> None:
    with pytest.raises(StagingRefused, match=expected):
        ask_once(ingress().address, SECRET.hex(), request_)


def test_a_stranger_cannot_make_the_ingress_hold_much(ingress: IngressFactory) -> None:
    host, port = ingress().address.split(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
        stranger.sendall((staging_protocol.HANDSHAKE_LIMIT_BYTES + 1).to_bytes(4, "big"))
        answer = b""
        while part := stranger.recv(4096):
            answer += part
    assert b"a frame of 1 to 1,024 bytes was expected, got 1,025" in answer


def test_a_full_disk_reaches_the_task_as_the_reason(
    ingress: IngressFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Any, data: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(staging, "_write_all", fail)
    with pytest.raises(StagingRefused, match=r"partition 3 of batch 0 was not staged: .*No space left"):
        stage(ingress(), 0, 3, "a", list(range(100_000)))
    assert staged_files(tmp_path) == []


def test_options_that_are_missing_are_named() -> None:
    with pytest.raises(ValueError, match=r"`address` .* and `secret` .* got \['checkpointLocation'\]"):
        StagingWriter({"checkpointLocation": "/x"})


@given(st.lists(st.integers(0, 150_000), max_size=12))
def test_resizing_keeps_rows_and_order(sizes: list[int]) -> None:
    ends = list(itertools.accumulate(sizes))
    batches = [pa.record_batch({"value": np.arange(end - size, end)}) for size, end in zip(sizes, ends, strict=True)]
    made = [batch.column("value").to_numpy() for batch in resize(iter(batches))]
    assert np.array_equal(np.concatenate([np.arange(0), *made]), np.arange(sum(sizes)))
    assert all(0 < len(rows) <= BATCH_ROWS_MAX for rows in made)
    assert all(len(left) + len(right) > BATCH_ROWS_MIN for left, right in itertools.pairwise(made))


def commit_request(message: Staged, batch: int) -> dict[str, Any]:
    attempts = [[message.partition, message.attempt, message.rows, message.size_bytes]]
    return {"do": "commit", "query": message.query, "batch": batch, "attempts": attempts}


def test_idle_strangers_are_bounded_and_hold_up_no_task(
    ingress: IngressFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.spark.source.staging.AUTHENTICATION_TIMEOUT_S", 600.0)  # None of them times out.
    one = ingress()
    host, port = one.address.split(":")
    strangers = [socket.create_connection((host, int(port)), DEADLINE_S) for _ in range(400)]
    try:
        began = time.monotonic()
        stage(one, 0, 0, "a", range(3))
        assert time.monotonic() < began + DEADLINE_S / 2
        # Of too many the oldest are closed.
        for stranger in strangers[: len(strangers) - STRANGERS_MAX]:
            stranger.settimeout(10.0)
            while stranger.recv(1024):  # The challenge, and the end.
                pass
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_task_connects_again_if_the_ingress_closes_the_connection_before_it_answers(ingress: IngressFactory) -> None:
    """As it does with the oldest of too many that have not authenticated."""
    one = ingress()
    host, port = one.address.split(":")
    with socket.create_server(("127.0.0.1", 0)) as front:

        def serve() -> None:
            first, _ = front.accept()
            first.close()
            second, _ = front.accept()
            with second, socket.create_connection((host, int(port)), DEADLINE_S) as behind:
                pump = threading.Thread(target=copy_bytes, args=(behind, second))
                pump.start()
                copy_bytes(second, behind)
                pump.join()

        thread = threading.Thread(target=serve)
        thread.start()
        writer = StagingWriter({"address": f"127.0.0.1:{front.getsockname()[1]}", "secret": SECRET.hex()})
        connection = writer._connect()
        connection.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
