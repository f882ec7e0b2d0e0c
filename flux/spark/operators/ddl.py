"""Schemas written as texts: "id string, readings array<double>", read without a Spark session.

Spark reads them in its JVM. Sites have none, so the grammar is here again, as far as it describes columns: names,
types, NOT NULL and COMMENT; `struct<name: type>` and types nested in others. What is not understood is a `PlanError`
that shows where, never another type.
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
}
_DECIMALS = ("decimal", "dec", "numeric")
_TEXTS: dict[str, Callable[[int], Any]] = {"varchar": types.VarcharType, "char": types.CharType}
# A name, a quoted name, a quoted text, a number, or one sign.
_TOKEN = re.compile(r"\s*(?:(\w+)|`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")


def struct_of(schema: Any, whose: str) -> Any:
    """Return a schema, a `StructType` or a text, as `StructType`; `whose` it is says an error.

    >>> struct_of("id string, at timestamp NOT NULL", "output").names
    ['id', 'at']
    """
    if isinstance(schema, types.StructType):
        return schema
    if not isinstance(schema, str):
        raise PlanError(
            f'{whose}: a schema is a StructType or a text such as "id string, count long"; it is {schema!r:.100}'
        )
    return _Reader(schema, whose).columns()


class _Reader:
    """Goes through the text of a schema from left to right."""

    def __init__(self, text: str, whose: str) -> None:
        self._text = text
        self._whose = whose
        self._place = 0

    def columns(self) -> Any:
        """The whole text as columns, with or without `struct<...>` around them."""
        if re.fullmatch(r"\s*struct\s*<.*>\s*", self._text, re.IGNORECASE | re.DOTALL):
            found = self._type()
        else:
            found = types.StructType(self._fields())
        if self._text[self._place :].strip():
            raise self._error("a comma or the end")
        return found

    def _fields(self) -> list[Any]:
        fields = [self._field()]
        while self._takes(","):
            fields.append(self._field())
        return fields

    def _field(self) -> Any:
        name = self._name()
        self._takes(":")
        kind = self._type()
        nullable = True
        if self._takes("not"):
            self._expect("null")
            nullable = False
        metadata = None
        if self._takes("comment"):
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
            self._need("(")
            return _TEXTS[name](*self._numbers(most=1))
        if name in _ATOMIC:
            return _ATOMIC[name]()
        self._place = start
        raise self._error(f"a type ({', '.join((*_ATOMIC, 'decimal(p,s)', 'array<...>', 'map<...>', 'struct<...>'))})")

    def _between(self, opening: str, count: int, closing: str) -> list[Any]:
        self._expect(opening)
        found = [self._type()]
        for _ in range(count - 1):
            self._expect(",")
            found.append(self._type())
        self._expect(closing)
        return found

    def _numbers(self, most: int) -> list[int]:
        """As many numbers in parentheses as there are, at most so many."""
        if not self._takes("("):
            return []
        numbers = [self._number()]
        while len(numbers) < most and self._takes(","):
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

    def _takes(self, token: str) -> bool:
        """Whether this comes next; then it is behind us."""
        found = self._peek()
        if found is None or (found[1] or found[4] or "").lower() != token:
            return False
        self._place = found.end()
        return True

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._error(repr(token))

    def _need(self, token: str) -> None:
        """Make sure that this comes next, and leave it there."""
        place = self._place
        self._expect(token)
        self._place = place

    def _peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._place)

    def _error(self, expected: str) -> PlanError:
        rest = self._text[self._place :].strip()
        return PlanError(
            f"{self._whose}: in the schema {self._text!r}, {expected} was expected "
            f"{f'at {rest[:40]!r}' if rest else 'at its end'}; write it as Spark does, or give a StructType"
        )
