"""The adapter for classes that know nothing of Flux.

`wrap` makes an `Operator` of any class that takes a row at a time and can return and install its state: one instance
for each key, or for each partition. What bytewax's logics need besides that is in `flux.adapters.bytewax`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import Any, Literal

from ..hosting import NAN, keys_within
from ..model.batch import Batch
from ..model.error_location import locate
from ..model.operator import Context, Operator
from ..model.output_rows import keep_rows
from ..model.punctuation import Punctuation
from ..model.zoned_keys import rewrap_zoned, wrap_zoned
from ..types.array_types import Key
from ..types.errors import OperatorError, PlanError

__all__ = ["RowWise", "columns_of", "wrap"]

_PIECE_KEYS = 4_096  # In one piece of state.
_PROCESS = ("update", "process", "process_row", "on_row", "handle", "__call__")
_GET_STATE = ("getState", "get_state", "state", "snapshot", "__getstate__")
_INSTALL_STATE = ("installState", "install_state", "setState", "set_state", "restore", "load_state", "__setstate__")
# What each is called with: as text for errors, and the number of arguments.
_CALLED_WITH: dict[str, tuple[str, int]] = {
    "process": ("the instance and a row, a dict", 2),
    "get_state": ("the instance", 1),
    "install_state": ("the instance and a state", 2),
    "at_end": ("the instance", 1),
}

Method = str | Callable[..., Any] | None


class RowWise(Operator):
    """An operator that turns rows into dicts, one at a time; `_last` is the user's function it called last."""

    _last: Callable[..., Any]

    @property
    def user_code(self) -> Callable[..., Any]:
        """The function that an error is attributed to."""
        return self._last

    def _emit(self, batch: Batch, outputs: list[Any], origin: list[int]) -> Batch | None:
        """Emit `outputs` as columns; `origin[i]` is the input row of the i-th."""
        if not outputs:
            return None
        function = locate(self.user_code)
        return batch.emit(columns_of(outputs, batch.output, lambda i: self._at(batch, origin[i]), function), origin)

    def _at(self, batch: Batch, row: int) -> dict[str, Any]:
        return {"partition": int(batch.partition[row]), "row": int(batch.sn[row])}


def columns_of(outputs: list[Any], schema: Any, at: Callable[[int], dict[str, Any]], by: str) -> dict[str, list[Any]]:
    """Return rows as columns. Raise if one is not a dict like the others; the error names its function and row."""
    first = outputs[0]
    names = list(schema.names if schema is not None else first if isinstance(first, Mapping) else ())
    for i, output in enumerate(outputs):
        if not isinstance(output, Mapping) or set(output) != set(names):
            raise OperatorError(
                f"{by} returned {output!r:.200}; expected None, a dict or an iterable of dicts, with the keys "
                f"{', '.join(names) or 'of the output'}. Return these, or declare them: wrap(..., output={{...}})",
                **at(i),
            )
    return {name: [output[name] for output in outputs] for name in names}


def as_dicts(returned: Any) -> Iterable[Any]:
    """Return what a row-wise method returned, None, a row, or an iterable of rows, as an iterable of dicts.

    A row is a dict, a named tuple or a dataclass.
    """
    if returned is None:
        return ()
    if type(returned) is dict:
        return (returned,)
    row = _as_dict(returned)
    if isinstance(row, Mapping | str | bytes) or not hasattr(row, "__iter__"):
        return (row,)
    rows = map(_as_dict, row)
    if type(row) is not tuple:
        return rows
    # A tuple that is not of rows is shown in the error as a whole.
    made = list(rows)
    return made if all(isinstance(each, Mapping) for each in made) else (row,)


def _as_dict(row: Any) -> Any:
    if type(row) is dict:
        return row
    if isinstance(row, tuple) and hasattr(row, "_fields"):
        return dict(row._asdict())  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return row


