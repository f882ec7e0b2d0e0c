"""What cannot be read, of who has greeted: the connection is closed, the link goes on, and the output is exact.

It takes half a minute: each test is a run of real processes that die and are replaced.
"""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux
from flux.site.ingress import source_input
from flux.wire import frames

from .relay import Relay, Spoil, relayed
from .waiting import wait_until

KEYS, ROWS, ROWS_PER_S = 100, 60_000, 5_000
PATIENCE_S = 60.0
LINE = "site-1: closed the connection to ingress: "


def _with_header(header: dict[str, Any], frame: bytes, **changes: Any) -> bytes:
    header_bytes, body_bytes = frames.decode_prefix(frame[: frames.PREFIX.size])
    body = frame[frames.PREFIX.size + header_bytes :]
    assert len(body) == body_bytes
    return frames.encode({**header, **changes}, body_bytes) + body


def _another_sender(header: dict[str, Any], frame: bytes) -> bytes:
    return frame.replace(b"ingress", b"ingresz")


def _spoilt_body(header: dict[str, Any], frame: bytes) -> bytes:
    _, body_bytes = frames.decode_prefix(frame[: frames.PREFIX.size])
    return frame[:-body_bytes] + b"\xff" * body_bytes


SPOILT: dict[str, tuple[Spoil, str]] = {
    "another magic": (lambda header, frame: b"Gx" + frame[2:], "not a Flux process"),
    "oversized": (
        lambda header, frame: frames.PREFIX.pack(b"Fx", frames.VERSION, 1 << 30, 0) + frame[frames.PREFIX.size :],
        "over the limits",
    ),
    "no msgpack": (
        lambda header, frame: frame[: frames.PREFIX.size] + b"\xc1" + frame[frames.PREFIX.size + 1 :],
        "is not msgpack",
    ),
    "no message": (lambda header, frame: _with_header(header, frame, m={"sing": 1}), ""),
    "marks of nothing": (lambda header, frame: _with_header(header, frame, punctuations=[7]), ""),
    "another sender": (_another_sender, "expected a message of ingress"),
    "no batch": (_spoilt_body, "invalid record batch"),
    "another schema": (
        lambda header, frame: _with_header(header, frame, of=77),
        "expected a schema that was sent before",
    ),
}


class Counts(flux.KeyedOperator):
    output: ClassVar = {"key": "int64", "count": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1
        return count, [{"key": row.key, "count": count}]


def flow() -> flux.Dataflow:
    made = flux.Dataflow("unreadable")
    rows = pa.record_batch({"key": pa.array(np.arange(ROWS) % KEYS)})
    source = made.source(flux.sources.Table(rows, rate=ROWS_PER_S, batch_rows=500))
    source.exchange("key", partitions=4).apply(Counts).sink(flux.sinks.Collect())
    return made


def check(report: flux.Report) -> None:
    rows = np.arange(ROWS)
    assert report.table.column("key").to_numpy().tolist() == (rows % KEYS).tolist()
    assert report.table.column("count").to_numpy().tolist() == (rows // KEYS + 1).tolist()


class Spoiler:
    """Spoils frames with rows on their way through a relay, as many as it is told to."""

    def __init__(self, relay: Relay) -> None:
        self.left = 0
        self.how: Spoil = lambda header, frame: frame
        relay.spoil = self._spoil

    def _spoil(self, header: dict[str, Any], frame: bytes) -> bytes:
        if not self.left or header["kind"] != "peer" or "of" not in header:
            return frame
        self.left -= 1
        return self.how(header, frame)


def spoilt_state(header: dict[str, Any], frame: bytes) -> bytes:
    """A chunk of state that begins with what cannot be there; all others as they are."""
    header_bytes, body_bytes = frames.decode_prefix(frame[: frames.PREFIX.size])
    if header["kind"] != "chunk" or not body_bytes:
        return frame
    return frame[: frames.PREFIX.size + header_bytes] + b"\xff" * body_bytes


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage().startswith(LINE)]


def test_a_frame_that_cannot_be_read_closes_its_connection_and_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with relayed(monkeypatch, "ingress", "site-1") as relay:
        spoiler = Spoiler(relay)
        with flow().start(sites=2) as run:
            relay.start()
            run.wait_for_output(500, timeout=PATIENCE_S)
            for kind, (spoiler.how, reason) in SPOILT.items():
                caplog.clear()
                spoiler.left = 1
                wait_until(lambda: bool(lines(caplog)), f"nothing is said of {kind}")
                run.wait_for_output(run.status().outputs + 500, timeout=PATIENCE_S)
                [line] = lines(caplog)
                assert reason in line.getMessage(), kind
                assert line.levelno == logging.WARNING and "\n" not in line.getMessage()
            report = run.wait(timeout=PATIENCE_S)
    check(report)
    assert report.failures == []


@pytest.mark.long
def test_a_peer_that_cannot_be_read_at_all_is_as_good_as_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flux")
    with relayed(monkeypatch, "ingress", "site-1") as relay:
        spoiler = Spoiler(relay)
        with flow().start(sites=2, standby=1) as run:
            relay.start()
            run.wait_for_output(500, timeout=PATIENCE_S)
            spoiler.how, spoiler.left = SPOILT["another magic"][0], ROWS
            wait_until(lambda: bool(run.status().failures), "the controller has decided")
            assert len(lines(caplog)) == 3
            report = run.wait(timeout=PATIENCE_S)
    check(report)
    assert [failure.site for failure in report.failures] == ["site-1"]


def test_a_copy_that_cannot_be_read_is_built_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its donor has the last copies: it is the other one that goes."""
    caplog.set_level(logging.INFO, "flux")
    with relayed(monkeypatch, "site-1", "site-3") as relay:
        relay.spoil = spoilt_state
        with flow().start(sites=2, standby=2) as run:
            relay.start()
            run.wait_for_output(500, timeout=PATIENCE_S)
            run.kill("site-2")
            wait_until(lambda: "which sent state that cannot be read" in caplog.text, "nothing is said of it")
            assert run._driver is not None
            assert run._driver.wait(lambda run_state: run_state.whole and "site-3" in run_state.closed_at, PATIENCE_S)
            report = run.wait(timeout=PATIENCE_S)
    check(report)
    assert [failure.site for failure in report.failures] == ["site-2", "site-3"]


def test_rows_that_no_receiver_can_take_end_the_run_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused where they enter; should they ever not be, no other pair of sites can read them either."""
    monkeypatch.setattr(source_input, "check_given", lambda source, rows: None)
    made = flux.Dataflow("unreadable")
    rows = pa.table({"key": list(range(300)), "at": pa.array([1, 90_000, 3] * 100, pa.time32("s"))})
    source = made.source(flux.sources.Table(rows))
    source.exchange("key", partitions=4).apply(Counts).sink(flux.sinks.Collect())
    with made.start(sites=3) as run, pytest.raises(flux.FluxError) as raised:
        run.wait(timeout=PATIENCE_S)
    assert re.search(
        r"^site-\d cannot take rows of a source from ingress: column 'at': 90000 is not a time32\[s\]",
        str(raised.value),
    )
