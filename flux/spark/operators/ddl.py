"""A parser of schemas written as texts, such as "id string, readings array<double>", without a Spark session.

Spark parses them in its JVM. Sites have none, so this module repeats the part of the grammar that describes columns:
names, types, NOT NULL and COMMENT; `struct<name: type>` and nested types. A text that is not understood is a
`PlanError` that shows the place, never another type.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import types

from ...types.errors import PlanError

__all__ = ["struct_of"]

_ATOMIC: dict[str, Callable[[], Any]] = {
    "boolean": types.BooleanType,
    "tinyint": types.ByteType,
    "byte": types.ByteType,
    "smallint": types.ShortType,
    "short": types.ShortType,
    "int": types.IntegerType,
    "integer": types.IntegerType,
    "bigint": types.LongType,
    "long": types.LongType,
    "float": types.FloatType,
    "real": types.FloatType,
    "double": types.DoubleType,
    "string": types.StringType,
    "binary": types.BinaryType,
    "date": types.DateType,
    "timestamp": types.TimestampType,
    "timestamp_ltz": types.TimestampType,
    "timestamp_ntz": types.TimestampNTZType,
    "void": types.NullType,
}
_DAY_TIME = ("day", "hour", "minute", "second")
_YEAR_MONTH = ("year", "month")
_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS: dict[str, Callable[[int], Any]] = {"varchar": types.VarcharType, "char": types.CharType}
# A name or number, a quoted name, a quoted text, or a punctuation mark.
_TOKEN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")


def struct_of(schema: Any, owner: str) -> Any:
    """Return a schema, given as a `StructType` or a text, as a `StructType`; errors begin with `owner`.

    >>> struct_of("id string, at timestamp NOT NULL", "output").names
    ['id', 'at']
    """
    if isinstance(schema, types.StructType):
        return schema
    if not isinstance(schema, str):
        raise PlanError(
            f'{owner}: a schema must be a StructType or a text such as "id string, count long"; got {schema!r:.100}'
        )
    return _Parser(schema, owner).columns()


class _Parser:
    """A parser of the text of a schema, from left to right."""

    def __init__(self, text: str, owner: str) -> None:
        self._text = text
        self._owner = owner
        self._place = 0

    def columns(self) -> Any:
        """Parse the whole text as columns, with or without `struct<...>` around them."""
        if re.fullmatch(r"\s*struct\s*<.*>\s*", self._text, re.IGNORECASE | re.DOTALL):
            found = self._type()
        else:
            found = types.StructType(self._fields())
        if self._text[self._place :].strip():
            raise self._error("a comma or the end")
        return found

    def _fields(self) -> list[Any]:
        fields = [self._field()]
        while self._consume(","):
            fields.append(self._field())
        return fields

    def _field(self) -> Any:
        name = self._name()
        self._consume(":")
        kind = self._type()
        nullable = True
        if self._consume("not"):
            self._expect("null")
            nullable = False
        metadata = None
        if self._consume("comment"):
            metadata = {"comment": self._quoted()}
        return types.StructField(name, kind, nullable, metadata)

    def _type(self) -> Any:
        start = self._place
        name = self._name().lower()
        if name == "array":
            return types.ArrayType(*self._between("<", 1, ">"))
        if name == "map":
            return types.MapType(*self._between("<", 2, ">"))
        if name == "struct":
            self._expect("<")
            fields = self._fields()
            self._expect(">")
            return types.StructType(fields)
        if name in _DECIMALS:
            return types.DecimalType(*self._numbers(most=2))
        if name in _TEXTS:
            self._require("(")
            return _TEXTS[name](*self._numbers(most=1))
        if name == "interval":
            return self._interval()
        if name == "string" and self._consume("collate"):
            return types.StringType(self._name())
        if name in _ATOMIC:
            return _ATOMIC[name]()
        self._place = start
        known = (*_ATOMIC, "decimal(p,s)", "interval ...", "array<...>", "map<...>", "struct<...>")
        raise self._error(f"a type ({', '.join(known)})")

    def _interval(self) -> Any:
        """Parse the units of an interval, such as `day to second`; without units it is a calendar interval."""
        for units, kind in ((_DAY_TIME, types.DayTimeIntervalType), (_YEAR_MONTH, types.YearMonthIntervalType)):
            for start, unit in enumerate(units):
                if self._consume(unit):
                    end = start
                    if self._consume("to"):
                        end = next((i for i in range(start + 1, len(units)) if self._consume(units[i])), -1)
                        if end < 0:
                            raise self._error(f"a smaller unit than {unit}")
                    return kind(start, end)
        return types.CalendarIntervalType()

    def _between(self, opening: str, count: int, closing: str) -> list[Any]:
        self._expect(opening)
        found = [self._type()]
        for _ in range(count - 1):
            self._expect(",")
            found.append(self._type())
        self._expect(closing)
        return found

    def _numbers(self, most: int) -> list[int]:
        """Parse up to `most` numbers in parentheses; return an empty list without parentheses."""
        if not self._consume("("):
            return []
        numbers = [self._number()]
        while len(numbers) < most and self._consume(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        found = self._peek()
        if found is None or not (found[1] or "").isdigit():
            raise self._error("a number")
        self._place = found.end()
        return int(found[1])

    def _name(self) -> str:
        found = self._peek()
        if found is None or not (found[1] or found[2]):
            raise self._error("a name")
        self._place = found.end()
        return str(found[1] or found[2].replace("``", "`"))

    def _quoted(self) -> str:
        found = self._peek()
        if found is None or not found[3]:
            raise self._error("a text in quotes")
        self._place = found.end()
        return re.sub(r"\\(.)", r"\1", found[3][1:-1])

    def _consume(self, token: str) -> bool:
        """Consume the token if it is next; return whether it was."""
        found = self._peek()
        if found is None or (found[1] or found[4] or "").lower() != token:
            return False
        self._place = found.end()
        return True

    def _expect(self, token: str) -> None:
        if not self._consume(token):
            raise self._error(repr(token))

    def _require(self, token: str) -> None:
        """Check that the token is next, without consuming it."""
        place = self._place
        self._expect(token)
        self._place = place

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._place)

    def _error(self, expected: str) -> PlanError:
        rest = self._text[self._place :].strip()
        return PlanError(
            f"{self._owner}: in the schema {self._text!r}, {expected} was expected "
            f"{f'at {rest[:40]!r}' if rest else 'at its end'}; write it as Spark does, or give a StructType"
        )
