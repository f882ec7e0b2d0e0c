"""World result: what came of one simulated world; and log lines that go to its trace."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .kernel import running
from .replaced_calls import SimulatedSystem

log = logging.getLogger("flux")


@dataclass(frozen=True, kw_only=True)
class WorldResult:
    """What came of one world."""

    seed: int
    violations: tuple[str, ...]
    faults: tuple[str, ...]  # In words.
    deaths: int
    simulated_s: float
    effects: int
    digest: str  # Of the whole trace.
    rows: int = 0  # Of each source; of the hand-off from Spark, none are counted,
    sites: int = 0  # and it has no sites.
    moves: int = 0  # Of copies, for balance.
    changes: int = 0  # Of the code, that were committed.
    cpu_s: float = 0.0  # Of the processor, for this world.
    trace: tuple[str, ...] = field(repr=False)  # Its last lines, or all.

    @classmethod
    def of(
        cls, seed: int, system: SimulatedSystem, violations: Sequence[str], faults: Sequence[str], deaths: int
    ) -> WorldResult:
        """Return the result of a world that has ended."""
        kernel = system.kernel
        return cls(
            seed=seed,
            violations=tuple(violations),
            faults=tuple(faults),
            deaths=deaths,
            simulated_s=kernel.now,
            effects=kernel.effects,
            digest=kernel.digest,
            trace=tuple(kernel.trace),
        )


@contextlib.contextmanager
def quiet(system: SimulatedSystem) -> Iterator[None]:
    """Write log lines and standard error to the trace instead."""
    handlers, level, propagate = log.handlers, log.level, log.propagate
    log.handlers, log.propagate = [_TraceHandler(system)], False
    log.setLevel(logging.INFO)
    try:
        with contextlib.redirect_stderr(_TraceStream(system)):
            yield
    finally:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


class _TraceHandler(logging.Handler):
    def __init__(self, system: SimulatedSystem) -> None:
        super().__init__()
        self._system = system

    def emit(self, record: logging.LogRecord) -> None:
        self._system.kernel.note("log", record.getMessage())


class _TraceStream(io.StringIO):
    def __init__(self, system: SimulatedSystem) -> None:
        super().__init__()
        self._system = system

    def write(self, text: str) -> int:
        process = running.get()
        if text.strip():
            self._system.kernel.note("stderr" if process is None else process.name, text.strip())
        return len(text)
