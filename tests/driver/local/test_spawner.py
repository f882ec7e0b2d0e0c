"""The spawner: real processes, forked on demand from untouched memory, and what becomes of each."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from flux.driver.launcher import Runnable
from flux.driver.local.spawner import ProcessExited, ProcessStarted, Spawner, SpawnerReport
from flux.driver.processes import Process
from tests.runtime.waiting import DEADLINE_S, is_gone, wait_until


class Doing:
    """A process that does one thing."""

    def __init__(self, what: Callable[[], Awaitable[None]]) -> None:
        self._what = what

    async def run(self) -> None:
        await self._what()


async def leave_with(status: int) -> None:
    os._exit(status)


async def hang_without_a_turn_for_the_loop() -> None:
    time.sleep(600)


def sleeping(name: str, incarnation: int) -> Runnable:
    return Doing(trio.sleep_forever)


@contextmanager
def spawning(make: Callable[[str, int], Runnable]) -> Iterator[Spawner]:
    spawner = Spawner(make)
    try:
        yield spawner
    finally:
        spawner.close()


def start(spawner: Spawner, name: str, incarnation: int = 1, stderr: int = 2) -> SpawnerReport | None:
    spawner.start(name, incarnation, stderr)
    return report(spawner)


def report(spawner: Spawner) -> SpawnerReport | None:
    async def next_one() -> SpawnerReport | None:
        with trio.fail_after(DEADLINE_S):
            return await spawner.report()

    return trio.run(next_one)


def started(spawner: Spawner, name: str = "site-1", incarnation: int = 1) -> int:
    told = start(spawner, name, incarnation)
    assert isinstance(told, ProcessStarted)
    os.close(told.pidfd)
    return told.pid


def test_a_process_is_told_its_name_and_incarnation_and_how_it_ended_is_reported() -> None:
    statuses = {("ingress", 1): 7, ("ingress", 2): 8}
    with spawning(lambda name, incarnation: Doing(lambda: leave_with(statuses[name, incarnation]))) as spawner:
        for (name, incarnation), status in statuses.items():
            started(spawner, name, incarnation)
            ended = report(spawner)
            assert isinstance(ended, ProcessExited)
            assert (ended.name, ended.incarnation, ended.status) == (name, incarnation, status)


def test_a_killed_process_is_reported_with_its_signal_and_what_it_used() -> None:
    with spawning(sleeping) as spawner:
        os.kill(started(spawner), signal.SIGKILL)
        ended = report(spawner)
    assert isinstance(ended, ProcessExited)
    assert ended.status == -signal.SIGKILL
    assert ended.cpu_s > 0


def test_each_process_begins_with_untouched_memory() -> None:
    items = iter([3, 4, 5])
    with spawning(lambda name, incarnation: Doing(lambda: leave_with(next(items)))) as spawner:
        for incarnation in (1, 2):
            started(spawner, incarnation=incarnation)
            ended = report(spawner)
            assert isinstance(ended, ProcessExited)
            assert ended.status == 3, "the iterator was used up by an earlier process"


def test_a_process_can_be_started_when_the_program_has_threads_and_a_loop() -> None:
    async def run_a_loop_and_end() -> None:
        await trio.sleep(0)
        os._exit(5)

    with spawning(lambda name, incarnation: Doing(run_a_loop_and_end)) as spawner:
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()

        async def main() -> list[SpawnerReport | None]:
            with trio.fail_after(DEADLINE_S):
                spawner.start("site-9", 1, 2)
                return [await spawner.report(), await spawner.report()]

        first, second = trio.run(main)
        done.set()
        thread.join()
    assert isinstance(first, ProcessStarted)
    os.close(first.pidfd)
    assert isinstance(second, ProcessExited)
    assert second.status == 5


def test_sockets_made_before_it_live_as_long_as_the_spawner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = listener.getsockname()
        spawner = Spawner(lambda name, incarnation: Doing(lambda: accept_and_leave(listener)))
    with socket.create_connection(where):  # The program has closed its own; nobody accepts yet.
        started(spawner)
        ended = report(spawner)
    assert isinstance(ended, ProcessExited)
    assert ended.status == 9
    spawner.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


async def accept_and_leave(listener: socket.socket) -> None:
    listener.accept()
    os._exit(9)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_meant_for_the_program_do_not_end_the_spawner(number: signal.Signals) -> None:
    with spawning(sleeping) as spawner:
        started(spawner)  # So that it has come to the point where it ignores them.
        os.kill(spawner.pid, number)
        started(spawner, "site-2")


def test_a_signal_between_the_fork_and_its_handlers_does_not_end_the_spawner(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def fork_and_signal() -> int:
        monkeypatch.undo()
        pid = fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_signal)
    with spawning(sleeping) as spawner:
        started(spawner)


def test_a_process_ends_on_sigterm_although_the_spawner_does_not() -> None:
    async def terminate_oneself() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    with spawning(lambda name, incarnation: Doing(terminate_oneself)) as spawner:
        started(spawner)
        ended = report(spawner)
    assert isinstance(ended, ProcessExited)
    assert ended.status == -signal.SIGTERM


def test_closing_the_spawner_ends_all_processes_also_one_that_hangs() -> None:
    spawner = Spawner(lambda name, incarnation: Doing(hang_without_a_turn_for_the_loop))
    pids = [started(spawner, f"site-{i}") for i in (1, 2)]
    assert spawner.close() == 0
    assert all(is_gone(pid) for pid in [*pids, spawner.pid])
    assert spawner.close() == 0, "a second time does nothing"


def test_a_spawner_that_was_stopped_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flux.driver.local.spawner._CLOSE_PATIENCE_S", 0.1)
    spawner = Spawner(sleeping)
    started(spawner)
    os.kill(spawner.pid, signal.SIGSTOP)
    assert spawner.close() == -signal.SIGKILL


def test_when_the_spawner_is_killed_its_reports_end_and_its_processes_leave() -> None:
    spawner = Spawner(sleeping)
    pids = [started(spawner, f"site-{i}") for i in (1, 2)]
    os.kill(spawner.pid, signal.SIGKILL)
    assert report(spawner) is None
    wait_until(lambda: all(is_gone(pid) for pid in pids), "processes outlived their spawner")
    spawner.start("site-3", 1, 2)  # Does nothing.
    assert spawner.close() == -signal.SIGKILL


def test_when_the_program_is_killed_the_spawner_ends_and_takes_all_with_it(tmp_path: Path) -> None:
    listed = tmp_path / "pids"
    program = os.fork()
    if program == 0:
        try:
            spawner = Spawner(lambda name, incarnation: Doing(hang_without_a_turn_for_the_loop))
            pids = [started(spawner, f"site-{i}") for i in (1, 2)]
            # A fork that lives on holds the program's socket; the spawner must not take that for the program.
            bystander = os.fork()
            if bystander == 0:
                time.sleep(600)
            (tmp_path / "part").write_text(" ".join(map(str, [bystander, spawner.pid, *pids])))
            (tmp_path / "part").rename(listed)
            time.sleep(600)
        finally:
            os._exit(1)
    wait_until(listed.exists, "the program did not start")
    bystander, *pids = map(int, listed.read_text().split())
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    try:
        wait_until(lambda: all(is_gone(pid) for pid in pids), "processes outlived their program")
    finally:
        os.kill(bystander, signal.SIGKILL)


def test_a_process_holds_nothing_of_the_spawner_or_of_another_process(tmp_path: Path) -> None:
    async def list_descriptors() -> None:
        kinds = sorted(os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
        (tmp_path / "part").write_text("\n".join(kinds))
        (tmp_path / "part").rename(tmp_path / "held")
        await trio.sleep_forever()

    def make(name: str, incarnation: int) -> Runnable:
        return Doing(list_descriptors if name == "looks" else trio.sleep_forever)

    held = []
    with spawning(make) as spawner:
        for incarnation, others in ((1, ["a", "b"]), (2, ["c", "d"])):
            for name in others:
                started(spawner, name)
            started(spawner, "looks", incarnation)
            wait_until((tmp_path / "held").exists, "the process did not list what it holds")
            held.append([line.split(":")[0] for line in (tmp_path / "held").read_text().splitlines()])
            (tmp_path / "held").unlink()
    assert held[0] == held[1], "a later process holds more than an earlier one"


def test_what_a_process_writes_to_standard_error_reaches_the_program_and_its_end_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def complain() -> None:
        print("x" * 5_000 + " the last words", file=sys.stderr)
        os.write(2, b"below Python\n")
        raise ZeroDivisionError("of the operator")

    process = Process("site-1")
    with spawning(lambda name, incarnation: Doing(complain)) as spawner:

        async def main() -> None:
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.stderr.forward)
                    spawner.start("site-1", 1, process.stderr.writing)
                    process.stderr.handed_over()
                    told = await spawner.report()
                    assert isinstance(told, ProcessStarted)
                    process.started(told)
                    ended = await spawner.report()
                    assert isinstance(ended, ProcessExited)
                    process.ended(ended)

        trio.run(main)
    assert "the last words\nbelow Python\n" in process.how_it_ended()
    assert process.how_it_ended().startswith("exit status 1")
    assert "ZeroDivisionError: of the operator" in process.how_it_ended()
    assert len(process.how_it_ended()) < 3_000
    assert "x" * 5_000 + " the last words\nbelow Python\n" in capsys.readouterr().err
