"""Step places: where in a plan the step of a name is. A second step of a name is called `Join#2`."""

from __future__ import annotations

from ..types.errors import ChangeError
from .plan import Plan


def step_names(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return stage and place of each step, by its name."""
    found: dict[str, tuple[int, int]] = {}
    counts: dict[str, int] = {}
    for stage in (0, *plan.stages):
        for place, step in enumerate(plan.segment(stage).steps):
            counts[step.name] = counts.get(step.name, 0) + 1
            suffix = "" if counts[step.name] == 1 else f"#{counts[step.name]}"
            found[step.name + suffix] = (stage, place)
    return found


def place_of_step(plan: Plan, name: str) -> tuple[int, int]:
    """Return stage and place of the step of this name; `ChangeError` if there is none that can be changed."""
    names = step_names(plan)
    if name not in names:
        raise ChangeError(f"dataflow {plan.name!r} has no step {name!r}; its steps are {', '.join(map(repr, names))}")
    stage, place = names[name]
    if stage == 0:
        raise ChangeError(
            f"step {name!r} runs in the ingress, before the first exchange, where code cannot be changed while rows "
            "flow. Put an exchange before it"
        )
    return stage, place