def wrap(
    existing: Callable[..., Any],
    process: Method = None,
    get_state: Method = None,
    install_state: Method = None,
    *,
    at_end: Method = None,
    per: Literal["key", "partition"] | None = None,
    output: Any = None,
    state_types: tuple[type[Any], ...] = (),
    encode_state: Callable[[Any], Any] | None = None,
    decode_state: Callable[[Any], Any] | None = None,
) -> type[Operator]:
    """Make an operator of `existing`, a class (or a function that makes instances) that knows nothing of Flux.

    `process` gets a row as a dict and returns None, a dict or an iterable of dicts; named tuples and dataclasses are
    accepted too. `get_state` returns the state of an instance, and `install_state` installs it in another. Each is the
    name of a method, or a function whose first argument is the instance; left out, the usual names are tried. `at_end`,
    if given, is called without arguments at the end of the stream and returns what `process` may return.

    With ``per="key"`` there is one instance for each key of the exchange before it; with ``per="partition"``, one for
    each partition, which all its keys share. That is also the default, and then a run whose exchange has key columns
    warns of it. Instances are made with the parameters of `apply`. For the rest see `flux.model.operator`.

    >>> class Average:
    ...     def __init__(self):
    ...         self.count, self.total = 0, 0
    ...     def update(self, row):
    ...         self.count, self.total = self.count + 1, self.total + row["v"]
    ...         return {"mean": self.total / self.count}
    ...     def getState(self):
    ...         return [self.count, self.total]
    ...     def installState(self, state):
    ...         self.count, self.total = state
    >>> wrap(Average, output={"mean": "float64"}).__name__
    'Average'
    """
    name = getattr(existing, "__name__", repr(existing))
    if per not in ("key", "partition", None):
        raise PlanError(f"wrap({name}): per is 'key' or 'partition', got {per!r}")
    if not callable(existing):
        raise PlanError(f"wrap takes a class, or a function that makes its instances; got {existing!r:.100}")
    of = existing if isinstance(existing, type) else _make_instance(existing, name)
    calls = {
        "_process": _method(of, name, "process", process, _PROCESS),
        "_get_state": _method(of, name, "get_state", get_state, _GET_STATE),
        "_install_state": _method(of, name, "install_state", install_state, _INSTALL_STATE),
        "_at_end": None if at_end is None else _method(of, name, "at_end", at_end, ()),
    }
    for what, called in calls.items():
        _check_call(called, name, what[1:])
    attributes: dict[str, Any] = {"_calls": calls, "_existing": staticmethod(existing), "output": output}
    attributes |= {"state_types": state_types, "__module__": getattr(existing, "__module__", __name__)}
    hooks = {"encode_state": encode_state, "decode_state": decode_state}
    attributes |= {name: staticmethod(hook) for name, hook in hooks.items() if hook is not None}
    if per is None:
        attributes["shares_state"] = (
            f"has one {name} for each partition, and its keys share it. For one of each key say flux.wrap({name}, "
            f'per="key"); flux.wrap({name}, per="partition") says that they are to share it'
        )
    base = _WrappedByKey if per == "key" else _Wrapped
    return type(name, (base,), {**attributes, "__doc__": f"{name}, run by Flux."})


class _Wrapped(RowWise):
    """An instance of a user's class; each call of `wrap` makes a subclass for it."""

    _existing: Callable[..., Any]
    _calls: dict[str, Callable[..., Any] | None]

    def output_for(self, parameters: Mapping[str, Any], key_columns: tuple[str, ...], rows: Any) -> Any:
        """Return the declared output; raise, as the plan is made, for parameters that the class does not take."""
        try:
            inspect.signature(self._existing).bind(**parameters)
        except ValueError:
            pass  # It is written in C, and has no signature.
        except TypeError as error:
            raise PlanError(
                f"wrap({type(self).__name__}): it cannot be made with the parameters of apply: {error}. Give those "
                "that its constructor takes: apply(..., name=value)"
            ) from error
        return self.output

    def open(self, context: Context) -> None:
        self._last = self._existing
        self._wrapped = self._existing(**context.parameters)

    def process(self, batch: Batch) -> Batch | None:
        return self._process(batch, itertools.repeat(self._wrapped, len(batch)))

    def _process(self, batch: Batch, instances: Iterable[Any]) -> Batch | None:
        """Give each row to its instance."""
        update, names = self._user_method("_process"), batch.arrow.schema.names
        kept = keep_rows(batch.output)
        outputs: list[Any] = []
        origin: list[int] = []
        for place, (row, wrapped) in enumerate(zip(batch.rows(), instances, strict=True)):
            before = len(outputs)
            outputs.extend(map(kept, as_dicts(update(wrapped, dict(zip(names, row, strict=True))))))
            origin.extend([place] * (len(outputs) - before))
        return self._emit(batch, outputs, origin)

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        return self._end(p, [self._wrapped])

    def _end(self, p: Punctuation, instances: Iterable[Any]) -> Mapping[str, Any] | None:
        """Return what the instances emit at the end of the stream."""
        if p.kind != "end" or self._calls["_at_end"] is None:
            return None
        at_end = self._user_method("_at_end")
        outputs = [row for each in instances for row in map(keep_rows(None), as_dicts(at_end(each)))]
        return columns_of(outputs, None, lambda i: {"row": p.sn}, locate(self._last)) if outputs else None

    def get_state(self) -> Any:
        return self._user_method("_get_state")(self._wrapped)

    def install_state(self, state: Any) -> None:
        self._user_method("_install_state")(self._wrapped, state)

    def _user_method(self, what: str) -> Callable[..., Any]:
        called = self._calls[what]
        assert called is not None
        self._last = called
        return called


