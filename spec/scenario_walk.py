"""Random walks over chosen scenarios: for rules that random scenarios rarely put to the test.

Worlds of one partition or two, in which a few moves, crashes and restarts may happen at any time, and some nodes and
links lag far. They fail with short stories; the last ones are for what shows only when everything moves.
"""

from __future__ import annotations

import random
from dataclasses import replace

from ..protocols.change_messages import OF_INGRESS, OF_RECEIVERS, Reconfigure
from ..protocols.messages import Move
from .dataflow import Scenario, declustered
from .invariants import Violated
from .process import CONTROLLER
from .walk import Walked
from .world import CHUNKS, Choice, World

BATCHES = ((1,), (2,), (3, 4), (5,))


def _move(stage: int, partition: int, slot: int, to: int) -> Move:
    return Move(stage=stage, partition=partition, slot=slot, to=f"site-{to}")


_PAIR = Scenario(sites=2, copies=declustered(2, [1]), batches=((1,), (2,)), bound_rows=1, crashes=0)
_PAIRS = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=((1,), (2,)), bound_rows=10, crashes=0)
_SPARE = replace(_PAIR, sites=3)
_EVERY = frozenset({1, 2, 3})  # Two stages and the egress.
_ALONE = replace(_PAIR, copies=((("site-1",),),))


def _change(number: int, *stages: int, scheduler: str = OF_RECEIVERS) -> Reconfigure:
    return Reconfigure(number=number, stages=frozenset(stages), scheduler=scheduler)


