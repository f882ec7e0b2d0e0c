"""How many positions the next step of an operator may take, so that it is not long in one (rule 36).

A step is not interrupted: while it lasts a site reads no message, sends no rows and reports no work. On a slow site, or
with a slow operator, a step over all rows that have arrived would be seconds.

But a step takes some work whatever its length. Where a site waits for a processor most of the time, every step is long,
and short ones have hardly any rows: the site would do nothing but begin and end steps.
"""

from __future__ import annotations

STEP_AIM_S = 0.05
STEP_WORK_S = 0.005  # A step of so little work is not made shorter: much of it would not be for rows.
STEP_POSITIONS_MIN = 16


class StepLength:
    """The length of the steps of one stage. A step of at most `most` positions is never cut."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next = 0

    def after_step(self, positions: int, busy_s: float, is_oldest: bool, waited_s: float = 0.0) -> int:
        """Return how many positions the next step may take; 0 for as many as the stage may take at all.

        The last step took `busy_s` over `positions`, and for `waited_s` of that it waited for a processor. Only the
        oldest cohort counts: the others have few partitions, and take their positions faster.

        >>> length = StepLength(4096)
        >>> length.after_step(1000, 0.01, is_oldest=True), length.after_step(1000, 1.0, is_oldest=True)
        (0, 50)

        A short step may have found no rows at all: a limit at most doubles, or the next step might take seconds.

        >>> length.after_step(50, 0.0, is_oldest=True), length.after_step(100, 0.0, is_oldest=True)
        (100, 200)

        What other processes took from a step does not make the next one shorter than `STEP_WORK_S`.

        >>> length.after_step(200, 2.0, is_oldest=True, waited_s=1.999)
        400
        """
        if is_oldest and positions > 0:
            worked_s = busy_s - waited_s if waited_s < busy_s else busy_s
            steps = min(busy_s / STEP_AIM_S, worked_s / STEP_WORK_S)  # How many it should have been.
            fitting = int(positions / steps) if steps > 0 else self._most
            fitting = min(fitting, 2 * self._next) if self._next else fitting
            self._next = 0 if fitting >= self._most else max(STEP_POSITIONS_MIN, fitting)
        return self._next
