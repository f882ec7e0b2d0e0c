"""Clocks: what an operator would read of the time, while it runs here: a moment that stands still, and of our choice.

An operator whose output depends on the time of day gives different output at two moments, however little it depends on
it. So time stands still while an operator runs, and is another for the run that is compared. Who reads it is noted.

What is replaced are the functions of `time` and the classes of `datetime`, in these modules and wherever a module of
the program has imported them by name. A clock that is read in C, such as ``numpy.datetime64("now")``, is not.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pyarrow as pa

__all__ = ["LATER_S", "NOW_S", "Clock"]

NOW_S = 1_700_000_000.0
LATER_S = NOW_S + 98_765_432.125  # Years, hours, seconds and their fractions differ.
_OURS = ("flux", "hypothesis", "_hypothesis_", "pytest", "_pytest", "numpy", "pyarrow", "msgpack", "trio", "pluggy")
_REAL_DATETIME, _REAL_DATE = datetime.datetime, datetime.date


class Clock:
    """The clocks of this program, made to stand still where that is asked for."""

    def __init__(self) -> None:
        pa.array([])  # Arrow imports pandas when it is first given a list: not while `datetime` is ours.
        self._now_s = NOW_S
        self.read_at: list[str] = []  # Where, as file and line, and what.
        self._fakes: dict[int, tuple[Any, Any]] = {id(real): (real, fake) for real, fake in self._replaced()}
        self._places = list(self._found())

    @contextmanager
    def at(self, now_s: float) -> Iterator[None]:
        """It is this moment, and stays so."""
        self._now_s = now_s
        self.read_at.clear()
        try:
            for names, name, fake, _ in self._places:
                names[name] = fake
            yield
        finally:
            for names, name, _, real in self._places:
                names[name] = real

    def _found(self) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
        """Every name in a module of the program, and in `time` and `datetime`, that stands for a clock."""
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or not _is_the_programs(module):
                continue
            for name, value in list(vars(module).items()):
                known = self._fakes.get(id(value))
                if known is not None and known[0] is value:
                    yield vars(module), name, known[1], value

    def _note(self, what: str) -> None:
        frame = sys._getframe(2)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} ({what})"
        if place not in self.read_at:
            self.read_at.append(place)

    def _replaced(self) -> Iterator[tuple[Any, Any]]:
        for name in ("time", "monotonic", "perf_counter"):
            yield getattr(time, name), self._reading(f"time.{name}", lambda: self._now_s)
            yield (
                getattr(time, f"{name}_ns"),
                self._reading(f"time.{name}_ns", lambda: int(self._now_s * 1_000_000_000)),
            )
        for name in ("localtime", "gmtime", "ctime"):
            yield getattr(time, name), self._with_default(f"time.{name}", getattr(time, name))
        yield time.asctime, self._with_default_struct("time.asctime", time.asctime, 0)
        yield time.strftime, self._with_default_struct("time.strftime", time.strftime, 1)
        yield _REAL_DATETIME, self._datetime()
        yield _REAL_DATE, self._date()

    def _reading(self, what: str, now: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            self._note(what)
            return now()

        return read

    def _with_default(self, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def read(*moment: Any) -> Any:
            if moment and moment[0] is not None:
                return real(*moment)
            self._note(what)
            return real(self._now_s)

        return read

    def _with_default_struct(self, what: str, real: Callable[..., Any], before: int) -> Callable[..., Any]:
        """The same of functions that take local time taken apart, behind `before` other arguments."""
        local = time.localtime

        def read(*values: Any) -> Any:
            if len(values) > before:
                return real(*values)
            self._note(what)
            return real(*values, local(self._now_s))

        return read

    def _datetime(self) -> type[Any]:
        clock = self

        class Datetime(_REAL_DATETIME, metaclass=_Alike):  # type: ignore[valid-type,misc]
            """As `datetime.datetime`, of which its instances are; only what it says of now is ours."""

            real = _REAL_DATETIME

            def __new__(cls, *values: Any, **named: Any) -> Any:
                return _REAL_DATETIME(*values, **named)

            @classmethod
            def now(cls, tz: Any = None) -> Any:
                clock._note("datetime.now")
                return _REAL_DATETIME.fromtimestamp(clock._now_s, tz)

            @classmethod
            def utcnow(cls) -> Any:
                clock._note("datetime.utcnow")
                return _REAL_DATETIME.fromtimestamp(clock._now_s, datetime.timezone.utc).replace(tzinfo=None)  # noqa: UP017

            @classmethod
            def today(cls) -> Any:
                clock._note("datetime.today")
                return _REAL_DATETIME.fromtimestamp(clock._now_s)

        return Datetime

    def _date(self) -> type[Any]:
        clock = self

        class Date(_REAL_DATE, metaclass=_Alike):  # type: ignore[valid-type,misc]
            real = _REAL_DATE

            def __new__(cls, *values: Any, **named: Any) -> Any:
                return _REAL_DATE(*values, **named)

            @classmethod
            def today(cls) -> Any:
                clock._note("date.today")
                return _REAL_DATE.fromtimestamp(clock._now_s)

        return Date


class _Alike(type):
    """A class whose instances are those of the one it stands for."""

    real: type[Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)

    def __subclasscheck__(cls, other: type[Any]) -> bool:
        return issubclass(other, cls.real)


def _is_the_programs(module: ModuleType) -> bool:
    if module.__name__ in ("time", "datetime"):
        return True
    top = module.__name__.partition(".")[0]
    return top not in sys.stdlib_module_names and not top.startswith(_OURS)
