"""The adapter for bytewax: its `StatefulLogic` and `StatefulBatchLogic` builders, run unchanged by Flux.

A builder makes the logic of one key, new or from a snapshot: that is `install_state`, and `snapshot()` is `get_state`,
for each key. bytewax is not imported here; any object with the methods of a logic is one.

What is nondeterministic in bytewax must be deterministic here, because both copies must do the same:

- A `StatefulBatchLogic` gets one row at a time, so that the output does not depend on where batches are cut.
- Time is that of the stream, `flux.stream_time()`: the value of the last clock punctuation, 1970 before the first.
  `on_notify` is called when it has passed `notify_at`: at a clock punctuation, or after the row that asked for it, once
  each time. Logics that are due at the same time are called in the order of their keys.
  ``flow.source(..., clock_ms=100)`` emits the clock. With ``time="watermark"``, watermarks set the time instead.
- Where bytewax would read the system's clock (`collect`, `SystemClock`, and `EventClock` by default) it gets the time
  of the stream. A `now_getter` of the user's own stays; it must return the same in every copy.
- `on_eof` is called at the end of the stream, key by key, in the order in which the keys first appeared.

docs/bytewax.rst has all differences.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal

from ..hosting import NAN, keys_within
from ..model.batch import Batch
from ..model.error_location import locate
from ..model.operator import Context, Operator
from ..model.output_rows import keep_rows
from ..model.punctuation import Punctuation
from ..model.timers import key_order
from ..model.zoned_keys import rewrap_zoned, wrap_zoned
from ..types.array_types import Key
from ..types.errors import OperatorError, PlanError
from .wrap import RowWise, columns_of

__all__ = ["stream_time", "wrap_bytewax"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PIECE_KEYS = 4_096
_now = _EPOCH  # Of the operator that is running.
_SEARCH_DEPTH = 4
# What bytewax's own logics return from `snapshot`, besides the user's values.
_SNAPSHOTS = {
    "bytewax.operators": ("_CollectState", "_JoinState"),
    "bytewax.operators.windowing": (
        "WindowMetadata",
        "_EventClockState",
        "_SessionWindowerState",
        "_SlidingWindowerState",
        "_WindowSnapshot",
    ),
}

_WINDOWS = "_WindowLogic"
_BY_CLOCK = ("_CollectLogic", "_SystemClockLogic")  # Parts of logics that do nothing while no clock comes.
_RETURN_NONE = {("RESUME", 0), ("LOAD_CONST", None), ("RETURN_VALUE", None), ("RETURN_CONST", None)}
_BEFORE_TIME = datetime.min.replace(tzinfo=UTC)
_GIVE = (
    "Give the function that bytewax's `stateful` or `stateful_batch` takes as builder, or a Dataflow of bytewax's with "
    "one stateful operator in it"
)


def stream_time() -> datetime:
    """Return the time of the stream in UTC, the same in every copy: that of the last clock punctuation.

    It is 1970 before the first one, and outside an operator.

    >>> stream_time().year
    1970
    """
    return _now


def wrap_bytewax(
    builder: Any,
    *,
    value: str | Callable[[dict[str, Any]], Any] | None = None,
    emit: Callable[[Key, Any], Mapping[str, Any] | None] | None = None,
    output: Any = None,
    time: Literal["clock", "watermark"] | None = "clock",
    state_types: tuple[type[Any], ...] = (),
    encode_state: Callable[[Any], Any] | None = None,
    decode_state: Callable[[Any], Any] | None = None,
) -> type[Operator]:
    """Make an operator from a builder of bytewax logics, `StatefulLogic` or `StatefulBatchLogic`.

    bytewax's own operators make their builders internally; for them pass a bytewax `Dataflow` with one of them in it.
    The rest of that dataflow is not run: Flux, or `value`, does the work before the operator.

    The columns of the exchange are the key. `value` is what a logic gets of a row: the name of a column, or a function
    of the row as a dict; left out, that dict. `emit(key, value)` returns a row, or None, for what it emits. Left out, a
    dict is added to the columns of the key, and any other value too, as the column `value`. Snapshots may hold what the
    state of any operator may (see `flux.model.operator`); the types of bytewax's own logics need not be listed.

    `time` selects what triggers `on_notify`. "clock": clock punctuations, which ``flow.source(..., clock_ms=100)`` and
    streams from Spark emit. "watermark": watermarks, which ``flow.source(..., event_time="column")`` emits. None:
    nothing does. A logic that may ask for notifications, in a flow where no source emits such time, is refused when the
    plan is made.
    """
    name = getattr(builder, "__qualname__", type(builder).__name__).replace(".<locals>", "")
    if hasattr(builder, "substeps"):
        builder, name = _builder_in(builder)
    logic = _probe(builder, name)
    clocks = set_stream_time(logic, is_new=True)
    if emit is None and type(logic).__name__ == _WINDOWS and _is_bytewaxs(logic):
        raise PlanError(
            f"wrap_bytewax({name}): a logic of windows emits (window, kind, value), where kind is 'E' for what is "
            "emitted, 'L' for late values and 'M' for metadata. Say which of them is what row: emit=lambda key, event: "
            "{'k': key[0], 'window': event[0], 'value': event[2]} if event[1] == 'E' else None"
        )
    if time not in ("clock", "watermark", None):
        raise PlanError(f"wrap_bytewax({name}): time is 'clock', 'watermark' or None, got {time!r}")
    if value is not None and not isinstance(value, str) and not callable(value):
        raise PlanError(
            f"wrap_bytewax({name}): value is the name of a column or a function of a row, got {value!r:.100}"
        )
    known = {kind for module, names in _SNAPSHOTS.items() for kind in _loaded(module, names)}
    attributes: dict[str, Any] = {
        "_builder": staticmethod(builder),
        "_value": staticmethod(value) if callable(value) else value,
        "_emit_row": None if emit is None else staticmethod(emit),
        "_method": "on_item" if hasattr(logic, "on_item") else "on_batch",
        "_time": time,
        "notified_by": time if _may_ask(logic) or any(type(p).__name__ in _BY_CLOCK for p in clocks) else None,
        "output": output,
        "state_types": (*state_types, *sorted(known - set(state_types), key=lambda kind: kind.__qualname__)),
    }
    hooks = {"encode_state": encode_state, "decode_state": decode_state}
    attributes |= {name: staticmethod(hook) for name, hook in hooks.items() if hook is not None}
    return type(name, (_Logics,), {**attributes, "__doc__": f"{name} of bytewax, run by Flux."})


def _loaded(module: str, names: tuple[str, ...]) -> list[type[Any]]:
    """Return classes of a module, if it is imported."""
    loaded = sys.modules.get(module)
    return [getattr(loaded, name) for name in names if hasattr(loaded, name)]


def _builder_in(dataflow: Any) -> tuple[Callable[[Any], Any], str]:
    """Return the builder in a bytewax dataflow, and the name of the step that made it."""
    found = [step for step in _steps(dataflow) if type(step).__name__ == "stateful_batch"]
    names = [".".join(step.step_id.split(".")[:2]) for step in found]
    if len(found) != 1:
        several = f"several stateful steps, {' and '.join(names)}: give dataflows with one of them each"
        raise PlanError(f"wrap_bytewax: the dataflow {dataflow.flow_id} has {several if found else 'no stateful step'}")
    return found[0].builder, names[0]


def _steps(of: Any) -> list[Any]:
    return [step for sub in getattr(of, "substeps", ()) for step in (sub, *_steps(sub))]


def _probe(builder: Callable[[Any], Any], name: str) -> Any:
    """Return the logic of a new key, to inspect its methods; raise if it is not a valid logic."""
    try:
        logic = builder(None)
    except Exception as error:
        raise PlanError(
            f"wrap_bytewax({name}): builder(None) must return the logic of a new key; it raised "
            f"{type(error).__name__}: {error}. {_GIVE}"
        ) from error
    missing = [what for what in ("snapshot",) if not hasattr(logic, what)]
    if not hasattr(logic, "on_item") and not hasattr(logic, "on_batch"):
        missing.append("on_item (StatefulLogic) or on_batch (StatefulBatchLogic)")
    if missing:
        raise PlanError(
            f"wrap_bytewax({name}): builder(None) returned {type(logic).__name__}, which has no "
            f"{' and no '.join(missing)}. {_GIVE}"
        )
    return logic


def _may_ask(logic: Any) -> bool:
    """Return whether a logic may ask for notifications. bytewax's own also act at rows and at the end: they need none.

    The logic that `op.stateful` makes contains the user's, and asks on its behalf.
    """
    notify_at = getattr(type(logic), "notify_at", None)
    if notify_at is None:
        return False
    if not _is_bytewaxs(notify_at):
        return not _returns_none(notify_at)
    return any(_may_ask(part) for part in getattr(logic, "__dict__", {}).values() if part is not logic)


def _returns_none(function: Any) -> bool:
    """Return whether a function does nothing but return None."""
    if not hasattr(function, "__code__"):
        return False
    return {(each.opname, each.argval) for each in dis.get_instructions(function)} <= _RETURN_NONE


def _is_bytewaxs(what: Any) -> bool:
    return str(getattr(what, "__module__", "")).partition(".")[0] == "bytewax"


def set_stream_time(logic: Any, is_new: bool) -> list[Any]:
    """Let the parts of a logic that would read the system's clock read the time of the stream; return these parts.

    They have read the clock already when they were made, so they begin anew with the time of the stream.
    """
    clocks = list(_system_clocks(logic, _SEARCH_DEPTH))
    for clock in clocks:
        clock.now_getter = stream_time
        if is_new and hasattr(getattr(clock, "state", None), "system_time_of_max_event"):
            clock.state.system_time_of_max_event = _BEFORE_TIME
        begin = getattr(clock, "__post_init__", None)
        if begin is not None:
            begin()
    return clocks


def _system_clocks(value: Any, deep: int) -> Iterator[Any]:
    """Yield the parts of a logic whose `now_getter` is bytewax's own, or has been replaced."""
    getter = getattr(value, "now_getter", None)
    if getter is stream_time or (getter is not None and _is_bytewaxs(getter)):
        yield value
    if deep and hasattr(value, "__dict__"):
        for part in vars(value).values():
            if _is_bytewaxs(type(part)):
                yield from _system_clocks(part, deep - 1)


