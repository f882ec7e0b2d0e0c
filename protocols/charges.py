"""Charges: what each destination of a pool still needs, where the rows of its runs are counted (rule 37; thesis 5.1.1).

A run that comes with `counts` is charged by destination. Its rows for a consumer partition are charged until every site
that takes this partition has acknowledged the run, and no longer. So a slow site takes room for its own rows only, and
the others go on. A row that two copies need is charged once.

Rows are added up in *groups*: all consumer partitions of an edge that the same sites take. There are about as many
groups as sites, whatever the number of partitions, and an ack costs no more than what it releases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping

from .machine import Machine
from .messages import OutputRun, Position, RowCounts

Dest = tuple[int, str]  # Edge and consumer node.
Group = tuple[int, tuple[str, ...]]  # Edge and the nodes that take some of its partitions.
Takers = Mapping[int, tuple[tuple[str, ...], ...]]  # By edge: the nodes that take each consumer partition.


class Charges(Machine):
    """The rows that are charged, by group and by the position at which their run ends."""

    def __init__(self) -> None:
        self.rows = 0
        self.takers: dict[int, tuple[tuple[str, ...], ...]] = {}
        self.listed: tuple[Group, ...] = ()  # The groups that these are numbers of:
        self.places: dict[int, tuple[int, ...]] = {}  # by edge, the group that each consumer partition is in.
        self.needed: dict[Group, dict[Position, int]] = {}
        self.totals: dict[Group, int] = {}  # The rows of each group in all.
        self.groups: dict[Dest, tuple[Group, ...]] = {}  # The groups that a destination is in.
        self.held: dict[Position, int] = {}  # Counted rows of the runs that end here, needed or not.
        self.needed_at: dict[Position, int] = {}  # Those of them that are needed.

    def put(self, run: OutputRun, floors: Mapping[Dest, Position]) -> None:
        """Charge a run with counts."""
        shares, places = [0] * len(self.listed), self.places
        for edge, partition, rows in run.counts:
            shares[places[edge][partition]] += rows
        self.held = _with(self.held, run.upto, sum(shares))
        for group, rows in zip(self.listed, shares, strict=True):
            if rows:
                self._charge(group, run.upto, rows, floors)

    def release(self, dest: Dest, floors: Mapping[Dest, Position]) -> list[Position]:
        """Release what `dest` was the last to need; return the positions whose runs are needed less than before."""
        fewer: list[Position] = []
        for group in self.groups.get(dest, ()):
            needed = self.needed[group]
            floor = _floor(group, floors)
            while needed and (position := next(iter(needed))) <= floor:
                self._take_off(group, position, needed.pop(position))
                fewer.append(position)
        return fewer

    def recharge(
        self, dest: Dest, before: Position, runs: Iterable[OutputRun], floors: Mapping[Dest, Position]
    ) -> None:
        """Charge again what was released because `dest`, whose floor was at `before`, had acknowledged it."""
        last = {**floors, dest: before}
        for run in [run for run in runs if floors[dest] < run.upto <= before]:
            for edge, partition, rows in run.counts:
                group = (edge, self.takers[edge][partition])
                if dest in _dests(group) and _floor(group, last) >= run.upto:
                    self._charge(group, run.upto, rows, floors)

    def forget(self, upto: Position) -> None:
        """Forget the positions up to `upto`: the pool has released their runs."""
        while self.held and (position := next(iter(self.held))) <= upto:
            del self.held[position]
            self.needed_at.pop(position, None)

    def clear(self) -> None:
        """Forget all charges."""
        self.rows = 0
        self.needed, self.totals, self.groups, self.held, self.needed_at = {}, {}, {}, {}, {}

    def route(self, takers: Takers, runs: Iterable[OutputRun], floors: Mapping[Dest, Position]) -> None:
        """Charge for other sites the partitions that these take from now on."""
        last, self.takers = self.takers, dict(takers)
        if any(nodes is not last.get(edge) for edge, nodes in takers.items()):
            self._list_groups()
        moved = [
            (edge, partition, old, new)
            for edge, nodes in takers.items()
            if edge in last and nodes is not last[edge]
            for partition, (old, new) in enumerate(zip(last[edge], nodes, strict=True))
            if old != new
        ]
        for run in runs if moved else ():
            for edge, partition, old, new in moved:
                rows = rows_of(run.counts, edge, partition)
                if rows:
                    self._discharge((edge, old), run.upto, rows)
                    self._charge((edge, new), run.upto, rows, floors)
        for group in [group for group, needed in self.needed.items() if not needed]:
            self._drop(group)

    def kept_for(self, dest: Dest, floor: Position) -> int:
        """The counted rows that `dest`, which has acknowledged up to `floor`, still needs."""
        total = 0
        for group in self.groups.get(dest, ()):
            if len(group[1]) == 1:
                total += self.totals[group]  # What its only taker has acknowledged is not charged any more.
            else:
                total += sum([rows for position, rows in self.needed[group].items() if position > floor])
        return total

    def beyond_one_run(
        self, floors: Mapping[Dest, Position], lagging: Container[Dest] = (), reached: Mapping[Dest, Position] = {}
    ) -> int:
        """The rows that any destination needs that is not `lagging`; of each group the oldest run is free (5.1.1).

        Of a group of which all lag, those count that none has reached: one of them has acknowledged or `reached` less.
        """
        total = 0
        for (edge, nodes), needed in self.needed.items():
            others = tuple(node for node in nodes if (edge, node) not in lagging) if lagging else nodes
            if needed and len(others) == len(nodes):
                total += self.totals[edge, nodes] - next(iter(needed.values()))
            elif needed and others:
                total += _beyond_one_run(needed, _floor((edge, others), floors))
            elif needed:
                lead = max(
                    [max(floors[dest], reached.get(dest, 0)) for dest in _dests((edge, nodes)) if dest in floors]
                )
                total += _beyond_one_run(needed, lead)
        return total

    def first_for(self, dest: Dest, floor: Position) -> int:
        """The rows that `dest` needs of the oldest run that it needs any of."""
        found: dict[Position, int] = {}
        for group in self.groups.get(dest, ()):
            for position, rows in self.needed[group].items():
                if position > floor:
                    found[position] = found.get(position, 0) + rows
                    break
        return found[min(found)] if found else 0

    def is_thin(self, position: Position) -> bool:
        """Whether at most three quarters of what is held of the runs that end at `position` are needed."""
        return position in self.held and 4 * self.needed_at.get(position, 0) <= 3 * self.held[position]

    def split(self, run: OutputRun, floors: Mapping[Dest, Position]) -> tuple[RowCounts, RowCounts]:
        """The counts of a run that are still needed, and those that are not."""
        missing = {group for group, needed in self.needed.items() if needed and _floor(group, floors) < run.upto}
        takers = self.takers
        needed = tuple([count for count in run.counts if (count[0], takers[count[0]][count[1]]) in missing])
        kept = frozenset(needed)
        return needed, tuple([count for count in run.counts if count not in kept])

    def trim(self, position: Position, rows: int) -> None:
        """Record that `rows` fewer are held of the runs that end at `position`."""
        self.held[position] -= rows

    def _list_groups(self) -> None:
        groups: dict[Group, int] = {}
        self.places = {
            edge: tuple([groups.setdefault((edge, taken), len(groups)) for taken in nodes])
            for edge, nodes in self.takers.items()
        }
        self.listed = tuple(groups)

    def _charge(self, group: Group, position: Position, rows: int, floors: Mapping[Dest, Position]) -> None:
        if _floor(group, floors) >= position:
            return
        needed = self.needed.get(group)
        if needed is None:
            self.totals[group] = 0
            for dest in _dests(group):
                self.groups[dest] = (*self.groups.get(dest, ()), group)
        self.needed[group] = _with(needed or {}, position, rows)
        self.needed_at[position] = self.needed_at.get(position, 0) + rows
        self.totals[group] += rows
        self.rows += rows

    def _discharge(self, group: Group, position: Position, rows: int) -> None:
        needed = self.needed.get(group, {})
        if position in needed:
            needed[position] -= rows
            if not needed[position]:
                del needed[position]
            self._take_off(group, position, rows)

    def _take_off(self, group: Group, position: Position, rows: int) -> None:
        self.totals[group] -= rows
        self.rows -= rows
        self.needed_at[position] -= rows

    def _drop(self, group: Group) -> None:
        del self.needed[group], self.totals[group]
        for dest in _dests(group):
            rest = tuple(other for other in self.groups[dest] if other != group)
            if rest:
                self.groups[dest] = rest
            else:
                del self.groups[dest]


def _with(amounts: dict[Position, int], position: Position, rows: int) -> dict[Position, int]:
    """Add rows to those at a position, and return all in the order of positions.

    Runs of an unordered stage, and those of partitions that move, are not put in that order.
    """
    is_next = not amounts or position >= next(reversed(amounts))
    amounts[position] = amounts.get(position, 0) + rows
    return amounts if is_next else dict(sorted(amounts.items()))


def _beyond_one_run(needed: dict[Position, int], floor: Position) -> int:
    """The rows of a group at positions after `floor`, without the first of these.

    >>> _beyond_one_run({3: 10, 5: 20, 8: 30}, 3), _beyond_one_run({3: 10, 5: 20, 8: 30}, 8)
    (30, 0)
    """
    total = first = 0
    for position in reversed(needed):  # What lies before the floor may be much more: it is not looked at.
        if position <= floor:
            break
        first = needed[position]
        total += first
    return total - first


def rows_of(counts: RowCounts, edge: int, partition: int) -> int:
    """The rows of a consumer partition.

    >>> rows_of(((0, 3, 7), (0, 5, 2)), 0, 5), rows_of(((0, 3, 7),), 0, 4)
    (2, 0)
    """
    place = bisect_left(counts, (edge, partition))
    if place < len(counts) and counts[place][:2] == (edge, partition):
        return counts[place][2]
    return 0


def _dests(group: Group) -> Iterator[Dest]:
    edge, nodes = group
    return ((edge, node) for node in nodes)


def _floor(group: Group, floors: Mapping[Dest, Position]) -> Position:
    """The position up to which no site of a group needs anything; a site that left needs nothing at all."""
    edge, nodes = group
    if len(nodes) == 1:
        return floors.get((edge, nodes[0]), _EVERYTHING)
    return min([floors.get((edge, node), _EVERYTHING) for node in nodes], default=_EVERYTHING)


_EVERYTHING = 2**63  # Above every position: they are integers of 64 bits.
