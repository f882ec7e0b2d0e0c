"""Dataflows of bytewax's own operators, and the builders of the logics in them.

bytewax's operators make their logics within functions; a dataflow holds them. So each case is a dataflow that bytewax
runs itself, and the builder that stands in it is what Flux is given: not a line of the logic is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def still() -> datetime:
    """A system clock that stands: without it, bytewax's watermarks go on with the time of day."""
    return START


def at(row: Row) -> datetime:
    return START + timedelta(seconds=row["ts"])


CLOCK: Any = win.EventClock(ts_getter=at, wait_for_system_duration=timedelta(seconds=5), now_getter=still)


@dataclass(frozen=True)
class Case:
    """What `build` puts behind a keyed stream of rows; `emit` makes rows of what the logic emits."""

    build: Callable[[Any], Any]
    emit: Callable[[Any, Any], Row | None]
    output: dict[str, Any]
    value: Callable[[Row], Any] | None = None


def _plain(key: Any, value: Any) -> Row:
    return {"k": key[0], "kind": "", "text": repr(value)}


def _of_windows(key: Any, event: Any) -> Row:
    window, kind, what = event
    return {"k": key[0], "kind": kind, "text": repr((window, _sorted(what)))}


def _sorted(what: Any) -> Any:
    """Metadata has a set, which is printed in any order."""
    return (what.open_time, what.close_time, sorted(what.merged_ids)) if isinstance(what, win.WindowMetadata) else what


def _running(state: Any, row: Row) -> Any:
    state = state or {"n": 0, "seen": set()}
    state["n"] += row["v"]
    state["seen"].add(row["v"] % 3)
    return (None if row["v"] == 0 else state), (state["n"], sorted(state["seen"]))


def _folded(total: list[int], row: Row) -> list[int]:
    return [*total, row["v"]][-5:]


def _sides(up: Any) -> tuple[Any, Any]:
    return op.filter("even", up, lambda kv: kv[1]["v"] % 2 == 0), op.filter("odd", up, lambda kv: kv[1]["v"] % 2 == 1)


def _side(row: Row) -> tuple[int, Row]:
    """What bytewax's join makes of its streams: the number of the side, and the value."""
    return row["v"] % 2, row


def _window(windower: Any) -> Callable[[Any], Any]:
    return lambda up: win.fold_window("fold", up, CLOCK, windower, list, _folded, lambda a, b: a + b)


TEXT = {"k": "string", "kind": "string", "text": "string"}
CASES: dict[str, Case] = {
    "fold": Case(lambda up: op.fold_final("fold", up, list, _folded), _plain, TEXT),
    "stateful map": Case(lambda up: op.stateful_map("map", up, _running), _plain, TEXT),
    "flat map": Case(
        lambda up: op.stateful_flat_map("flat", up, lambda s, row: ((s or 0) + 1, [row["v"]] * ((s or 0) % 3))),
        _plain,
        TEXT,
    ),
    "join": Case(lambda up: op.join("join", *_sides(up), emit_mode="complete"), _plain, TEXT, _side),
    "running join": Case(
        lambda up: op.join("join", *_sides(up), insert_mode="product", emit_mode="running"), _plain, TEXT, _side
    ),
    "final join": Case(lambda up: op.join("join", *_sides(up), emit_mode="final"), _plain, TEXT, _side),
    "sliding windows": Case(
        _window(win.SlidingWindower(length=timedelta(seconds=10), offset=timedelta(seconds=4), align_to=START)),
        _of_windows,
        TEXT,
    ),
    "tumbling windows": Case(
        _window(win.TumblingWindower(align_to=START, length=timedelta(seconds=10))), _of_windows, TEXT
    ),
    "session windows": Case(_window(win.SessionWindower(timedelta(seconds=3))), _of_windows, TEXT),
}


def dataflow(case: Case, rows: Sequence[Row], out: list[Any]) -> Any:
    """A dataflow of bytewax's with the case in it."""
    flow: Any = Dataflow("case")
    keyed = op.key_on("key", op.input("in", flow, TestingSource(rows)), lambda row: row["k"])
    made = case.build(keyed)
    if isinstance(made, win.WindowOut):
        op.output(
            "out",
            op.merge("all", *(_labelled(name, getattr(made, name)) for name in ("down", "late", "meta"))),
            TestingSink(out),
        )
    else:
        op.output("out", made, TestingSink(out))
    return flow


def _labelled(name: str, stream: Any) -> Any:
    """Windows as the logic emits them, before bytewax puts them into three streams."""
    letter = {"down": "E", "late": "L", "meta": "M"}[name]
    return op.map_value(f"label_{name}", stream, lambda pair: (pair[0], letter, pair[1]))


def builder_of(case: Case) -> Callable[[Any], Any]:
    """The builder that bytewax's operator has made; it is in the one `stateful_batch` of its dataflow."""
    found = [step.builder for step in _steps(dataflow(case, [], [])) if type(step).__name__ == "stateful_batch"]
    assert len(found) == 1, f"{len(found)} stateful steps"
    builder: Callable[[Any], Any] = found[0]
    return builder


def _steps(of: Any) -> list[Any]:
    return [step for sub in of.substeps for step in (sub, *_steps(sub))]


def by_bytewax(case: Case, rows: Sequence[Row]) -> dict[Any, list[str]]:
    """What bytewax itself gives, by key and stream: it says nothing of the order of different ones."""
    out: list[Any] = []
    run_main(dataflow(case, rows, out))
    return by_key(row for key, value in out if (row := case.emit((key,), value)) is not None)


def by_key(rows: Any) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for row in rows:
        found.setdefault((row["k"], row["kind"]), []).append(row["text"])
    return found
