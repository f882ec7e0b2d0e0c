"""Processes of a run that only talk to the program: enough to see what the run does when they die.

The egress makes the output up: row n at position n, one after the other, as the program acknowledges them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import trio

import flux
from flux.site.config import ProcessConfig
from flux.site.report_link import ReportLink
from flux.wire.connections import dial
from flux.wire.reports import (
    Collected,
    Command,
    CompareCopies,
    CopiesCompared,
    DeclareDead,
    DrainSite,
    RowsDurable,
    RowsNumbered,
    RowsWritten,
    SiteDrained,
    StopProcess,
    ViewPublished,
    read_command,
)

ROWS = 200


def written(after: int, upto: int, rows: int, end: bool = False) -> RowsWritten:
    """What an egress reports of the only sink."""
    return RowsWritten(sink=0, after=after, upto=upto, rows=rows, end=end, position=upto, ahead=())


class Fake:
    """A process that greets the program, and leaves when it says stop."""

    def __init__(self, config: ProcessConfig, name: str, incarnation: int = 1) -> None:
        self.config = config
        self.name = name if incarnation == 1 or name == "controller" else f"{name}.{incarnation}"
        self.incarnation = incarnation
        self.driver = ReportLink()

    def begin(self) -> None:
        """What it does first."""

    def obey(self, command: Command) -> None:
        """What it does when the driver commands something."""

    async def run(self) -> None:
        where = self.config.address("program")
        self.driver.connect(await dial(where, self.config.identity(self.name), "program"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.driver.write)
            self.begin()
            while (frame := await self.driver.receive()) is not None:
                command = read_command(frame[0])
                if isinstance(command, StopProcess):
                    break
                self.obey(command)
            os._exit(0)


class FakeController(Fake):
    """Everybody is always there."""

    def __init__(self, config: ProcessConfig, listener: Any, incarnation: int = 1) -> None:
        super().__init__(config, "controller", incarnation)

    def begin(self) -> None:
        self.driver.send_report(ViewPublished(number=1, versions=0, whole=True, at=time.monotonic()))

    def obey(self, command: Command) -> None:
        if isinstance(command, CompareCopies):
            self.driver.send_report(CopiesCompared(error=None))
        elif isinstance(command, DrainSite):
            self.driver.send_report(SiteDrained(site=command.site))
        else:
            assert isinstance(command, DeclareDead)


class FakeIngress(Fake):
    """It has numbered all rows at once."""

    def __init__(self, config: ProcessConfig, source: Any, incarnation: int = 1) -> None:
        super().__init__(config, "ingress", incarnation)

    def begin(self) -> None:
        if self.incarnation == 1:
            self.driver.send_report(RowsNumbered(log=((time.monotonic(), ROWS, ROWS),), total=ROWS, upto=ROWS))


class FakeEgress(Fake):
    """It goes on behind what the program has collected, and waits at each position for which a gate is missing."""

    def __init__(self, config: ProcessConfig, sink: Any, incarnation: int = 1) -> None:
        super().__init__(config, "egress", incarnation)

    def obey(self, command: Command) -> None:
        assert isinstance(command, Collected | RowsDurable)
        after = command.upto
        gate = self.gate(after)
        while gate is not None and not gate.exists():
            time.sleep(0.005)
        if after < ROWS:
            self.give(after, after + 1)

    def gate(self, position: int) -> Path | None:
        """The file without which nothing is given behind `position`."""
        return None

    def give(self, after: int, upto: int) -> None:
        rows = pa.record_batch({"n": list(range(after + 1, upto + 1))})
        self.driver.send_report(written(after, upto, len(rows), upto == ROWS), rows)


class FakeWorker(Fake):
    """A site without partitions."""


def gated(directory: Path, positions: tuple[int, ...]) -> type[FakeEgress]:
    """An egress that waits at `positions` for the files named after them."""

    class Gated(FakeEgress):
        def gate(self, position: int) -> Path | None:
            return directory / str(position) if position in positions else None

    return Gated


class Passing(flux.Operator):
    output: ClassVar = {"n": "int64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"n": batch["n"]})


def flow() -> flux.Dataflow:
    """A dataflow of which the fakes take only the output's columns."""
    made = flux.Dataflow("fake")
    made.source(flux.sources.Table([{"n": 1}])).exchange("n", partitions=4).apply(Passing).sink(flux.sinks.Collect())
    return made
