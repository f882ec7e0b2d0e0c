"""The sink `Jsonl`: the output as lines of JSON, appended to a file.

A small note file beside it says which run owns the file, how many of its bytes are valid, and up to which position they
go. The note is replaced when the lines are on the disk; the next egress cuts off lines that are not in the note. The
file is locked while an egress has it open.
"""

from __future__ import annotations

import base64
import json
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..storage.disk import append, disk_error, make_durable_directory, replace_file, sync_directory
from ..system import filesystem
from ..types.errors import FluxError, PlanError, SinkError
from ..types.to_python import format_value
from .claim import Claim, changed_output, foreign_output, in_use, lock, taken_over
from .sink import Sink

_NAME = "flux.sinks.Jsonl"
_KEPT = "The output that was written before is safe and whole"


class Jsonl(Sink):
    """Append each row as a line of JSON to the file `path`: in order, each exactly once.

    Lines are on the disk (fsync) before they are acknowledged; a reader may see some before that. Values without a
    form in JSON: bytes are base64, times ISO 8601, decimals and others text; NaN and infinities are null. A time
    outside the years 1 to 9999 is an error.

    A file that another run has written is an error unless `overwrite` is set. One to which another run writes is an
    error in any case, and so is one that is removed, renamed or changed during the run. Its owner and the position of
    the output are kept beside it, in ``.NAME.flux``, which is removed at the end of the stream.
    """

    blocks = True

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        self._path = Path(path)
        self._note = self._path.with_name(f".{self._path.name}.flux")
        self._overwrite = overwrite
        self._fd = -1
        self._size = 0
        self._upto = 0
        self._claim: Claim | None = None

    def open(self, directory: Path) -> int | None:
        try:
            self._claim = Claim(directory)
            if (ended_upto := self._claim.ended_upto) is not None:
                return ended_upto
            if filesystem.is_directory(self._path):
                raise PlanError(f"{_NAME}: {self._path} is a directory; give the path of a file")
            make_durable_directory(self._path.parent)
            self._fd = filesystem.calls.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._take_possession(self._claim)
            except BaseException:
                filesystem.calls.close(self._fd)
                self._fd = -1
                raise
        except OSError as error:
            raise disk_error(_NAME, self._path, error, _KEPT) from error
        return self._upto

    def _take_possession(self, claim: Claim) -> None:
        note = self._read_note()
        if not lock(self._fd):
            raise in_use(_NAME, self._path, note.get("owner"))
        size = filesystem.calls.fstat(self._fd).st_size
        if note.get("run") == claim.run:
            self._size, self._upto = note["bytes"], note["upto"]
        elif claim.is_made:
            raise taken_over(_NAME, self._path, note.get("owner")) if note else self._changed("was removed")
        elif size and not self._overwrite:
            whose = f", of a run that did not end ({note['owner']})" if "owner" in note else ""
            raise foreign_output(_NAME, self._path, f"is there already and not empty{whose}")
        if size < self._size:
            raise self._changed(f"has {size:,} bytes, but {self._size:,} were written and acknowledged: it was cut")
        filesystem.calls.ftruncate(self._fd, self._size)
        sync_directory(self._path.parent)  # Lines are durable only if the file's name is.
        self._write_note(claim)
        claim.make()

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        lines = _lines(_readable(rows), f"the output of the input {after + 1:,} to {upto:,}")
        assert self._claim is not None
        try:
            self._check_owner(self._claim)
            append(self._fd, lines, self._size)
            filesystem.calls.fsync(self._fd)
            self._check_name()  # Lines of a file without a name are not durable, and not acknowledged.
            self._size += len(lines)
            self._upto = upto
            self._write_note(self._claim)
        except OSError as error:
            raise disk_error(_NAME, self._path, error, _KEPT) from error

    def takes(self, schema: pa.Schema, before: pa.Schema | None) -> bool:
        return True

    def close(self) -> None:
        if self._fd < 0:
            return
        assert self._claim is not None
        try:
            self._check_owner(self._claim)
            self._claim.end(self._upto)
            filesystem.remove(self._note)
        except OSError as error:
            raise disk_error(_NAME, self._path, error, _KEPT) from error
        finally:
            filesystem.calls.close(self._fd)
            self._fd = -1

    # Whose file it is.

    def _check_owner(self, claim: Claim) -> None:
        """Raise if the file is not as this run left it."""
        self._check_name()
        note = self._read_note()
        if note.get("run") != claim.run:
            raise taken_over(_NAME, self._path, note.get("owner")) if note else self._changed("has lost its note")
        size = filesystem.calls.fstat(self._fd).st_size
        if size != self._size:
            raise self._changed(f"has {size:,} bytes, but {self._size:,} were written: it was changed")

    def _check_name(self) -> None:
        try:
            named = filesystem.calls.stat(self._path)
        except FileNotFoundError:
            raise self._changed("was removed or renamed") from None
        opened = filesystem.calls.fstat(self._fd)
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            raise self._changed("was replaced by another file")

    def _changed(self, what: str) -> SinkError:
        return changed_output(_NAME, self._path, what)

    def _read_note(self) -> dict[str, Any]:
        try:
            note = json.loads(filesystem.read_whole(self._note))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise self._damaged(str(error)) from error
        if not isinstance(note, dict) or not note.keys() >= {"run", "owner", "bytes", "upto"}:
            raise self._damaged(f"it holds {note!r:.80}")
        return note

    def _damaged(self, what: str) -> SinkError:
        return SinkError(
            f"{_NAME}: {self._note}, the note that says whose output {self._path.name} is, is damaged: {what}. A loss "
            "of power may cause that. Remove the note, and with it the output of that run, or choose another path"
        )

    def _write_note(self, claim: Claim) -> None:
        # Not forced to the disk: only the next egress of this run reads it, and a loss of power ends the run.
        note = {"run": claim.run, "owner": claim.owner, "bytes": self._size, "upto": self._upto}
        replace_file(self._note, json.dumps(note).encode(), fsync=False)


def _readable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Turn times of nanoseconds into text: those of Python are not so fine."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            form = "%Y-%m-%dT%H:%M:%S%z" if field.type.tz is not None else "%Y-%m-%dT%H:%M:%S"
            rows = rows.set_column(index, field.name, pc.strftime(rows.column(index), format=form))
    return rows


def _lines(rows: pa.RecordBatch, where: str) -> bytes:
    names = rows.schema.names
    columns = [_values(name, column, where) for name, column in zip(names, rows.columns, strict=True)]
    texts = [_text(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]
    return "\n".join([*texts, ""]).encode()


def _values(name: str, column: pa.Array, where: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        row = next(row for row in range(len(column)) if not _is_python_value(column[row]))
        shown = format_value(column[row : row + 1])
        raise FluxError(
            f"{_NAME} cannot write the column {name!r}: it is {shown} in row {row + 1} of {where}. Times go from the "
            f"years 1 to 9999 ({error}). Leave such rows out with filter, change them with map, or use "
            "flux.sinks.Parquet, which holds them as they are"
        ) from error
    return values


def _is_python_value(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _text(row: dict[str, Any]) -> str:
    try:
        return _ENCODER.encode(row)
    except ValueError:
        return _ENCODER.encode(_finite(row))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


# Made once: making an encoder costs more than encoding a row.
_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False)
