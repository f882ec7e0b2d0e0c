"""The copies of operators by site, numbered through all stages, as a view has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..protocols.balance_messages import Work
from ..protocols.messages import View
from .speeds import Floats


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layout:
    """Which partitions each live site holds. Partition p of stage s has the number `offsets[s]` + p.

    `partitions` has those of each site and stage by their number in the stage. `changed` is the number of the view in
    which the copies of a site changed last. It is made once for a view, and read at every report.
    """

    offsets: Mapping[int, int]
    count: int
    stages: npt.NDArray[np.intp]
    held: Mapping[str, npt.NDArray[np.intp]]
    partitions: Mapping[tuple[str, int], npt.NDArray[np.intp]]
    holders: npt.NDArray[np.intp]  # The place in `held` of the site of each copy, and
    placed: npt.NDArray[np.intp]  # the number of its partition.
    copies: Floats
    single: frozenset[str]  # The sites of which every copy is the only one of its partition.
    reserved: frozenset[str]
    changed: Mapping[str, int]
    building: frozenset[str]

    @classmethod
    def of(cls, view: View, reserved: frozenset[str], last: Layout | None) -> Layout:
        """The layout of `view`, which follows that of `last`."""
        offsets, stages, count = {}, [], 0
        for stage, partitions in enumerate(view.copies):
            if not view.is_end(stage):
                offsets[stage] = count
                stages += [stage] * len(partitions)
                count += len(partitions)
        ends = {node for stage, copies in enumerate(view.copies) if view.is_end(stage) for node in copies[0]}
        held, of_stage, copies = {}, {}, np.zeros(count)
        for node in view.nodes:
            if view.alive(node) and node not in ends:
                for stage in offsets:
                    of_stage[node, stage] = np.array(sorted(view.held(stage, node)), dtype=np.intp)
                held[node] = _joined([of_stage[node, stage] + offset for stage, offset in offsets.items()])
                copies[held[node]] += 1
        changed = {}
        for node, now in held.items():
            before = last.held.get(node) if last else None
            is_same = last is not None and before is not None and np.array_equal(before, now)
            changed[node] = last.changed[node] if last is not None and is_same else view.number
        return cls(
            offsets=offsets,
            count=count,
            stages=np.array(stages, dtype=np.intp),
            held=held,
            partitions=of_stage,
            holders=np.repeat(np.arange(len(held)), [len(numbers) for numbers in held.values()]),
            placed=_joined(list(held.values())),
            copies=copies,
            single=frozenset(node for node, numbers in held.items() if (copies[numbers] == 1).all()),
            reserved=reserved,
            changed=changed,
            building=frozenset(standby.node for standby in view.standby),
        )

    def sums(self, of_partitions: Floats) -> dict[str, float]:
        """For each site the sum over its copies."""
        sums = np.bincount(self.holders, weights=of_partitions[self.placed], minlength=len(self.held))
        return dict(zip(self.held, sums.tolist(), strict=True))

    def is_settled(self, site: str, last: Work, work: Work) -> bool:
        """Whether no copy came or went at `site` in the time of its report `work`, which followed `last`."""
        is_same = last.view >= self.changed[site] and work.number == last.number + 1
        return is_same and site not in self.building and not any(stage.catching_up for stage in work.stages)


def _joined(numbers: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.intp]:
    """All of them; none in a dataflow without partitions, or without sites."""
    return np.concatenate([np.zeros(0, dtype=np.intp), *numbers])
