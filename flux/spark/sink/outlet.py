"""`flux.spark.Outlet`: the output of a dataflow for Spark to read, kept on disk until Spark has committed it.

The egress appends each record batch of the output, forces it to the disk, and only then adds it to the index. So a
restarted egress finds the end of the output, and truncates what does not count. `reader` reads and deletes rows;
`outlet_store` defines the layout on disk.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...sinks.claim import Claim, changed_output, foreign_output, in_use, lock, taken_over
from ...sinks.sink import Sink, check_alike
from ...storage.disk import append, disk_error, make_durable_directory, replace_file, sync_directory
from ...system import filesystem
from ...types.errors import FluxError, PlanError, SinkError
from . import outlet_store

__all__ = ["Outlet"]

_NAME = "flux.spark.Outlet"
_SAFE = "The output that was written before is safe and complete"
_POLL_INTERVAL_S = 0.05
_LOCK_TIMEOUT_S = 5.0  # A reader that looks for a writer holds the lock for a moment.


class Outlet(Sink):
    """Keep the output in `directory`, each row once and in order, until a streaming query of Spark has committed it.

        results.sink(flux.spark.Outlet("/data/results"))
        ...
        flux.spark.register(spark)
        df = spark.readStream.format("flux").option("path", "/data/results").load()

    Rows are safe on the disk (fsync) before they count as output. They are deleted in segments of about
    `segment_bytes` when Spark has committed all of a segment. With `max_rows`, output waits while Spark has that many
    rows left to process. This back-pressure reaches the source; up to twice as many rows may be on the disk. One query
    reads an outlet.

    A directory that holds anything else is an error; `overwrite` removes the output of another run. One to which
    another run writes is an error in any case, and so is one that is removed, renamed or changed during the run.
    """

    blocks = True

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_rows: int | None = None,
        segment_bytes: int = 64 << 20,
        overwrite: bool = False,
    ) -> None:
        for name, value in (("max_rows", max_rows), ("segment_bytes", segment_bytes)):
            if value is None and name == "max_rows":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"{_NAME}: {name} must be a whole number above 0; got {value!r}")
        self._directory = Path(directory).absolute()
        self._max_rows = max_rows
        self._segment_bytes = segment_bytes
        self._overwrite = overwrite
        self._schema: pa.Schema | None = None
        self._interrupt_event = threading.Event()
        self._first = 0  # Position of the first row of the open segment.
        self._rows = 0  # Rows written in total.
        self._upto = 0
        self._size = 0  # Bytes of the open segment, and of its index:
        self._index_size = 0
        self._files: tuple[int, int] | None = None
        self._lock = -1
        self._claim: Claim | None = None

    def expect(self, schema: pa.Schema | None) -> None:
        if schema is None:
            raise PlanError(
                f"{_NAME}: Spark must know the columns before the first row: declare `output` with the operator "
                "before the sink"
            )
        self._schema = schema

    def open(self, directory: Path) -> int | None:
        with self._blaming_the_disk():
            self._claim = Claim(directory)
            if (ended_upto := self._claim.ended_upto) is not None:
                return ended_upto
            make_durable_directory(self._directory, 0o700)
            self._lock = self._take_lock()
            try:
                self._begin(self._claim)
            except BaseException:
                self._unlock()
                raise
        return self._upto

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        assert self._schema is not None
        check_alike(self._schema, rows.schema)
        self._wait_for_room()
        with self._blaming_the_disk():
            if self._files is None or self._size >= self._segment_bytes:
                self._check_owner()  # No segment of this run may stand among those of another.
                self._open_segment(self._rows)
            self._append(rows, after, upto)
            self._check_owner()  # Rows in a file without a name are not durable, and not acknowledged.

    def interrupt(self) -> None:
        self._interrupt_event.set()

    def close(self) -> None:
        if self._lock < 0:
            return
        assert self._claim is not None
        content = {"rows": self._rows, "sn": self._upto}
        with self._blaming_the_disk():
            self._check_owner()
            replace_file(self._directory / outlet_store.ENDED, json.dumps(content).encode(), fsync=True, mode=0o666)
            self._claim.end(self._upto)
        self._close_files()
        self._unlock()

    @contextlib.contextmanager
    def _blaming_the_disk(self) -> Iterator[None]:
        try:
            yield
        except outlet_store.Damaged as error:
            raise SinkError(f"{_NAME}: {error}") from error
        except OSError as error:
            raise disk_error(_NAME, self._directory, error, _SAFE) from error

    # Whose directory it is.

    def _take_lock(self) -> int:
        fd = filesystem.calls.open(self._directory / outlet_store.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not lock(fd):
            if time.monotonic() > deadline:
                filesystem.calls.close(fd)
                raise in_use(_NAME, self._directory, (self._read_claim() or {}).get("owner"))
            time.sleep(_POLL_INTERVAL_S)
        return fd

    def _unlock(self) -> None:
        filesystem.calls.close(self._lock)
        self._lock = -1

    def _begin(self, own: Claim) -> None:
        """Resume in the directory, or claim it; it is an error if this run had claimed it, and lost it."""
        found = self._read_claim()
        if found is not None and found["run"] == own.run:
            self._resume()
        elif own.is_made:
            raise self._lost(found)
        else:
            self._take_possession(own)
        own.make()

    def _read_claim(self) -> dict[str, Any] | None:
        return outlet_store.read_json(str(self._directory), outlet_store.CLAIM)

    def _check_owner(self) -> None:
        """Raise if the directory is not as this run left it; the open segment is the last, which no reader deletes."""
        assert self._claim is not None
        found = self._read_claim()
        if found is None or found["run"] != self._claim.run:
            raise self._lost(found)
        if self._files is None:
            return
        for fd, suffix in zip(self._files, (outlet_store.ROWS, outlet_store.INDEX), strict=True):
            path = self._directory / f"{outlet_store.segment(self._first)}{suffix}"
            opened = filesystem.calls.fstat(fd)
            try:
                named = filesystem.calls.stat(path)
            except FileNotFoundError:
                raise changed_output(_NAME, path, "was removed or renamed") from None
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                raise changed_output(_NAME, path, "was replaced by another file")

    def _lost(self, found: dict[str, Any] | None) -> SinkError:
        """Return the error for a directory that was this run's, and in which this claim, or none, was found."""
        if found is None:
            return changed_output(_NAME, self._directory, f"was removed, or its {outlet_store.CLAIM} was,")
        return taken_over(_NAME, self._directory, found.get("owner"))

    def _take_possession(self, own: Claim) -> None:
        """Claim the directory for this run, and remove the output of another if it may be removed."""
        names = filesystem.calls.listdir(self._directory)
        present = [self._directory / name for name in names if name != outlet_store.LOCK]
        if present and not self._overwrite:
            raise foreign_output(_NAME, self._directory, f"holds {present[0].name!r} already")
        for path in present:
            if path.name not in (
                outlet_store.CLAIM,
                outlet_store.COMMITTED,
                outlet_store.READ,
                outlet_store.ENDED,
            ) and not _is_ours(path):
                raise PlanError(
                    f"{_NAME}: {self._directory} holds {path.name!r}, which no run of Flux wrote. overwrite=True "
                    "removes only files that Flux wrote; choose another directory"
                )
        # The claim is removed first: without it, the other files do not count as output.
        for path in sorted(present, key=lambda path: path.name != outlet_store.CLAIM):
            filesystem.calls.unlink(path)
        assert self._schema is not None
        schema = base64.b64encode(self._schema.serialize().to_pybytes()).decode()
        claim = json.dumps({"run": own.run, "owner": own.owner, "schema": schema}).encode()
        replace_file(self._directory / outlet_store.CLAIM, claim, fsync=True, mode=0o666)

    def _resume(self) -> None:
        present = outlet_store.segments(str(self._directory))
        if not present:
            return
        store = outlet_store.OutletStore(str(self._directory))
        store.refresh()
        self._rows, self._first = store.end, present[-1]
        last = store.between(self._first, self._rows)
        if not last:
            # The last segment has no complete entry yet; those before it may be deleted already.
            self._rows = self._first
            self._upto = self._upto_before(store)
        else:
            self._upto = last[-1][1].upto
        self._open_segment(self._first)
        end = last[-1][1].offset + last[-1][1].size_bytes if last else 0
        self._size, self._index_size = end, len(last) * outlet_store.ENTRY.size
        assert self._files is not None
        for fd, size in zip(self._files, (self._size, self._index_size), strict=True):
            filesystem.calls.ftruncate(fd, size)

    def _upto_before(self, store: outlet_store.OutletStore) -> int:
        earlier = store.between(0, self._first)
        return earlier[-1][1].upto if earlier else 0

    # Writing rows.

    def _open_segment(self, first: int) -> None:
        self._close_files()
        name = outlet_store.segment(first)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        data = filesystem.calls.open(self._directory / f"{name}{outlet_store.ROWS}", flags, 0o666)
        index = filesystem.calls.open(self._directory / f"{name}{outlet_store.INDEX}", flags, 0o666)
        self._files = data, index
        self._first, self._size, self._index_size = first, 0, 0
        sync_directory(self._directory)

    def _append(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        assert self._files is not None
        data, index = self._files
        body = memoryview(rows.serialize())
        append(data, body, self._size)
        filesystem.calls.fsync(data)
        entry = outlet_store.OutletEntry(
            first=self._rows,
            rows=rows.num_rows,
            after=after,
            upto=upto,
            offset=self._size,
            size_bytes=len(body),
            crc=zlib.crc32(body),
        )
        append(index, outlet_store.pack(entry), self._index_size)
        filesystem.calls.fsync(index)
        self._size += len(body)
        self._index_size += outlet_store.ENTRY.size
        self._rows, self._upto = entry.end, upto

    def _wait_for_room(self) -> None:
        """Wait until Spark has processed enough rows; the back-pressure reaches the source."""
        while self._max_rows is not None and self._rows - outlet_store.read_end(str(self._directory)) >= self._max_rows:
            if self._interrupt_event.wait(_POLL_INTERVAL_S):
                raise FluxError(f"{_NAME}: the run was stopped while the output waited for Spark to read it")

    def _close_files(self) -> None:
        if self._files is not None:
            for fd in self._files:
                with contextlib.suppress(OSError):
                    filesystem.calls.close(fd)
            self._files = None


def _is_ours(path: Path) -> bool:
    return (
        path.suffix in (outlet_store.ROWS, outlet_store.INDEX)
        and path.stem.isdigit()
        and len(path.stem) == outlet_store.DIGITS
    )
