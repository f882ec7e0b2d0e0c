"""A failure as a short story: only the choices that matter, from the first view on.

A sequence of choices that ends in a violation is shrunk. A claim that an event violates needs no choice after it. One
that is violated in a world at rest needs all remaining choices, which are one line of the story. If it makes no
difference, all nodes have the first view before anything else happens, which is one line as well.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..dataflow import Scenario
from ..invariants import Violated
from ..process import CONTROLLER
from ..walk import Walked, is_possible, leave_out
from ..world import Choice, World

CLAIM_CHARACTERS_MAX = 240
THE_REST = "... and all the rest happens, in the order in which it became possible"
LINES_MAX = 24  # Of a story with all its choices; in a longer one the remaining choices are one line.
TRIES_MAX = 1_000


@dataclass(frozen=True)
class FailureStory:
    """The claim that is violated, and the text of its story."""

    claim: str
    story: str

    @property
    def lines(self) -> int:
        return self.story.count("\n") + 1


def make_story(walked: Walked, tries_max: int = TRIES_MAX) -> FailureStory:
    """Return the story of a walk that failed."""
    scenario = walked.scenario
    setting, choices = _split(walked)
    to_the_end = _run(scenario, setting, choices, to_the_end=False)[1] is None

    def fails(tried: list[Choice]) -> bool:
        return _is_same(walked, _run(scenario, setting, tried, to_the_end)[1])

    world, violation = _run(scenario, setting, leave_out(choices, fails, tries_max), to_the_end)
    claim = textwrap.shorten(str(violation).partition(": no rule accepts")[0], CLAIM_CHARACTERS_MAX, placeholder=" ...")
    return FailureStory(claim, "\n".join(_lines(world, bool(setting), claim)))


def _is_same(walked: Walked, violation: Violated | None) -> bool:
    """Return whether the violated claim is that of the walk, wherever."""
    return violation is not None and str(violation).partition(":")[0] == str(walked.violation).partition(":")[0]


def _split(walked: Walked) -> tuple[list[Choice], list[Choice]]:
    """Split the choices: all nodes get the first view, then the rest; the first part is empty if it would matter."""
    scenario = walked.scenario
    setting: list[Choice] = [("deliver", node, CONTROLLER) for node in scenario.nodes] if scenario.slow_start else []
    setting += [("deliver", CONTROLLER, node) for node in scenario.nodes]
    rest = list(walked.choices)
    for choice in setting:
        if choice in rest:
            rest.remove(choice)
    if _is_same(walked, _run(scenario, setting, rest, to_the_end=True)[1]):
        return setting, rest
    return [], list(walked.choices)


def _run(
    scenario: Scenario, setting: Sequence[Choice], choices: Sequence[Choice], to_the_end: bool
) -> tuple[World, Violated | None]:
    """Do `setting`, unrecorded, then those of `choices` that are possible, and `to_the_end` all that remains."""
    world = World(scenario)
    try:
        for choice in setting:
            world.do(choice)
        world.trace = []
        for choice in choices:
            if is_possible(world, choice):
                world.do(choice)
        if to_the_end:
            world.trace.append(THE_REST)
            world.finish()
    except Violated as violation:
        return world, violation
    return world, None


def _lines(world: World, is_set_up: bool, claim: str) -> list[str]:
    """Return the lines of a story, without sends: a message has a line when it is received."""
    assert world.trace is not None
    scenario = world.scenario
    placed = "; ".join(f"stage {stage + 1} on {list(copies)}" for stage, copies in enumerate(scenario.copies))
    edges = f"; edges {list(scenario.edges)}" if scenario.edges else ""
    source = f"source {list(scenario.batches)}"
    lines = [f"{scenario.sites} sites, {scenario.bound_rows} rows per pool; {placed}{edges}; {source}"]
    lines += ["all nodes have view 1"] if is_set_up else []
    lines += [line for line in world.trace if not line.startswith(" ")]
    if THE_REST in lines and len(lines) > LINES_MAX:
        lines = lines[: lines.index(THE_REST) + 1]
    return [*lines, f"=> {claim}"]
