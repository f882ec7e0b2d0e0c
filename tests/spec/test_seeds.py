"""Worlds that once failed, each for a bug of its own in the machines. A found world stays here.

Each bug was found by random walks. Its world is kept as a few choices, behind which it goes on with the oldest one
each time. The fix can be undone, and then the world fails again: so what is kept here is the bug, not a seed that
may mean another world tomorrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.channels import without
from flux.protocols.fh_cons import FhCons
from flux.protocols.fh_prod import FhProd
from flux.protocols.machine import Machine, ignore
from flux.protocols.messages import Attach, Consumed, Effect, Merge, Merged, Move, Send, Stop, View
from flux.spec.dataflow import Scenario
from flux.spec.process import CONTROLLER
from flux.spec.walk import replay, story
from flux.spec.world import NO_DETAIL, Choice

Undo = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Tale:
    """What was wrong, how to have it wrong again, and the world in which it showed.

    In `choices`, a>b delivers the head of a link, work:a:s[:c] lets the operator of stage s, cohort c, on a finish, and
    the rest is named like the choices of a world.
    """

    bug: str
    undo: Undo
    scenario: Scenario
    choices: str


# --- the bugs -----------------------------------------------------------------------------------------------------


def let_those_who_left_fill_the_pool(patch: pytest.MonkeyPatch) -> None:
    def newest(buffer: Buffer) -> int:
        return max((run.upto for run in buffer.runs if not run.without), default=0)

    patch.setattr(Buffer, "newest", property(newest))


def keep_the_rows_of_those_who_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Buffer, "forget", lambda buffer, partitions: None)


def count_the_rows_of_those_who_are_leaving(patch: pytest.MonkeyPatch) -> None:
    put_and_feed = FhProd.put_and_feed

    def all_count(prod: FhProd, message: Consumed) -> list[Effect]:
        leaving, prod.leaving = prod.leaving, frozenset()
        effects = list(put_and_feed(prod, message))
        prod.leaving = leaving
        return effects

    _act(patch, FhProd, put_and_feed, all_count)


def keep_frames_of_which_nothing_counts(patch: pytest.MonkeyPatch) -> None:
    forget = FhCons._forget

    def keep(cons: FhCons, partitions: frozenset[int]) -> Iterator[Effect]:
        before = {cohort: (own.partitions, cons.pending.get(cohort, ())) for cohort, own in cons.cohorts.items()}
        yield from forget(cons, partitions)
        for cohort in cons.cohorts:
            held, frames = before[cohort]
            counting = [without(f.channels or cons._to(f.edge, held), cons._to(f.edge, partitions)) for f in frames]
            cons.pending[cohort] = tuple(replace(f, channels=c) for f, c in zip(frames, counting, strict=True))

    patch.setattr(FhCons, "_forget", keep)


def take_attaches_of_an_earlier_time(patch: pytest.MonkeyPatch) -> None:
    rows = [row for row in FhProd.RULES if not (row.on is Attach and row.action is ignore)]
    assert len(rows) == len(FhProd.RULES) - 1
    patch.setattr(FhProd, "RULES", tuple(rows))


def remember_acks_of_an_earlier_time(patch: pytest.MonkeyPatch) -> None:
    reconcile = FhCons.reconcile

    def remember(cons: FhCons, view: View) -> list[Effect]:
        acked = cons.acked
        effects = list(reconcile(cons, view))
        cons.acked = acked
        return effects

    _act(patch, FhCons, reconcile, remember)


def merge_a_lane_into_itself(patch: pytest.MonkeyPatch) -> None:
    join, note = FhProd._join, FhProd.note_merge

    def also_itself(prod: FhProd) -> Iterator[Effect]:
        for name, lane in list(prod.lanes.items()):
            if lane.into and prod._merged_into((*name[:2], lane.into)) == name:
                merged = Merged(sender=prod.name, view=prod.view, edge=name[0], lane_id=name[2], into=name[2])
                yield Send(to=name[1], message=merged)
        yield from join(prod)

    def note_any(prod: FhProd, message: Merge) -> Iterator[Effect]:
        name = prod._now(message)
        prod.lanes[name] = prod.lanes[name]._replace(into=message.into)
        yield from prod._join()

    patch.setattr(FhProd, "_join", also_itself)
    _act(patch, FhProd, note, note_any)


def stand_still_after_a_stop(patch: pytest.MonkeyPatch) -> None:
    take_out, feed = FhProd.take_out, FhProd._feed

    def only_take_out(prod: FhProd, message: Stop) -> list[Effect]:
        patch.setattr(FhProd, "_feed", lambda prod, name: iter(()))
        effects = list(take_out(prod, message))
        patch.setattr(FhProd, "_feed", feed)
        return effects

    _act(patch, FhProd, take_out, only_take_out)


def speak_for_partitions_that_left(patch: pytest.MonkeyPatch) -> None:
    def consumed(cons: FhCons) -> int:
        return min((cohort.consumed for cohort in cons.cohorts.values()), default=cons.acked)

    patch.setattr(FhCons, "consumed", property(consumed))


def state_a_position_of_0(patch: pytest.MonkeyPatch) -> None:
    reconcile = FhCons.reconcile

    def state(cons: FhCons, view: View) -> list[Effect]:
        before = cons.producers
        effects = list(reconcile(cons, view))
        new = [(edge, p) for edge, nodes in cons.producers.items() for p in nodes if p not in before.get(edge, ())]
        return effects if cons.acked else [*(cons._ack(edge, producer) for edge, producer in new), *effects]

    _act(patch, FhCons, reconcile, state)


def _act(patch: pytest.MonkeyPatch, machine: type[Machine], action: Any, instead: Any) -> None:
    """Let a machine do something else where its table says `action`."""
    rows = tuple(replace(row, action=instead) if row.action is action else row for row in machine.RULES)
    assert rows != machine.RULES
    patch.setattr(machine, "RULES", rows)


# --- the worlds ---------------------------------------------------------------------------------------------------


def _move(partition: int, slot: int, to: str, stage: int = 1) -> Move:
    return Move(stage=stage, partition=partition, slot=slot, to=to)


TALES = (
    Tale(
        "a pool full of rows whose partition had left blocked the copies that stayed",
        let_those_who_left_fill_the_pool,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-2",)),),
            batches=((1, 4),),
            bound_rows=1,
            crashes=0,
            moves=(
                _move(0, 0, "site-2"),
                _move(0, 0, "site-1"),
            ),
        ),
        """
        ingress>controller egress>controller site-2>controller site-1>controller controller>site-2
        controller>site-1 controller>ingress site-1>ingress work:ingress:0 ingress>site-1 work:site-1:1
        move:0 controller>site-2 controller>site-1 site-2>site-1 site-1>site-2 site-2>controller
        controller>site-1 move:1 controller>site-2 controller>site-1 site-1>site-2 controller>egress
        controller>site-2
        """,
    ),
    Tale(
        "a copy that left and came back found its old rows in the buffer beside the ones it brought",
        keep_the_rows_of_those_who_left,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-1",)),),
            batches=((4,),),
            bound_rows=10,
            crashes=0,
            moves=(
                _move(0, 0, "site-2"),
                _move(0, 0, "site-1"),
            ),
        ),
        """
        ingress>controller egress>controller site-2>controller site-1>controller controller>site-2
        controller>site-1 controller>ingress site-1>ingress move:0 controller>site-2 controller>site-1
        site-2>site-1 site-1>site-2 site-2>controller controller>site-2 move:1
        """,
    ),
    Tale(
        "the same, with the operator at work while the copy left",
        count_the_rows_of_those_who_are_leaving,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-1",)),),
            batches=((4,),),
            bound_rows=10,
            crashes=0,
            moves=(
                _move(0, 0, "site-2"),
                _move(0, 0, "site-1"),
            ),
        ),
        """
        ingress>controller egress>controller site-2>controller site-1>controller controller>site-2
        controller>site-1 controller>ingress site-1>ingress move:0 controller>site-2 controller>site-1
        site-2>site-1 site-1>site-2 site-2>controller work:ingress:0 ingress>site-1 controller>site-1 move:1
        """,
    ),
    Tale(
        "a frame of which nothing counted any more was taken for one of which everything counts",
        keep_frames_of_which_nothing_counts,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-2",)), (("site-1",), ("site-2",))),
            batches=((5,),),
            bound_rows=10,
            crashes=0,
            moves=(
                _move(0, 0, "site-2"),
                _move(1, 0, "site-2"),
                _move(0, 0, "site-1"),
                _move(1, 0, "site-1"),
                _move(0, 0, "site-2"),
                _move(1, 0, "site-2"),
                _move(0, 0, "site-2", stage=2),
            ),
        ),
        """
        egress>controller site-2>controller ingress>controller site-1>controller controller>ingress
        controller>site-1 controller>site-2 move:4 site-2>site-1 site-1>site-2 controller>egress
        controller>site-1 controller>site-2 site-2>site-1 site-1>site-2 move:3 controller>site-2
        controller>site-1 site-1>site-2 site-2>site-1 site-1>controller site-2>site-2 egress>site-2 move:1
        """,
    ),
    Tale(
        "an attach of an earlier membership arrived after the site had come back",
        take_attaches_of_an_earlier_time,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-2",)),),
            batches=((5,),),
            bound_rows=1,
            crashes=0,
            moves=(_move(1, 0, "site-1"),),
        ),
        """
        site-2>controller site-1>controller egress>controller ingress>controller controller>site-2
        controller>egress
        """,
    ),
    Tale(
        "a site that came back did not acknowledge, because it had before it left",
        remember_acks_of_an_earlier_time,
        Scenario(
            sites=2,
            copies=((("site-1",),),),
            batches=((1,), (2,)),
            bound_rows=10,
            crashes=0,
            moves=tuple(_move(0, 0, to) for to in 4 * ("site-2", "site-1")),
        ),
        """
        ingress>controller site-1>controller site-2>controller egress>controller controller>site-2 controller>egress
        move:6 controller>site-2 controller>ingress site-2>site-1 controller>egress move:2 work:ingress:0
        controller>site-1 controller>site-1 site-1>ingress
        """,
    ),
    Tale(
        "a lane was merged into itself by way of an earlier merge",
        merge_a_lane_into_itself,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-1",), ("site-2",)),),
            batches=((1,), (2,), (3, 4), (5,)),
            bound_rows=10,
            crashes=0,
            at_once=3,
            moves=(
                _move(0, 0, "site-2"),
                _move(2, 0, "site-1"),
                _move(1, 0, "site-2"),
            ),
        ),
        """
        egress>controller site-1>controller site-2>controller ingress>controller move:2 move:0 move:1
        """,
    ),
    Tale(
        "a lane stood still when the producer that had held it back was taken out",
        stand_still_after_a_stop,
        Scenario(
            sites=2,
            copies=((("site-1",), ("site-2",)),),
            batches=((1, 4),),
            bound_rows=10,
            crashes=0,
            restarts=1,
            moves=(
                _move(0, 0, "site-2"),
                _move(1, 0, "site-1"),
            ),
        ),
        """
        ingress>controller egress>controller site-2>controller site-1>controller controller>site-2
        controller>site-1 controller>ingress site-1>ingress work:ingress:0 ingress>site-1 work:site-1:1
        crash:egress move:0 controller>site-2 controller>site-1 site-2>site-1 site-1>site-2
        site-2>controller controller>site-2 controller>site-1 move:1
        """,
    ),
    Tale(
        "a site that had acknowledged nothing said so to an ingress that was started again, and was refused",
        state_a_position_of_0,
        Scenario(sites=3, copies=((("site-1", "site-2"),),), batches=((4,),), bound_rows=1, crashes=1, restarts=1),
        """
        ingress>controller egress>controller site-3>controller site-2>controller site-1>controller
        controller>ingress work:ingress:0 controller>site-2 controller>site-1 site-2>ingress site-2>ingress
        site-1>ingress site-1>ingress ingress>site-2 ingress>site-1 work:site-2:1 work:site-1:1
        site-2>ingress site-1>ingress crash:site-1 crash:ingress notice:site-1 restart:ingress
        """,
    ),
    Tale(
        "a site that left a stage and came back while its operator was at work spoke of positions of its earlier time",
        speak_for_partitions_that_left,
        Scenario(
            sites=2,
            copies=((("site-1",),), (("site-1",),)),
            batches=((1,), (2,)),
            bound_rows=10,
            crashes=0,
            moves=tuple(_move(0, 0, f"site-{to}") for to in 4 * (2, 1)),
        ),
        """
        ingress>controller site-1>controller site-2>controller egress>controller controller>site-1
        controller>site-2 site-1>site-1 site-1>ingress move:2 controller>site-1 controller>site-2
        move:6 controller>ingress work:ingress:0 ingress>site-1 work:ingress:0 ingress>site-1
        controller>ingress move:5 site-2>site-1 move:0 work:site-1:1 site-1>site-2 site-2>ingress
        ingress>site-2 site-1>ingress site-2>controller work:site-2:1:1 controller>site-2
        controller>site-1
        """,
    ),
)


def _choices(tale: Tale) -> list[Choice]:
    return [_choice(word) for word in tale.choices.split()]


def _choice(word: str) -> Choice:
    if ">" in word:
        sender, _, to = word.partition(">")
        return "deliver", sender, to
    kind, name, *rest = word.split(":")
    if kind == "work":
        return "answer", name, (int(rest[0]), int(rest[1]) if rest[1:] else 0)
    return ("move", CONTROLLER, int(name)) if kind == "move" else (kind, name, NO_DETAIL)


def _name(tale: Tale) -> str:
    return tale.undo.__name__


def _scenario(tale: Tale) -> Scenario:
    """The tales begin before the controller has heard of anybody."""
    return replace(tale.scenario, slow_start=True)


@pytest.mark.parametrize("tale", TALES, ids=_name)
def test_a_world_that_once_failed_holds(tale: Tale) -> None:
    _, violation = replay(_scenario(tale), _choices(tale))
    assert violation is None, f"{tale.bug}\n{story(_scenario(tale), _choices(tale))}"


@pytest.mark.parametrize("tale", TALES, ids=_name)
def test_it_fails_when_the_fix_is_undone(tale: Tale, monkeypatch: pytest.MonkeyPatch) -> None:
    tale.undo(monkeypatch)
    _, violation = replay(_scenario(tale), _choices(tale))
    assert violation is not None, f"this world does not show any more that {tale.bug}"
