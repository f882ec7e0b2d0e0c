"""Code that is ``async`` where Flux calls it plainly: nothing would run, and a sink would take what it never writes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.sinks import Callback, Sink

ROWS = [{"k": 1, "v": 2}]


def rows_of(flow: flux.Dataflow) -> flux.Stream:
    return flow.source(flux.sources.Table(ROWS))


async def anything(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("it is never awaited")


async def generates(*args: Any, **kwargs: Any) -> Any:
    yield


@pytest.mark.parametrize("fn", [anything, generates])
@pytest.mark.parametrize(
    ("base", "method"),
    [
        (flux.Operator, "process"),
        (flux.Operator, "open"),
        (flux.Operator, "close"),
        (flux.Operator, "get_state"),
        (flux.Operator, "install_state"),
        (flux.KeyedOperator, "on_tuple"),
        (flux.KeyedOperator, "on_timer"),
        (flux.PooledOperator, "drop_partition"),
    ],
)
def test_an_operator_whose_method_is_async_is_a_plan_error(base: type[Any], method: str, fn: Any) -> None:
    needed = {"process": lambda self, batch: None, "on_tuple": lambda self, key, row, state: (None, None)}
    mine = type("Mine", (base,), needed | {"output": {"v": "int64"}, method: fn})
    with pytest.raises(flux.PlanError, match=r"step 'Mine': \w+ \(.*\) is `async def`, and Flux calls it without"):
        rows_of(flux.Dataflow("async")).exchange("k").apply(mine)


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_a_sink_whose_method_is_async_is_a_plan_error(method: str) -> None:
    mine = type("Mine", (Sink,), {method: anything})
    with pytest.raises(flux.PlanError, match=r"sink Mine: anything \(.*\) is `async def`"):
        rows_of(flux.Dataflow("async")).sink(mine())


@pytest.mark.parametrize("method", ["bind", "start", "stop"])
def test_a_source_whose_method_is_async_is_a_plan_error(method: str) -> None:
    mine = type("Mine", (flux.sources.Source,), {"schema": pa.schema({"k": pa.int64()}), method: anything})
    with pytest.raises(flux.PlanError, match=r"source Mine: anything \(.*\) is `async def`"):
        flux.Dataflow("async").source(mine())


class Awaitable:
    """What an async function returns, but without a warning if nothing awaits it."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        pass

    def __await__(self) -> Any:
        yield


def yielding(rows: pa.RecordBatch) -> Any:
    yield rows


@pytest.mark.parametrize("sink", [Callback(Awaitable), Callback(generates), Callback(yielding)])
def test_a_callback_that_has_done_nothing_when_it_returns_is_an_error(sink: Sink) -> None:
    with pytest.raises(TypeError, match=r"it returned <.*>, which nothing runs, so it has done nothing"):
        sink.write(pa.record_batch({"v": [1]}), 0, 1)