WORLDS: dict[str, Scenario] = {
    # Take-over.
    "a pair": replace(_PAIR, crashes=1),
    "pair to pair": replace(_PAIRS, crashes=1),
    "pair to pair, small pools": replace(_PAIRS, crashes=1, bound_rows=1),
    "two to one": replace(_PAIRS, copies=declustered(2, [2, 1]), crashes=1),
    "one to two": replace(_PAIRS, copies=declustered(2, [1, 2]), crashes=1),
    "a shortcut": replace(_PAIRS, edges=((0, 1), (0, 2), (1, 2), (2, 3)), crashes=1),
    "a shortcut, restarts": replace(_PAIR, edges=((0, 1), (0, 2), (1, 2)), restarts=1, bound_rows=10),
    "two streams, restarts": replace(_PAIRS, edges=((0, 1), (1, 2), (1, 3), (2, 3)), restarts=1),
    # Catch-up.
    "a spare": replace(_SPARE, crashes=1),
    "a spare, roomy": replace(_SPARE, crashes=1, bound_rows=10),
    "a spare, patience": replace(_SPARE, crashes=1, batches=BATCHES, transfer_rows_max=8),
    "small steps": replace(
        _PAIRS, copies=declustered(2, [2]), sites=3, batches=BATCHES, crashes=1, moves=(_move(1, 0, 0, 3),), step=1
    ),
    "shorter steps": replace(
        _PAIRS,
        copies=declustered(2, [2]),
        sites=3,
        batches=BATCHES,
        crashes=1,
        moves=(_move(1, 0, 0, 3),),
        paces=(1, 3),
    ),
    "shorter steps, any order": replace(
        _PAIRS,
        sites=3,
        copies=declustered(2, [2, 1]),
        batches=BATCHES,
        unordered=_EVERY,
        crashes=1,
        moves=(_move(1, 0, 0, 3), _move(2, 0, 0, 3)),
        step=3,
        paces=(1, 2, 5),
    ),
    "a spare, two crashes": replace(_SPARE, crashes=2, bound_rows=10),
    "pair to pair and a spare": replace(_PAIRS, sites=3, crashes=1),
    "pair to pair and a spare, two crashes": replace(_PAIRS, sites=3, crashes=2),
    # Moves.
    "a move": replace(_ALONE, moves=(_move(1, 0, 0, 2),), bound_rows=10),
    "a move, patience": replace(
        _ALONE,
        copies=((("site-1",), ("site-2",)),),
        batches=BATCHES,
        moves=(_move(1, 0, 0, 2), _move(1, 1, 0, 1)),
        bound_rows=2,
        transfer_rows_max=20,
    ),
    "a move and a crash": replace(_ALONE, moves=(_move(1, 0, 0, 2),), bound_rows=10, crashes=1),
    "a move of a pair": replace(_SPARE, moves=(_move(1, 0, 0, 3),), bound_rows=10, crashes=1),
    "a move of a producer": replace(_PAIRS, copies=((("site-1",),), (("site-1",),)), moves=(_move(1, 0, 0, 2),)),
    "two moves": replace(_PAIRS, copies=((("site-1",),), (("site-1",),)), moves=(_move(1, 0, 0, 2), _move(2, 0, 0, 2))),
    "two partitions meet": replace(_ALONE, copies=((("site-1",), ("site-2",)),), moves=(_move(1, 0, 0, 2),)),
    # Ends and the controller are started again; live sites are declared dead, links are cut.
    "restarts": replace(_PAIR, restarts=1, bound_rows=10),
    "two restarts": replace(_PAIR, batches=((1,),), restarts=2, bound_rows=10),
    "restarts and a spare": replace(_SPARE, restarts=1, crashes=1, bound_rows=10),
    "two restarts and a spare": replace(_SPARE, restarts=2, crashes=1, bound_rows=10),
    # The journals of an ingress and of a controller have lost their ends.
    "lost tails": replace(_PAIR, restarts=1, bound_rows=10, lost_tails=True),
    "lost tails, restarts and a crash": replace(_PAIRS, restarts=2, crashes=1, lost_tails=True),
    "lost tails and a crash": replace(_PAIR, batches=((1,),), restarts=1, crashes=1, bound_rows=10, lost_tails=True),
    # Views that no death makes, which come while a restarted ingress waits for positions.
    "lost tails, slow marks and a crash": replace(
        _PAIR,
        batches=((1,),),
        restarts=1,
        crashes=1,
        bound_rows=10,
        lost_tails=True,
        slow=(("site-1",), ("site-2",), ()),
    ),
    "lost tails, two restarts": replace(_PAIR, batches=((1,),), restarts=2, crashes=1, bound_rows=10, lost_tails=True),
    # The journal of a sink has: rows that are in the sink must not go there again.
    "lost sinks": replace(_PAIR, edges=((0, 1), (1, 2), (1, 3)), sinks=2, restarts=1, bound_rows=10, lost_sinks=True),
    "restarts and a move": replace(_SPARE, moves=(_move(1, 0, 0, 3),), restarts=1, crashes=1),
    "a suspicion of the last copy": replace(_PAIR, crashes=1, suspicions=1),
    "a suspicion of a last copy in transfer": replace(_PAIR, sites=4, crashes=2, suspicions=1),
    "a cut to the last copy": replace(_PAIR, crashes=1, cuts=1),
    "a suspicion": replace(_SPARE, crashes=1, suspicions=1),
    "a cut": replace(_SPARE, crashes=1, cuts=1),
    # A site that is wrongly declared dead is forgotten, and still sends its reports, also to another controller.
    "a forgotten site": replace(_SPARE, sites=4, crashes=1, suspicions=2, restarts=2, bound_rows=10),
    "an arrival": replace(_PAIR, crashes=1, arrivals=1),
    # Stages, and the egress, that do not wait for the merge.
    "any order": replace(_PAIRS, copies=declustered(2, [2, 1]), batches=BATCHES, unordered=_EVERY, crashes=1),
    "any order, small pools": replace(
        _PAIRS, copies=declustered(2, [2, 1]), batches=BATCHES, bound_rows=1, unordered=_EVERY, crashes=1
    ),
    # What stage 2 emits for one row fills its pool, and not that of the ingress.
    "any order, a full pool": replace(
        _PAIRS,
        edges=((0, 1), (0, 2), (1, 2), (2, 3), (2, 3)),
        batches=((1,), (4,), (7,)),
        bound_rows=3,
        unordered=frozenset({2}),
        crashes=1,
    ),
    "any order and a spare": replace(
        _PAIRS, sites=3, copies=declustered(2, [2, 1]), batches=BATCHES, unordered=_EVERY, crashes=1
    ),
    "any order and a move": replace(
        _PAIRS,
        sites=3,
        copies=((("site-1",), ("site-2",)), (("site-1",), ("site-2",))),
        batches=BATCHES,
        unordered=_EVERY,
        moves=(_move(2, 0, 0, 3), _move(2, 1, 0, 3), _move(1, 0, 0, 3)),
    ),
    "any order, there and back": replace(
        _PAIRS,
        copies=((("site-1",), ("site-2",)), (("site-1",),)),
        batches=BATCHES,
        unordered=frozenset({2}),
        moves=tuple(_move(2, 0, 0, to) for to in (2, 1, 2)),
    ),
    "any order, one of two there and back": replace(
        _PAIRS,
        copies=((("site-1",), ("site-2",)), (("site-1",), ("site-1",))),
        batches=BATCHES,
        unordered=frozenset({2}),
        moves=tuple(_move(2, 0, 0, to) for to in 2 * (2, 1)),
    ),
    # Two partitions of a site, each fed by a producer's copy of its own.
    "any order, one of two leaves": replace(
        _PAIRS,
        sites=3,
        copies=((("site-1", "site-2"),), (("site-1", "site-2"), ("site-2", "site-1"))),
        batches=tuple((n,) for n in range(8)),
        unordered=frozenset({2}),
        moves=(_move(2, 1, 1, 3),),
    ),
    "any order, restarts": replace(
        _PAIRS, copies=((("site-1",), ("site-2",)),), batches=BATCHES, unordered=frozenset({2}), restarts=2
    ),
    "any order, restarts and a crash": replace(
        _PAIR,
        copies=declustered(2, [2]),
        batches=BATCHES,
        bound_rows=10,
        unordered=frozenset({2}),
        restarts=1,
        crashes=1,
    ),
    # Pools that are charged by what each consumer needs.
    "pools by destination": Scenario(
        sites=3,
        copies=((("site-1",), ("site-2",), ("site-3",)), (("site-1",), ("site-2",))),
        batches=tuple((n, n + 1, n + 2) for n in range(0, 18, 3)),
        bound_rows=4,
        crashes=0,
        counted=True,
        moves=(_move(1, 0, 0, 2), _move(2, 1, 0, 3)),
    ),
    "pools by destination, pairs": Scenario(
        sites=4,
        copies=declustered(3, [3, 3]),
        batches=tuple((n, n + 1, n + 2) for n in range(0, 18, 3)),
        bound_rows=4,
        crashes=1,
        counted=True,
        moves=(_move(1, 0, 0, 4),),
    ),
    "pools by destination, any order": Scenario(
        sites=4,
        copies=declustered(3, [3, 2]),
        batches=tuple((n, n + 1, n + 2) for n in range(0, 18, 3)),
        bound_rows=4,
        crashes=1,
        counted=True,
        unordered=_EVERY,
    ),
    # A slow site, which does nothing at all once it is marked; its copies are moved off.
    "a slow site": replace(
        _PAIRS, batches=BATCHES, bound_rows=1, transfer_rows_max=40, arrivals=1, slow=(("site-1",),), freezes=True
    ),
    "a slow site, pools by destination": replace(
        _PAIRS,
        batches=BATCHES,
        bound_rows=1,
        transfer_rows_max=40,
        slow=(("site-1",),),
        freezes=True,
        counted=True,
    ),
    "a slow site, some rows counted": replace(
        _PAIRS,
        batches=BATCHES,
        bound_rows=1,
        transfer_rows_max=40,
        slow=(("site-1",),),
        freezes=True,
        counted=True,
        some_uncounted=True,
    ),
    "a slow site is emptied": replace(
        _PAIRS,
        sites=3,
        batches=BATCHES,
        bound_rows=1,
        transfer_rows_max=40,
        slow=(("site-1",),),
        freezes=True,
        moves=(_move(1, 0, 0, 3), _move(2, 0, 0, 3)),
    ),
    # A slow site for which almost nothing can be kept is given up, and does not hold up the others.
    "a slow site is retired": replace(
        _PAIRS,
        batches=BATCHES,
        bound_rows=1,
        transfer_rows_max=1,
        slow=(("site-1",),),
        retires=("site-1",),
        freezes=True,
    ),
    # Sites are slow, are retired, recover, crash; others appear.
    "slow sites are retired": replace(
        _PAIRS,
        sites=3,
        copies=declustered(3, [3, 2]),
        batches=BATCHES,
        bound_rows=2,
        transfer_rows_max=4,
        crashes=1,
        restarts=1,
        arrivals=1,
        slow=(("site-1",), ("site-1", "site-2"), ("site-3",), ()),
        retires=("site-1", "site-2", "site-3"),
    ),
    "two slow sites are retired": replace(
        _PAIRS,
        batches=BATCHES,
        bound_rows=2,
        slow=(("site-1",), ("site-1", "site-2"), ("site-2",), ()),
        retires=("site-1", "site-2"),
    ),
    # Copies of the same partitions move meanwhile, and are built from the slow site.
    "a slow donor is retired": replace(
        _PAIRS,
        sites=3,
        batches=BATCHES,
        slow=(("site-1",), ()),
        retires=("site-1",),
        moves=(_move(1, 0, 1, 3), _move(2, 0, 1, 3), _move(1, 0, 0, 2)),
    ),
    # Sites become slow and recover, at any time, and crash.
    "slow for a while": replace(
        _PAIRS,
        sites=3,
        batches=BATCHES,
        bound_rows=2,
        crashes=1,
        transfer_rows_max=8,
        slow=(("site-1",), ("site-2",), ()),
    ),
    "slow for a while, any order": replace(
        _PAIRS,
        sites=3,
        copies=declustered(2, [2, 1]),
        batches=BATCHES,
        unordered=_EVERY,
        crashes=1,
        slow=(("site-1",), ("site-2",), ()),
        moves=(_move(1, 0, 0, 3),),
    ),
    "slow, restarts": replace(_SPARE, batches=BATCHES, crashes=1, restarts=1, slow=(("site-1",), ())),
    "copies cost more there": replace(
        _PAIR, sites=4, copies=declustered(4, [4]), crashes=1, copy_costs=(("site-1", 3.0), ("site-2", 1.0))
    ),
    "a slow spare": replace(_PAIR, sites=4, crashes=1, slow=(("site-3",),)),
    # One copy that moves to and fro; also before anything is consumed.
    "there and back": replace(_ALONE, bound_rows=10, moves=tuple(_move(1, 0, 0, to) for to in 4 * (2, 1))),
    "a producer there and back": replace(
        _PAIRS, copies=((("site-1",),), (("site-1",),)), moves=tuple(_move(1, 0, 0, to) for to in 4 * (2, 1))
    ),
    "to and fro": replace(_ALONE, batches=BATCHES, moves=tuple(_move(1, 0, 0, to) for to in (2, 1, 2, 1))),
    # One of two partitions of a site leaves it and returns.
    "one of two there and back": replace(
        _PAIRS, copies=((("site-1",), ("site-1",)),), moves=tuple(_move(1, 0, 0, to) for to in 4 * (2, 1))
    ),
    # A site is given a partition while its operator is at work on one that leaves it.
    "one comes while one leaves": replace(
        _PAIRS,
        copies=((("site-1",), ("site-1",), ("site-2",)),),
        batches=BATCHES,
        at_once=3,
        moves=(_move(1, 0, 0, 2), _move(1, 2, 0, 1), _move(1, 1, 0, 2)),
    ),
    # One of two producers leaves the site that feeds a consumer, and one of two consumers leaves that one.
    "a producer and a consumer leave": Scenario(
        sites=3,
        copies=((("site-1",), ("site-1",)), (("site-2",), ("site-2",))),
        batches=tuple((n,) for n in range(8)),
        bound_rows=20,
        crashes=0,
        moves=(_move(1, 0, 0, 3), _move(2, 0, 0, 3)),
    ),
    # Producers that join each other while their consumer moves as well.
    "joining": Scenario(
        sites=3,
        copies=((("site-1",), ("site-2",)), (("site-3",),)),
        batches=BATCHES,
        bound_rows=2,
        crashes=0,
        moves=(_move(1, 1, 0, 1), _move(2, 0, 0, 1), _move(2, 0, 0, 2), _move(1, 0, 0, 3)),
    ),
    # A site that is ahead takes the copy of one that lags.
    "ahead": Scenario(
        sites=2,
        copies=((("site-1",), ("site-2",)),),
        batches=tuple((n,) for n in range(8)),
        bound_rows=20,
        crashes=0,
        moves=(_move(1, 0, 0, 2),),
    ),
    "everything moves": Scenario(
        sites=2,
        copies=((("site-1",), ("site-2",)), (("site-1",), ("site-2",))),
        batches=BATCHES,
        bound_rows=1,
        crashes=0,
        moves=tuple(_move(stage, partition, 0, to) for to in (1, 2, 1, 2) for stage in (1, 2) for partition in (0, 1)),
    ),
    # The code of stages changes while it runs.
    "a change": replace(_PAIR, changes=(_change(1, 1),)),
    "a change, patience": replace(_PAIR, batches=BATCHES, changes=(_change(1, 1),), lead=0, bound_rows=10),
    "a change of the first stage": replace(_PAIRS, batches=BATCHES, changes=(_change(1, 1),), lead=0),
    "a change of two stages": replace(_PAIRS, batches=BATCHES, changes=(_change(1, 1, 2),), lead=0),
    "a change and a crash": replace(_SPARE, batches=BATCHES, crashes=1, changes=(_change(1, 1),), bound_rows=10),
    "a change of two stages and a crash": replace(
        _PAIRS, sites=3, batches=BATCHES, crashes=1, changes=(_change(1, 1, 2),), bound_rows=10
    ),
    "a change of two stages and two crashes": replace(
        _PAIRS, sites=4, batches=BATCHES, crashes=2, changes=(_change(1, 1, 2),), bound_rows=10, lead=0
    ),
    "a change and a move": replace(
        _SPARE, batches=BATCHES, changes=(_change(1, 1),), moves=(_move(1, 0, 0, 3),), bound_rows=10
    ),
    # A move is wanted again and again: the change waits for none of them for ever, and they not for it.
    "a change while a move is always wanted": replace(
        _SPARE,
        batches=BATCHES,
        changes=(_change(1, 1), _change(2, 1)),
        moves=tuple(_move(1, 0, slot, to) for to in (3, 1, 2, 3) for slot in (0, 1)),
        bound_rows=10,
        lead=0,
    ),
    "a change while moves never end": replace(
        _SPARE,
        batches=BATCHES,
        changes=(_change(1, 1), _change(2, 1)),
        moves=tuple(_move(1, 0, slot, to) for to in (3, 1, 2) for slot in (0, 1)),
        restless=True,
        bound_rows=10,
        lead=0,
    ),
    "a change and restarts": replace(_PAIR, restarts=1, changes=(_change(1, 1),), bound_rows=10),
    "a change, restarts and a crash": replace(
        _PAIRS, sites=3, batches=BATCHES, restarts=2, crashes=1, changes=(_change(1, 1, 2),), bound_rows=10
    ),
    "two changes": replace(_PAIRS, batches=BATCHES, changes=(_change(1, 1, 2), _change(2, 1)), lead=2, bound_rows=10),
    "changes and restarts": replace(
        _PAIR, batches=BATCHES, restarts=2, changes=(_change(1, 1), _change(2, 1)), lead=0, bound_rows=10
    ),
    "an epoch": replace(
        _PAIRS, batches=BATCHES, restarts=1, changes=(_change(1, 1, 2, scheduler=OF_INGRESS),), bound_rows=10
    ),
    "a change of slow readers": replace(
        _PAIR, batches=tuple((n,) for n in range(12)), changes=(_change(1, 1),), lead=0, bound_rows=20
    ),
    "a change, any order": replace(
        _PAIRS,
        copies=declustered(2, [2, 1]),
        batches=BATCHES,
        unordered=_EVERY,
        crashes=1,
        changes=(_change(1, 1, 2),),
        bound_rows=10,
    ),
    "a change, any order and a move": replace(
        _PAIRS,
        sites=3,
        copies=((("site-1",), ("site-2",)), (("site-1",), ("site-2",))),
        batches=BATCHES,
        unordered=_EVERY,
        moves=(_move(2, 0, 0, 3), _move(2, 1, 0, 3)),
        changes=(_change(1, 2),),
        lead=0,
        bound_rows=10,
    ),
    "a change that two sites cannot make": replace(
        _SPARE, changes=(_change(1, 1), _change(2, 1)), cannot=("site-1", "site-3")
    ),
    "a change and checkpoints": replace(
        _PAIR, batches=BATCHES, changes=(_change(1, 1), _change(2, 1)), checkpoints=(0, 1, 4, 6), bound_rows=10, lead=0
    ),
    "a change and an era": replace(
        _PAIRS,
        batches=BATCHES,
        changes=(_change(1, 1), _change(2, 2)),
        checkpoints=(0, 1, 3, 4, 6),
        eras=1,
        bound_rows=10,
        lead=0,
    ),
    "changes, eras, a crash and restarts": replace(
        _PAIRS,
        sites=3,
        batches=BATCHES,
        crashes=1,
        restarts=1,
        changes=(_change(1, 1, 2), _change(2, 1), _change(3, 2)),
        checkpoints=(0, 2, 3, 5),
        eras=2,
        bound_rows=10,
        lead=0,
    ),
    # The site that has passed the change gets a copy that has not.
    "a change and a site that is ahead": Scenario(
        sites=2,
        copies=((("site-1",), ("site-2",)),),
        batches=tuple((n,) for n in range(8)),
        bound_rows=20,
        crashes=0,
        moves=tuple(_move(1, partition, 0, to) for to in (2, 1, 2, 1) for partition in (0, 1)),
        changes=(_change(1, 1),),
        lead=0,
    ),
    "a change that a spare cannot make": replace(_SPARE, changes=(_change(1, 1), _change(2, 1)), cannot=("site-3",)),
    "a change that is aborted": replace(
        _PAIR, batches=BATCHES, changes=(_change(1, 1), _change(2, 1)), aborts=(1,), bound_rows=10
    ),
    "a change that is aborted, restarts": replace(
        _PAIR, batches=BATCHES, restarts=2, changes=(_change(1, 1),), aborts=(1,), bound_rows=10, lead=0
    ),
    # A site never says whether it can make the change.
    "a change that is never prepared": replace(
        _PAIR, changes=(_change(1, 1), _change(2, 1)), silent=("site-2",), aborts=(1, 2)
    ),
    "changes that are requested twice": replace(
        _PAIRS, batches=BATCHES, restarts=1, changes=(_change(1, 1), _change(2, 1, 2)), twice=True, bound_rows=10
    ),
    "a change and marks": replace(
        _PAIR, batches=BATCHES, changes=(_change(1, 1),), slow=((),) * 6, bound_rows=10, lead=0
    ),
    "a change, an arrival that cannot make it": replace(
        _PAIR, batches=BATCHES, arrivals=1, changes=(_change(1, 1),), cannot=("site-3",), bound_rows=10
    ),
    "a change, moves and crashes": replace(
        _PAIRS,
        sites=4,
        batches=BATCHES,
        crashes=2,
        changes=(_change(1, 1),),
        moves=(_move(1, 0, 0, 3), _move(1, 0, 1, 4)),
        bound_rows=10,
        lead=0,
    ),
    "a change and two ends that are started again": replace(
        _PAIR, batches=BATCHES, crashes=1, restarts=2, changes=(_change(1, 1),), bound_rows=10, lead=0
    ),
    # A site is at work on a copy that has left it while that copy returns, and its donor dies.
    "a change, there and back, a crash": replace(
        _ALONE,
        batches=BATCHES,
        crashes=1,
        changes=(_change(1, 1),),
        moves=tuple(_move(1, 0, 0, to) for to in (2, 1, 2, 1)),
        bound_rows=10,
        lead=0,
    ),
    # Sites appear, and ends are started again, before and after an edition is closed.
    "a change and arrivals": replace(
        _PAIR, batches=BATCHES, crashes=1, restarts=1, arrivals=2, changes=(_change(1, 1), _change(2, 1)), bound_rows=10
    ),
    # Everything moves, and two sites crash.
    "a storm": Scenario(
        sites=4,
        copies=declustered(3, [2, 2]),
        batches=BATCHES,
        bound_rows=1,
        crashes=2,
        at_once=2,
        moves=tuple(
            _move(stage, partition, slot, to)
            for to in (4, 1, 2, 3)
            for stage in (1, 2)
            for partition in (0, 1)
            for slot in (0, 1)
        ),
    ),
}
_IN_CHUNKS = (
    "a spare",
    "pair to pair and a spare, two crashes",
    "a move of a pair",
    "restarts and a move",
    "a cut",
    "any order and a move",
    "any order, one of two there and back",
    "a producer there and back",
    "one of two there and back",
    "joining",
    "everything moves",
    "a storm",
)
WORLDS |= {f"{name}, in chunks": replace(WORLDS[name], chunks=True) for name in _IN_CHUNKS}
SLOW_CHANCE, PATIENCE = 0.2, 0.95  # Of nodes and links; how often a slow one is skipped.
LAZY_CHANCE = 0.5  # That moves, or changes, are requested late, so that one ends before the next begins.
FAULT_CHANCES = (0.003, 0.02, 0.1)  # Per choice, while the scenario allows a fault: late or soon.


