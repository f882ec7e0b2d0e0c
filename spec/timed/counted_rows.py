"""Bodies of a simulated cluster: how many rows there are for each partition, and never the rows.

The rows of a partition are spread evenly over the positions of their run. A run may be cut at any position: what lies
before the cut and what lies after it add up to the run, wherever it is cut and however often.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ...protocols.channels import Blocks
from ...protocols.messages import Position

# Draws the rows of a producer for each partition, in their order: of its number, the rows, and the position after them.
RowDraw = Callable[[int, int, Position], Mapping[int, int]]
PHASE = 7_919  # A prime: the rows of partitions that have only one each lie at different positions.


class CountedRows(NamedTuple):
    """The rows of one producer partition in (after, upto], by consumer partition."""

    producer: int
    after: Position
    upto: Position
    rows: Mapping[int, int]

    def between(self, after: Position, upto: Position) -> Mapping[int, int]:
        """The rows in (after, upto].

        >>> run = CountedRows(producer=0, after=0, upto=10, rows={3: 5})
        >>> [run.between(0, 3), run.between(3, 10), run.between(-5, 20)]
        [{3: 2}, {3: 3}, {3: 5}]
        """
        first, last, width = max(self.after, after), min(self.upto, upto), self.upto - self.after
        if first == self.after and last == self.upto:
            return self.rows
        found = {}
        for partition, rows in self.rows.items():
            phase = partition * PHASE % width
            upper, lower = (rows * (last - self.after) + phase) // width, (rows * (first - self.after) + phase) // width
            if upper > lower:
                found[partition] = upper - lower
        return found


CountedBody = tuple[CountedRows, ...]


def select(bodies: Iterable[CountedBody], channels: Sequence[Blocks], after: Position, upto: Position) -> CountedBody:
    """The parts of runs that a lane carries: those of its channels that have anything in (after, upto]."""
    chosen = []
    for body, blocks in zip(bodies, channels, strict=True):
        consumers = consumers_of(blocks)
        for part in body:
            taken = consumers.get(part.producer)
            if taken and part.after < upto and part.upto > after:
                has = part.rows
                rows = {p: has[p] for p in taken if p in has} if len(taken) < len(has) else _only(has, taken)
                chosen.append(CountedRows(part.producer, part.after, part.upto, rows))
    return tuple(chosen)


def _only(rows: Mapping[int, int], taken: Iterable[int]) -> Mapping[int, int]:
    allowed = set(taken)
    return {p: count for p, count in rows.items() if p in allowed}


def add_up(body: CountedBody, channels: Blocks, after: Position, upto: Position, into: Counter[int]) -> None:
    """Add the rows of a frame's channels in (after, upto] to `into`; without channels all of them."""
    consumers = consumers_of(channels) if channels else {}
    for part in body:
        if part.upto <= after or part.after >= upto:
            continue
        rows = part.between(after, upto)
        if channels:
            taken = consumers.get(part.producer, ())
            rows = {p: count for p, count in rows.items() if p in taken}
        for partition, count in rows.items():
            into[partition] += count


@lru_cache(maxsize=8_192)
def consumers_of(channels: Blocks) -> dict[int, dict[int, None]]:
    """The consumers of each producer among these channels, in their order."""
    found: dict[int, dict[int, None]] = {}
    for block in channels:
        for producer in block.producers:
            found.setdefault(producer, {}).update(dict.fromkeys(block.consumers))
    return found


def draw_by_shares(shares: Sequence[float], seed: int) -> RowDraw:
    """Draw each row's partition by chance, with these probabilities.

    >>> sum(draw_by_shares([0.5, 0.25, 0.25], seed=1)(0, 100, 100).values())
    100
    """
    limits = list(accumulate(shares))
    population = range(len(shares))
    chance: dict[int, random.Random] = {}

    def draw(producer: int, rows: int, upto: Position) -> Mapping[int, int]:
        own = chance.setdefault(producer, random.Random(f"{seed} {producer}"))
        counted = Counter(own.choices(population, cum_weights=limits, k=rows))
        return dict(sorted(counted.items()))

    return draw


def draw_sorted(partitions: int, sites: int, block_rows: int, seed: int | None = None) -> RowDraw:
    """Draw `block_rows` of each producer for the partitions of one site, then as many for the next (thesis 4.3).

    With a seed each producer goes through the sites in an order of its own, another one each time.

    >>> draw_sorted(partitions=4, sites=2, block_rows=3)(0, 4, 4)
    {0: 2, 1: 1, 2: 1}
    >>> sorted(draw_sorted(partitions=4, sites=4, block_rows=3, seed=1)(0, 12, 12).items())
    [(0, 3), (1, 3), (2, 3), (3, 3)]
    """
    drawn: Counter[int] = Counter()

    @lru_cache(maxsize=1_024)
    def order(producer: int, turn: int) -> list[int]:
        return random.Random(f"{seed} {producer} {turn}").sample(range(sites), sites)

    def draw(producer: int, rows: int, upto: Position) -> Mapping[int, int]:
        counted: Counter[int] = Counter()
        while rows:
            block, place = divmod(drawn[producer], block_rows)
            some = min(rows, block_rows - place)
            turn, site = divmod(block, sites)
            own = range(site if seed is None else order(producer, turn)[site], partitions, sites)
            for number, partition in enumerate(own):
                first = (place + len(own) - 1 - number) // len(own)
                last = (place + some + len(own) - 1 - number) // len(own)
                counted[partition] += last - first
            drawn[producer] += some
            rows -= some
        return {p: counted[p] for p in sorted(counted) if counted[p]}

    return draw


def draw_by_room(
    places: Sequence[Sequence[int]], rooms: Sequence[int], rows: int, chance: random.Random
) -> dict[int, int]:
    """Draw each row's site by the room that its queue has, as River's distributed queue does (thesis 4.1.1)."""
    limits = list(accumulate(max(room, 1) for room in rooms))
    counted: Counter[int] = Counter()
    whole, rest = divmod(rows, limits[-1])
    for number, room in enumerate(rooms):
        counted[number] = whole * max(room, 1)
    for _ in range(rest):
        counted[bisect_right(limits, chance.random() * limits[-1])] += 1
    return {places[number][0]: count for number, count in sorted(counted.items()) if count}
