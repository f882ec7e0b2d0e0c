"""The search for a fault: a claim is tried on inputs that hypothesis generates, and a fault is reported as found.

A non-deterministic operator may show a fault once, and then not again. hypothesis calls that flaky and reports no more.
A useful report has the fault, its input, and that it happened by chance. So each fault is kept, and its example is run
again before it is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from ..types.errors import PlanError
from .fault_report import Fault
from .fault_shrinker import FaultyExample, shrink
from .strategies import Example

__all__ = ["SLOW_TRIES", "TRIES", "Property", "search"]

_RERUNS = 5  # Of an example with a fault, before it is reported.
# Tries to make an example smaller, by hypothesis and then by `fault_shrinker`; fewer where other processes are needed.
TRIES, SLOW_TRIES = 400, 40
_FEW_EVENTS, _OTHERS = 3, 4

Property = Callable[[Example], None]


def search(claim: Property, cases: st.SearchStrategy[Example], examples: int, tries: int = TRIES) -> None:
    """Try a claim on many examples; raise the smallest fault, with at most `tries` to make it smaller."""
    found: list[FaultyExample] = []
    shrinks_left = tries

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases)
    def holds(example: Example) -> None:
        nonlocal shrinks_left
        shrinks_left -= bool(found)
        if shrinks_left < 0:
            return
        try:
            claim(example)
        except Fault as fault:
            found.append(FaultyExample(fault, example))
            raise

    try:
        holds()
    except PlanError as error:
        error.__notes__ = []  # They describe the example, which is not the cause.
        raise error.with_traceback(None) from None
    except (Fault, Flaky) as error:
        if not found:
            raise _flaky_rows(error) from error
        raise _confirm(claim, _smallest(claim, found, tries)) from None


def _run_again(claim: Property, found: FaultyExample) -> FaultyExample:
    """Try the claim on the same example; return the new fault, or the old one if the claim holds now."""
    try:
        claim(found.example)
    except Fault as fault:
        return FaultyExample(fault, found.example)
    return found


def _smallest(claim: Property, found: list[FaultyExample], tries: int) -> FaultyExample:
    """Return the shortest example. The last has the smallest values; if it stays long, others are shrunk too.

    If a fault does not occur each time, an example that was not shrunk may be the shortest.
    """
    shortest = shrink(claim, found[-1], tries)
    for other in found[-2 :: -max(1, len(found) // _OTHERS)]:
        if shortest.fault.size <= _FEW_EVENTS:
            return shortest
        shortest = min(shortest, shrink(claim, other, tries // _OTHERS), key=lambda each: each.fault.size)
    return min(shortest, *reversed(found), key=lambda each: each.fault.size)


def _flaky_rows(error: BaseException) -> PlanError:
    """Return the error for flaky examples without a fault: the rows, or a refusal, are not deterministic."""
    causes: tuple[BaseException, ...] = getattr(error, "exceptions", ()) or (error,)
    return PlanError(
        "check_operator: rows is non-deterministic, or the operator's factory is: the same draw had another result "
        f"the second time. {type(causes[0]).__name__}: {causes[0]}. Let rows depend on nothing but what hypothesis "
        "draws: no random numbers, no clock, nothing that is kept from one example to the next"
    )


def _confirm(claim: Property, found: FaultyExample) -> Fault:
    """Run the example again; return its fault, reported as non-deterministic unless it occurs each time."""
    faults = [_run_again(claim, found).fault for _ in range(_RERUNS)]
    times = sum(fault is not found.fault and fault.is_like(found.fault) for fault in faults)
    if times == _RERUNS:
        return Fault(found.fault.story)
    often = f"in {times} of {_RERUNS}" if times else f"in none of {_RERUNS}"
    more = f"It is non-deterministic: the fault occurred once, and then {often} runs of the same input."
    story = found.fault.story
    claimed = story.claim if story.claim == "repeats" else "chance"
    return Fault(replace(story, claim=claimed, more=f"{story.more} {more}".strip()))
