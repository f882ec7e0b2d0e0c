"""How long the next step may be (rule 36)."""

from __future__ import annotations

from flux.site.step_length import STEP_POSITIONS_MIN, StepLength


def test_a_step_without_rows_does_not_let_the_next_one_take_everything() -> None:
    length = StepLength(4096)
    assert length.after_step(1000, 60.0, is_oldest=True) == STEP_POSITIONS_MIN
    # Of so few positions a site with few partitions may have no row at all.
    assert length.after_step(STEP_POSITIONS_MIN, 0.0, is_oldest=True) == 2 * STEP_POSITIONS_MIN
    lengths = [length.after_step(STEP_POSITIONS_MIN, 0.0, is_oldest=True) for _ in range(8)]
    assert lengths[-1] == 0, "a site that is fast again is not held back"
