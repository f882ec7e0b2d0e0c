"""Channel masks: which rows of a batch belong to a lane, looked up for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..protocols.messages import Block

_BLOCKS_PER_WORD = 64
_TABLE_MAX = 1 << 18  # Pairs of partitions, a byte each: what stays in the cache.


class ChannelMask:
    """A lane's channels, ready to be looked up for many rows at once.

    Each partition has a word with a bit for each of its blocks; a channel is in the set if the words of its two
    partitions share a bit. So the size grows with the partitions, not with their pairs. While there are few pairs, a
    table of them is a little faster.
    """

    __slots__ = ("_consumers", "_table", "_words", "blocks", "everything")

    def __init__(self, blocks: Sequence[Block], producers: int, consumers: int) -> None:
        self.blocks = blocks
        several = [blocks[i : i + _BLOCKS_PER_WORD] for i in range(0, len(blocks), _BLOCKS_PER_WORD)]
        self._words = [_words_of(some, producers, consumers) for some in several]
        self.everything = self._is_everything()
        self._consumers = consumers
        self._table: npt.NDArray[np.bool_] | None = None
        if producers * consumers <= _TABLE_MAX:
            self._table = np.zeros(producers * consumers, dtype=np.bool_)
            for block in blocks:
                self._table.reshape(producers, consumers)[np.ix_(block.producers, block.consumers)] = True

    def mask(self, producer: npt.NDArray[np.uint16], consumer: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
        """Return whether each row belongs to the lane."""
        if self._table is not None:
            one_producer = len(self._table) == self._consumers
            return self._table.take(
                consumer if one_producer else producer.astype(np.int32) * self._consumers + consumer
            )
        chosen = np.zeros(len(consumer), dtype=np.bool_)
        for of_producer, of_consumer in self._words:
            shared = of_consumer.take(consumer)
            shared &= of_producer.take(producer)
            chosen |= shared != 0
        return chosen

    def _is_everything(self) -> bool:
        """Return whether every producer reaches every consumer; producers in the same blocks reach the same ones."""
        if not self._words:
            return False
        for kind in np.unique(np.stack([of_producer for of_producer, _ in self._words], axis=1), axis=0):
            reached = [(of_consumer & word) != 0 for word, (_, of_consumer) in zip(kind, self._words, strict=True)]
            if not np.logical_or.reduce(reached).all():
                return False
        return True


def _words_of(blocks: Sequence[Block], producers: int, consumers: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the word of each producer and of each consumer partition; bit i stands for block i."""
    kind = np.min_scalar_type((1 << len(blocks)) - 1)  # A byte for a handful of blocks: it stays in the cache.
    of_producer, of_consumer = np.zeros(producers, kind), np.zeros(consumers, kind)
    for i, block in enumerate(blocks):
        bit = kind.type(1 << i)
        of_producer[list(block.producers)] |= bit
        of_consumer[list(block.consumers)] |= bit
    return of_producer, of_consumer
