"""A run that has failed says so: in its status, to commands, and to the program that leaves its block."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import flux
from flux.commands.main import main
from flux.commands.top import screen
from flux.types.errors import OperatorError
from flux.wire.reports import Command, ProcessFailed

from .fakes import FakeEgress, FakeWorker, flow
from .waiting import DEADLINE_S, wait_until

WHY = "the operator had enough"


class Failing(FakeWorker):
    """A site that fails when the test says so: an error before the start would be raised by `start`."""

    def begin(self) -> None:
        if self.name == "site-1":
            while not (self.config.directory / "fail").exists():
                time.sleep(0.005)
            error = OperatorError(WHY, step="Passing", partition=1, row=2)
            self.driver.send_report(ProcessFailed(node=self.name, error=error.to_dict()))


class Silent(FakeEgress):
    """An egress without output: the stream does not end."""

    def obey(self, command: Command) -> None:
        pass


@pytest.fixture(autouse=True)
def failing(fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in which one site fails when it is up, and which do not end otherwise."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fake(Worker=Failing, EgressProcess=Silent)


def started() -> flux.Run:
    """Return a run that has failed."""
    run = flow().start(sites=2)
    (run.directory / "fail").touch()
    wait_until(lambda: run.status().error is not None, "the run did not fail")
    return run


def test_the_status_of_a_run_that_has_failed_says_so_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    run = started()
    try:
        status = run.status()
        assert main(["status"]) == 0
        printed = capsys.readouterr().out
    finally:
        run.stop()
    assert status.error is not None and WHY in status.error
    assert (status.whole, status.ended) == (False, False)
    assert "failed: " in printed and WHY in printed
    assert "every partition has all its copies" not in printed
    assert "failed: " in screen(run.status().to_dict())[0]


def test_leaving_the_block_of_a_run_that_has_failed_raises_why() -> None:
    with pytest.raises(OperatorError, match=WHY), started():
        pass


def test_an_exception_that_leaves_the_block_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError), started():
        raise ZeroDivisionError


def test_an_error_that_wait_has_raised_is_not_raised_again() -> None:
    with started() as run, pytest.raises(OperatorError, match=WHY):
        run.wait(timeout=DEADLINE_S)


def test_a_command_that_meets_the_error_does_not_take_it_from_the_program() -> None:
    with pytest.raises(OperatorError, match=WHY), started() as run, pytest.raises(OperatorError, match=WHY):
        run._watch(lambda run_state: False, DEADLINE_S, "what a command waits for")


async def _failed(run: flux.AsyncRun) -> None:
    (run._run.directory / "fail").touch()
    with trio.fail_after(DEADLINE_S):
        while (await run.status()).error is None:
            await trio.sleep(0.005)


def test_leaving_the_async_block_of_a_run_that_has_failed_raises_why() -> None:
    async def leave() -> None:
        async with flux.open_cluster(flow(), sites=2) as run:
            await _failed(run)

    with pytest.raises(OperatorError, match=WHY):
        trio.run(leave)


def test_an_exception_that_leaves_the_async_block_is_not_replaced() -> None:
    async def leave(by: type[Exception] | None) -> None:
        async with flux.open_cluster(flow(), sites=2) as run:
            await _failed(run)
            if by is not None:
                raise by
            with pytest.raises(OperatorError, match=WHY):
                await run.wait()

    with pytest.raises(ZeroDivisionError):
        trio.run(leave, ZeroDivisionError)
    trio.run(leave, None)
