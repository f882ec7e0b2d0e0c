"""The stateful steps of bytewax's own tests, examples and tutorials, written anew against its version 0.21.

A step is a dataflow of bytewax's with the values that it gets. Rows have the key and the number of a value, so that a
value may be any object. What a step needs in Flux besides `value` and `emit`, which make values of rows and rows of
values, is in its fields: docs/bytewax.rst counts them.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import numpy as np
from bytewax.operators import StatefulBatchLogic, StatefulLogic

import flux
from tests.adapters.bytewax_flows import START, TEXT, Case, Row, _of_windows, _plain, op, win

ALL = "ALL"
SECOND = timedelta(seconds=1)
Emitted = tuple[list[Any], bool]


@dataclass(frozen=True)
class Step:
    """`build` puts the step after a keyed stream of the values; of several `sides`, these are (side, value)."""

    build: Callable[[Any], Any]
    values: Sequence[tuple[str, Any]]
    emit: Callable[[Any, Any], Row | None] = _plain
    sides: int = 1
    # What Flux must be told besides.
    state_types: tuple[type[Any], ...] = ()
    needs_clock: bool = False

    @property
    def rows(self) -> list[Row]:
        """What a run gets in the place of the values."""
        return [{"k": key, "n": n} for n, (key, _) in enumerate(self.values)]

    @property
    def case(self) -> Case:
        """The step for both engines."""

        def value(row: Row) -> Any:
            return self.values[row["n"]][1]

        def build(up: Any) -> Any:
            keyed = op.map_value("value", up, value)
            return self.build(keyed if self.sides == 1 else [_side(keyed, number) for number in range(self.sides)])

        return Case(build, self.emit, TEXT, value)


def _side(up: Any, number: int) -> Any:
    here = op.filter_value(f"side_{number}", up, lambda pair: pair[0] == number)
    return op.map_value(f"value_{number}", here, lambda pair: pair[1])


def _but_metadata(key: Any, event: Any) -> Row | None:
    """Metadata of a session has times, which by the system's clock are those of the moment."""
    return None if event[1] == "M" else _of_windows(key, event)


def _of(values: Sequence[Any], key: str = ALL) -> list[tuple[str, Any]]:
    return [(key, value) for value in values]


def after(seconds: float) -> datetime:
    """A time of the examples."""
    return START + timedelta(seconds=seconds)


# Logics that say what was called, as the tests of `stateful` and `stateful_batch` do.


class Noting(StatefulLogic):  # type: ignore[misc]
    """Emits the state before and after each call; the subclasses say when it is given up."""

    item_discards = False
    eof_discards = False
    notify_discards = False
    asks = False

    def __init__(self, state: str | None) -> None:
        self.state = state or "new"
        self.due: datetime | None = None

    def _now(self, state: str, discards: bool) -> Emitted:
        before, self.state = self.state, state
        return [(before, state)], discards

    def on_item(self, value: Any) -> Emitted:
        if self.asks:
            self.due = flux.stream_time()
        return self._now("item", self.item_discards)

    def on_notify(self) -> Emitted:
        self.due = None
        return self._now("notify", self.notify_discards)

    def on_eof(self) -> Emitted:
        return self._now("eof", self.eof_discards)

    def notify_at(self) -> datetime | None:
        return self.due

    def snapshot(self) -> str:
        return self.state


class Unasked(Noting):
    """Never asks to be notified."""

    def notify_at(self) -> None:
        return None


def noting(base: type[Noting] = Unasked, **settings: bool) -> Callable[[Any], Any]:
    """A step with such a logic."""
    logic: Any = type("Noting", (base,), settings)
    return lambda up: op.stateful("stateful", up, logic)


class KeepLast(StatefulLogic):  # type: ignore[misc]
    """Emits the last value and the new one, and ends with the value `DISCARD`."""

    def __init__(self, last: str | None) -> None:
        self.last = last

    def on_item(self, value: str) -> Emitted:
        before, self.last = self.last, value
        return [(before, value)], value == "DISCARD"

    def snapshot(self) -> str | None:
        return self.last


class KeepLastOfBatch(StatefulBatchLogic):  # type: ignore[misc]
    """The same, as a logic of batches."""

    def __init__(self, last: str | None) -> None:
        self.last = last

    def on_batch(self, values: list[str]) -> Emitted:
        pairs = list(zip([self.last, *values[:-1]], values, strict=True))
        self.last = values[-1]
        return pairs, self.last == "DISCARD"

    def snapshot(self) -> str | None:
        return self.last


