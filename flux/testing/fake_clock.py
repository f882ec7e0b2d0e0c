"""Clocks: what an operator would read of the time, while it runs here: a moment of our choice.

An operator whose output depends on the time of day gives different output at two moments, however little it depends on
it; and one that depends on how much time goes by, when it goes by faster. So time stands still while an operator runs;
in the run that is compared it is years later, and each reading is a day after the one before, which whoever waits for
anything takes for long; or now milliseconds, now a day. Who reads it is noted.

Replaced are the functions of `time`: in that module, wherever a module of the program has imported them by name, and in
what the operator holds: class attributes, default arguments, closures. The classes `date` and `datetime` remain what
they are, because values are of them; their methods that tell the time are replaced inside. A clock that is read in C,
such as ``numpy.datetime64("now")``, is not seen.
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

from .hidden_state import Held, held_by, is_the_programs

__all__ = ["LATER_S", "NOW_S", "PACES", "STEADY", "UNEVEN", "FakeClock"]

NOW_S = 1_700_000_000.0
LATER_S = NOW_S + 98_765_432.125  # Years, hours, seconds and their fractions differ.
STEADY, UNEVEN = 0, 1
PACES = ("a day goes by with each reading", "now milliseconds, now a day go by with each reading")
_DAY_S = 100_000.0  # And a little more, so that the hour is another one too.
_GOES_ON_S = (0.001, 0.02, 0.3, 5.0, 90.0, 1_500.0, 5_000.0, _DAY_S)


class FakeClock:
    """The clocks of this program, made to tell what is asked for; `roots` are what may hold some besides modules."""

    running: ClassVar[FakeClock | None] = None

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        pa.array([])  # Arrow imports pandas when it is first given a list: not while the clock is ours.
        self._now_s = NOW_S
        self._steps_s: Iterator[float] = repeat(0.0)
        self.read_at: list[str] = []  # Where, as file and line, and what.
        self._modules = set(sys.modules)
        every = (*_in_modules(self._modules), *held_by(roots))
        self._places = [(held, fake) for held in every if (fake := _fake_of(held.value)) is not None]

    @contextmanager
    def at(self, now_s: float, pace: int | None = None) -> Iterator[None]:
        """It is this moment, and stays so; or goes on from there, at one of the `PACES`, in the same way each time."""
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
        """Modules that were imported meanwhile have found the replaced functions: give them the real ones."""
        new = set(sys.modules) - self._modules
        self._modules |= new
        modules = [sys.modules[name] for name in sorted(new) if is_the_programs(name)]
        for held in list(held_by(module for module in modules if isinstance(module, ModuleType))):
            if isinstance(held.value, _Fake):
                held.put(held.value.real)
                self._places.append((Held(held.where, held.value.real, held.put), held.value))

    def read(self, what: str) -> float:
        """Tell the time to who asks for it, and note who that is."""
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
    return repeat(_DAY_S) if pace == STEADY else (rng.choice(_GOES_ON_S) for _ in count())


def _in_modules(names: Iterable[str]) -> Iterator[Held]:
    """Every name in a module of the program, and in `time`, that stands for a clock."""
    for module in [sys.modules[name] for name in sorted(names)]:
        if isinstance(module, ModuleType) and (module is time or is_the_programs(module.__name__)):
            for name, value in list(vars(module).items()):
                if _fake_of(value) is not None:
                    yield Held(f"{module.__name__}.{name}", value, partial(vars(module).__setitem__, name))


# --- functions -----------------------------------------------------------------------------------------------


class _Fake:
    """Stands for a function that tells the time, and is none itself, so that no class makes a method of it.

    One that is kept somewhere when nobody replaces clocks any more tells the real time.
    """

    def __init__(self, what: str, real: Callable[..., Any], told: Callable[..., Any]) -> None:
        self.what, self.real, self._told = what, real, told
        self.__name__, self.__doc__ = what.rpartition(".")[2], real.__doc__

    def __call__(self, *values: Any, **named: Any) -> Any:
        clock = FakeClock.running
        if clock is None:
            return self.real(*values, **named)
        return self._told(partial(clock.read, self.what), *values, **named)


Read = Callable[[], float]


def _seconds(read: Read, *_: Any) -> float:
    return read()


def _nanoseconds(read: Read, *_: Any) -> int:
    return int(read() * 1_000_000_000)


def _with_moment(real: Callable[..., Any], read: Read, moment: Any = None) -> Any:
    """Of functions that take a moment, or else now."""
    return real(read() if moment is None else moment)


def _with_struct(real: Callable[..., Any], before: int, local: Callable[..., Any], read: Read, *values: Any) -> Any:
    """Of functions that take local time taken apart, behind `before` other arguments, or else now."""
    return real(*values) if len(values) > before else real(*values, local(read()))


def _fakes() -> Iterator[_Fake]:
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"):
        for called, told in ((name, _seconds), (f"{name}_ns", _nanoseconds)):
            if hasattr(time, called):
                yield _Fake(f"time.{called}", getattr(time, called), told)
    for name in ("localtime", "gmtime", "ctime"):
        yield _Fake(f"time.{name}", getattr(time, name), partial(_with_moment, getattr(time, name)))
    yield _Fake("time.asctime", time.asctime, partial(_with_struct, time.asctime, 0, time.localtime))
    yield _Fake("time.strftime", time.strftime, partial(_with_struct, time.strftime, 1, time.localtime))
    for cls, name, told in _TELLING:
        yield _Fake(f"{cls.__name__}.{name}", getattr(cls, name), partial(_of_class, told, cls))


def _of_class(told: Callable[..., Any], cls: type[Any], read: Read, *values: Any, **named: Any) -> Any:
    return told(cls, read, *values, **named)


def _fake_of(value: Any) -> _Fake | None:
    # A method that was taken from a class, such as `datetime.now`, is another object each time; they are equal.
    return _FAKES.get(value) if isinstance(value, BuiltinFunctionType) else None


# --- methods of classes --------------------------------------------------------------------------------------


def _now(cls: Any, read: Read, tz: Any = None) -> Any:
    return cls.fromtimestamp(read(), tz)


def _utcnow(cls: Any, read: Read) -> Any:
    return cls.fromtimestamp(read(), datetime.UTC).replace(tzinfo=None)


def _today(cls: Any, read: Read) -> Any:
    return cls.fromtimestamp(read())


_TELLING: tuple[tuple[type[Any], str, Callable[..., Any]], ...] = (
    (datetime.datetime, "now", _now),
    (datetime.datetime, "utcnow", _utcnow),
    (datetime.datetime, "today", _today),
    (datetime.date, "today", _today),
)


def _method(name: str, told: Callable[..., Any]) -> Any:
    def reading(cls: type[Any], *values: Any, **named: Any) -> Any:
        clock = FakeClock.running
        assert clock is not None, "methods are put back before a clock ends"
        return told(cls, partial(clock.read, f"{cls.__name__}.{name}"), *values, **named)

    return classmethod(reading)


# `datetime.today` is that of `date`.
_OWN = [(cls, name, told) for cls, name, told in _TELLING if name in vars(cls)]
_METHODS = [(cls, name, _method(name, told)) for cls, name, told in _OWN]
_REAL_METHODS = [(cls, name, vars(cls)[name]) for cls, name, _ in _OWN]
_FAKES = {fake.real: fake for fake in _fakes()}


def _put_methods(methods: list[tuple[type[Any], str, Any]]) -> None:
    """Put other methods into classes that are written in C, which Python lets nobody do by assignment.

    Another class under the same name would not do: ``type(value) is date`` would be false for every date.
    """
    for cls, name, method in methods:
        gc.get_referents(vars(cls))[0][name] = method
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
