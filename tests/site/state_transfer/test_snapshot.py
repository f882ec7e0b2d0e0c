"""Snapshotter: the state as it was at one instant, from a fork or a copy; and nothing is left of the fork."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio

from flux.site.state_transfer import snapshot
from flux.site.state_transfer.snapshot import Snapshot, SnapshotLost, Snapshotter
from flux.types.errors import OperatorError, StateError
from flux.wire.transfer import Arrival
from tests.runtime.waiting import is_gone, wait_until

MANY = 4_000_000  # Numbers: 32 MB.
PATIENCE_S = 60.0


def children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def taken(values: Callable[[], Any], may_fork: bool = True) -> Snapshot:
    return Snapshotter().take(values, "partition 1 of a test", may_fork)


def read(cut: Snapshot) -> list[Any]:
    async def all_chunks() -> list[Any]:
        arrival = Arrival()
        with trio.fail_after(PATIENCE_S):
            while (chunk := await cut.read()) is not None:
                arrival.take(pa.py_buffer(chunk))
        return list(arrival.values())

    try:
        return trio.run(all_chunks)
    finally:
        cut.close()


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise AssertionError("this should not fork")

    monkeypatch.setattr(os, "fork", fork)


def test_a_fork_gives_large_state_as_it_was_and_is_gone_then() -> None:
    before = children()
    array, counts = np.zeros(MANY), {number: [number] for number in range(100_000)}
    cut = taken(lambda: iter([array, counts]))
    assert len(children()) == len(before) + 1
    array += 1
    counts[0].append(1)
    del counts[1]
    was, had = read(cut)
    assert not was.any() and len(was) == MANY
    assert had == {number: [number] for number in range(100_000)}
    assert children() == before


@pytest.mark.usefixtures("no_fork")
def test_little_state_is_copied_in_place() -> None:
    array = np.zeros(1_000)
    cut = taken(lambda: iter([array]))
    array += 1
    [was] = read(cut)
    assert not was.any()


@pytest.mark.usefixtures("no_fork")
def test_large_state_that_a_fork_does_not_have_is_copied_in_place() -> None:
    array = np.zeros(MANY)
    cut = taken(lambda: iter([array]), may_fork=False)
    array += 1
    [was] = read(cut)
    assert not was.any()


def test_where_there_is_no_place_for_another_process_the_state_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    files = len(os.listdir("/proc/self/fd"))
    [was] = read(taken(lambda: iter([np.ones(MANY)])))
    assert was.all()
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_stage_whose_state_is_slow_to_read_is_forked_at_once_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_LITTLE_S", 0.0)
    calls: list[int] = []

    def values() -> Iterator[Any]:
        calls.append(os.getpid())
        yield 7

    snapshots = Snapshotter()
    assert read(snapshots.take(values, "a test", may_fork=True)) == [7]
    assert read(snapshots.take(values, "a test", may_fork=True)) == [7]
    assert calls == [os.getpid()], "it was tried here once; what forks do is not seen here"


def large_and_then(end: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    def values() -> Iterator[Any]:
        yield np.zeros(MANY)
        yield end()

    return values


def test_what_get_state_raises_in_a_fork_is_raised_here() -> None:
    def fail() -> Any:
        raise OperatorError("it broke", step="Sums", partition=3, row=None)

    before = children()
    with pytest.raises(OperatorError, match="it broke") as caught:
        read(taken(large_and_then(fail)))
    assert caught.value.partition == 3
    assert children() == before


def test_what_cannot_be_moved_is_named_by_a_fork_too() -> None:
    with pytest.raises(StateError, match=r"partition 1 of a test: .*of type lock"):
        read(taken(large_and_then(threading.Lock)))


def test_a_fork_that_is_killed_is_lost() -> None:
    with pytest.raises(SnapshotLost, match="ended with status -9"):
        read(taken(large_and_then(lambda: os.kill(os.getpid(), signal.SIGKILL))))


def test_a_fork_without_the_memory_is_lost() -> None:
    def grow() -> Any:
        raise OperatorError("it broke", step="Sums", partition=3, row=None) from MemoryError()

    with pytest.raises(SnapshotLost, match="for want of memory"):
        read(taken(large_and_then(grow)))


@pytest.mark.parametrize("spare", range(6))
def test_a_process_that_may_open_few_more_files_reads_its_state(spare: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each) for each in os.listdir("/proc/self/fd"))
    filling = [os.dup(0) for _ in range(highest - len(os.listdir("/proc/self/fd")) + 1)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + spare, hard))
        made = taken(large_and_then(lambda: "whole"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in filling:
            os.close(each)
    assert read(made)[-1] == "whole"


def test_a_fork_that_hangs_is_lost_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_SILENT_MAX_S", 0.2)
    before = children()
    with pytest.raises(SnapshotLost, match="state_in_memory = False"):
        read(taken(large_and_then(lambda: time.sleep(PATIENCE_S))))
    assert children() == before


@pytest.mark.parametrize(("dies", "forks"), [(True, 3), (False, 1)])
def test_after_lost_forks_the_state_is_copied_in_place(monkeypatch: pytest.MonkeyPatch, dies: bool, forks: int) -> None:
    if not dies:  # On a busy machine a fork that dies soon may have been silent as long.
        monkeypatch.setattr(snapshot, "_SILENT_MAX_S", 0.2)
    snapshots, here, lost = Snapshotter(), os.getpid(), 0

    def end() -> Any:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL if dies else signal.SIGSTOP)
        return "whole"

    while True:
        try:
            _, last = read(snapshots.take(large_and_then(end), "a test", may_fork=True))
            break
        except SnapshotLost as error:
            lost += 1
            snapshots.note_lost(error)
    assert (last, lost) == ("whole", forks)


def test_a_fork_that_nobody_wants_any_more_is_ended() -> None:
    before = children()
    cut = taken(large_and_then(lambda: time.sleep(PATIENCE_S)))
    assert len(children()) == len(before) + 1
    cut.close()
    assert children() == before


def test_a_fork_does_not_keep_connections_open_that_its_parent_closes() -> None:
    here, peer = socket.socketpair()
    cut = taken(large_and_then(lambda: time.sleep(PATIENCE_S)))
    try:
        trio.run(cut.read)  # It has begun, so it has let go.
        here.close()
        peer.settimeout(PATIENCE_S)
        assert peer.recv(1) == b""
    finally:
        cut.close()
        peer.close()


def test_a_fork_dies_with_its_parent() -> None:
    program = """
import time, numpy as np
from flux.site.state_transfer.snapshot import Snapshotter
def values():
    yield np.zeros(4_000_000)
    time.sleep(60)
cut = Snapshotter().take(values, "a test", True)
print(cut._pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.kill()
    wait_until(lambda: is_gone(child), "the fork to die with its parent")