class _Logics(RowWise):
    """The logics of a partition's keys; each call of `wrap_bytewax` makes a subclass with their builder."""

    is_by_key = True
    _builder: Callable[[Any], Any]
    _value: Any
    _emit_row: Any
    _method: str
    _time: str | None

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        """Return the declared output; raise, as the plan is made, if the column named by `value` does not exist."""
        if isinstance(self._value, str) and self._value not in rows.names:
            raise PlanError(
                f"wrap_bytewax({type(self).__name__}): value={self._value!r} is not a column of the rows, which have "
                f"the columns {', '.join(rows.names)}. Name one of them, or give a function of the row"
            )
        return self.output

    def open(self, context: Context) -> None:
        self._columns = context.key_columns
        if not self._columns:
            raise PlanError(f"step {context.step!r}: a logic has a key. Put exchange(columns) in front of it")
        self._logics: dict[Key, Any] = {}
        self._due: dict[Key, datetime] = {}  # When logics have asked to be notified.
        self._now = _EPOCH
        self._last = self._builder

    def process(self, batch: Batch) -> Batch | None:
        self._set_time()
        names = batch.arrow.schema.names
        columns = [batch.column(name) for name in self._columns]
        keys = wrap_zoned(keys_within(batch, columns), columns)
        outputs: list[Any] = []
        origin: list[int] = []
        for place, (row, key) in enumerate(zip(batch.rows(), keys, strict=True)):
            value = self._value_of(dict(zip(names, row, strict=True)))
            before = len(outputs)
            outputs += self._call(key, self._method, [value] if self._method == "on_batch" else value)
            if (due := self._due.get(key)) is not None and due <= self._now:
                outputs += self._call(key, "on_notify")
            origin.extend([place] * (len(outputs) - before))
        return self._emit(batch, outputs, origin)

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        outputs: list[Any] = []
        if p.kind == self._time and p.value is not None:
            is_first = self._now == _EPOCH
            self._now = max(self._now, _EPOCH + timedelta(milliseconds=p.value))
            self._set_time()
            if is_first:
                self._begin_time()
            # Logics are called by time, then by key: the order is the same in every copy.
            due = [(when, key_order(key), key) for key, when in self._due.items() if when <= self._now]
            for _, _, key in sorted(due):
                outputs += self._call(key, "on_notify")
        elif p.kind == "end":
            self._set_time()
            for key in list(self._logics):
                outputs += self._call(key, "on_eof")
        if not outputs:
            return None
        function = locate(self._emit_row or self._last)
        return columns_of(outputs, None, lambda i: {"row": p.sn}, function)

    def _begin_time(self) -> None:
        """Take rows before the first clock as if they had come with it: an `EventClock` adds the time since a row."""
        for logic in self._logics.values():
            for clock in _system_clocks(logic, _SEARCH_DEPTH):
                if getattr(getattr(clock, "state", None), "system_time_of_max_event", None) == _EPOCH:
                    clock.state.system_time_of_max_event = self._now

    def _set_time(self) -> None:
        global _now
        _now = self._now

    def _value_of(self, row: dict[str, Any]) -> Any:
        if self._value is None:
            return row
        if isinstance(self._value, str):
            return row[self._value]
        self._last = self._value
        return self._value(row)

    def _call(self, key: Key, what: str, *values: Any) -> list[Any]:
        """Call a method of a key's logic and return the rows it emits. A logic that is done is dropped."""
        logic = self._logics.get(key)
        if logic is None:
            logic = self._logics[key] = self._build(None)
        method = getattr(logic, what, None)
        if method is None:
            return []  # `on_notify` and `on_eof` are optional.
        self._last = method
        returned = method(*values)
        try:
            emitted, is_done = returned
        except (TypeError, ValueError):
            raise OperatorError(
                f"{type(logic).__name__}.{what} returned {returned!r:.200}; expected a tuple of what to emit and "
                "whether the logic is done: ([...], False)"
            ) from None
        # A generator runs while it is read: only after that is the state of the logic final.
        kept = keep_rows(None)
        rows = [kept(self._row(key, value)) for value in emitted]
        if is_done:
            del self._logics[key]
            self._due.pop(key, None)
        else:
            self._note_due(key, logic)
        return [row for row in rows if row is not None]

    def _build(self, snapshot: Any) -> Any:
        self._last = self._builder
        logic = self._builder(snapshot)
        set_stream_time(logic, is_new=snapshot is None)
        return logic

    def _note_due(self, key: Key, logic: Any) -> None:
        notify_at = getattr(logic, "notify_at", None) if self._time is not None else None
        if notify_at is None:
            return
        called, self._last = self._last, notify_at
        due = notify_at()
        self._last = called
        if due is None:
            self._due.pop(key, None)
            return
        if not isinstance(due, datetime) or due.tzinfo is None:
            raise OperatorError(
                f"{locate(notify_at)} returned {due!r:.200}; expected None or a datetime with a time zone, such as "
                "flux.stream_time() + timedelta(minutes=1)"
            )
        self._due[key] = due

    def _row(self, key: Key, value: Any) -> Any:
        if self._emit_row is not None:
            self._last = self._emit_row
            return self._emit_row(tuple(key), value)
        columns = dict(zip(self._columns, key, strict=True))
        return columns | dict(value) if isinstance(value, Mapping) else columns | {"value": value}

    def get_state(self) -> Iterator[Any]:
        yield self._now
        entries = iter(self._logics.items())
        while some := [[list(key), self._snapshot(logic)] for key, logic in islice(entries, _PIECE_KEYS)]:
            yield some

    def _snapshot(self, logic: Any) -> Any:
        self._last = logic.snapshot
        return logic.snapshot()

    def install_state(self, state: Any) -> None:
        if isinstance(state, datetime):
            self._now = state
            return
        self._set_time()
        for cells, snapshot in state:
            key = rewrap_zoned(tuple(NAN if cell != cell else cell for cell in cells))
            logic = self._logics[key] = self._build(snapshot)
            self._note_due(key, logic)
