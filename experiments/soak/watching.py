"""Watching a run from outside: its view, whether its pairs are whole, and how many rows are on their way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import flux
from flux.controller.controller_process import JOURNAL
from flux.controller.view_journal import _decode
from flux.driver.processes import Process
from flux.plan.plan import EGRESS, INGRESS
from flux.protocols.messages import View
from flux.storage.journal import MAGIC, _frame, _records

UNACKNOWLEDGED_MIN = 1_000  # Rows on their way, without which a fault proves little.


class Stalled(AssertionError):
    """What must come has not come in time."""


class Watch:
    """What is asked of the run `run`, again and again."""

    def __init__(self, run: flux.Run, patience_s: float = 60.0) -> None:
        assert run._driver is not None
        self._run = run
        self._driver = run._driver
        self._patience_s = patience_s
        self._read_bytes = len(MAGIC)  # Of the controller's journal,
        self._file = 0  # which is another file when it was shortened.
        self._view: View | None = None  # The last in what was read.
        self._held: dict[str, bool] = {}  # Whether each node held a copy in the last view in which it lived.

    def view(self) -> View:
        """The last view in the controller's journal: what it has published, or is about to."""
        path = self._run.directory / JOURNAL
        if self._view is not None and not path.exists():
            return self._view  # The run is over.
        with path.open("rb") as journal:
            if (file := os.fstat(journal.fileno()).st_ino) != self._file:
                self._file, self._read_bytes = file, len(MAGIC)
            journal.seek(self._read_bytes)
            new = MAGIC + journal.read()
        for record in _records(path, new):
            self._view, _ = _decode(path, record)
            self._read_bytes += len(_frame(record.content))
            held = {node for stage in self._view.copies for copies in stage for node in copies}
            self._held.update({node: node in held for node in self._view.nodes if self._view.alive(node)})
        assert self._view is not None, "a run that has started has a view"
        return self._view

    def forget_views(self) -> None:
        """Read the controller's journal from its beginning the next time: it was cut."""
        self._read_bytes, self._file = len(MAGIC), 0

    def holders(self) -> list[str]:
        """The live sites with a copy, in the order of their names."""
        view = self.view()
        return [name for name in self.sites() if any(name in copies for stage in view.copies for copies in stage)]

    def held(self, site: str) -> bool:
        """Whether a site holds a copy; of one that is dead, whether it did in the last view in which it lived."""
        self.view()
        return self._held.get(site, False)

    def sites(self) -> list[str]:
        """The live sites."""
        with self._driver.changed:
            return [process.name for process in self._driver.processes if process.is_site and not process.gone]

    def deaths(self) -> list[Process]:
        """Every process that has died so far."""
        with self._driver.changed:
            return list(self._driver.run_state.deaths)

    def ended(self, pid: int) -> Process | None:
        """The process `pid`, if it has ended: by its death, or as a site that was emptied."""
        with self._driver.changed:
            known = (*self._driver.run_state.deaths, *self._driver.processes)
            return next((process for process in known if process.pid == pid and process.gone), None)

    def is_whole(self) -> bool:
        """Whether the last view knows who lives, and every partition has all its copies among those."""
        view = self.view()
        with self._driver.changed:
            present = list(self._driver.processes)
        knows = all(view.alive(p.node) != p.gone for p in present if p.is_site or p.name in (INGRESS, EGRESS))
        up = all(process.state == "up" for process in present if not process.gone)
        held = {node for stage in view.copies for copies in stage for node in copies}
        return knows and up and not view.standby and not held & view.dead

    def wait_whole(self) -> None:
        """Return when all are up, the pairs are whole, and output has come since."""
        self.until(self.is_whole, "every partition to have two live copies")
        self.wait_output()

    def wait_output(self) -> None:
        """Return when output has come since."""
        before = self._driver.run_state.safe_upto
        self.until(lambda: self._driver.run_state.safe_upto > before, "output")

    def wait_end(self) -> None:
        """Return when the stream has ended, and its output is there: as long as that takes, so long as output comes."""
        state = self._driver.run_state
        while not state.ended:
            upto = state.safe_upto
            self.until(lambda upto=upto: state.ended or state.safe_upto > upto, "output, or the end of the stream")

    def wait_error(self) -> None:
        """Raise the error that ends the run, when it does."""
        self.until(lambda: False, "the run to end with an error")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return when `holds()`; raise if the run ends with an error before, or it takes too long."""
        deadline = time.monotonic() + self._patience_s
        before = self._driver.run_state.safe_upto
        while not holds():
            if self._driver.run_state.error is not None:
                raise self._driver.run_state.error
            if time.monotonic() > deadline:
                came = self._driver.run_state.safe_upto - before
                up = [f"{p.name} ({p.incarnation})" for p in self._run.status().processes if p.state == "up"]
                raise Stalled(
                    f"waited {self._patience_s:g} s for {what}. Meanwhile the output came {came:,} rows of input "
                    f"further; up are {', '.join(up)}; the view is {self.view()}"
                )
            time.sleep(0.01)

    def numbered(self) -> int:
        """The last row that the ingress is known to have numbered."""
        with self._driver.changed:
            run_state = self._driver.run_state
            return max([run_state.safe_upto, *(upto for _, upto, _ in run_state.history.inputs[-100:])])

    def wait_told(self, at: float) -> None:
        """Return when it is known how many rows had gone in at a moment: the ingress tells that some time later."""

        def is_told() -> bool:
            with self._driver.changed:
                inputs = self._driver.run_state.history.inputs
                return bool(inputs) and inputs[-1][0] > at

        self.until(is_told, "the ingress to tell what went in")

    def unacknowledged(self, at: float) -> int:
        """Rows that had gone in and not come out at a moment of the monotonic clock; rather too few than too many."""
        with self._driver.changed:
            history = self._driver.run_state.history
            went_in = max((upto for when, upto, _ in history.inputs if when <= at), default=0)
            came_out = max((upto for when, upto, _ in history.outputs if when <= at), default=0)
        return went_in - came_out
