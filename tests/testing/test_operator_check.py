"""check_operator passes sound operators of every form, and finds each of a set of faults, with a story one can read.

It takes about a minute: each check tries its operator on many inputs, and again in two processes of their own.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import flux
from flux.testing import Fault, check_operator
from flux.types.errors import PlanError
from tests.testing import faulty

ROWS = st.lists(
    st.fixed_dictionaries({"word": st.sampled_from(["to", "be", "or", "not"]), "value": st.floats(0, 100)}), max_size=12
)


@pytest.mark.parametrize(
    "operator",
    [
        faulty.Totals,
        faulty.Refilling,
        *(pytest.param(each, marks=pytest.mark.long) for each in (faulty.Wrapped, faulty.WrappedLogic)),
    ],
)
def test_a_sound_operator_passes(operator: Any) -> None:
    checked = check_operator(operator, rows=ROWS, key="word", examples=15)
    assert checked.claims == ("repeats", "clock", "batching", "round trip", "hash order", "process")
    assert checked.not_checked == {}


def test_a_strategy_for_one_row_will_do_and_so_will_a_factory() -> None:
    row = st.fixed_dictionaries({"word": st.text(max_size=3), "value": st.integers(0, 9).map(float)})
    checked = check_operator(lambda: faulty.Totals(), rows=row, key="word", examples=20)
    assert "cannot be imported by a name" in checked.not_checked["hash order"]


# By operator: the claim, what is said, a part of the advice, and how many events the smallest input has.
FAULTS: dict[Any, tuple[str, str, str, int]] = {
    faulty.Forgetful: (
        "round trip",
        "is not the same when restored from its state",
        "Let get_state return everything",
        3,
    ),
    faulty.Destructive: (
        "round trip",
        "is not the same when restored from its state",
        "get_state itself must change nothing",
        2,
    ),
    faulty.Batchy: (
        "batching",
        "depends on where batches are cut",
        "only boundaries that may matter are punctuations",
        3,
    ),
    faulty.Hourly: ("clock", "depends on the clock", r"reads the clock at .*faulty.py:\d+ \(datetime.now\)", 2),
    faulty.Slow: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.time\)", 2),
    faulty.Dated: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.strftime\)", 2),
    faulty.Stamped: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.asctime\)", 2),
    faulty.Taken: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.gmtime\)", 2),
    faulty.Lucky: ("repeats", "gives different output each time it is run", "must not draw random numbers", 2),
    faulty.Unordered: ("hash order", r"depends on the order of a set or on hash\(\)", r"sorted\(some_set\)", 2),
    faulty.Vandal: ("input", "writes to rows that it does not own", "process wrote to its input", 2),
    faulty.Reusing: (
        "input",
        "writes to rows that it does not own",
        "written to after it was emitted, while in flight",
        3,
    ),
    faulty.Summing: ("floats", "sums floating-point numbers by batch", "differ in their last digits", 4),
    faulty.Raising: ("raises", "raises", "ValueError: too large", 2),
    faulty.Closed: ("raises", "raises", r"a secret of type Secret, at the state of key .*\['inside'\]\[0\], cannot", 2),
    faulty.Expiring: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.monotonic\)", 3),
    faulty.Pausing: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.monotonic\)", 3),
    faulty.ByDefault: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.gmtime\)", 2),
    faulty.Injected: ("clock", "depends on the clock", r"faulty.py:\d+ \(datetime.now\)", 2),
    faulty.Static: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.time\)", 2),
    faulty.Enclosed: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.time\)", 2),
    faulty.Named: ("clock", "depends on the clock", r"faulty.py:\d+ \(time.clock_gettime\)", 2),
    faulty.Shared: ("shared", "keeps state outside of its instances", r"It changed Shared\.counts\.", 3),
    faulty.Remembering: ("shared", "keeps state outside of its instances", r"It changed Shared\.counts\.", 2),
    faulty.Default: ("shared", "keeps state outside of its instances", "default argument kept of Default.process", 2),
    faulty.Global: (
        "shared",
        "keeps state outside of its instances",
        r"It changed tests\.testing\.faulty\._COUNTS\.",
        3,
    ),
    faulty.Numbered: ("process", "depends on the process in which it runs", r"not depend on os\.getpid\(\)", 2),
    faulty.Hasty: ("batching", "depends on where batches are cut", "What it means", 66),
    faulty.Undecodable: ("raises", "raises", "decode_state must take what encode_state returns", 2),
    faulty.Mixing: ("round trip", "is not the same when restored from its state", "drop_partition forget it", 3),
}


@functools.cache
def fault_of(operator: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=ROWS, key="word", examples=40)
    return caught.value


DAILY = list(FAULTS)[::4]  # Of each kind of fault some; `make test-all` tries them all.


@pytest.mark.parametrize(
    "operator",
    [operator if operator in DAILY else pytest.param(operator, marks=pytest.mark.long) for operator in FAULTS],
)
def test_a_planted_fault_is_found_and_told_with_a_small_example(operator: Any) -> None:
    claim, says, advice, events = FAULTS[operator]
    fault = fault_of(operator)
    text = str(fault)
    assert fault.claim == claim, text
    assert re.match(rf"{operator.__name__} {says}\.\n\nThe input, in order:\n", text), text
    assert re.search(advice, text), text
    told = text.split("The input, in order:\n")[1].split("\n\n")[0].splitlines()
    assert len(told) <= events, text
    assert told[-1].endswith("-- end")


@pytest.mark.parametrize("operator", [faulty.Summing, faulty.Pausing])
def test_rows_are_left_out_where_hypothesis_draws_many(operator: Any) -> None:
    many = st.lists(
        st.fixed_dictionaries({"word": st.sampled_from(["to", "be"]), "value": st.floats(0, 100)}),
        min_size=8,
        max_size=9,
    )
    with pytest.raises(Fault) as caught:
        check_operator(operator, rows=many, key="word", examples=10)
    claim, *_, events = FAULTS[operator]
    assert (caught.value.claim, caught.value.size) == (claim, events), str(caught.value)


def test_what_raises_is_not_told_with_an_example_that_raises_elsewhere() -> None:
    class Paired(faulty.Totals):
        """Raises for a large value; and, which the strategy does not draw, for a row that stands alone."""

        def open(self, context: Any) -> None:
            super().open(context)
            self.seen = 0

        def process(self, batch: Any) -> Any:
            self.seen += len(batch)
            if max(batch["value"]) > 50:
                raise ValueError("too large")
            return super().process(batch)

        def on_punctuation(self, p: Any) -> Any:
            if self.seen == 1:
                raise ValueError("alone")
            return super().on_punctuation(p)

    row = st.fixed_dictionaries({"word": st.just("to"), "value": st.floats(0, 100)})
    with pytest.raises(Fault, match="raised ValueError: too large"):
        check_operator(Paired, st.lists(row, min_size=2), key="word", punctuations=False, examples=20)


@pytest.mark.parametrize(
    ("operator", "method"),
    [
        (faulty.OpenRaises, "open"),
        (faulty.PunctuationRaises, "on_punctuation"),
        (faulty.GetRaises, "get_state"),
        (faulty.InstallRaises, "install_state"),
        (faulty.CloseRaises, "close"),
    ],
)
def test_the_method_that_raised_is_blamed(operator: Any, method: str) -> None:
    text = str(fault_of(operator))
    assert re.search(rf"{operator.__name__}\.{method} \(.*faulty\.py:\d+\) raised RuntimeError: in {method}", text), (
        text
    )


def test_what_returned_something_else_is_blamed_by_its_name() -> None:
    text = str(fault_of(faulty.ReturnsDict))
    assert re.search(r"ReturnsDict\.process \(.*faulty\.py:\d+\) returned dict", text), text


def test_what_asks_for_exact_classes_is_not_accused() -> None:
    days = st.fixed_dictionaries({"day": st.dates(), "at": st.datetimes()})
    assert check_operator(faulty.Exact, rows=days, key="day", examples=5).not_checked == {}
    assert check_operator(faulty.ExactTotals, rows=ROWS, key="word", examples=5).not_checked == {}


def test_what_measures_its_own_time_is_not_accused() -> None:
    assert "clock" in check_operator(faulty.Measured, rows=ROWS, key="word", examples=10).claims


def test_parameters_that_it_changes_are_named() -> None:
    class Changing(faulty.Totals):
        def open(self, context: Any) -> None:
            super().open(context)
            self.last = context.parameters["last"]

        def process(self, batch: Any) -> Any:
            self.last.append(1)
            return batch.emit({"word": batch.column("word"), "total": [float(len(self.last))] * len(batch)})

    with pytest.raises(Fault, match=r"(?s)It changed parameters\['last'\]\..*Copy a parameter") as caught:
        check_operator(Changing, rows=ROWS, key="word", parameters={"last": []}, examples=10)
    assert caught.value.claim == "shared"


LATE = """
from time import time

