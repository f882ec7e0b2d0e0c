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

from .controller.process import CONTROLLER, ControllerProcess
from .errors import FluxError, SourceEnded
from .local.launcher import Lifeline, Runnable, fork, kill
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
        self.directory = Path(tempfile.mkdtemp(prefix="flux-"))
        if record is not None:
            Path(record).mkdir(parents=True, exist_ok=True)
        self._surroundings = Surroundings(
            plan=plan,
            directory=self.directory,
            token=secrets.token_hex(16),
            record=None if record is None else Path(record),
        )
        self._launch()

    def _launch(self) -> None:
        surroundings = self._surroundings
        self._source.bind(self.directory)
        if isinstance(self._sink, Collect):
            self._sink.open(self.directory)
        listener = address.listen(surroundings.address("program"))
        controller = address.listen(surroundings.address(CONTROLLER))
        self._lifeline = Lifeline()
        makers: dict[str, Callable[[], Runnable]] = {
            CONTROLLER: partial(ControllerProcess, surroundings, controller),
            INGRESS: partial(IngressProcess, surroundings, self._source),
            EGRESS: partial(EgressProcess, surroundings, self._sink),
        }
        makers |= {name: partial(Worker, surroundings, name) for name in self._plan.site_names}
        self._children = {name: fork(name, make, self._lifeline) for name, make in makers.items()}
        controller.close()
        self._program = Program(surroundings, self._sink, listener, list(self._children.values()))
        try:
            self._await(lambda heard: heard.started_at is not None, _START_TIMEOUT_S, "start")
            self._source.start()
        except BaseException:
            self.stop()
            raise

    # What a user calls.

    def wait_for_output(self, n: int, timeout: float = 60) -> None:
        """Return when `n` rows are durable at the sink; `SourceEnded` or `TimeoutError` if that fails."""
        self._await(lambda heard: heard.outputs >= n or heard.ended, timeout, f"{n:,} rows of output")
        if self._program.heard.outputs < n:
            raise SourceEnded(
                f"the source has ended and the run gave {self._program.heard.outputs:,} rows, not the {n:,} awaited"
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
        if not self._program.wait(lambda heard: child.exited is not None, _KILL_TIMEOUT_S):
            raise FluxError(f"{name} (process {child.pid}) did not end {_KILL_TIMEOUT_S:g} s after SIGKILL")

    def wait(self, timeout: float | None = None) -> Report:
        """Return the report when the source has ended and every row is durable at the sink."""
        if self._report is None:
            try:
                self._await(lambda heard: heard.ended, timeout, "the end of the stream")
            except TimeoutError:
                raise
            except BaseException:
                self.stop()
                raise
            self.stop()
            self._report = self._make_report(self._program.heard)
        return self._report

    def stop(self) -> None:
        """End every process of the run, now; nothing is left behind."""
        if self._stopped:
            return
        self._stopped = True
        self._source.stop()
        self._program.stop()
        for child in self._children.values():
            if child.exited is None:
                kill(child)
        self._program.wait(lambda heard: all(c.exited is not None for c in self._children.values()), None)
        self._program.join()
        self._lifeline.cut()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # How it is done.

    def _await(self, until: Callable[[Heard], bool], timeout: float | None, what: str) -> None:
        if not self._program.wait(lambda heard: until(heard) or heard.error is not None, timeout):
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        error = self._program.heard.error
        if error is not None and not until(self._program.heard):
            self.stop()
            raise error

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
            failures.append(
                Failure(
                    site=site,
                    when_s=when_s,
                    detected_after_s=closed_at - killed_at,
                    output_gap_s=output_gap(outputs, when_s, end_s=ended_s),
                    recovered_after_s=None,
                    bytes_moved=0,
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
        return self._since_start(self._program.heard.output_log)

    def input_log(self) -> list[LogEntry]:
        """When the ingress numbered which rows, likewise."""
        return self._since_start(self._program.heard.input_log)

    def _since_start(self, log: list[LogEntry]) -> list[LogEntry]:
        started_at = self._program.heard.started_at or 0.0
        return [(when - started_at, upto, rows) for when, upto, rows in log]

    @property
    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each process that has ended."""
        return {name: child.cpu_s for name, child in self._children.items() if child.exited is not None}
