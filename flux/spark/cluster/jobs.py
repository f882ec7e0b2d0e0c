"""The sites of a run as Spark jobs, one for each site, submitted again as long as the run needs the site.

Each site has its own job with a single task. If Spark gives up on a job because its task was lost too often
(`spark.task.maxFailures`), the others continue. A thread submits each job and waits for its end. The jobs have their
own pool and job group, which identify them in Spark's user interface.
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

_RETRY_PAUSE_S, _RETRY_PAUSE_MAX_S = 0.2, 5.0
_LIVED_MIN_S = 5.0
_RETURN_TIMEOUT_S = 3.0  # Tasks return within some hundredths of a second after the end of their site,
_CANCEL_TIMEOUT_S = 30.0  # and cancelled ones within some seconds.
POOL = "flux"


class Jobs:
    """The jobs of one run: `is_wanted(index)` says whether to replace a site that has ended."""

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
        """Keep a site running for as long as it is wanted."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._keep, args=(posting,), name=f"flux-spark-site-{posting.index}")
        thread.daemon = True
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Wait for the tasks after the sites were stopped, and cancel the rest; no task runs afterwards."""
        self._stopping.set()
        self._join(_RETURN_TIMEOUT_S)
        if any(thread.is_alive() for thread in self._threads):
            # A task waits for a core, or its site hangs.
            self._context.cancelJobGroup(self._group)
            self._join(_CANCEL_TIMEOUT_S)

    def _join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep(self, posting: SitePosting) -> None:
        pause_s = _RETRY_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                status = self._run(posting)
            except Exception as error:
                if self._stopping.is_set():
                    return
                reason = _reason(error)
                log.warning("Spark gave up a site: site=%d flow=%s: %s", posting.index, self._name, reason)
                self._failed(reason)
                status = None
            if status == ENDED and not self._is_wanted(posting.index):
                return
            # A site that has lived and died is replaced at once; one that cannot start is retried ever later.
            lived = status in (ENDED, ELSEWHERE) or time.monotonic() > began + _LIVED_MIN_S
            pause_s = _RETRY_PAUSE_S if lived else min(2 * pause_s, _RETRY_PAUSE_MAX_S)
            self._stopping.wait(pause_s)

    def _run(self, posting: SitePosting) -> int:
        context = self._context
        context.setJobGroup(self._group, f"Flux: site {posting.index} of {self._name}", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", POOL)
        [status] = context.parallelize([posting.index], 1).mapPartitions(posting).collect()
        return int(status)
