"""Searching: a claim is tried on inputs that hypothesis makes up, and what was found is told as it is.

An operator that does not do the same each time may show a fault once, and then not again. hypothesis calls that flaky,
and knows no more; but who reads it wants to know what was seen, with which input, and that it was chance. So what was
seen is kept, and seen again before it is told.
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
from .fault_shrinker import Found, shrink
from .strategies import Example

__all__ = ["SLOW_TRIES", "TRIES", "Property", "search"]

_AGAIN = 5  # So often is a fault looked at again.
# So often may hypothesis try to make an example smaller, and then `shrinking`; fewer where other processes are asked.
TRIES, SLOW_TRIES = 400, 40
_FEW_EVENTS, _OTHERS = 3, 4

Property = Callable[[Example], None]


def search(claim: Property, cases: st.SearchStrategy[Example], examples: int, tries: int = TRIES) -> None:
    """Try a claim on many examples; raise the smallest fault that was found, with `tries` to make it smaller."""
    found: list[Found] = []
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
            found.append(Found(fault, example))
            raise

    try:
        holds()
    except PlanError as error:
        error.__notes__ = []  # Of the example, which has nothing to do with it.
        raise error.with_traceback(None) from None
    except (Fault, Flaky) as error:
        if not found:
            raise _of_the_rows(error) from error
        raise _seen_again(claim, _smallest(claim, found, tries)) from None


def _seen(claim: Property, found: Found) -> Found:
    """What the claim has to say of the same example, if it says anything."""
    try:
        claim(found.example)
    except Fault as fault:
        return Found(fault, found.example)
    return found


def _smallest(claim: Property, found: list[Found], tries: int) -> Found:
    """The last has the smallest values. If more than a few rows remain of it, others may become smaller.

    If their fault does not show itself each time, one that is shorter as it is may have been seen.
    """
    shortest = shrink(claim, found[-1], tries)
    for other in found[-2 :: -max(1, len(found) // _OTHERS)]:
        if shortest.fault.size <= _FEW_EVENTS:
            return shortest
        shortest = min(shortest, shrink(claim, other, tries // _OTHERS), key=lambda each: each.fault.size)
    return min(shortest, *reversed(found), key=lambda each: each.fault.size)


def _of_the_rows(error: BaseException) -> PlanError:
    """What is flaky though the operator has shown nothing: what was drawn, or a refusal that comes and goes."""
    causes: tuple[BaseException, ...] = getattr(error, "exceptions", ()) or (error,)
    return PlanError(
        "check_operator: rows is non-deterministic, or what makes the operator is: the same was drawn once more, and "
        f"something else came of it. {type(causes[0]).__name__}: {causes[0]}. Let rows depend on nothing but what "
        "hypothesis draws: no random numbers, no clock, nothing that is kept from one example to the next"
    )


def _seen_again(claim: Property, found: Found) -> Fault:
    """The fault, anew; and if it does not show itself each time, that this is what is wrong."""
    seen = [_seen(claim, found).fault for _ in range(_AGAIN)]
    times = sum(fault is not found.fault and fault.is_like(found.fault) for fault in seen)
    if times == _AGAIN:
        return Fault(found.fault.story)
    often = f"in {times} of {_AGAIN}" if times else f"in none of {_AGAIN}"
    more = f"It is non-deterministic: this was seen, and when the same was run again, {often} runs."
    story = found.fault.story
    claimed = story.claim if story.claim == "repeats" else "chance"
    return Fault(replace(story, claim=claimed, more=f"{story.more} {more}".strip()))
