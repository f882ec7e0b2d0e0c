"""An operator may be given as its class, as a partial of it, or as a function that makes it: the plan knows it by what
is made, and refuses the same things of each in the same words.
"""

from functools import partial

import pyarrow as pa
import pytest

import flux
from experiments.dmz import Sessions
from flux import operators
from tests.whole_flow import flow_of

_PACKETS = pa.table({"src": [1], "dst": [2], "data": [b"S1"], "ts": [3]})
_COUNTS = {"aggregates": {"n": "count"}}
_WINDOWS = {**_COUNTS, "time": "ts", "size_ms": 10}
PARAMETERS = {
    operators.CountWindow: {"value": "ts"},
    operators.Distinct: {},
    operators.GroupBy: _COUNTS,
    operators.SessionWindow: {**_COUNTS, "time": "ts", "gap_ms": 10},
    Sessions: {},
    operators.TimeWindow: _WINDOWS,
    operators.TopK: {"k": 1, "by": "ts"},
}


class Seen(flux.KeyedOperator):
    output = {"src": "int32"}  # noqa: RUF012

    def on_tuple(self, key, row, state):
        return 1, [{"src": key[0]}]


PARAMETERS[Seen] = {}


def _made_by_function(operator):
    def make():
        return operator()

    make.__name__ = operator.__name__
    return make


class _Maker:
    """What is called is neither a class nor a function."""

    def __init__(self, operator):
        self._operator = operator
        self.__name__ = operator.__name__

    def __call__(self):
        return self._operator()


FORMS = {
    "partial": partial,
    "partial of partial": lambda operator: partial(partial(operator)),
    "function": _made_by_function,
    "object": _Maker,
}


def _packets():
    return flux.Dataflow("packets").source(flux.sources.Table(_PACKETS))


def _times_missing():
    return _packets().select("src", "dst", "data").exchange("src")


FAULTS = {
    "no exchange": (_packets, {}),
    "rows go anywhere": (lambda: _packets().exchange(by="any"), {}),
    "the key is left out": (lambda: _packets().exchange("src").select("dst", "data", "ts"), {}),
    "the key is made anew": (lambda: _packets().exchange("src").select("dst", "data", "ts", src="dst"), {}),
    "a key that nobody knows": (lambda: _packets().map(lambda row: row).exchange("src"), {}),
    "a parameter that nobody knows": (lambda: _packets().exchange("src"), {"colour": "blue"}),
    "a column is missing": (_times_missing, {}),
}
# What is no fault: a Distinct needs its key alone, and a KeyedOperator takes any parameters and columns.
NO_FAULTS = {
    (operators.Distinct, "a column is missing"),
    (operators.GroupBy, "a column is missing"),
    (Seen, "a column is missing"),
    (Seen, "a parameter that nobody knows"),
}
CASES = [(operator, fault) for operator in PARAMETERS for fault in FAULTS if (operator, fault) not in NO_FAULTS]


def _refusal(operator, fault, given):
    stream, wrong = FAULTS[fault]
    with pytest.raises(flux.PlanError) as refused:
        stream().apply(given, **{**PARAMETERS[operator], **wrong})
    return str(refused.value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("operator", "fault"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_what_is_refused_of_a_class_is_refused_of_whatever_makes_it(operator, fault, form):
    assert _refusal(operator, fault, FORMS[form](operator)) == _refusal(operator, fault, operator)


class _ByKeyIfAsked(flux.PooledOperator):
    def __init__(self, is_by_key):
        self.is_by_key = is_by_key

    def process(self, batch):
        return batch


def test_what_an_operator_says_of_itself_when_it_is_made_counts():
    exchanged = _packets().exchange(by="any")

    exchanged.apply(partial(_ByKeyIfAsked, False))
    with pytest.raises(flux.PlanError, match="_ByKeyIfAsked keeps its state by key"):
        exchanged.apply(partial(_ByKeyIfAsked, True))


class _Alarm:
    """As a logic of bytewax: it wants to be notified."""

    def on_item(self, value):
        return [], False

    def notify_at(self):
        return flux.stream_time()

    def on_notify(self):
        return [], False

    def on_eof(self):
        return [], False

    def snapshot(self):
        return None


@pytest.mark.parametrize("form", FORMS)
def test_a_logic_of_bytewax_that_nobody_would_notify_is_refused_whatever_makes_it(form):
    operator = FORMS[form](flux.wrap_bytewax(lambda snapshot: _Alarm()))
    stream = _packets().exchange("src").apply(operator)
    stream.sink(flux.sinks.Null())

    with pytest.raises(flux.PlanError, match="notify_at may ask to be notified by the clock"):
        flow_of(stream).explain()


@pytest.mark.parametrize("operator", PARAMETERS, ids=lambda operator: operator.__name__)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_planned_of_a_class_is_planned_of_whatever_makes_it(operator, form):
    def plan(given):
        stream = _packets().exchange("src").apply(given, **PARAMETERS[operator])
        stream.sink(flux.sinks.Null())
        return flow_of(stream).explain()

    assert plan(FORMS[form](operator)) == plan(operator)
