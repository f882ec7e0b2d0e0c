"""Punctuations: numbered marks in the stream, at the same place in every copy's input."""

from __future__ import annotations

from dataclasses import dataclass

PUNCTUATIONS = ("end", "watermark", "clock", "batch")


@dataclass(frozen=True)
class Punctuation:
    """A numbered mark in the stream, at the same place in every copy's input: the only boundary one may see.

    A watermark's value is a time in milliseconds, that of a clock and of the end what the clock of the ingress said.
    """

    sn: int
    kind: str
    value: int | None = None
    # For which of the partitions at hand it is, where they have not all come equally far; None: for all.
    partitions: frozenset[int] | None = None

    def __post_init__(self) -> None:
        assert self.kind in PUNCTUATIONS, f"a punctuation is one of {PUNCTUATIONS}, not {self.kind!r}"