def wander(scenario: Scenario, seed: int) -> Walked:
    """Walk a world of `scenario` to its end, or to its failure."""
    rng = random.Random(seed)
    lazy = random.Random(f"lazy {seed}")  # Drawn separately, so that seeds keep their worlds.
    fault_chance = rng.choice(FAULT_CHANCES)
    world = World(scenario)
    names = (*scenario.nodes, CONTROLLER)
    # Slow nodes lag, slow operators lag more, and what slow links carry arrives late.
    slow: set[object] = {node for node in names if rng.random() < SLOW_CHANCE}
    slow |= {(a, b) for a in names for b in names if rng.random() < SLOW_CHANCE}
    slow |= {("work", node) for node in names if rng.random() < SLOW_CHANCE}
    slow |= {"move"} if rng.random() < LAZY_CHANCE else set()
    slow |= {"chunks"} if scenario.chunks and rng.random() < LAZY_CHANCE else set()
    for kind in ("change", "abort", "overdue") if scenario.changes else ():
        slow |= {kind} if rng.random() < LAZY_CHANCE else set()
    for kind in ("checkpoint", "slow", "restart") if scenario.changes else ():
        slow |= {kind} if lazy.random() < LAZY_CHANCE else set()
    done: list[Choice] = []
    violation: Violated | None = None
    try:
        while world.choices:
            faults = world.faults()
            if faults and rng.random() < fault_chance:
                choice = rng.choice(faults)
            else:
                choice = rng.choice(_offered(world))
                if _lags(choice, slow) and rng.random() < PATIENCE:
                    continue
            done.append(choice)
            world.do(choice)
        world.at_rest()
    except Violated as error:
        violation = error
    return Walked(seed, scenario, tuple(done), violation, bool(world.lost))


def _offered(world: World) -> list[Choice]:
    """What may happen next. Restless moves come at once, and then an attempt at a change has all the time it needs."""
    if not world.scenario.restless:
        return world.choices
    moves = [choice for choice in world.choices if choice[0] == "move"]
    return moves or [choice for choice in world.choices if choice[0] != "overdue"] or world.choices


def _lags(choice: Choice, slow: set[object]) -> bool:
    kind, name, detail = choice
    if kind == "deliver":
        return detail in slow or (name, detail) in slow or (name.endswith(CHUNKS) and "chunks" in slow)
    return name in slow or kind in slow or (kind == "answer" and ("work", name) in slow)
