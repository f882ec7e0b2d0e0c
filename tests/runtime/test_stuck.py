"""A process that is stuck in code of the user is named, with the step, the rows and the line; nothing ends it."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flux
from flux.commands.top import screen

from .user_errors import ROWS, flow_of, keyed
from .waiting import wait_until


def stuck_texts(run: flux.Run) -> list[str]:
    return [process.stuck for process in run.status().processes if process.stuck]


@pytest.mark.parametrize("how", ["an endless loop", "a deadlock"])
def test_code_that_does_not_return_is_named_until_it_does(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"

    def wait_for_it(lock: threading.Lock) -> None:
        while not go.exists():
            if how == "a deadlock":
                lock.acquire(timeout=0.2)

    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        if row.v == 20 and not go.exists():
            wait_for_it(threading.Lock())
        return None, [{"k": row.k}]

    source = flux.sources.Table(ROWS * 100, rate=500)  # It outlasts the test.
    with flow_of(keyed(on_tuple), source).start(sites=2, stuck_after_s=0.5) as run:
        wait_until(lambda: len(stuck_texts(run)) == 2, "both copies are stuck in it")
        for text in stuck_texts(run):
            assert "step Mine" in text and "partitions " in text and "rows " in text
            assert "test_stuck.py" in text and "wait_for_it" in text and "on_tuple" in text
            assert "flux/" not in text
        assert "wait_for_it" in "\n".join(screen(run.status()))
        assert "site-1" in caplog.text and "wait_for_it" in caplog.text
        go.touch()
        run.wait_for_output(len(ROWS))
        wait_until(lambda: not stuck_texts(run), "that it goes on is reported")
    assert "goes on" in caplog.text


def hang(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


class Opening(flux.Operator):
    """It can be opened when the file `go` is there; before that, partition 0 can."""

    output: ClassVar = {"k": "int64"}

    def open(self, context: flux.Context) -> None:
        if context.partition == 1:
            hang(Path(context.parameters["go"]))

    def process(self, batch: flux.Batch) -> flux.Batch | None:
        return batch.emit({"k": batch["k"]})


class OpeningKeys(flux.KeyedOperator):
    """It can be opened when the file `go` is there."""

    output: ClassVar = {"k": "int64"}

    def open(self, context: flux.Context) -> None:
        hang(Path(context.parameters["go"]))

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"k": row.k}]


def opening(operator: Any, go: Path) -> flux.Dataflow:
    flow = flux.Dataflow("opening")
    rows = flow.source(flux.sources.Table(ROWS)).exchange("k", partitions=2)
    rows.apply(operator, go=str(go)).sink(flux.sinks.Collect())
    return flow


@pytest.mark.parametrize(
    ("operator", "where", "on_error"),
    [
        (Opening, "partitions 1", "stop"),
        (Opening, "partitions 1", "skip"),
        (OpeningKeys, "partitions 0, 1", "stop"),
    ],
)
def test_an_operator_that_does_not_open_is_named_until_it_does(
    operator: Any, where: str, on_error: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = rf"step {operator.__name__} has not returned for \d+ s: stage 1, {where}, it is opened. It is in hang \("

    def let_it_open() -> None:
        wait_until(lambda: len(re.findall(text, caplog.text)) == 2, "both sites are stuck in it")
        (tmp_path / "go").touch()

    naming = threading.Thread(target=let_it_open, daemon=True)
    naming.start()
    with opening(operator, tmp_path / "go").start(sites=2, stuck_after_s=0.3, on_error=on_error) as run:
        assert run.wait(60).outputs == len(ROWS)
        assert stuck_texts(run) == []
    assert f"called by {operator.__name__}.open (" in caplog.text and "test_stuck.py" in caplog.text


def test_a_run_that_does_not_start_says_which_operator_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flux.run._START_TIMEOUT_S", 10.0)
    with pytest.raises(TimeoutError, match="waited 10 s for start") as raised:
        opening(Opening, tmp_path / "go").start(sites=2, stuck_after_s=0.3)
    for site in ("site-1", "site-2"):
        says = rf"\. {site}: step Opening has not returned for \d+ s: stage 1, partitions 1, it is opened"
        assert re.search(says, str(raised.value))


class SlowToOpen(flux.sinks.Null):
    """It can be opened when the file `go` is there; if `later`, the first time at once."""

    def __init__(self, go: Path, later: bool) -> None:
        self._go = go
        self._first = go.with_name("first") if later else None

    def open(self, directory: Path) -> int | None:
        if self._first is None or self._first.exists():
            hang(self._go)
        else:
            self._first.touch()
        return None


@pytest.mark.parametrize("later", [False, True], ids=["as the run starts", "after a kill"])
def test_a_sink_that_does_not_open_is_named_until_it_does(
    later: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = re.compile(r"sink SlowToOpen has not returned for \d+ s: stage 2, it is opened. It is in hang \(")
    flow = flow_of(source=flux.sources.Table(ROWS, rate=500), sink=SlowToOpen(tmp_path / "go", later))

    def let_it_open() -> None:
        wait_until(lambda: text.search(caplog.text) is not None, "the egress is stuck in it")
        (tmp_path / "go").touch()

    if not later:
        threading.Thread(target=let_it_open, daemon=True).start()
    with flow.start(sites=2, stuck_after_s=0.3) as run:
        if later:
            run.wait_for_output(1)
            run.kill("egress")
            wait_until(lambda: any(map(text.search, stuck_texts(run))), "status names it")
            let_it_open()
        assert run.wait(60).outputs == len(ROWS)
        assert stuck_texts(run) == []
    assert "called by SlowToOpen.open (" in caplog.text and "test_stuck.py" in caplog.text


def test_slow_rows_are_not_stuck() -> None:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        time.sleep(0.01)
        return None, [{"k": row.k}]

    with flow_of(keyed(on_tuple), flux.sources.Table(ROWS[:100], rate=50)).start(sites=2, stuck_after_s=20) as run:
        assert run.wait(60).outputs == 100
        assert stuck_texts(run) == []


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(flux.PlanError, match="stuck_after_s is a number of seconds above 0"):
        flow_of().start(stuck_after_s=0)
