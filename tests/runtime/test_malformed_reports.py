"""A process sends its driver a malformed report, or gets a malformed command: the link is closed, the run goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from .fakes import ROWS, FakeEgress, FakeWorker, flow
from .waiting import DEADLINE_S, wait_until

NO_ERROR = {"error": "DataLost", "partitions": 7}
SENT = {"version": 1, "partition": 0, "to": "site-1", "size_bytes": 0, "snapshot_s": 0.0, "send_s": 0.0}
MALFORMED: dict[str, dict[str, Any]] = {
    "unknown": {"$": "Song", "verse": 1},
    "newer": {"$": "Load", "buffered_rows": 1, "since": 2},
    "older": {"$": "Load"},
    "a wrong type": {"$": "Load", "buffered_rows": "many"},
    "an error that is none": {"$": "ProcessFailed", "node": "x", "error": NO_ERROR},
    "of another role": {"$": "SiteDrained", "site": "site-1"},
    "a stage that is not there": {"$": "StateSent", "stage": 99, **SENT},
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_report_closes_its_link_and_ends_nothing(
    what: str, fake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Malformed(FakeWorker):
        def begin(self) -> None:
            if self.name == "site-1":
                self.driver.send({"kind": "report", "m": MALFORMED[what]})

    class Waiting(FakeEgress):
        def gate(self, position: int) -> Any:
            return self.config.directory / "go" if position == 100 else None

    fake(Worker=Malformed, EgressProcess=Waiting)
    with caplog.at_level(logging.WARNING, "flux"), flow().start(sites=2) as run:
        wait_until(lambda: "closed the connection to site-1: " in caplog.text, "the link is not closed")
        (run.directory / "go").touch()
        report = run.wait(timeout=DEADLINE_S)
    assert report.outputs == ROWS
    [line] = [message for message in caplog.messages if "closed the connection to site-1: " in message]
    assert "expected" in line or "has the fields" in line or "no message is called" in line


def test_an_unknown_command_makes_a_process_connect_again() -> None:
    """A site gets what no driver of this release sends: it closes the link, connects again and says why."""
    with flow().start(sites=2) as run:
        driver = run._driver
        assert driver is not None
        first = driver._links["site-1"]
        driver.run_in_thread(lambda: first.send({"kind": "command", "m": {"$": "Dance"}}))
        wait_until(lambda: driver._links["site-1"] is not first, "site-1 does not connect again")
        assert run.wait(timeout=DEADLINE_S).outputs == 1
