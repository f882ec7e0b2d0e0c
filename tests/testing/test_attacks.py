"""check_operator finds faults that hide, names what they are, and accuses nobody who only looks like one of them.

It takes about a minute: each check tries its operator on many inputs, and again in two processes of their own.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import strategies as st

from flux.testing import Fault, check_operator, properties_subprocess

from . import attacks

ROWS = st.lists(
    st.fixed_dictionaries({"word": st.sampled_from(["to", "be", "or", "not"]), "value": st.floats(0, 100)}), max_size=12
)
SHARED = "keeps state outside of its instances"
VARIES = "gives different output each time it is run"
STATE = "is not the same when restored from its state"

# By operator: the claim, what is said, what else is said, and how many events the smallest input has.
FAULTS: dict[Any, tuple[str, str, str, int]] = {
    attacks.Offsetless: ("batching", "depends on where batches are cut", r"\[1\] \[2\] end", 3),
    attacks.Keeping: ("input", "writes to rows that it does not own", "the input of row 1 was kept, and written to", 3),
    attacks.Finishing: (
        "input",
        "writes to rows that it does not own",
        "the input of row 1 was kept, and written to",
        2,
    ),
    attacks.Caching: ("shared", SHARED, r"It changed tests\.testing\.attacks\._number", 3),
    attacks.Greeting: ("shared", SHARED, r"It changed tests\.testing\.attacks\._MET\.", 2),
    attacks.Counting: ("shared", SHARED, r"It changed _count\.calls\.", 2),
    attacks.Contextual: ("repeats", VARIES, "The difference was left over from the run before", 2),
    attacks.Addressed: ("repeats", VARIES, r"not depend on id\(\)", 2),
    attacks.Returning: (
        "round trip",
        STATE,
        r"\[1\] \(state of partition \d moves to another site and back\) \[2\]",
        3,
    ),
    attacks.Threaded: ("repeats", VARIES, "order in which threads end", 2),
    attacks.Windowed: ("round trip", STATE, r"\[1\] \(state of partition \d moves to another site\) \[2\] end", 3),
    attacks.Given: ("clock", "depends on the clock", r"attacks\.py:\d+ \(time\.time\)", 2),
    attacks.Ending: ("raises", "raises", "the process that ran Ending ended with status 7 and without an answer", 2),
    attacks.RaisingElsewhere: ("raises", "raises", r"\[1\] end, in another process\n\nOperatorError: .*not here", 2),
    attacks.KeyedForgetful: ("round trip", STATE, "What to do: Let on_tuple return everything", 3),
    attacks.LogicForgetful: ("round trip", STATE, r"What to do: Let snapshot\(\) return everything", 3),
}


# Some of each kind; `make test-all` tries them all.
TRIED = [fault if n % 3 == 0 else pytest.param(fault, marks=pytest.mark.long) for n, fault in enumerate(FAULTS)]


@pytest.mark.parametrize("operator", TRIED)
def test_a_fault_that_hides_is_found_and_told_for_what_it_is(operator: Any) -> None:
    claim, says, more, events = FAULTS[operator]
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=ROWS, key="word", examples=12)
    text = str(caught.value)
    assert caught.value.claim == claim, text
    assert text.startswith(f"{operator.__name__} {says}.\n"), text
    assert re.search(more, text), text
    assert caught.value.size <= events, text


def test_processes_that_start_slowly_do_not_hide_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties_subprocess, "_TIME_LIMIT_S", 0.0)
    with pytest.raises(Fault, match="the process that ran Ending ended with status 7"):
        check_operator(attacks.Ending, rows=ROWS, key="word", examples=12)


@pytest.mark.long
def test_what_is_rarely_random_is_told_as_that_wherever_it_shows_first() -> None:
    with pytest.raises(Fault) as caught:
        check_operator(attacks.Rarely, rows=ROWS, key="word", examples=12)
    text = str(caught.value)
    assert (caught.value.claim, text.partition(".\n")[0]) in [
        ("repeats", f"Rarely {VARIES}"),
        ("chance", "Rarely is non-deterministic: it does not do the same each time"),
    ], text
    assert "random numbers" in text


def test_caches_and_counts_that_output_does_not_depend_on_are_not_accused() -> None:
    assert "process" in check_operator(attacks.Pure, rows=ROWS, key="word", examples=10).claims
