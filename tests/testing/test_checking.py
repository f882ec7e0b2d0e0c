"""check_operator passes sound operators of every form, and finds each of a set of faults, with a story one can read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import strategies as st

import flux
from flux.errors import PlanError
from flux.testing import Fault, check_operator

from . import faulty

ROWS = st.lists(
    st.fixed_dictionaries({"word": st.sampled_from(["to", "be", "or", "not"]), "value": st.floats(0, 100)}), max_size=12
)


@pytest.mark.parametrize("operator", [faulty.Totals, faulty.Wrapped, faulty.WrappedLogic])
def test_a_sound_operator_passes(operator: Any) -> None:
    checked = check_operator(operator, rows=ROWS, key="word", examples=25)
    assert checked.claims == ("repeats", "clock", "batching", "round trip", "hash order")
    assert checked.not_checked == {}


def test_a_strategy_for_one_row_will_do_and_so_will_a_factory() -> None:
    row = st.fixed_dictionaries({"word": st.text(max_size=3), "value": st.integers(0, 9).map(float)})
    checked = check_operator(lambda: faulty.Totals(), rows=row, examples=20)
    assert "cannot be imported by a name" in checked.not_checked["hash order"]


@pytest.mark.parametrize("operator", [flux.operators.Sessions, flux.operators.CountWindow])
def test_operators_of_the_library_pass(operator: Any) -> None:
    packet = st.fixed_dictionaries(
        {
            "src": st.integers(0, 2),
            "dst": st.integers(0, 2),
            "data": st.sampled_from([b"S\x01", b"S\x02", b"E\x00", b"x\x00"]).map(lambda head: head.ljust(32, b".")),
            "ts": st.integers(0, 1_000),
            "app": st.integers(0, 2),
            "dur": st.integers(0, 99),
        }
    )
    columns = [("src", "int32"), ("dst", "int32"), ("data", flux.sinks.collect.pa.binary(32)), ("ts", "int64")]
    schema = flux.sinks.collect.pa.schema([*columns, ("app", "int32"), ("dur", "int64")])
    parameters = {"history": 2, "slide": 1} if operator is flux.operators.CountWindow else {}
    key = ("app", "src") if parameters else ("src", "dst")
    checked = check_operator(operator, st.lists(packet, max_size=15), key=key, parameters=parameters, schema=schema)
    assert "hash order" in checked.claims


FAULTS = {
    faulty.Forgetful: ("round trip", "does not come back from its state as it was", "Let get_state return everything"),
    faulty.Destructive: ("round trip", "does not come back from its state", "get_state itself changes nothing"),
    faulty.Batchy: ("batching", "depends on where batches are cut", "The only boundaries one may see are punctuations"),
    faulty.Hourly: ("clock", "depends on the time of day", r"It reads the clock at .*faulty.py:\d+ \(datetime.now\)"),
    faulty.Slow: ("clock", "depends on the time of day", r"faulty.py:\d+ \(time.time\)"),
    faulty.Lucky: ("repeats", "gives different output each time it is run", "must not draw random numbers"),
    faulty.Unordered: ("hash order", r"depends on the order of a set or on hash\(\)", r"sorted\(some_set\)"),
    faulty.Vandal: ("input", "writes to what is not its own", "process wrote to its input"),
    faulty.Reusing: ("input", "writes to what is not its own", "was written to afterwards, when it was on its way"),
    faulty.Summing: ("floats", "sums floating-point numbers by batch", "differ in their last digits"),
    faulty.Raising: ("raises", "raises", "ValueError: too large"),
    faulty.Closed: (
        "raises",
        "raises",
        r"a secret of type Secret, at the state of key .*\['inside'\]\[0\], cannot be moved",
    ),
    faulty.Mixing: ("round trip", "does not come back from its state", "What it means"),
}


@pytest.mark.parametrize("operator", FAULTS)
def test_a_planted_fault_is_found_and_told(operator: Any) -> None:
    claim, says, advice = FAULTS[operator]
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=ROWS, key="word")
    text = str(caught.value)
    assert caught.value.claim == claim, text
    assert re.match(rf"{operator.__name__} {says}\.\n\nThe input, in order:\n", text), text
    assert re.search(advice, text), text


def example(operator: Any) -> list[str]:
    """The story's lines about the input."""
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=ROWS, key="word")
    return str(caught.value).split("The input, in order:\n")[1].split("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    ("operator", "events"),
    [(faulty.Batchy, 3), (faulty.Forgetful, 3), (faulty.Hourly, 2), (faulty.Lucky, 2), (faulty.Unordered, 3)],
)
def test_the_example_is_as_small_as_it_can_be(operator: Any, events: int) -> None:
    lines = example(operator)
    assert len(lines) == events, "\n".join(lines)
    assert lines[-1].endswith("-- end")


def test_a_whole_story_reads_like_this() -> None:
    with pytest.raises(AssertionError) as caught:
        check_operator(faulty.Batchy, rows=ROWS, key="word")
    story = str(caught.value)
    assert story.splitlines()[:13] == [
        "Batchy depends on where batches are cut.",
        "",
        "The input, in order:",
        "     1  {'word': 'to', 'value': 0.0}",
        "     2  {'word': 'to', 'value': 0.0}",
        "     3  -- end",
        "",
        "One way:   [1 to 2] end",
        "The other: [1] [2] end",
        "",
        "First difference, output number 1:",
        "    one way:   {'word': 'to', 'total': 2.0}, of input 1",
        "    the other: {'word': 'to', 'total': 1.0}, of input 1",
    ]
    assert story.splitlines()[14].startswith("What it means: ")
    assert story.splitlines()[15].startswith("What to do: ")


def test_what_hypothesis_says_does_not_come_between() -> None:
    with pytest.raises(AssertionError) as caught:
        check_operator(faulty.Batchy, rows=ROWS, key="word")
    assert not getattr(caught.value, "__notes__", [])


def test_punctuations_are_part_of_the_input_and_watermarks_are_near_event_time() -> None:
    seen: set[str] = set()
    values: set[int] = set()

    class Marks(faulty.Totals):
        def on_punctuation(self, p: Any) -> Any:
            seen.add(p.kind)
            values.update({p.value} if p.kind == "watermark" else ())

    rows = st.lists(
        st.fixed_dictionaries({"word": st.just("a"), "value": st.just(1.0), "ts": st.just(77_000)}), min_size=1
    )
    check_operator(Marks, rows=rows, event_time="ts", examples=60)
    assert seen == {"watermark", "clock", "batch", "end"}
    assert any(abs(value - 77_000) <= 5 for value in values)


def test_a_column_that_is_not_there_is_said() -> None:
    with pytest.raises(PlanError, match="the rows have no column nowhere; they have word, value"):
        check_operator(faulty.Totals, rows=ROWS, key="nowhere")
