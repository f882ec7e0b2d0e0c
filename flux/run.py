"""Run: the handle of a dataflow that is running on this machine."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import trio

from .controller.process import CONTROLLER, ControllerProcess
from .errors import FluxError, PlanError, SourceEnded
from .local.launcher import Child, Lifeline, Runnable, fork, kill
from .local.program import Heard, LogEntry, Program
from .plan import Plan
from .plan.plan import EGRESS, INGRESS
from .report import Failure, Report, build_timeline, output_gap
from .sinks import Collect, Sink
from .site.egress import EgressProcess
from .site.ingress import IngressProcess
from .site.shell import Surroundings
from .site.worker import Worker
from .sources import Source
from .wire import address

_START_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 10.0


class Run:
    """A dataflow in progress; made by `Dataflow.start`. Leaving its `with` block stops it."""

    def __init__(
        self,
        plan: Plan,
        source: Source,
        sink: Sink,
        output: pa.Schema | None = None,
        record: str | Path | None = None,
    ) -> None:
        self._plan = plan
        self._source = source
        self._sink = sink
        self._output = output
        self._killed_at: dict[str, float] = {}
        self._report: Report | None = None
        self._stopped = False
        self._collecting = False
        self._bound = False
        _refuse_inside_trio()
        if record is not None:
            Path(record).mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="flux-"))
        self._surroundings = Surroundings(
            plan=plan,
            directory=self.directory,
            token=secrets.token_hex(16),
            record=None if record is None else Path(record),
        )
        self._children: dict[str, Child] = {}
        self._program: Program | None = None
        self._lifeline = Lifeline()
        try:
            self._launch()
            self._await(lambda heard: heard.started_at is not None, _START_TIMEOUT_S, "start")
            self._source.start()
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        surroundings = self._surroundings
        if isinstance(self._sink, Collect):
            self._sink.open(self.directory)
            self._collecting = True
        self._source.bind(self.directory)
        self._bound = True
        listener = address.listen(surroundings.address("program"))
        controller = address.listen(surroundings.address(CONTROLLER))
        makers: dict[str, Callable[[], Runnable]] = {
            CONTROLLER: partial(ControllerProcess, surroundings, controller),
            INGRESS: partial(IngressProcess, surroundings, self._source),
            EGRESS: partial(EgressProcess, surroundings, self._sink),
        }
        makers |= {name: partial(Worker, surroundings, name) for name in self._plan.site_names}
        with controller:
            for name, make in makers.items():
                release = None if name == INGRESS else self._source.release
                self._children[name] = fork(name, make, self._lifeline, release)
        self._program = Program(surroundings, self._sink, listener, list(self._children.values()))

    # What a user calls.

    def wait_for_output(self, n: int, timeout: float = 60) -> None:
        """Return when `n` rows are durable at the sink; `SourceEnded` or `TimeoutError` if that fails."""
        self._await(lambda heard: heard.outputs >= n or heard.ended, timeout, f"{n:,} rows of output")
        if self._heard.outputs < n:
            raise SourceEnded(
                f"the source has ended and the run gave {self._heard.outputs:,} rows, not the {n:,} awaited"
            )

    def kill(self, name: str) -> None:
        """SIGKILL the process `name` and return when it is gone."""
        child = self._children.get(name)
        if child is None:
            raise ValueError(f"no process of this run is called {name!r}; there are {', '.join(self._children)}")
        if child.exited is not None:
            raise ValueError(f"{name} is dead already")
        self._killed_at[name] = time.monotonic()
        kill(child)
        assert self._program is not None
        if not self._program.wait(lambda heard: child.exited is not None, _KILL_TIMEOUT_S):
            raise FluxError(f"{name} (process {child.pid}) did not end {_KILL_TIMEOUT_S:g} s after SIGKILL")

    def wait(self, timeout: float | None = None) -> Report:
        """Return the report when the source has ended and every row is durable at the sink."""
        if self._report is None:
            self._await(lambda heard: heard.ended, timeout, "the end of the stream")
            self.stop()
            self._report = self._make_report(self._heard)
        return self._report

    def stop(self) -> None:
        """End every process of the run, now; nothing is left behind."""
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._bound:  # Else it may be in use by another run.
                self._source.stop()
        finally:
            self._end_processes()
            if self._collecting:
                self._sink.close()
            self._lifeline.cut()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end_processes(self) -> None:
        if self._program is not None:
            self._program.stop()
        for child in self._children.values():
            if child.exited is None:
                kill(child)
                if self._program is None:
                    child.reap()
        if self._program is not None:
            self._program.wait(lambda heard: all(c.exited is not None for c in self._children.values()), 10)
            self._program.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # How it is done.

    def _await(self, until: Callable[[Heard], bool], timeout: float | None, what: str) -> None:
        assert self._program is not None
        if not self._program.wait(lambda heard: until(heard) or heard.error is not None or self._stopped, timeout):
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        heard = self._heard
        if until(heard):
            return
        self.stop()
        raise heard.error or FluxError(f"the run was stopped before {what} had come")

    @property
    def _heard(self) -> Heard:
        assert self._program is not None, "the run has not started"
        return self._program.heard

    def _make_report(self, heard: Heard) -> Report:
        started_at = heard.started_at or 0.0
        inputs, outputs = self._since_start(heard.input_log), self._since_start(heard.output_log)
        ended_s = outputs[-1][0] if outputs else 0.0
        failures = []
        for site, closed_at in heard.closed_at.items():
            if self._children[site].exited == 0:
                continue  # It ended because the run did.
            killed_at = self._killed_at.get(site, closed_at)
            when_s = killed_at - started_at
            whole_at = next((at for at in heard.whole_at if at > closed_at), None)
            failures.append(
                Failure(
                    site=site,
                    when_s=when_s,
                    detected_after_s=closed_at - killed_at,
                    output_gap_s=output_gap(outputs, when_s, end_s=ended_s),
                    recovered_after_s=None if whole_at is None else whole_at - killed_at,
                    bytes_moved=sum(size for when, _, size in heard.moved if closed_at <= when <= (whole_at or when)),
                )
            )
        return Report(
            outputs=heard.outputs,
            table=self._sink.table(self._output) if isinstance(self._sink, Collect) else None,
            failures=failures,
            moves=[],
            timeline=build_timeline(
                inputs, outputs, events=[(failure.when_s, f"{failure.site} died") for failure in failures]
            ),
            name=self._plan.name,
            inputs=sum(rows for _, _, rows in inputs),
            duration_s=ended_s,
        )

    def output_log(self) -> list[LogEntry]:
        """When the sink took which rows: (seconds since the start, up to which sequence number, rows)."""
        return self._since_start(self._heard.output_log)

    def input_log(self) -> list[LogEntry]:
        """When the ingress numbered which rows, likewise."""
        return self._since_start(self._heard.input_log)

    def _since_start(self, log: list[LogEntry]) -> list[LogEntry]:
        started_at = self._heard.started_at or 0.0
        return [(when - started_at, upto, rows) for when, upto, rows in log]

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each process that has ended."""
        return {name: child.cpu_s for name, child in self._children.items() if child.exited is not None}


def _refuse_inside_trio() -> None:
    """A fork of a running trio loop cannot run one of its own."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return
    raise PlanError("start() and run() cannot be called inside a trio program: call them from a plain function")
