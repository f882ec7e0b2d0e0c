"""An endless stream of packets, the flow over it, and a sink that checks its output against a plain run as it comes.

Packets are made in chunks, each from its own seed, so that the same row number always gives the same row. Keys are few,
so that the plain run's dicts stay small however long it lasts. The plain run is a loop over rows, as in `dmz`.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import flux
from experiments import dmz

CHUNK_ROWS = 8_192
SOURCES, DESTINATIONS = 100, 20
BEHIND_MAX_ROWS = 5_000_000  # Output that waits to be checked.

Output = tuple[int, int, int, float]


class Mismatch(AssertionError):
    """The output is not that of the plain run: rows were lost, repeated, reordered or changed."""


@lru_cache(maxsize=2)
def chunk(number: int) -> pa.RecordBatch:
    """Packets number * CHUNK_ROWS to (number + 1) * CHUNK_ROWS - 1."""
    draw = np.random.default_rng(number)
    data = draw.integers(0, 256, (CHUNK_ROWS, dmz.PAYLOAD_BYTES), np.uint8)
    data[:, 0] = draw.choice(np.frombuffer(b"SE", np.uint8), CHUNK_ROWS)
    data[:, 1] = draw.integers(0, dmz.APPLICATIONS, CHUNK_ROWS)
    columns = [
        pa.array(draw.integers(0, SOURCES, CHUNK_ROWS, np.int32)),
        pa.array(draw.integers(0, DESTINATIONS, CHUNK_ROWS, np.int32)),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(dmz.PAYLOAD_BYTES), CHUNK_ROWS, [None, pa.py_buffer(data)]),
        pa.array(np.arange(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS) * 10 + draw.integers(0, 10, CHUNK_ROWS)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=dmz.PACKETS)


class Packets:
    """The function of a `Generator`: packets without end, until `end` says where it is."""

    def __init__(self, end: Path) -> None:
        self._end = end

    def __call__(self, offset: int, count: int) -> pa.RecordBatch | None:
        last = self.last()
        if last is not None and offset >= last:
            return None
        number, start = divmod(offset, CHUNK_ROWS)
        rows = chunk(number).slice(start, count)
        return rows if last is None else rows.slice(0, last - offset)

    def last(self) -> int | None:
        """How many rows there are, if that is decided."""
        try:
            return int(self._end.read_text())
        except FileNotFoundError:
            return None

    def end(self, rows: int) -> None:
        """The stream ends behind so many rows, of which none beyond may have been given yet."""
        part = self._end.with_suffix(".part")
        part.write_text(str(rows))
        part.rename(self._end)


def plain(rows: Iterator[dmz.Row]) -> Iterator[Output]:
    """What the flow gives, row by row: `dmz.loop` for a stream that does not end."""
    started: dict[tuple[int, int], tuple[int, int]] = {}
    windows: dict[tuple[int, int], list[int]] = {}
    for src, dst, data, ts in rows:
        if data[:1] == b"S":
            started[src, dst] = (data[1], ts)
        elif (session := started.pop((src, dst), None)) is not None:
            app, since = session
            window = windows.setdefault((app, src), [])
            window.append(ts - since)
            if len(window) > dmz.HISTORY:
                del window[0]
            if len(window) == dmz.HISTORY:
                yield app, src, max(window), sum(window) / dmz.HISTORY


def packets(last: int | None = None) -> Iterator[dmz.Row]:
    """The packets as tuples, without end or up to the `last`."""
    number = 0
    while last is None or number * CHUNK_ROWS < last:
        batch = chunk(number)
        yield from dmz.to_rows([batch if last is None else batch.slice(0, last - number * CHUNK_ROWS)])
        number += 1


class Checked(flux.sinks.Collect):
    """A sink in the program that keeps nothing: a thread compares each row with the plain run's."""

    def __init__(self) -> None:
        super().__init__()
        self.checked = 0
        self.wrong: Mismatch | None = None
        self._given = 0
        self._last: int | None = None  # How many rows of input there were, once that is known.
        self._missing = 0
        self._waiting: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None:
        self._given += rows.num_rows
        if self._given - self.checked > BEHIND_MAX_ROWS:
            raise flux.FluxError(f"the check is {BEHIND_MAX_ROWS:,} rows of output behind: lower the rate")
        self._waiting.put(rows)

    def start(self) -> None:
        """Begin to check; when the run has started, because a program with threads is better not forked."""
        self._thread = threading.Thread(target=self._check, name="soak-check", daemon=True)
        self._thread.start()

    def finish(self, last: int | None) -> None:
        """The run is over, and its input had `last` rows: nothing may be missing. None: it ended with an error."""
        assert self._thread is not None
        self._last = last
        self._waiting.put(None)
        self._thread.join()
        self.raise_if_wrong()
        if self._missing:
            raise _missing(self.checked, self._missing)

    def raise_if_wrong(self) -> None:
        """Raise what the check has found."""
        if self.wrong is not None:
            raise self.wrong

    def _packets(self) -> Iterator[dmz.Row]:
        for number, row in enumerate(packets()):
            if self._last is not None and number >= self._last:
                return
            yield row

    def _check(self) -> None:
        expected = plain(self._packets())
        while (rows := self._waiting.get()) is not None and self.wrong is None:
            came = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            wanted = list(islice(expected, len(came)))
            if came != wanted:
                wanted += [(0, 0, 0, 0.0)] * (len(came) - len(wanted))  # More came than there are.
                place = next(index for index, pair in enumerate(zip(came, wanted, strict=True)) if pair[0] != pair[1])
                self.wrong = Mismatch(
                    f"row {self.checked + place:,} of the output is {came[place]}, expected {wanted[place]}; "
                    f"the next are {came[place + 1 : place + 4]}, expected {wanted[place + 1 : place + 4]}"
                )
            self.checked += len(came)
        if self.wrong is None and self._last is not None:
            self._missing = sum(1 for _ in expected)


class Lines:
    """The file of a `Jsonl` sink, which is compared with the plain run when the run is over."""

    def __init__(self, path: Path) -> None:
        self.sink = flux.sinks.Jsonl(path)
        self.checked = 0
        self._path = path

    def start(self) -> None:
        """Nothing is compared while the run goes on."""

    def raise_if_wrong(self) -> None:
        """Nothing is known while the run goes on."""

    def finish(self, last: int | None) -> None:
        """The run is over, and its input had `last` rows: nothing may be missing. None: it ended with an error."""
        expected = plain(packets(last))
        with self._path.open() as lines:
            for line in lines:
                row, wanted = tuple(json.loads(line).values()), next(expected, None)
                if row != wanted:
                    raise Mismatch(f"row {self.checked:,} of the output is {row}, expected {wanted}")
                self.checked += 1
        if last is not None and (missing := sum(1 for _ in expected)):
            raise _missing(self.checked, missing)


def _missing(checked: int, missing: int) -> Mismatch:
    return Mismatch(f"{checked:,} rows came, and {missing:,} more were expected")


def flow(packets: Packets, sink: flux.sinks.Sink, partitions: int, **settings: Any) -> flux.Dataflow:
    """The dataflow of thesis 2.2 over the endless packets."""
    return dmz.flow(flux.sources.Generator(packets, schema=dmz.PACKETS, **settings), partitions, sink)
