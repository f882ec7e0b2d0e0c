"""Operations on sets of channels, which are kept as blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import TypeVar

from .messages import Block

K = TypeVar("K", bound=Hashable)

Blocks = tuple[Block, ...]


def without(channels: Blocks, taken: Blocks) -> Blocks:
    """The channels that are not in `taken`."""
    for block in taken:
        channels = tuple(left for channel in channels for left in _minus(channel, block))
    return channels


def _minus(block: Block, taken: Block) -> Iterable[Block]:
    outside = tuple(p for p in block.producers if p not in taken.producers)
    inside = tuple(p for p in block.producers if p in taken.producers)
    rest = tuple(c for c in block.consumers if c not in taken.consumers)
    if outside:
        yield replace(block, producers=outside)
    if inside and rest:
        yield Block(producers=inside, consumers=rest)


def producers_of(channels: Blocks) -> frozenset[int]:
    """Every producer partition with a channel among these."""
    return frozenset(p for block in channels for p in block.producers)


def producers_to(channels: Blocks, consumer: int) -> frozenset[int]:
    """Every producer partition with a channel among these to `consumer`."""
    return frozenset(p for block in channels if consumer in block.consumers for p in block.producers)


def grouped(items: Iterable[int], by: Callable[[int], K]) -> dict[K, tuple[int, ...]]:
    """Group the items by the key that `by` returns, in order of first appearance."""
    groups: dict[K, list[int]] = {}
    for item in items:
        groups.setdefault(by(item), []).append(item)
    return {key: tuple(members) for key, members in groups.items()}
