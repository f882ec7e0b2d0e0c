"""A fake clock: while an operator runs here, the clocks that it reads show a time of our choice.

An operator that depends on the time of day emits different output at two times. One that depends on elapsed time emits
different output when time passes faster. So time stands still in the first run. In the run that it is compared with it
is years later, and each reading is a day after the one before, longer than any timeout; or the steps vary between
milliseconds and a day. The places that read the clock are recorded.

Replaced are the functions of `time`: in that module, wherever a module of the program has imported them by name, and in
what the operator holds: class attributes, default arguments, closures. The classes `date` and `datetime` stay, because
values have these types; their methods that read the clock are replaced inside. A clock that is read in C, such as
``numpy.datetime64("now")``, is not detected.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, repeat
from types import BuiltinFunctionType, ModuleType
from typing import Any, ClassVar

import pyarrow as pa

from .hidden_state import HeldValue, held_by, is_program_module

__all__ = ["LATER_S", "NOW_S", "PACES", "STEADY", "UNEVEN", "FakeClock"]

NOW_S = 1_700_000_000.0
LATER_S = NOW_S + 98_765_432.125  # Years, hours, seconds and their fractions differ.
STEADY, UNEVEN = 0, 1
PACES = ("each reading is a day later", "each reading is between milliseconds and a day later")
_DAY_S = 100_000.0  # A little more than a day, so that the hour differs too.
_UNEVEN_STEPS_S = (0.001, 0.02, 0.3, 5.0, 90.0, 1_500.0, 5_000.0, _DAY_S)


class FakeClock:
    """Replaces the clocks of this program; `roots` are objects that may hold some, besides modules."""

    running: ClassVar[FakeClock | None] = None

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        pa.array([])  # Arrow imports pandas at its first list: that must not happen while the clocks are replaced.
        self._now_s = NOW_S
        self._steps_s: Iterator[float] = repeat(0.0)
        self.read_at: list[str] = []  # Each place that reads a clock: file, line and function.
        self._modules = set(sys.modules)
        every = (*_in_modules(self._modules), *held_by(roots))
        self._places = [(held, fake) for held in every if (fake := _fake_of(held.value)) is not None]

    @contextmanager
    def at(self, now_s: float, pace: int | None = None) -> Iterator[None]:
        """Set the clocks to this time until the block ends; they stand still, or advance at one of the `PACES`."""
        self._now_s, self._steps_s = now_s, _steps_s(pace)
        self.read_at.clear()
        try:
            FakeClock.running = self
            for held, fake in self._places:
                held.put(fake)
            _put_methods(_METHODS)
            yield
        finally:
            _put_methods(_REAL_METHODS)
            for held, _ in self._places:
                held.put(held.value)
            FakeClock.running = None
            if len(sys.modules) != len(self._modules):
                self._put_back()

    def _put_back(self) -> None:
        """Put the real functions into modules that were imported meanwhile and got the replaced ones."""
        new = set(sys.modules) - self._modules
        self._modules |= new
        modules = [sys.modules[name] for name in sorted(new) if is_program_module(name)]
        for held in list(held_by(module for module in modules if isinstance(module, ModuleType))):
            if isinstance(held.value, _Fake):
                held.put(held.value.real)
                self._places.append((HeldValue(held.where, held.value.real, held.put), held.value))

    def read(self, what: str) -> float:
        """Return the time, and record the place that reads it."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({what})"
        if place not in self.read_at:
            self.read_at.append(place)
        self._now_s += next(self._steps_s)
        return self._now_s


def _steps_s(pace: int | None) -> Iterator[float]:
    if pace is None:
        return repeat(0.0)
    rng = random.Random(0)
    return repeat(_DAY_S) if pace == STEADY else (rng.choice(_UNEVEN_STEPS_S) for _ in count())


def _in_modules(names: Iterable[str]) -> Iterator[HeldValue]:
    """Yield every name in a module of the program, and in `time`, that refers to a clock."""
    for module in [sys.modules[name] for name in sorted(names)]:
        if isinstance(module, ModuleType) and (module is time or is_program_module(module.__name__)):
            for name, value in list(vars(module).items()):
                if _fake_of(value) is not None:
                    yield HeldValue(f"{module.__name__}.{name}", value, partial(vars(module).__setitem__, name))


# --- functions -----------------------------------------------------------------------------------------------


