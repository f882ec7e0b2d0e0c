"""Compressed files, by the suffix of their names: read as if they were not compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

SKIP_BYTES = 1 << 20

# What a decompressor raises for content that is damaged or not all there yet.
DAMAGED = (OSError, EOFError, lzma.LZMAError, pa.ArrowException)


class _ZstdFile(io.RawIOBase):
    """A file compressed with zstd, by Arrow: the standard library has no decompressor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = pa.input_stream(str(path), compression="zstd")
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, "the end of a compressed file is not known before it is read"
        if offset < self._position:
            self._stream.close()
            self._stream, self._position = pa.input_stream(str(self._path), compression="zstd"), 0
        while self._position < offset and self.read(min(SKIP_BYTES, offset - self._position)):
            pass
        return self._position

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._stream.read(None if size < 0 else size))
        self._position += len(data)
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


_OPENERS: dict[str, Callable[[Path], object]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _ZstdFile,
}

SUFFIXES = tuple(_OPENERS)


def is_compressed(path: Path) -> bool:
    """Return whether the name says that the file is compressed."""
    return path.suffix in _OPENERS


def plain_name(path: Path) -> Path:
    """Return the name of a file without the suffix of its compression.

    >>> plain_name(Path("app.jsonl.gz")).name
    'app.jsonl'
    """
    return path.with_suffix("") if is_compressed(path) else path


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading; what is read is not compressed."""
    # Without a buffer: a file that is truncated is not to be read from what was buffered before.
    opened = _OPENERS[path.suffix](path) if is_compressed(path) else path.open("rb", buffering=0)
    return cast(BinaryIO, opened)


def read_to_the_end(path: Path) -> None:
    """Raise one of `DAMAGED` if a compressed file is not whole."""
    with open_plain(path) as file:
        while file.read(SKIP_BYTES):
            pass