KEYED = [("a", "a1"), ("b", "b1"), ("a", "DISCARD"), ("b", "b2"), ("a", "a3"), ("b", "b3"), ("c", "c1")]


# Mappers and folders.


def running_mean(last: list[float] | None, value: float) -> tuple[list[float], float]:
    last = [*(last or []), value][-3:]
    return last, sum(last) / len(last)


def rising(last: int | None, value: int) -> tuple[int, list[int]]:
    return value, [value] if last is None or value > last else []


def keep_max(most: int | None, value: int) -> tuple[int | None, int | None]:
    new = value if most is None else max(most, value)
    return (None if new > 8 else new), new


def add(seen: list[Any], value: Any) -> list[Any]:
    seen.append(value)
    return seen


def count_kinds(counts: dict[str, int], event: dict[str, Any]) -> dict[str, int]:
    counts[event["kind"]] += 1
    return counts


def merge_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    for kind, count in other.items():
        one[kind] += count
    return one


def extremes(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    return min(one[0], other[0]), max(one[1], other[1]), one[2] + other[2], one[3] + other[3]


@dataclass
class Detector:
    """The anomaly detector: how far a value is from the mean of the last ten."""

    last: list[float] = field(default_factory=list)

    def push(self, value: float) -> tuple[float, float, bool]:
        mean = sum(self.last) / len(self.last) if self.last else value
        sigma = (sum((each - mean) ** 2 for each in self.last) / max(1, len(self.last))) ** 0.5
        self.last = [value, *self.last][:10]
        return value, round(mean, 3), sigma > 0 and abs(value - mean) / sigma > 2


def detect(detector: Detector | None, value: float) -> tuple[Detector, Any]:
    detector = detector or Detector()
    return detector, detector.push(value)


@dataclass
class OrderBook:
    """The order book: the best bid and the best ask."""

    bids: dict[float, float] = field(default_factory=dict)
    asks: dict[float, float] = field(default_factory=dict)

    def update(self, changes: list[tuple[str, float, float]]) -> tuple[float | None, float | None]:
        for side, price, size in changes:
            book = self.bids if side == "buy" else self.asks
            book[price] = size
            if not size:
                del book[price]
        return max(self.bids, default=None), min(self.asks, default=None)


def book(state: OrderBook | None, changes: Any) -> tuple[OrderBook, Any]:
    state = state or OrderBook()
    return state, state.update(changes)


@dataclass
class Imputer:
    """A numpy array of the last values, for the mean that stands for a missing one."""

    last: Any = field(default_factory=lambda: np.empty(0))


def impute(state: Imputer | None, value: float) -> tuple[Imputer, tuple[str, float]]:
    state = state or Imputer()
    if not np.isnan(value):
        state.last = np.insert(state.last, 0, value)[:10]
        return state, (str(value), float(value))
    return state, ("missing", float(state.last.mean()) if len(state.last) else 0.0)


@dataclass
class Cart:
    """Orders of a user that are paid, and those that are not."""

    unpaid: dict[int, Any] = field(default_factory=dict)
    paid: list[Any] = field(default_factory=list)


def cart(state: Cart | None, event: dict[str, Any]) -> tuple[Cart, Any]:
    state = state or Cart()
    if event["type"] == "order":
        state.unpaid[event["order"]] = event
    elif event["order"] in state.unpaid:
        state.paid.append(state.unpaid.pop(event["order"]))
    return state, ([order["order"] for order in state.paid], sorted(state.unpaid))


@dataclass(frozen=True)
class Event:
    """What a user does, in the tests and tutorials of windows."""

    at: datetime
    what: Any


def events(*pairs: tuple[float, Any], key: str = ALL) -> list[tuple[str, Event]]:
    return [(key, Event(after(seconds), what)) for seconds, what in pairs]


def event_clock(wait: timedelta = timedelta(), get: Callable[[Any], datetime] | None = None) -> Any:
    """As the tutorials write it: with the default `now_getter`, which is the system's clock."""
    return win.EventClock(get or operator.attrgetter("at"), wait_for_system_duration=wait)


def tumbling(length: timedelta = 10 * SECOND) -> Any:
    return win.TumblingWindower(align_to=START, length=length)


def sliding() -> Any:
    return win.SlidingWindower(align_to=START, length=10 * SECOND, offset=5 * SECOND)


def _tell_at(row: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(row["at"])


def _what(event: Event) -> Any:
    return event.what


LETTERS = ((1, "a"), (5, "b"), (11, "c"), (12, "d"), (13, "e"), (14, "f"), (20, "g"), (1, "late"))
USER_ROWS = [("a", Event(after(at), n)) for at, n in ((0, 1), (4, 9), (8, 3), (12, 10), (13, 4))]
BASKETS = ["milk,bread", "bread,eggs,milk", "eggs", "milk,bread,tea"]
SIDES = _of([(0, 1), (1, 2), (1, 3), (0, 4)])
SIDES_IN_TIME = [(ALL, (side, Event(after(at), n))) for n, (side, at) in enumerate(((0, 0), (1, 1), (1, 2), (0, 1)))]


def _join(insert: Any, emit: Any) -> Step:
    return Step(lambda sides: op.join("join", *sides, insert_mode=insert, emit_mode=emit), SIDES, sides=2)


def _join_window(insert: Any, emit: Any) -> Step:
    def build(sides: list[Any]) -> Any:
        clock, windower = event_clock(10 * SECOND), win.SessionWindower(gap=10 * SECOND)
        return win.join_window("join", clock, windower, *sides, insert_mode=insert, emit_mode=emit)

    return Step(build, SIDES_IN_TIME, emit=_of_windows, sides=2, state_types=(Event,))


def _windows(build: Callable[[Any], Any], values: Sequence[tuple[str, Any]], **settings: Any) -> Step:
    return Step(build, values, **{"emit": _of_windows} | settings)


def _fold(clock: Any, windower: Any, builder: Any = list, folder: Any = add, merger: Any = operator.add) -> Any:
    return lambda up: win.fold_window("fold", up, clock, windower, builder, folder, merger)


TESTS: dict[str, Step] = {
    "stateful: an item discards": Step(noting(item_discards=True), _of([1, 2])),
    "stateful: an item retains": Step(noting(), _of([1, 2])),
    "stateful: a notification discards": Step(
        noting(Noting, asks=True, notify_discards=True), _of([1, 2]), needs_clock=True
    ),
    "stateful: a notification retains": Step(noting(Noting, asks=True), _of([1, 2]), needs_clock=True),
    "stateful: the end discards": Step(noting(eof_discards=True), _of([1, 2])),
    "stateful: the end retains": Step(noting(eof_discards=False), _of([1, 2, 3])),
    "stateful: a logic for each key": Step(lambda up: op.stateful("last", up, KeepLast), KEYED[:2] * 2),
    "stateful: a snapshot for each key": Step(lambda up: op.stateful("last", up, KeepLast), KEYED[:2] * 3),
    "stateful: a key is discarded": Step(lambda up: op.stateful("last", up, KeepLast), KEYED),
    "stateful: older snapshots": Step(
        lambda up: op.stateful("last", up, KeepLast), [*KEYED, ("b", "DISCARD"), ("a", "a4"), ("b", "b4"), ("c", "c2")]
    ),
    "stateful_batch: a logic for each key": Step(lambda up: op.stateful_batch("last", up, KeepLastOfBatch), KEYED),
    "stateful_map": Step(lambda up: op.stateful_map("mean", up, running_mean), _of([2, 5, 8, 1, 3])),
    "stateful_map: none discards": Step(lambda up: op.stateful_map("max", up, keep_max), _of([4, 9, 1, 7])),
    "stateful_flat_map": Step(lambda up: op.stateful_flat_map("rising", up, rising), _of([2, 5, 8, 1, 3])),
    "collect": Step(lambda up: op.collect("collect", up, 10 * SECOND, 3), _of(range(10)), needs_clock=True),
    "fold_final": Step(lambda up: op.fold_final("max", up, lambda: 0, max), _of([1, 4, 2, 9, 4, 3])),
    "reduce_final": Step(lambda up: op.reduce_final("sum", up, operator.add), _of([1, 4, 2, 9])),
    "max_final": Step(lambda up: op.max_final("max", up), _of([1, 4, 2, 9, 4, 3])),
    "min_final": Step(lambda up: op.min_final("min", up), _of([6, 4, 2, 9, 4, 3])),
    "count_final": Step(lambda up: _counted(up), _of([1] * 3, "a") + _of([1] * 2, "b")),
    "join: complete": _join("last", "complete"),
    "join: final": _join("last", "final"),
    "join: running": _join("last", "running"),
    "join: product": _join("product", "final"),
    "collect_window": _windows(
        lambda up: win.collect_window("collect", up, event_clock(timedelta.max), tumbling()),
        events((0, 1), (8, 3), (4, 2), (13, 5), (12, 4)),
        state_types=(Event,),
    ),
    "count_window": _windows(
        lambda up: win.count_window("count", op.key_rm("rows", up), event_clock(), tumbling(), lambda e: e.what),
        [(user, Event(after(at), user)) for at, user in ((0, "a"), (4, "a"), (8, "b"), (12, "a"), (13, "a"))],
        state_types=(Event,),
    ),
    "fold_window: tumbling": _windows(
        _fold(event_clock(get=_tell_at), tumbling(), lambda: defaultdict(int), count_kinds, merge_counts),
        _of([{"at": after(at).isoformat(), "kind": kind} for at, kind in ((0, "login"), (4, "post"), (16, "post"))]),
    ),
    "fold_window: sessions": _windows(
        _fold(event_clock(), win.SessionWindower(gap=5 * SECOND)), events(*LETTERS), state_types=(Event,)
    ),
    "fold_window: sliding": _windows(_fold(event_clock(), sliding()), events(*LETTERS), state_types=(Event,)),
    "fold_window: unordered": _windows(
        lambda up: win.fold_window(
            "fold",
            up,
            event_clock(get=lambda at: at),
            tumbling(60 * SECOND),
            lambda: None,
            lambda s, _: s,
            lambda s, _: s,
            ordered=False,
        ),
        _of([after(at) for at in range(300)]),
    ),
    "max_window": _windows(
        lambda up: win.max_window("max", up, event_clock(), tumbling(), by=_what), USER_ROWS, state_types=(Event,)
    ),
    "min_window": _windows(
        lambda up: win.min_window("min", up, event_clock(), tumbling(), by=_what), USER_ROWS, state_types=(Event,)
    ),
    "reduce_window": _windows(
        lambda up: win.reduce_window("sum", up, event_clock(), tumbling(), lambda a, b: Event(b.at, a.what + b.what)),
        USER_ROWS,
        state_types=(Event,),
    ),
    "join_window: complete": _join_window("last", "complete"),
    "join_window: final": _join_window("last", "final"),
    "join_window: running": _join_window("last", "running"),
    "join_window: product": _join_window("product", "final"),
    "sessions by the system's clock": _windows(
        _fold(win.SystemClock(), win.SessionWindower(gap=10 * SECOND)),
        _of(range(10)),
        needs_clock=True,
        emit=_but_metadata,
    ),
}


def _counted(up: Any) -> Any:
    return op.count_final("count", op.map("keys", up, lambda pair: pair[0]), lambda key: key)


def _tokens(baskets: Sequence[str], of: int) -> list[tuple[str, int]]:
    return [("-".join(pair), 1) for line in baskets for pair in combinations(sorted(line.split(",")), of)]


EXAMPLES: dict[str, Step] = {
    "1brc: reduce_final": Step(
        lambda up: op.reduce_final("reduce", up, extremes),
        [(city, (x, x, x, 1)) for city, x in (("Oslo", -1.5), ("Rome", 20.0), ("Oslo", 4.0), ("Rome", 31.5))],
    ),
    "anomaly detector: stateful_map": Step(
        lambda up: op.stateful_map("detect", up, detect), _of([5, 6, 5, 4, 5, 60, 5, 6], "qps"), state_types=(Detector,)
    ),
    "apriori: products": _windows(
        lambda up: win.reduce_window("count", up, win.SystemClock(), tumbling(3_650 * 86_400 * SECOND), operator.add),
        _tokens(BASKETS, 1),
        needs_clock=True,
    ),
    "apriori: pairs": _windows(
        lambda up: win.reduce_window("count", up, win.SystemClock(), tumbling(3_650 * 86_400 * SECOND), operator.add),
        _tokens(BASKETS, 2),
        needs_clock=True,
    ),
    "batch operator: collect": Step(
        lambda up: op.collect("batch", up, timeout=60 * SECOND, max_size=10), _of(range(25)), needs_clock=True
    ),
    "windowing benchmark: fold_window": _windows(
        _fold(event_clock(get=lambda at: at), tumbling(60 * SECOND)), [(str(n % 2), after(n)) for n in range(400)]
    ),
    "event time: collect_window": _windows(
        lambda up: win.collect_window("window", up, event_clock(10 * SECOND, _tell_at), tumbling(5 * SECOND)),
        [("temp", {"at": after(n + n % 3).isoformat(), "value": n / 2}) for n in range(30)],
    ),
    "events to parquet: fold_window": _windows(
        _fold(event_clock(5 * SECOND, lambda e: e["at"]), tumbling(5 * SECOND)),
        [(f"/page/{n % 3}", {"at": after(n), "user": n % 5}) for n in range(25)],
    ),
    "join of three streams": Step(lambda up: op.join("join", *up), _of([(0, "a"), (1, "b"), (2, "c")]), sides=3),
    "order book: stateful_map": Step(
        lambda up: op.stateful_map("book", up, book),
        [
            ("BTC", [("buy", 9.0, 1.0), ("sell", 11.0, 2.0)]),
            ("ETH", [("buy", 3.0, 1.0)]),
            ("BTC", [("buy", 10.0, 1.0)]),
            ("BTC", [("buy", 10.0, 0.0), ("sell", 10.5, 1.0)]),
        ],
        state_types=(OrderBook,),
    ),
    "search session: reduce_window": _windows(
        lambda up: win.reduce_window(
            "sessions",
            up,
            event_clock(10 * SECOND, lambda session: session[-1].at),
            win.SessionWindower(gap=5 * SECOND),
            operator.add,
        ),
        [
            (user, [Event(after(at), what)])
            for at, user, what in ((0, "1", "open"), (3, "1", "click"), (7, "2", "open"))
        ],
        state_types=(Event,),
    ),
    "wikistream: count_window": _windows(
        lambda up: win.count_window(
            "count", op.map("keys", up, lambda pair: pair[0]), win.SystemClock(), tumbling(3_650 * 86_400 * SECOND), str
        ),
        _of(["x"] * 4, "en") + _of(["y"] * 3, "de"),
        needs_clock=True,
    ),
    "wikistream: the most of all windows": Step(lambda up: op.stateful_map("max", up, keep_max), _of([3, 5, 2, 8, 1])),
    "missing data: stateful_map": Step(
        lambda up: op.stateful_map("impute", up, impute),
        _of([float("nan") if n % 5 == 0 else float(n % 7) for n in range(30)], "data"),
        state_types=(Imputer,),
    ),
    "shopping cart: stateful_map": Step(
        lambda up: op.stateful_map("cart", up, cart),
        [
            (user, {"type": what, "order": n})
            for user, what, n in (("a", "order", 1), ("a", "order", 2), ("b", "order", 3))
        ]
        + [("a", {"type": "payment", "order": 2}), ("b", {"type": "payment", "order": 9})],
        state_types=(Cart,),
    ),
    "search logs: collect_window": _windows(
        lambda up: win.collect_window(
            "windowed", up, clock=event_clock(SECOND), windower=win.SessionWindower(gap=10 * SECOND)
        ),
        [*events((5, "search"), (6, "results"), (7, "click"), key="1"), *events((5, "search"), (8, "click"), key="2")],
        state_types=(Event,),
    ),
    "profiling: fold_window": _windows(
        _fold(event_clock(30 * SECOND, lambda reading: reading["ts"]), tumbling(3_600 * SECOND)),
        [(f"device {n % 2}", {"ts": after(700 * n), "temp": n}) for n in range(20)],
    ),
    "orders: tumbling count_window": _windows(
        lambda up: win.count_window(
            "c", op.key_rm("o", up), event_clock(), tumbling(1_800 * SECOND), lambda _: "total"
        ),
        [("total", Event(after(400 * n), n)) for n in range(20)],
        state_types=(Event,),
    ),
    "orders: sliding collect_window": _windows(
        lambda up: win.collect_window("c", up, event_clock(), sliding()), events(*LETTERS), state_types=(Event,)
    ),
    "orders: sessions collect_window": _windows(
        lambda up: win.collect_window("c", up, event_clock(), win.SessionWindower(gap=5 * SECOND)),
        events(*LETTERS),
        state_types=(Event,),
    ),
    "docs: running count": Step(
        lambda up: op.stateful_map("count", up, lambda n, _: ((n or 0) + 1, (n or 0) + 1)), [(w, w) for w in "abaab"]
    ),
    "docs: most common word": Step(
        lambda up: op.fold_final("words", up, Counter, lambda words, word: words + Counter([word])), _of("abcab")
    ),
}
STEPS = TESTS | EXAMPLES


def changes(step: Step) -> set[str]:
    """What Flux must be told besides what makes rows of values."""
    return {name for name in ("state_types", "needs_clock") if getattr(step, name)}
