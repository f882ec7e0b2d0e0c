"""AsyncRun: the handle of a run for trio programs.

It is `flux.Run` with every method awaited: each call is made in a thread, so that the program's event loop goes
on. The run's first process is forked in a thread that has never seen that loop: the fork then has no trace of
it, and can run an event loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from .dataflow import Dataflow
from .driver.change_request import StepRequest
from .driver.metrics import Metrics
from .driver.report import LogEntry, Report
from .driver.run_state import StateTransfer
from .driver.status import Status
from .reconfigure import Change
from .run import Run

__all__ = ["AsyncRun", "open_cluster"]

T = TypeVar("T")

_SLICE_S = 0.1  # The longest delay of a cancellation: a thread cannot be interrupted.


@asynccontextmanager
async def open_cluster(flow: Dataflow, sites: int = 2, standby: int = 0, **settings: Any) -> AsyncIterator[AsyncRun]:
    """Start `flow` as `flow.start(...)` does, with the same settings, and stop it when the block is left.

    Leaving the block of a run that has failed raises its error, as that of `flux.Run` does.

    >>> import flux
    >>> class Doubles(flux.KeyedOperator):
    ...     output = {"n": "int64"}
    ...     def on_tuple(self, key, row, state):
    ...         return None, [{"n": 2 * row.n}]
    >>> flow = flux.Dataflow("doubles")
    >>> numbers = flow.source(flux.sources.Table([{"n": 1}, {"n": 2}]))
    >>> numbers.exchange("n", partitions=4).apply(Doubles).sink(flux.sinks.Collect())
    >>> async def main():
    ...     async with flux.open_cluster(flow, sites=2) as run:
    ...         return await run.wait()
    >>> trio.run(main).table.to_pylist()
    [{'n': 2}, {'n': 4}]
    """
    start = partial(flow.start, sites, standby, **settings)
    run = await trio.to_thread.run_sync(_call_in_new_thread, start)
    try:
        yield AsyncRun(run)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(run.stop)
    run._raise_failure(run._raised)


class AsyncRun:
    """A dataflow in progress; made by `open_cluster`. The methods are those of `flux.Run`.

    A wait can be cancelled; the operation that a cancelled call has started goes on.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def wait_for_output(self, n: int, timeout: float = 60) -> None:
        """Return when `n` rows are durable at the sink; `SourceEnded` or `TimeoutError` if that fails."""
        await _wait_in_slices(partial(self._run.wait_for_output, n), timeout, f"{n:,} rows of output")

    async def wait(self, timeout: float | None = None) -> Report:
        """Return the report when the source has ended and every row is durable at the sink."""
        return await _wait_in_slices(self._run.wait, timeout, "the end of the stream")

    async def kill(self, name: str) -> None:
        """SIGKILL the process `name` and return when it is gone."""
        await trio.to_thread.run_sync(self._run.kill, name)

    async def add_site(self, standby: bool = False) -> str:
        """Start a further site, or a spare one, and return its name when the process is up."""
        return await trio.to_thread.run_sync(self._run.add_site, standby)

    async def reconfigure(
        self, changes: Mapping[str, StepRequest], scheduler: str = "sn", timeout: float | None = 60
    ) -> Change:
        """Change code and parameters of steps while rows flow; `ChangeError` says why that cannot be."""
        return await trio.to_thread.run_sync(partial(self._run.reconfigure, changes, scheduler, timeout))

    async def drain(self, site: str, timeout: float = 60) -> None:
        """Move everything off `site` and stop it; return when its process is gone."""
        process = await trio.to_thread.run_sync(self._run._begin_drain, site)
        wait = partial(self._run._await_drained, process, wait=self._run._await)
        await _wait_in_slices(wait, timeout, f"{site} to be drained")

    async def status(self) -> Status:
        """Return a snapshot of what the run is doing."""
        return await trio.to_thread.run_sync(self._run.status)

    async def metrics(self) -> Metrics:
        """Return the metrics of the run, by name."""
        return await trio.to_thread.run_sync(self._run.metrics)

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus can read the metrics; None without `metrics_port`."""
        return self._run.metrics_url

    async def stop(self) -> None:
        """End every process of the run, now."""
        await trio.to_thread.run_sync(self._run.stop)

    async def output_log(self) -> list[LogEntry]:
        """Return when the sink took which rows."""
        return await trio.to_thread.run_sync(self._run.output_log)

    async def input_log(self) -> list[LogEntry]:
        """Return when the ingress numbered which rows."""
        return await trio.to_thread.run_sync(self._run.input_log)

    async def moved_log(self) -> list[StateTransfer]:
        """Return which state moved from one site to another, and when."""
        return await trio.to_thread.run_sync(self._run.moved_log)


def _call_in_new_thread(start: Callable[[], Run]) -> Run:
    """Call `start` in a thread that is not one of trio's: those know the loop that they work for."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(start).result()


async def _wait_in_slices(wait: Callable[[float], T], timeout: float | None, what: str) -> T:
    """Wait for one `_SLICE_S` after another, so that the wait can be cancelled in between."""
    deadline = math.inf if timeout is None else trio.current_time() + timeout
    while True:
        left_s = deadline - trio.current_time()
        try:
            return await trio.to_thread.run_sync(wait, max(0.0, min(left_s, _SLICE_S)))
        except TimeoutError:
            if left_s <= _SLICE_S:
                raise TimeoutError(f"waited {timeout:g} s for {what}") from None
