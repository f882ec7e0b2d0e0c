"""Views: the nodes of the dataflow, and which copy of which partition lives where. Only the controller makes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

RETIRED = "retired"  # Stands in the slot of a copy that was retired. No node has this name.
_SITE = re.compile(r"site-([0-9]{1,15})")  # The wire does not carry numbers with more digits.


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A copy in transfer: partition `partition` of `stage` on `node`, built from the copy on `donor`.

    When it is live it takes `slot` among the partition's copies: that of a dead copy, or of a live one
    that it replaces (a move). `version` is never used twice.
    """

    version: int
    stage: int
    partition: int
    slot: int
    node: str
    donor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """A change of the code of `stages` at one position: rows up to it are consumed by the code before it.

    Its `number` is that of the request. What the code is, its `spec`, is opaque here. When it is `closed`, no copy will
    be at or before `position` any more, and the code before it may be forgotten.
    """

    number: int
    stages: frozenset[int]
    position: int
    spec: bytes = b""
    closed: bool = False


def number_of(site: str) -> int:
    """The number of a site, 7 of `site-7`; 0 without one. No number is used twice, and a later site has a higher one.

    >>> number_of("site-7"), number_of("ingress.2")
    (7, 0)
    """
    numbered = _SITE.fullmatch(site)
    return int(numbered[1]) if numbered else 0


