"""What another process cannot import is a PlanError of a remote run, and nothing else is: a flow is made anew there."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flux
from flux.commands.main import main
from flux.driver.remote.importable import check_module
from flux.driver.remote.remote_flow import RemoteFlow, description
from flux.plan import Plan, Policy

CODE = """
import functools
import flux

THRESHOLD = 3


def keep(row, least=0):
    return row.k >= least


def made(least):
    def above(row):
        return row.k > least
    return above


def decorated(fn):
    @functools.wraps(fn)
    def inner(*values):
        return fn(*values)
    return inner


class Rule:
    def keep(self, row):
        return True

    @classmethod
    def of_class(cls, row):
        return True

    def __call__(self, row):
        return True


class Same(flux.Operator):
    output = {"k": "int64"}

    def process(self, batch):
        return batch


def made_operator():
    class Inner(Same):
        pass
    return Inner


class Existing:
    def update(self, row):
        return row

    def getState(self):
        return None

    def installState(self, state):
        pass


class Logic:
    def on_item(self, value):
        return [], False

    def snapshot(self):
        return None


def builder(snapshot):
    return Logic()


def rows(offset, count):
    return [{"k": n} for n in range(offset, offset + count)]


class Sink(flux.sinks.Null):
    pass


shorter = lambda row: True
"""

Put = Callable[[Any, Any], None]  # A callable of the module `m` into a stream.


def steps(stream: Any, m: Any, put: str) -> Any:
    """A stream with one of the things in it that a flow may be made of."""
    made: dict[str, Callable[[], Any]] = {
        "a function": lambda: stream.filter(m.keep),
        "a lambda": lambda: stream.filter(m.shorter),
        "a function in a function": lambda: stream.filter(m.made(3)),
        "a bound method": lambda: stream.filter(m.Rule().keep),
        "a class method": lambda: stream.filter(m.Rule.of_class),
        "an object": lambda: stream.filter(m.Rule()),
        "a partial": lambda: stream.filter(functools.partial(m.keep, least=1)),
        "a partial of partials": lambda: stream.filter(functools.partial(functools.partial(m.keep), least=1)),
        "a partial of a method": lambda: stream.filter(functools.partial(m.Rule().keep)),
        "an argument of a partial": lambda: stream.filter(functools.partial(filter, m.keep)),
        "in a closure": lambda: stream.filter(_calling(m.keep)),
        "a decorated function": lambda: stream.filter(m.decorated(m.keep)),
        "a computed column": lambda: stream.select("k", twice=(m.keep, "bool")),
        "an operator": lambda: stream.exchange("k").apply(m.Same),
        "an operator in a function": lambda: stream.exchange("k").apply(m.made_operator()),
        "a partial of an operator": lambda: stream.exchange("k").apply(functools.partial(m.Same)),
        "a parameter": lambda: stream.exchange("k").apply(Passing, rules={"first": [m.keep]}),
        "a wrapped class": lambda: stream.exchange("k").apply(flux.wrap(m.Existing)),
        "a function to wrap with": lambda: stream.exchange("k").apply(flux.wrap(Existing, process=m.keep)),
        "a wrapped logic": lambda: stream.exchange("k").apply(flux.wrap_bytewax(m.builder)),
    }
    return made[put]()


INSIDE = ("an argument of a partial", "in a closure", "a parameter", "a function to wrap with", "a wrapped logic")
STEPS = (
    "a function",
    "a lambda",
    "a function in a function",
    "a bound method",
    "a class method",
    "an object",
    "a partial",
    "a partial of partials",
    "a partial of a method",
    "an argument of a partial",
    "in a closure",
    "a decorated function",
    "a computed column",
    "an operator",
    "an operator in a function",
    "a partial of an operator",
    "a parameter",
    "a wrapped class",
    "a function to wrap with",
    "a wrapped logic",
)


class Passing(flux.Operator):
    output = {"k": "int64"}  # noqa: RUF012 - as users declare it.

    def process(self, batch: Any) -> Any:
        return batch


class Existing:
    def getState(self) -> Any:
        return None

    def installState(self, state: Any) -> None:
        pass


def _calling(fn: Any) -> Any:
    return lambda row: fn(row)


def remote(flow: flux.Dataflow) -> Plan:
    return RemoteFlow.of(flow._logical, 2, 0, "pairs", Policy()).plan


def planned(m: Any, put: str) -> Plan:
    flow = flux.Dataflow("remote")
    stream = steps(flow.source(flux.sources.Table([{"k": 1}])), m, put)
    stream.sink(flux.sinks.Null())
    return remote(flow)


@pytest.fixture
def a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """On the Python path, as a user's is."""
    (tmp_path / "a_remote_job.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("a_remote_job")
    del sys.modules["a_remote_job"]


def made_at_run_time(name: str = "a_cell") -> Any:
    """A module that is in no file, as the cells of a notebook are; its code says that it is in `name`."""
    module = ModuleType(name)
    exec(compile(CODE, "<cell 1>", "exec"), vars(module))
    return module


@pytest.mark.parametrize("put", STEPS)
def test_what_comes_of_importing_a_module_is_made_anew_in_each_process(put: str, a_module: Any) -> None:
    assert "a_remote_job" in description(planned(a_module, put)) or put in INSIDE


@pytest.mark.parametrize("put", STEPS)
def test_what_is_in_the_started_program_is_named_with_its_step_and_what_to_do(put: str) -> None:
    with pytest.raises(flux.PlanError) as caught:
        planned(made_at_run_time("__main__"), put)
    text = str(caught.value)
    assert text.startswith("step '") and "is defined in the program that was started. The processes of a" in text
    assert "into the module of MODULE:FLOW, or into one that is installed wherever the run has processes" in text


@pytest.mark.parametrize("put", STEPS)
def test_what_is_in_a_module_made_at_run_time_is_refused(put: str) -> None:
    with pytest.raises(flux.PlanError, match=r"^step '.*is defined in module 'a_cell', which was made while the"):
        planned(made_at_run_time(), put)


@pytest.mark.parametrize(
    ("put", "says"),
    [
        ("a function", r"step 'filter\(keep\)': keep is defined in"),
        ("a lambda", r"step 'filter\(<lambda>\)': <lambda> is defined in"),
        ("a function in a function", r"step 'filter\(above\)': made.<locals>.above is defined in"),
        ("a partial", r"step 'filter\(keep\)': keep, in a functools.partial of keep, is defined in"),
        ("an argument of a partial", r"keep, in a functools.partial of filter, is defined in"),
        ("in a closure", r"keep, to which _calling.<locals>.<lambda> refers, is defined in"),
        ("an operator", r"step 'Same': Same is defined in"),
        ("a parameter", r"step 'Passing': keep is defined in"),
        ("a function to wrap with", r"step 'Existing': keep, of which Existing is made, is defined in"),
        ("a wrapped logic", r"step 'builder': builder, of which builder is made, is defined in"),
    ],
)
def test_the_callable_is_named_and_how_it_comes_to_be_there(put: str, says: str) -> None:
    with pytest.raises(flux.PlanError, match=says):
        planned(made_at_run_time("__main__"), put)


def test_a_module_that_is_not_on_the_python_path_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "beside.py"
    path.write_text(CODE)
    spec = spec_from_file_location("beside_the_path", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["beside_the_path"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        with pytest.raises(flux.PlanError, match=r"'beside_the_path' \(.*beside.py\), which is not on the Python path"):
            planned(module, "a function")
    finally:
        del sys.modules["beside_the_path"]


def test_functions_and_classes_of_sources_and_sinks_are_looked_at_too(a_module: Any) -> None:
    def flow_of(m: Any, what: str) -> flux.Dataflow:
        flow = flux.Dataflow("ends")
        source: Any = flux.sources.Table([{"k": 1}])
        if what == "Generator":
            source = flux.sources.Generator(m.rows, rows=3, schema=None)
        sink: Any = flux.sinks.Null()
        if what == "Callback":
            sink = flux.sinks.Callback(functools.partial(m.keep))
        elif what == "Sink":
            sink = m.Sink()
        flow.source(source).sink(sink)
        return flow

    for what, says in (
        ("Generator", "source Generator: rows"),
        ("Callback", "sink Callback: keep"),
        ("Sink", "sink S"),
    ):
        remote(flow_of(a_module, what))
        with pytest.raises(flux.PlanError, match=f"^{says}.* is defined in the program that was started"):
            remote(flow_of(made_at_run_time("__main__"), what))


def test_the_flow_itself_must_be_in_a_module_that_others_can_import(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = made_at_run_time()
    cell.flow = flux.Dataflow("in a notebook")
    monkeypatch.setitem(sys.modules, "a_cell", cell)
    monkeypatch.setenv("FLUX_SECRET", "0123456789abcdef")
    assert main(["site", "a_cell:flow", "--controller", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "a_cell:flow is defined in module 'a_cell', which was made while the program ran." in said
    check_module("flux.operators:anything")


def test_any_callable_runs_in_a_local_run(a_module: Any) -> None:
    cell = made_at_run_time("__main__")
    flow = flux.Dataflow("local")
    stream = steps(flow.source(flux.sources.Table([{"k": 1}, {"k": 5}])), cell, "a function in a function")
    stream.sink(flux.sinks.Collect())
    assert flow.run().table.to_pylist() == [{"k": 5}]
