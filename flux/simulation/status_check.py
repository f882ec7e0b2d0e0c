"""Status check: what a status says of a simulated run must be true at that moment.

At any moment the sink has the rows that a status counts, and no more came out than were given. Once nothing has
changed for a while, the processes that are up are those that live, and the run is whole if the view is.
"""

from __future__ import annotations

from collections.abc import Set

from ..driver.status import Status
from ..protocols.messages import View

__all__ = ["untrue_at_rest", "untrue_now"]


def untrue_now(status: Status, rows_given: int, rows_at_sink: int | None, knows_inputs: bool) -> str | None:
    """Return what is wrong in a status; None if nothing is. `rows_at_sink` is None if only the program has them.

    `knows_inputs`: the ingress has reported the rows from which the output stems.
    """
    if rows_at_sink is not None and status.outputs > rows_at_sink:
        return f"a status has {status.outputs} rows of output, and the sink has {rows_at_sink}"
    if status.inputs > rows_given:
        return f"a status has {status.inputs} rows of input, and the sources have {rows_given}"
    if knows_inputs and status.outputs > status.inputs:
        return f"a status has {status.outputs} rows of output, and only {status.inputs} of input"
    if status.ended and status.outputs != rows_given:
        return f"a status says that the run has ended, with {status.outputs} rows of output of {rows_given}"
    return None


def untrue_at_rest(status: Status, live: Set[str], view: View) -> str | None:
    """Return what is wrong in the status of a run in which nothing has changed for a while; None if nothing is."""
    shown = {process.name for process in status.processes if process.state == "up"}
    if shown != live:
        return f"a status shows {sorted(shown)} as up, and {sorted(live)} live"
    dead = {node for stage in view.copies for copies in stage for node in copies if not view.alive(node)}
    if status.whole != (not dead and not view.standby):
        said = "all copies" if status.whole else "copies missing"
        return f"a status says {said}, and the view has {sorted(dead)} as dead and {len(view.standby)} copies to build"
    return None