@dataclass(frozen=True, kw_only=True)
class View:
    """The nodes of the dataflow, and which copy of which partition lives where (thesis 3.2.3.1).

    `copies[stage][partition]` are the nodes of the partition's copies, primary first: a copy's place is
    its *slot*. The node of a dead copy stays listed until another copy has its slot, and `dead` says that
    it is gone. `standby` are the copies being built, of `versions` begun until now. `incarnations` are those of the
    ends that were started again.

    A death is listed in one view at least. Then the dead node is left out, unless its slot has not been filled yet
    (rule 32): `forgotten` is the highest number of a site that was left out.

    `edges[e]` are the producing and the consuming stage of exchange e, a producer before its consumers: any
    DAG. Left out, the stages are a chain. Stage 0 is the ingress; stages without consumers are egresses.
    It `follows` the view with that number; left out, the one before it. Only a restarted controller leaves numbers
    out (rule 40).
    The `unordered` stages consume what has arrived at once, and do not wait for the merge; the set never changes.
    The `slow` sites do far less than the others, and no node waits for them (rule 35). In the slot of a copy that was
    retired because of that is `RETIRED`, which is listed among the `dead` for as long (rule 42).
    The `editions` are the changes of code, in the order of their numbers; what a closed one has of each stage, until a
    later one that is closed has the same stage (rule 52).
    """

    number: int
    nodes: tuple[str, ...]
    dead: frozenset[str]
    copies: tuple[tuple[tuple[str, ...], ...], ...]
    edges: tuple[tuple[int, int], ...] = ()
    standby: tuple[Standby, ...] = ()
    versions: int = 0
    incarnations: tuple[tuple[int, int], ...] = ()
    unordered: frozenset[int] = frozenset()
    forgotten: int = 0
    follows: int | None = None
    slow: frozenset[str] = frozenset()
    editions: tuple[Edition, ...] = ()

    def __post_init__(self) -> None:
        if not self.edges:
            object.__setattr__(self, "edges", tuple((e, e + 1) for e in range(len(self.copies) - 1)))
        if self.follows == self.number - 1:
            object.__setattr__(self, "follows", None)

    @property
    def last_number(self) -> int:
        """The number of the view that this one follows."""
        return self.number - 1 if self.follows is None else self.follows

    def inputs(self, stage: int) -> tuple[int, ...]:
        """The edges into `stage`."""
        return self._inputs[stage]

    def outputs(self, stage: int) -> tuple[int, ...]:
        """The edges out of `stage`."""
        return self._outputs[stage]

    def is_end(self, stage: int) -> bool:
        """Whether `stage` is an ingress or an egress: it has one copy, which is started again when it dies."""
        return not (self.inputs(stage) and self.outputs(stage))

    def alive(self, node: str) -> bool:
        """Whether `node` belongs to the dataflow and has not failed."""
        return node in self._alive

    def has_forgotten(self, node: str, seen: int = 0) -> bool:
        """Whether `node`, which has seen the views up to `seen`, has died and was left out.

        A site is recognised by its number. An end has none: it was listed in the view that it has seen.
        """
        number = number_of(node)
        was_listed = number <= self.forgotten if number else 0 < seen <= self.number
        return was_listed and node not in self.nodes

    def live_copies(self, stage: int, partition: int) -> tuple[str, ...]:
        """The nodes of the partition's surviving copies, primary first."""
        return self._live[stage][partition]

    def feeder(self, stage: int, partition: int, slot: int, now: str, last: View | None = None) -> str | None:
        """The copy of a producer that feeds a consumer's copy in `slot`: `now` if it is live, else that in its slot.

        A slow copy feeds no consumer that has another choice, also if it is the one in its slot (rule 35). Nor does one
        that was not live in the `last` view: it was just built, and lags (rule 13).

        Departure: when the copy in the same slot is back, the consumer stays with the one that feeds it (rule 13
        says that it may move), because a copy that was just built lags, and the consumer would wait for it.
        """
        copies = self.copies[stage][partition]
        live = self.live_copies(stage, partition)
        prompt = [node for node in live if node not in self.slow] or live
        if last is not None:
            ran = last.live_copies(stage, partition)
            prompt = [node for node in prompt if node in ran] or prompt
        return next((node for node in (now, copies[slot % len(copies)], *prompt) if node in prompt), None)

    def holders(self, stage: int) -> tuple[str, ...]:
        """The live nodes with a copy of any partition of `stage`, each once, in a fixed order."""
        return self._holders[stage]

    def members(self, stage: int) -> tuple[str, ...]:
        """The live nodes with a copy of `stage`, finished or in transfer, each once, in a fixed order."""
        return self._members[stage]

    def held(self, stage: int, node: str) -> frozenset[int]:
        """The partitions of `stage` of which `node` has a finished copy."""
        return self._held[stage].get(node, frozenset())

    def must_ack(self, stage: int) -> tuple[str, ...]:
        """The nodes that must acknowledge what `stage` is sent: its members, and a dead end until it is replaced."""
        if self.is_end(stage):
            return tuple(node for copies in self.copies[stage] for node in copies)
        return self.members(stage)

    def takers(self, stage: int) -> tuple[tuple[str, ...], ...]:
        """For each partition of `stage` the nodes that take its input: those with a copy, finished or in transfer."""
        return self._takers[stage]

    def divides(self, stage: int) -> bool:
        """Whether not all nodes that consume what `stage` produces take the same partitions of it."""
        return self._divides[stage]

    def needs(self, node: str) -> bool:
        """Whether `node` has the only copy of a partition, or the only one in transfer."""
        for stage, partitions in enumerate(self.copies):
            in_transfer = {s.partition for s in self.standby if (s.stage, s.node) == (stage, node)}
            for partition in range(len(partitions)):
                live = self.live_copies(stage, partition)
                if live == (node,) or (not live and partition in in_transfer):
                    return True
        return False

    def can_retire(self, node: str) -> bool:
        """Whether `node` is slow, and each of its copies has a live partner on a site that is not (rule 42).

        A copy of a partition of which another one is in transfer stays until that is over.
        """
        if node not in self.slow:
            return False
        places = [(stage, partition) for stage in range(len(self.copies)) for partition in self.held(stage, node)]
        in_transfer = {(standby.stage, standby.partition) for standby in self.standby}
        return bool(places) and all(
            place not in in_transfer and any(other not in self.slow for other in self.live_copies(*place))
            for place in places
        )

    def next_cut(self, stage: int, position: int, at: bool = False) -> int | None:
        """The first position after `position`, or `at` it, at which the code of `stage` changes.

        For a sink it is that of any stage before it: its rows may have other columns from there on.
        """
        cuts = [edition.position for edition in self._editions_of[stage]]
        return min([cut for cut in cuts if cut > position or (at and cut == position)], default=None)

    def edition_at(self, stage: int, position: int) -> int:
        """The number of the edition that consumes the rows of `stage` after `position`; 0 for the code of the plan."""
        found = 0
        for edition in self._editions_of[stage] if self.editions else ():
            if edition.position <= position:
                found = edition.number
        return found

    def edition_of_state(self, stage: int, position: int) -> int:
        """The number of the edition that a state of `stage` at `position` is of: at a cut, still the one before."""
        return self.edition_at(stage, position - 1)

    @cached_property
    def open_editions(self) -> tuple[Edition, ...]:
        """The editions that some copy may not have reached yet."""
        return tuple(edition for edition in self.editions if not edition.closed)

    def are_operators(self, stages: frozenset[int]) -> bool:
        """Whether there are such stages, and none of them is an end."""
        return bool(stages) and all(0 <= stage < len(self.copies) and not self.is_end(stage) for stage in stages)

    def downstream(self, stages: frozenset[int]) -> frozenset[int]:
        """The `stages`, and all that receive what is made of their output."""
        found = set(stages)
        for producer, consumer in sorted(self.edges):
            if producer in found:
                found.add(consumer)
        return frozenset(found)

    def closing_stages(self, edition: Edition) -> frozenset[int]:
        """The stages that an edition is open for: its own, and the sinks after them."""
        return self._closing_stages[edition.number]

    def lost(self) -> tuple[tuple[int, int], ...]:
        """Every (stage, partition) of an operator without a surviving copy, finished or in transfer."""
        in_transfer = {(standby.stage, standby.partition) for standby in self.standby}
        return tuple(
            (stage, partition)
            for stage, partitions in enumerate(self.copies)
            if not self.is_end(stage)
            for partition in range(len(partitions))
            if not self.live_copies(stage, partition) and (stage, partition) not in in_transfer
        )

    # What every machine needs of a view is computed once.

    @cached_property
    def _alive(self) -> frozenset[str]:
        return frozenset(self.nodes) - self.dead

    @cached_property
    def _editions_of(self) -> list[tuple[Edition, ...]]:
        stages = range(len(self.copies))
        return [tuple(e for e in self.editions if stage in self._closing_stages[e.number]) for stage in stages]

    @cached_property
    def _closing_stages(self) -> dict[int, frozenset[int]]:
        return {e.number: e.stages.union(filter(self.is_end, self.downstream(e.stages))) for e in self.editions}

    @cached_property
    def _inputs(self) -> list[tuple[int, ...]]:
        stages = range(len(self.copies))
        return [tuple(e for e, (_, consumer) in enumerate(self.edges) if consumer == stage) for stage in stages]

    @cached_property
    def _outputs(self) -> list[tuple[int, ...]]:
        stages = range(len(self.copies))
        return [tuple(e for e, (producer, _) in enumerate(self.edges) if producer == stage) for stage in stages]

    @cached_property
    def _live(self) -> list[list[tuple[str, ...]]]:
        return [[tuple(n for n in copies if n not in self.dead) for copies in stage] for stage in self.copies]

    @cached_property
    def _holders(self) -> list[tuple[str, ...]]:
        held = ({node for copies in partitions for node in copies} for partitions in self.copies)
        return [tuple(sorted(nodes - self.dead)) for nodes in held]

    @cached_property
    def _takers(self) -> list[tuple[tuple[str, ...], ...]]:
        takers = [self.copies[stage] if self.is_end(stage) else tuple(live) for stage, live in enumerate(self._live)]
        for standby in self.standby:
            if self.alive(standby.node):
                nodes = list(takers[standby.stage])
                nodes[standby.partition] = (*nodes[standby.partition], standby.node)
                takers[standby.stage] = tuple(nodes)
        return [tuple([tuple(sorted(n)) if len(n) > 1 else n for n in partitions]) for partitions in takers]

    @cached_property
    def _divides(self) -> list[bool]:
        consumers = [[to for producer, to in self.edges if producer == stage] for stage in range(len(self.copies))]
        return [len({nodes for stage in stages for nodes in self._takers[stage]}) > 1 for stages in consumers]

    @cached_property
    def _held(self) -> list[dict[str, frozenset[int]]]:
        held: list[dict[str, frozenset[int]]] = []
        for partitions in self.copies:
            found: dict[str, list[int]] = {}
            for partition, copies in enumerate(partitions):
                for node in copies:
                    found.setdefault(node, []).append(partition)
            held.append({node: frozenset(numbers) for node, numbers in found.items()})
        return held

    @cached_property
    def _members(self) -> list[tuple[str, ...]]:
        in_transfer = [{s.node for s in self.standby if s.stage == stage} for stage in range(len(self.copies))]
        return [tuple(sorted(nodes | set(held))) for nodes, held in zip(in_transfer, self._holders, strict=True)]