class Stamp:
    clock = staticmethod(time)

def stamp(now=time):
    return now()
"""


def test_a_module_that_was_imported_during_a_check_has_the_real_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_late.py").write_text(LATE)

    class Late(faulty.Totals):
        def process(self, batch: Any) -> Any:
            import imported_late

            day = imported_late.stamp() // 86_400
            return batch.emit({"word": batch.column("word"), "total": [day] * len(batch)})

    with pytest.raises(Fault, match="depends on the clock"):
        check_operator(Late, rows=ROWS, key="word", examples=10)
    import imported_late

    assert imported_late.time is time.time
    assert imported_late.Stamp.clock is time.time
    assert imported_late.stamp.__defaults__ == (time.time,)
    assert abs(imported_late.stamp() - time.time()) < 3_600


def test_clocks_are_the_real_ones_after_a_check() -> None:
    before = (datetime.now, datetime.utcnow, date.today, datetime.__dict__["now"])
    fault_of(faulty.Injected)
    assert (datetime.now, datetime.utcnow, date.today, datetime.__dict__["now"]) == before
    assert faulty.Injected.now == datetime.now and faulty.ByDefault.on_tuple.__defaults__ == (time.gmtime,)
    assert abs(datetime.now().timestamp() - time.time()) < 60


def test_a_whole_story_reads_like_this() -> None:
    story = str(fault_of(faulty.Batchy)).splitlines()
    assert story[:13] == [
        "Batchy depends on where batches are cut.",
        "",
        "The input, in order:",
        "     1  {'value': 0.0, 'word': 'to'}",
        "     2  {'value': 0.0, 'word': 'to'}",
        "     3  -- end",
        "",
        "One way:   [1 to 2] end",
        "The other: [1] [2] end",
        "",
        "First difference, output number 1:",
        "    one way:   {'word': 'to', 'total': 2.0}, of input 1",
        "    the other: {'word': 'to', 'total': 1.0}, of input 1",
    ]
    assert story[14].startswith("What it means: ") and story[15].startswith("What to do: ")
    # What hypothesis has to say does not come between.
    assert not getattr(fault_of(faulty.Batchy), "__notes__", [])


def test_punctuations_are_part_of_the_input_and_watermarks_are_near_event_time() -> None:
    seen: set[str] = set()
    values: set[int] = set()

    class Marks(faulty.Totals):
        def on_punctuation(self, p: Any) -> Any:
            seen.add(p.kind)
            values.update({p.value} if p.kind == "watermark" else ())

    rows = st.lists(st.just({"word": "a", "value": 1.0, "ts": 77_000}), min_size=1)
    check_operator(Marks, rows=rows, key="word", event_time="ts", examples=40)
    assert seen == {"watermark", "clock", "batch", "end"}
    assert any(abs(value - 77_000) <= 5 for value in values)


def test_a_column_that_is_not_there_is_said() -> None:
    with pytest.raises(PlanError, match=r"name the key among the columns value, word, as in key='value'"):
        check_operator(faulty.Totals, rows=ROWS.filter(len))
    with pytest.raises(PlanError, match="the rows have no column nowhere; they have value, word"):
        check_operator(faulty.Totals, rows=ROWS, key="nowhere")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"rows": [{"word": "a", "value": 1.0}]}, r"rows is a strategy of hypothesis .* got a list"),
        ({"rows": {"word": st.text()}}, r"rows is a strategy of hypothesis .* got a dict"),
        ({"rows": st.tuples(st.text())}, r"rows draws dicts, or lists of dicts; it drew \(''"),
        ({"rows": st.lists(st.integers(), min_size=1)}, r"rows draws dicts, or lists of dicts; it drew \[0"),
        ({"rows": st.just([])}, "rows drew no row in any of the examples"),
        ({"event_time": "nowhere"}, "the rows have no column nowhere, which event_time names; they have value, word"),
        ({"examples": 0}, "examples is how many inputs are tried, at least 1; got 0"),
        ({"examples": -1}, "examples is how many inputs are tried, at least 1; got -1"),
        ({"schema": {"word": "nonsense"}}, "schema: .*'word'"),
    ],
)
def test_a_check_that_would_check_nothing_is_a_plan_error(said: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=f"^check_operator: {says}"):
        check_operator(faulty.Totals, **({"rows": ROWS, "key": "word", "examples": 5} | said))


def test_a_schema_may_be_a_dict_as_output_may() -> None:
    schema = {"word": "string", "value": "float64"}
    assert check_operator(faulty.Totals, rows=ROWS, key="word", schema=schema, examples=5).examples == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", 1], r"column 'word': .* Draw values of one type that fit, or set schema=pyarrow.schema\("),
        ([2**70], "column 'word': got values of int, and Arrow reports .*[Ii]nt too (big|large)"),
    ],
)
def test_values_that_make_no_column_are_a_plan_error_that_names_it(words: list[Any], says: str) -> None:
    row = st.fixed_dictionaries({"word": st.sampled_from(words), "value": st.just(1.0)})
    with pytest.raises(PlanError, match=says):
        check_operator(faulty.Totals, rows=st.lists(row, min_size=4), key="word", examples=20)


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        (flux.operators.TopK, {"k": 0, "by": "value"}),
        (flux.operators.TimeWindow, {"size": 5, "column": "nowhere"}),
        (flux.operators.GroupBy, {"nonsense": 1}),
        (flux.wrap_bytewax(faulty.Logic, value="nowhere"), {}),
    ],
)
def test_parameters_that_cannot_be_are_the_plan_error_that_apply_raises(
    operator: Any, parameters: dict[str, Any]
) -> None:
    flow = flux.Dataflow("of one row")
    stream = flow.source(flux.sources.Table([{"value": 1.0, "word": "a"}])).exchange("word")
    with pytest.raises(PlanError) as caught:
        stream.apply(operator, **parameters)
    with pytest.raises(PlanError, match=f"^{re.escape(str(caught.value))}$") as checked:
        check_operator(operator, rows=ROWS.filter(len), key="word", parameters=parameters, examples=5)
    assert not getattr(checked.value, "__notes__", [])


def test_what_is_no_operator_is_a_plan_error() -> None:
    class Nothing(flux.Operator):
        pass

    with pytest.raises(PlanError, match=r"process\(self, batch\), and Nothing does not define it"):
        check_operator(Nothing, rows=ROWS, key="word", examples=5)


def test_none_in_undeclared_output_is_no_fault() -> None:
    class Before(flux.KeyedOperator):
        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            return row.value, [{"before": state, "all": [] if state is None else [state]}]

    check_operator(Before, rows=ROWS, key="word", examples=20)


def test_the_processes_of_a_check_do_without_hypothesis() -> None:
    program = "import sys, flux.testing.subprocess_run; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_pandas_is_not_imported_while_the_clock_is_another() -> None:
    program = """
from hypothesis import strategies as st
from flux.testing import check_operator
from tests.testing import faulty
rows = st.lists(st.fixed_dictionaries({"word": st.text(), "value": st.floats(0, 9)}))
check_operator(faulty.Totals, rows, key="word", examples=2)  # The first example has no rows.
"""
    told = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_what_flux_testing_has_not_is_said_as_of_any_module() -> None:
    assert all(hasattr(flux.testing, name) for name in flux.testing.__all__)
    with pytest.raises(AttributeError, match=r"module 'flux\.testing' has no attribute 'check_operators'"):
        flux.testing.check_operators  # noqa: B018
