"""Jobs: the sites of a run as jobs of Spark, one for each, submitted again until the run wants it no more.

A job of its own, with a single task, for each site: should Spark give up on one, because its task was lost too often
(`spark.task.maxFailures`), it does not end the others. Each is submitted by a thread that waits for its end. They run
in a pool and a job group of the run's own, so that whoever looks at the application sees what they are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..source.spark_stream import _reason
from .task_site import ELSEWHERE, ENDED, SitePosting

log = logging.getLogger("flux.spark")

_PAUSE_S, _PAUSE_MAX_S = 0.2, 5.0
_LIVED_S = 5.0
_RETURN_S = 3.0  # Tasks return within some hundredths of a second behind the end of their site,
_CANCEL_S = 30.0  # and those that are cancelled within some seconds.
POOL = "flux"


class Jobs:
    """The jobs of one run: `is_wanted(index)` says whether a site that has ended is to be replaced."""

    def __init__(
        self, context: Any, name: str, run: str, is_wanted: Callable[[int], bool], failed: Callable[[str], None]
    ) -> None:
        self._context = context
        self._name = name
        self._group = f"flux-{run}"
        self._is_wanted = is_wanted
        self._failed = failed
        self._stopping = threading.Event()
        self._threads: list[Any] = []

    def submit(self, posting: SitePosting) -> None:
        """Have a site, for as long as it is wanted."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._keep, args=(posting,), name=f"flux-spark-site-{posting.index}")
        thread.daemon = True
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End what is left, when the sites were told to stop; no task runs behind it."""
        self._stopping.set()
        self._join(_RETURN_S)
        if any(thread.is_alive() for thread in self._threads):
            # A task that waits for a core, or whose site hangs.
            self._context.cancelJobGroup(self._group)
            self._join(_CANCEL_S)

    def _join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep(self, posting: SitePosting) -> None:
        pause_s = _PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                status = self._run(posting)
            except Exception as error:
                if self._stopping.is_set():
                    return
                reason = _reason(error)
                log.warning("site %d of %s: Spark gave it up: %s", posting.index, self._name, reason)
                self._failed(reason)
                status = None
            if status == ENDED and not self._is_wanted(posting.index):
                return
            # One that has lived and died is replaced at once; one that cannot even begin is not tried all the time.
            lived = status in (ENDED, ELSEWHERE) or time.monotonic() > began + _LIVED_S
            pause_s = _PAUSE_S if lived else min(2 * pause_s, _PAUSE_MAX_S)
            self._stopping.wait(pause_s)

    def _run(self, posting: SitePosting) -> int:
        context = self._context
        context.setJobGroup(self._group, f"Flux: site {posting.index} of {self._name}", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", POOL)
        [status] = context.parallelize([posting.index], 1).mapPartitions(posting).collect()
        return int(status)
