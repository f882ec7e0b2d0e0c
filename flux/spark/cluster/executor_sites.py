"""`flux.spark.Cluster`: runs whose sites are Spark tasks; controller, ingress and egress run beside Spark's driver.

Except for its sites it is a local run, with the same program, spawner and handle. The processes communicate over TCP.
The sites are external (see `external_sites`): tasks fork them (see `task_site`), jobs keep them running (see `jobs`).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ...dataflow import Dataflow
from ...driver.launcher import Runnable
from ...driver.local.driver import Driver
from ...driver.local.spawner import Spawner
from ...driver.report import Report
from ...driver.run_state import RunState
from ...plan import Availability, Plan, Policy
from ...plan.logical_flow import POOL_ROWS
from ...plan.plan import CONTROLLER, EGRESS, INGRESS
from ...run import Run, Wait
from ...sinks import Sink
from ...site.config import ProcessConfig
from ...sources import Source
from ...types.errors import FluxError, PlanError
from ...wire import address
from ...wire.requests import Request, TaskJoinRequest, TaskSiteDeath, answer_frame, failure_frame
from ...wire.secret import new_secret
from ..session import check_classic, driver_host, register
from .external_sites import ExternalSites
from .jobs import Jobs
from .task_site import SitePosting, TcpConfig

__all__ = ["Cluster"]

_NAME = "flux.spark.Cluster"
_ENDS = (CONTROLLER, INGRESS, EGRESS)


class Cluster:
    """The executors of a Spark application as sites: `sites` that hold partitions, and `standby` spare ones.

        with flux.spark.Cluster(spark, sites=4, standby=1) as cluster:
            report = cluster.run(flow)

    Each site is a task that takes a core for as long as the run lasts; queries in the same application need further
    cores. Flux itself is shipped to the executors; the packages it needs, and your own modules, must be installed there
    (see docs/spark.rst). Operators are shipped as any function given to Spark, also those of the main program.

    `host` is the address at which executors reach this machine, by default `spark.driver.host`. `patience_s` is the
    timeout for Spark to find a core for each site.
    """

    def __init__(
        self, spark: Any, sites: int = 2, standby: int = 0, *, host: str | None = None, patience_s: float = 120.0
    ) -> None:
        check_classic(spark, _NAME)
        self._spark = spark
        self._sites = sites
        self._standby = standby
        self._host = host or driver_host(spark.sparkContext)
        self._patience_s = patience_s
        self._runs: list[Run] = []

    def start(
        self,
        flow: Dataflow,
        availability: Availability = "pairs",
        pool_rows: int = POOL_ROWS,
        metrics_port: int | str | None = None,
        **policy: Any,
    ) -> Run:
        """Start `flow` and return its handle, as `flow.start` does; leaving the block stops it."""
        logical = flow._logical
        plan = logical.plan(self._sites, self._standby, availability, pool_rows, Policy(**policy))
        check_shippable(plan)
        register(self._spark)
        run = _SparkRun(
            self._spark.sparkContext,
            self._host,
            self._patience_s,
            plan,
            flow._logical.sources,
            flow._logical.sinks,
            flow._logical.outputs,
            metrics_port,
        )
        self._runs.append(run)
        return run

    def run(self, flow: Dataflow, **settings: Any) -> Report:
        """Run `flow` to its end."""
        with self.start(flow, **settings) as run:
            return run.wait()

    def stop(self) -> None:
        """Stop every run and all its tasks."""
        for run in self._runs:
            run.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def check_shippable(plan: Plan) -> None:
    """Raise `PlanError` if Spark cannot ship the operators."""
    from pyspark.serializers import CloudPickleSerializer

    for segment in plan.segments:
        for step in segment.steps:
            try:
                CloudPickleSerializer().dumps((step.factory, step.parameters))
            except Exception as error:
                raise PlanError(
                    f"{_NAME}: operator {step.name} cannot be shipped to the executors: {error}. What it refers to "
                    "must be importable there, or be plain values"
                ) from error


class _SparkRun(Run):
    """A run with its sites on Spark."""

    def __init__(
        self,
        context: Any,
        host: str,
        patience_s: float,
        plan: Plan,
        sources: Sequence[Source],
        sinks: Sequence[Sink],
        outputs: Sequence[pa.Schema | None],
        metrics_port: int | str | None,
    ) -> None:
        self._context = context
        self._host = host
        self._patience_s = patience_s
        self._jobs: Jobs | None = None
        self._listeners: dict[str, socket.socket] = {}
        self._postings = 0
        super().__init__(plan, sources, sinks, outputs, metrics_port=metrics_port)

    def _make_config(self, record: Path | None) -> ProcessConfig:
        here = f"tcp:{self._host}:0"
        try:
            for name in ("program", CONTROLLER):
                self._listeners[name] = address.listen(here)
        except FluxError as error:
            self._directory.remove()
            raise FluxError(
                f"{_NAME}: {error}. Set host= or spark.driver.host to the address at which executors reach this machine"
            ) from error
        where = {name: f"tcp:{self._host}:{sock.getsockname()[1]}" for name, sock in self._listeners.items()}
        return TcpConfig(
            plan=self._plan,
            directory=self.directory,
            run=self.directory.name,
            secret=new_secret(),
            program=where["program"],
            controller=where[CONTROLLER],
            here=here,
        )

    def _listen(self, name: str) -> socket.socket:
        return self._listeners[name]

    def _make(self, name: str, incarnation: int, controller: socket.socket) -> Runnable:
        self._listeners["program"].close()
        return super()._make(name, incarnation, controller)

    def _make_driver(self, listener: socket.socket, spawner: Spawner) -> Driver:
        settings = (self._config, self._sinks, listener, spawner, _ENDS, frozenset(_ENDS), self._answer)
        driver = partial(Driver, *settings, metrics_listener=self._metrics_listener)
        self._sites = ExternalSites(self._plan, driver, partial(_executors, self._context))
        return self._sites.driver

    def _answer(self, request: Request) -> dict[str, Any]:
        try:
            match request:
                case TaskSiteDeath():
                    self._sites.note_death(request)
                    return answer_frame({})
                case TaskJoinRequest():
                    site = self._sites.admit(request)
                    return answer_frame({"name": None if site is None else site.name})
                case _:
                    return self._request_handlers().answer(request)
        except FluxError as error:
            return failure_frame(error)

    def _await_start(self) -> None:
        name, run = self._plan.name, self._config.run
        self._jobs = Jobs(self._context, name, run, self._is_wanted, self._gave_up)
        for _ in self._plan.site_names:
            self._submit()
        try:
            self._await(lambda run_state: run_state.started_at is not None, self._patience_s, "start")
        except TimeoutError:
            wanted, joined = len(self._plan.site_names), len(self._sites.guests_up())
            raise FluxError(
                f"{_NAME}: {joined} of {wanted} sites have joined within {self._patience_s:g} s. Each needs its own "
                f"core, and the application has {self._context.defaultParallelism} in all, some maybe taken by other "
                "jobs: give it more (--total-executor-cores, --num-executors), or ask for fewer sites. If executors "
                "cannot reach this machine, their logs say so"
            ) from None

    def _submit(self) -> int:
        config = self._config
        assert isinstance(config, TcpConfig) and self._jobs is not None
        self._postings += 1
        posting = SitePosting(
            index=self._postings,
            plan=self._plan,
            run=config.run,
            secret=config.secret,
            program=config.program,
            controller=config.controller,
        )
        self._jobs.submit(posting)
        return posting.index

    def _add_site(self, wait: Wait, standby: bool) -> str:
        index = self._submit()

        def is_up(run_state: RunState) -> bool:
            guest = self._sites.guest_at(index)
            return guest is not None and guest.state == "up"

        wait(is_up, self._patience_s, f"Spark to find a core for site {index}")
        guest = self._sites.guest_at(index)
        assert guest is not None and self._driver is not None
        if standby:
            self._driver.call_in_thread(partial(self._driver.name_spare, guest.name))
        return guest.name

    def _is_wanted(self, index: int) -> bool:
        """Whether to replace a site that has ended: not if it was drained, nor after the end of the run."""
        guest = self._sites.guest_at(index)
        return not self._stopped and not self._run_state.ended and not (guest is not None and guest.drained)

    def _gave_up(self, reason: str) -> None:
        """Fail the run if Spark gives up a site before the start: the user's or the cluster's error."""
        if self._run_state.started_at is None:
            self._sites.driver.fail(FluxError(f"{_NAME}: a site could not be started on an executor: {reason}"))

    def _end_processes(self) -> None:
        super()._end_processes()
        if self._jobs is not None:
            self._jobs.stop()
        for listener in self._listeners.values():
            listener.close()


def _executors(context: Any) -> int:
    """Return the number of executors. Spark lists the driver too, which counts only in local mode."""
    infos = context._jsc.sc().statusTracker().getExecutorInfos()
    return max(1, len(infos) - (0 if context.master.startswith("local[") or context.master == "local" else 1))
