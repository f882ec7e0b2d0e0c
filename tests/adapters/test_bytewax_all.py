"""Every stateful operator of bytewax 0.21, in every mode: Flux gives what bytewax gives, while keys move about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest

import flux
from tests.adapters.bytewax_flows import (
    CLOCK,
    START,
    TEXT,
    Case,
    Row,
    _of_windows,
    _plain,
    _side,
    _sides,
    builder_of,
    by_bytewax,
    by_key,
    op,
    still,
    win,
)
from tests.adapters.moving_about import emitted
from tests.adapters.test_bytewax import some_rows

WINDOWERS: dict[str, Any] = {
    "sliding": win.SlidingWindower(length=timedelta(seconds=10), offset=timedelta(seconds=4), align_to=START),
    "tumbling": win.TumblingWindower(align_to=START, length=timedelta(seconds=10)),
    "sessions": win.SessionWindower(timedelta(seconds=3)),
}
MODES = list(product(("first", "last", "product"), ("complete", "final", "running")))


def _value(row: Row) -> int:
    return int(row["v"])


def _pair(row: Row) -> tuple[int, int]:
    return row["v"], row["ts"]


def _pair_at(pair: tuple[int, int]) -> datetime:
    return START + timedelta(seconds=pair[1])


PAIR_CLOCK: Any = win.EventClock(_pair_at, timedelta(seconds=5), now_getter=still)


def _sum(one: Row, other: Row) -> Row:
    return {**other, "v": one["v"] + other["v"]}


def _in_windows(key: Any, event: Any) -> Row:
    window, kind, what = event
    return _of_windows(key, (window, kind, sorted(what) if isinstance(what, set) else what))


def _join(insert: Any, emit: Any) -> Case:
    return Case(lambda up: op.join("j", *_sides(up), insert_mode=insert, emit_mode=emit), _plain, TEXT, _side)


def _windows(windower: Any) -> dict[str, Case]:
    def of(build: Callable[[Any], Any], value: Any = None) -> Case:
        return Case(build, _in_windows, TEXT, value)

    def pairs(up: Any) -> Any:
        return op.map_value("pairs", up, _pair)

    def join(insert: Any, emit: Any) -> Case:
        return of(
            lambda up: win.join_window("j", CLOCK, windower, *_sides(up), insert_mode=insert, emit_mode=emit), _side
        )

    return {
        "collect": of(lambda up: win.collect_window("c", up, CLOCK, windower)),
        "collect as they come": of(lambda up: win.collect_window("c", up, CLOCK, windower, ordered=False)),
        "collect into a set": of(lambda up: win.collect_window("c", pairs(up), PAIR_CLOCK, windower, set), _pair),
        "collect into a dict": of(lambda up: win.collect_window("c", pairs(up), PAIR_CLOCK, windower, dict), _pair),
        "count": of(lambda up: win.count_window("c", op.key_rm("rows", up), CLOCK, windower, lambda row: row["k"])),
        "max": of(lambda up: win.max_window("m", up, CLOCK, windower, _value)),
        "min": of(lambda up: win.min_window("m", up, CLOCK, windower, _value)),
        "reduce": of(lambda up: win.reduce_window("r", up, CLOCK, windower, _sum)),
        **{f"join {insert} {emit}": join(insert, emit) for insert, emit in MODES},
    }


CASES: dict[str, Case] = {
    "reduce": Case(lambda up: op.reduce_final("r", up, _sum), _plain, TEXT),
    "max": Case(lambda up: op.max_final("m", up, _value), _plain, TEXT),
    "min": Case(lambda up: op.min_final("m", up, _value), _plain, TEXT),
    "count": Case(lambda up: op.count_final("c", op.key_rm("rows", up), lambda r: r["k"]), _plain, TEXT, lambda r: 1),
    **{f"join {insert} {emit}": _join(insert, emit) for insert, emit in MODES},
    **{f"{name}: {what}": case for name, windower in WINDOWERS.items() for what, case in _windows(windower).items()},
}


@pytest.mark.parametrize("name", CASES)
def test_every_logic_gives_what_bytewax_gives_wherever_its_keys_move(name: str) -> None:
    case, rows = CASES[name], some_rows(60, seed=5)
    operator = flux.wrap_bytewax(builder_of(case), value=case.value, emit=case.emit, output=case.output)
    assert by_key(emitted(operator, rows, key=("k",), moves=[3, 20, 21, 45])) == by_bytewax(case, rows)