class _WrappedByKey(_Wrapped):
    """An instance of a user's class for each key of a partition."""

    is_by_key = True

    def open(self, context: Context) -> None:
        self._last = self._existing
        self._parameters, self._columns = context.parameters, context.key_columns
        self._instances: dict[Key, Any] = {}

    def process(self, batch: Batch) -> Batch | None:
        columns = [batch.column(name) for name in self._columns]
        return self._process(batch, map(self._instance, wrap_zoned(keys_within(batch, columns), columns)))

    def _instance(self, key: Key) -> Any:
        found = self._instances.get(key)
        if found is None:
            called, self._last = self._last, self._existing
            found = self._instances[key] = self._existing(**self._parameters)
            self._last = called
        return found

    def on_punctuation(self, p: Punctuation) -> Mapping[str, Any] | None:
        return self._end(p, self._instances.values())

    def get_state(self) -> Iterator[Any]:
        get_state = self._user_method("_get_state")
        entries = iter(self._instances.items())
        while some := [[list(key), get_state(each)] for key, each in itertools.islice(entries, _PIECE_KEYS)]:
            yield some

    def install_state(self, state: Any) -> None:
        install = self._user_method("_install_state")
        for cells, kept in state:
            key = rewrap_zoned(tuple(NAN if cell != cell else cell for cell in cells))
            install(self._instance(key), kept)


def _method(of: Any, name: str, what: str, given: Method, usual: tuple[str, ...]) -> Callable[..., Any]:
    """Return the function to call with an instance and perhaps a value."""
    if given is not None and not isinstance(given, str):
        if not callable(given):
            raise PlanError(
                f"wrap({name}, {what}=...): expected the name of a method or a function, got {given!r:.100}"
            )
        return given
    found = [given] if given is not None else list(usual)
    kind = of if isinstance(of, type) else type(of)
    for each in found:
        # Every class can be called, to make an instance; whether its instances can is defined in one of its bases.
        # Every object can return its state to pickle, too: `object` is not searched.
        defined = next((vars(base)[each] for base in kind.__mro__[:-1] if each in vars(base)), None)
        if defined is not None and callable(getattr(kind, each)):
            return _caller_of(each, defined)
    has = [each for each in dir(kind) if not each.startswith("_") and callable(getattr(kind, each, None))]
    missing = f"has no method {given!r}" if given is not None else f"has none of the methods {', '.join(usual)}"
    raise PlanError(
        f"wrap({name}): it {missing}; it has {', '.join(has) or 'no methods'}. Say with {what}= which of them to call, "
        f"or give a function of the instance: {_example(kind, what)}"
    )


def _check_call(called: Callable[..., Any] | None, name: str, what: str) -> None:
    """Raise if a function cannot be called with the arguments it will get."""
    if inspect.iscoroutinefunction(called):
        why = f"{called.__qualname__} is a coroutine function, and is not awaited"
    elif isinstance(called, FunctionType) and not _takes(called, _CALLED_WITH[what][1]):
        signature = f"{called.__qualname__}{inspect.signature(called, follow_wrapped=False)}"
        why = f"{signature} is called with {_CALLED_WITH[what][0]}, and does not take that"
    else:
        return
    raise PlanError(f"wrap({name}): {why}. Give a function that calls it: {_EXAMPLES[what]}")


def _takes(called: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(called, follow_wrapped=False).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _example(kind: type[Any], what: str) -> str:
    """Return an example for the user; instances that have only slots have no `vars`."""
    return _EXAMPLES[what] if kind.__dictoffset__ else _OF_SLOTS.get(what, _EXAMPLES[what])


def _caller_of(name: str, defined: Any) -> Callable[..., Any]:
    # A plain function of the class is called directly, so that errors name it; anything else as Python would.
    if isinstance(defined, FunctionType):
        return defined

    @wraps(defined, updated=())
    def call(instance: Any, *values: Any) -> Any:
        return getattr(instance, name)(*values)

    return call


_EXAMPLES = {
    "process": "process=lambda it, row: {...}",
    "get_state": "get_state=vars, if an instance is its attributes, or get_state=lambda it: None, if it has no state",
    "install_state": "install_state=lambda it, state: vars(it).update(state)",
    "at_end": "at_end=lambda it: [{...}]",
}
_OF_SLOTS = {
    "get_state": "get_state=lambda it: {name: getattr(it, name) for name in it.__slots__}",
    "install_state": "install_state=lambda it, state: [setattr(it, name, value) for name, value in state.items()]",
}


def _make_instance(existing: Callable[..., Any], name: str) -> Any:
    try:
        return existing()
    except Exception as error:
        raise PlanError(
            f"wrap({name}): called to see what it makes, it raised {type(error).__name__}: {error}. Give a class, or a "
            "function that makes an instance without arguments"
        ) from error