class _Fake:
    """Replaces a function that reads a clock. It is not a function itself, so that classes do not bind it as a method.

    One that is still referenced after the clocks are restored returns the real time.
    """

    def __init__(self, what: str, real: Callable[..., Any], fake: Callable[..., Any]) -> None:
        self.what, self.real, self._fake = what, real, fake
        self.__name__, self.__doc__ = what.rpartition(".")[2], real.__doc__

    def __call__(self, *values: Any, **named: Any) -> Any:
        clock = FakeClock.running
        if clock is None:
            return self.real(*values, **named)
        return self._fake(partial(clock.read, self.what), *values, **named)


Read = Callable[[], float]


def _seconds(read: Read, *_: Any) -> float:
    return read()


def _nanoseconds(read: Read, *_: Any) -> int:
    return int(read() * 1_000_000_000)


def _with_moment(real: Callable[..., Any], read: Read, moment: Any = None) -> Any:
    """Call a function that takes an optional time, with the fake time as its default."""
    return real(read() if moment is None else moment)


def _with_struct(real: Callable[..., Any], before: int, local: Callable[..., Any], read: Read, *values: Any) -> Any:
    """Call a function that takes an optional `struct_time` after `before` other arguments, with a fake default."""
    return real(*values) if len(values) > before else real(*values, local(read()))


def _fakes() -> Iterator[_Fake]:
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"):
        for full_name, fake in ((name, _seconds), (f"{name}_ns", _nanoseconds)):
            if hasattr(time, full_name):
                yield _Fake(f"time.{full_name}", getattr(time, full_name), fake)
    for name in ("localtime", "gmtime", "ctime"):
        yield _Fake(f"time.{name}", getattr(time, name), partial(_with_moment, getattr(time, name)))
    yield _Fake("time.asctime", time.asctime, partial(_with_struct, time.asctime, 0, time.localtime))
    yield _Fake("time.strftime", time.strftime, partial(_with_struct, time.strftime, 1, time.localtime))
    for cls, name, method in _FAKE_METHODS:
        yield _Fake(f"{cls.__name__}.{name}", getattr(cls, name), partial(_of_class, method, cls))


def _of_class(method: Callable[..., Any], cls: type[Any], read: Read, *values: Any, **named: Any) -> Any:
    return method(cls, read, *values, **named)


def _fake_of(value: Any) -> _Fake | None:
    # Each access to a method of a class, such as `datetime.now`, returns a new object; they are equal.
    return _FAKES.get(value) if isinstance(value, BuiltinFunctionType) else None


# --- methods of classes --------------------------------------------------------------------------------------


def _now(cls: Any, read: Read, tz: Any = None) -> Any:
    return cls.fromtimestamp(read(), tz)


def _utcnow(cls: Any, read: Read) -> Any:
    return cls.fromtimestamp(read(), datetime.UTC).replace(tzinfo=None)


def _today(cls: Any, read: Read) -> Any:
    return cls.fromtimestamp(read())


_FAKE_METHODS: tuple[tuple[type[Any], str, Callable[..., Any]], ...] = (
    (datetime.datetime, "now", _now),
    (datetime.datetime, "utcnow", _utcnow),
    (datetime.datetime, "today", _today),
    (datetime.date, "today", _today),
)


def _as_classmethod(name: str, method: Callable[..., Any]) -> Any:
    def read_fake(cls: type[Any], *values: Any, **named: Any) -> Any:
        clock = FakeClock.running
        assert clock is not None, "methods are put back before a clock ends"
        return method(cls, partial(clock.read, f"{cls.__name__}.{name}"), *values, **named)

    return classmethod(read_fake)


# Without `datetime.today`, which is inherited from `date`.
_OWN = [(cls, name, method) for cls, name, method in _FAKE_METHODS if name in vars(cls)]
_METHODS = [(cls, name, _as_classmethod(name, method)) for cls, name, method in _OWN]
_REAL_METHODS = [(cls, name, vars(cls)[name]) for cls, name, _ in _OWN]
_FAKES = {fake.real: fake for fake in _fakes()}


def _put_methods(methods: list[tuple[type[Any], str, Any]]) -> None:
    """Put other methods into classes that are written in C, which Python does not allow by assignment.

    Another class under the same name is not an option: ``type(value) is date`` would be false for every date.
    """
    for cls, name, method in methods:
        gc.get_referents(vars(cls))[0][name] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
