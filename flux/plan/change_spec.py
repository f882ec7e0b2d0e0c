"""Change spec: what a change of code makes of the steps of its stages, as it travels in a view.

It holds no code, only where code is found, `module:name`, and the hash of each source. It says all that differs from
the plan, also by earlier changes of the same stages, so that a process that comes later needs no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import msgpack
import pyarrow as pa

from ..types.errors import ChangeError
from ..wire.codec import Codec
from ..wire.frames import BadFrame

SPEC_BYTES_MAX = 1 << 20


FILTER, MAP = "filter", "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedStep:
    """A `filter` or `map` that stands before or after another step: its function is `module:name`."""

    kind: str
    function: str
    sources: tuple[tuple[str, str], ...]
    by_batch: bool
    output: bytes

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of what it emits, if it is known."""
        return read_schema(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """Step `place` of `stage`, as the change of number `since` left it.

    `operator` and `migrate` are `module:name`; the operator is that of the plan if it is empty. The modules that each
    takes anew have the hashes of their sources. `parameters` are those that differ from the plan's. `output` is the
    schema of what the operator emits, serialised; empty if it is not known. Rows pass the steps `before` it first, and
    those `after` it last; if it was `removed`, they pass only these.
    """

    stage: int
    place: int
    since: int
    operator: str
    sources: tuple[tuple[str, str], ...]
    migrate: str
    migrate_sources: tuple[tuple[str, str], ...]
    parameters: dict[str, Any]
    output: bytes
    before: tuple[AddedStep, ...] = ()
    after: tuple[AddedStep, ...] = ()
    removed: bool = False

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of what the operator emits, if it is known."""
        return read_schema(self.output)

    @property
    def emitted(self) -> pa.Schema | None:
        """The schema of what is emitted at its place, if it is known."""
        return self.after[-1].schema if self.after else self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSpec:
    """All steps of some stages that differ from the plan."""

    steps: tuple[StepChange, ...]


_CODEC = Codec([ChangeSpec, StepChange, AddedStep])


def write_schema(schema: pa.Schema | None) -> bytes:
    """Return a schema as it is in a spec."""
    return b"" if schema is None else cast(bytes, schema.serialize().to_pybytes())


def read_schema(packed: bytes) -> pa.Schema | None:
    """Return the schema that `write_schema` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(packed)) if packed else None


def write_spec(steps: Iterable[StepChange]) -> bytes:
    """Return the spec of these steps; `ChangeError` if it is too large, or a parameter is not a plain value."""
    spec = ChangeSpec(steps=tuple(steps))
    try:
        packed = cast(bytes, msgpack.packb(_CODEC.to_plain(spec)))
        read = read_spec(packed)
    except (TypeError, ValueError, OverflowError, BadFrame) as error:
        raise ChangeError(
            "the parameters of a change are plain values: numbers, text, bytes, lists, and dicts with text as keys; "
            f"{error}"
        ) from error
    if len(packed) > SPEC_BYTES_MAX:
        raise ChangeError(
            f"the parameters of a change take {len(packed):,} bytes, and go to every process; they may take "
            f"{SPEC_BYTES_MAX:,}. Put what is large into a file that every site can read, and give its path"
        )
    for given, back in zip(spec.steps, read.steps, strict=True):
        for name, value in given.parameters.items():
            if type(back.parameters[name]) is not type(value) and not isinstance(value, list | tuple):
                raise ChangeError(f"parameter {name!r} is {value!r:.200}: it is not a plain value. Give plain values")
    return packed


def read_spec(packed: bytes) -> ChangeSpec:
    """Return the spec that `write_spec` wrote; `BadFrame` if it is anything else."""
    try:
        plain = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"expected the spec of a change of code, got {packed[:40]!r}: {error}") from error
    return cast(ChangeSpec, _CODEC.from_plain(plain))
