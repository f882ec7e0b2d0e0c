"""Punctuations: numbered marks in the stream, at the same place in every copy's input."""

from __future__ import annotations

from dataclasses import dataclass

PUNCTUATIONS = ("end", "watermark", "clock", "batch")


@dataclass(frozen=True)
class Punctuation:
    """A numbered mark in the stream, at the same place in every copy's input: the only boundary an operator may see.

    The value of a watermark is an event time in milliseconds; of a clock and of the end, the time at the ingress.
    """

    sn: int
    kind: str
    value: int | None = None
    # The partitions to which it applies, where not all of those on the site are equally advanced; None: all.
    partitions: frozenset[int] | None = None

    def __post_init__(self) -> None:
        assert self.kind in PUNCTUATIONS, f"a punctuation is one of {PUNCTUATIONS}, not {self.kind!r}"
