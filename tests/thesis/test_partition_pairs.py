"""Claims of thesis 3.3 and 3.4: partition pairs, their take-over, catch-up and controller. See tests/test_thesis.py.

In the worlds of the machines the producers are on sites 1 and 2 and the consumers on sites 3 and 4, if nothing else is
said, so that a site is a copy, as in fig. 3.11 and 3.12; further sites are standbys.

It takes about a minute of one core: so many worlds are walked or explored.
"""

from __future__ import annotations

import pytest

from flux.protocols.messages import Ack, Attach, CopyReady, Data, RequestState, State
from flux.spec.dataflow import route
from flux.spec.process import CONTROLLER
from flux.spec.thesis import Copy, Fault, Scenario, Violated, one_to_one, sequences
from flux.spec.thesis.words import CONTROLLER as MODEL_CONTROLLER
from flux.spec.thesis.words import PRIM, SEC, CuStart
from flux.spec.thesis.world import World

from .steering import (
    FIVE,
    FOUR,
    ONE,
    PAIR_TO_PAIR,
    SIX,
    THREE,
    TIGHT,
    TWO,
    VALUES,
    Stages,
    Steered,
    after,
    at_every_step,
    otherwise,
    plain,
)

ALL_TO_ALL: Stages = (((ONE, TWO), (TWO, ONE)), ((THREE, FOUR), (FOUR, THREE)))
EXPECTED = plain(PAIR_TO_PAIR)


def take_over(bound_rows: int = 20) -> Steered:
    """Producers and consumers, and nothing is rebuilt."""
    return Steered(PAIR_TO_PAIR, bound_rows=bound_rows, at_once=0).start()


def recovering(*victims: str, without: tuple[str, str] | None = None) -> Steered:
    """Half of the input is through, the victims are dead, two sites stand by; what `without` carries is held back."""
    machines = Steered(PAIR_TO_PAIR, sites=6).start()
    for _ in range(2):
        machines.work("ingress").settle("ingress")
    return machines.crash(*victims).settle("ingress", *([without] if without else []))


# --- 3.3: parallel dataflows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_consumers_merge_their_input_in_the_order_of_the_ingress(seed: int) -> None:
    """An order-preserving Ex-Cons recovers the order by merging on sequence numbers kept from the input.

    Reference: 3.3.1
    """
    run = sequences(list(range(12)), (2, 2), seed=seed)
    machines = Steered(ALL_TO_ALL, values=tuple(range(12)), bound_rows=2).wander(10_000, seed)
    for i in (0, 1):
        consumed = run.consumed[Copy(2, i, 0)]
        assert len(consumed) > 1 and list(consumed) == sorted(consumed)
        merged = machines.consumed(THREE, 2, i)
        assert len(merged) > 1 and merged == machines.consumed(FOUR, 2, i)
        assert [sn for sn, _, _ in merged] == sorted(sn for sn, _, _ in merged)
    assert list(run.egress) == sorted(run.egress)


def test_one_to_many_outputs_are_ordered_by_a_compound_key() -> None:
    """The output's number is the input's and another value that uniquely orders all tuples generated from it.

    Reference: 3.3.1
    """
    run = sequences([1], (1, 1), fan=lambda value: 2)
    assert [sn for sn, _ in run.egress] == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    numbers = [(sn, sub) for sn, sub, _ in EXPECTED]
    assert numbers == sorted(set(numbers)) and any(sub for _, sub in numbers)


def test_the_merge_must_know_of_every_producer_that_nothing_earlier_comes() -> None:
    """An Ex-Cons waits until the next input is available from each of its producers.

    Machines: every frame says how far it goes, so an idle producer holds nobody up and small pools do not deadlock.
    Reference: 3.3.1
    """
    values = [value for value in range(3, 60) if value % 3 != 2 and route(value, 1, 2) == 0][:6]
    with pytest.raises(Violated, match="for ever"):
        sequences(values, (2, 1), route=lambda value, stage, partitions: 0, fan=one_to_one, capacity=1)
    copies: Stages = (((ONE, TWO), (THREE, FOUR)), ((FIVE, SIX),))
    machines = Steered(copies, values=tuple(values), bound_rows=TIGHT).start()
    machines.work("ingress").settle(("ingress", ONE), ("ingress", TWO)).settle("ingress")
    machines.settle(kinds=("deliver",))
    assert machines.consumed(FIVE, 2) and not machines.consumed(THREE, 1, 1)
    assert machines.rest().output


def test_only_the_failure_of_a_paired_machine_is_the_end() -> None:
    """With cluster pairs any second failure in the other replica set is; with pairs coordinated at exchanges it is not.

    Reference: 3.3.2
    """
    partitions = ((ONE, TWO), (THREE, FOUR))
    for machines in at_every_step(lambda: Steered((partitions, partitions), bound_rows=2, at_once=0), stride=5):
        assert machines.crash(ONE, FOUR).rest().output == plain((partitions, partitions))
    lost = Steered((partitions, partitions), at_once=0).start().crash(ONE, TWO).settle().world.lost
    assert lost == ((1, 0), (2, 0))


# --- 3.4, 3.4.1: the normal case -------------------------------------------------------------------------------------


def test_no_two_replicas_of_a_partition_are_on_the_same_machine() -> None:
    """The partitions are free to be placed on any machine, as long as they fail independently.

    Reference: 3.4
    """
    copies = (((ONE, TWO),), ((ONE, TWO),))
    alone = Steered(copies).start().crash(TWO)
    assert alone.being_built == []
    assert alone.rest().output == plain(copies)
    assert Steered(copies, sites=3).start().crash(TWO).being_built == [(1, 0, THREE)]


def test_each_consumer_is_fed_by_its_own_dataflow_and_acknowledges_to_the_other() -> None:
    """The protocol is symmetric: primary means within the same dataflow, secondary within the dual one.

    Machines: acks go to both producers. Reference: 3.4, 3.4.1
    """
    machines = take_over().settle(THREE, FOUR)
    for producer, consumer, other in ((ONE, THREE, FOUR), (TWO, FOUR, THREE)):
        assert machines.waiting(producer, consumer, Data) and not machines.waiting(producer, other, Data)
    held = [(consumer, producer) for consumer in (THREE, FOUR) for producer in (ONE, TWO)]
    machines.settle(*held)
    assert all(machines.waiting(*link, Ack) for link in held)
    assert machines.rest().output == EXPECTED


def test_a_tuple_is_kept_until_both_consumers_have_it() -> None:
    """Once a tuple has been produced, sent to the primary, and acked by the secondary, it is evicted.

    Machines: sending is not enough, for the one that was sent to must acknowledge too. Reference: 3.4.1
    """
    machines = take_over().settle(FOUR)
    assert machines.output == EXPECTED
    assert machines.kept(ONE, 1) > 0 and machines.kept(TWO, 1) > 0
    machines.rest()
    assert machines.kept(ONE, 1) == machines.kept(TWO, 1) == 0


# --- 3.4.2: take-over ---------------------------------------------------------------------------------------------

CASES = {
    "case 1": [FOUR],
    "case 2": [TWO],
    "case 3": [FOUR, TWO],
    "case 3, producer first": [TWO, FOUR],
    "case 4": [THREE, TWO],
    "case 4, producer first": [TWO, THREE],
}
COPIES = {ONE: Copy(1, 0, 0), TWO: Copy(1, 0, 1), THREE: Copy(2, 0, 0), FOUR: Copy(2, 0, 1)}


@pytest.mark.parametrize("victims", CASES.values(), ids=CASES)
def test_the_four_survival_cases_lose_and_repeat_nothing(victims: list[str]) -> None:
    """As long as only one replica in each partition pair fails, the dataflow continues and delivers correctly.

    Reference: 3.4.2
    """
    for seed in range(6):
        faults = [Fault(COPIES[victim], 8 + 9 * seed + k) for k, victim in enumerate(victims)]
        run = sequences([5, 7, 3], (1, 1), faults, seed, standbys=0, fan=one_to_one)
        assert run.egress == sequences([5, 7, 3], (1, 1), fan=one_to_one).egress
    for machines in at_every_step(lambda: take_over(TIGHT), seed=len(victims), stride=3):
        assert machines.crash(*victims).rest().output == EXPECTED


def test_after_its_replica_failed_a_producer_forwards_to_both_consumers() -> None:
    """The state change of the reversal allows FH-Prod to forward to both consumer partitions.

    Reference: 3.4.2
    """
    world = World(Scenario(values=(), partitions=(1, 1), standbys=0))
    state = after(world, world.start(), "1.0B: crash", "2.0B: fail_reverse", "1.0A: reverse")
    assert world.node(state, Copy(1, 0, 0)).outs[0].conn == {PRIM: {"SEND"}, SEC: {"SEND"}}
    machines = take_over().crash(TWO).settle("ingress").settle((ONE, THREE), (ONE, FOUR))
    assert machines.waiting(ONE, THREE, Data) and machines.waiting(ONE, FOUR, Data)


def test_a_reversal_keeps_what_the_two_destinations_have_apart() -> None:
    """FH-Prod receives all acks sent before the failure, and does not forward what they are for.

    Departure: reset() must not make the marks match here. Machines: a lane has a cursor of its own. Reference: 3.4.2
    """
    assert otherwise("one_reset") == "dup-free: partition 0 of stage 2 gets tuple (1, 0) again"
    machines = take_over().work("ingress").settle("ingress").settle((TWO, FOUR))
    assert machines.consumed(THREE, 2)[-1][0] == len(VALUES) and machines.consumed(FOUR, 2)[-1][0] == 1
    machines.crash(TWO).deliver(CONTROLLER, FOUR).deliver(CONTROLLER, THREE)
    assert [attach.position for attach in machines.waiting(FOUR, ONE, Attach)] == [1]
    assert not machines.waiting(THREE, ONE, Attach)
    assert machines.rest().consumed(FOUR, 2) == machines.consumed(THREE, 2)


# --- 3.4.3: catch-up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", COPIES)
def test_any_copy_is_recovered_on_its_own(victim: str) -> None:
    """Piecemeal: only the failed partition is recovered, and its new copy is as good as the old.

    Reference: 3.4.3
    """
    copy, dual = COPIES[victim], {ONE: TWO, TWO: ONE, THREE: FOUR, FOUR: THREE}[victim]
    for seed in range(5):
        faults = [Fault(copy, 15 * seed), Fault(COPIES[dual], 150)]
        run = sequences([5, 7, 3], (1, 1), faults, seed, fan=one_to_one)
        assert run.egress == sequences([5, 7, 3], (1, 1), fan=one_to_one).egress
        assert run.crashed == (copy, COPIES[dual])
    for seed, machines in enumerate(at_every_step(lambda: Steered(PAIR_TO_PAIR, sites=6), stride=3)):
        machines.crash(victim)
        assert machines.being_built == [(*copy.pair, FIVE)]
        machines.wander_until_built(FIVE, copy.stage, seed)
        assert machines.crash(dual).rest().output == EXPECTED


def test_primary_and_secondary_are_not_mixed_up_at_the_new_replica() -> None:
    """All markings in entries must be swapped: primary and secondary destinations are swapped for the new replica.

    Machines: what each consumer has is kept by its name, and nothing need be swapped. Reference: 3.4.3
    """
    assert otherwise("swap") == "dup-free: partition 0 of stage 2 gets tuple (1, 0) again"
    machines = recovering(ONE)  # The consumer on site 3 lags; then its new producer is all that is left.
    machines.settle((TWO, THREE), (FIVE, THREE)).crash(TWO)
    machines.deliver(CONTROLLER, THREE).deliver(CONTROLLER, FOUR)
    positions = [[attach.position for attach in machines.waiting(site, FIVE, Attach)] for site in (THREE, FOUR)]
    assert positions == [[2], [len(VALUES) + 1]]
    assert machines.rest().output == EXPECTED


def test_tuples_in_flight_at_the_cut_are_neither_lost_nor_repeated() -> None:
    """Producers pause before state moves; otherwise acks for tuples in flight remain in the buffer indefinitely.

    Machines: nobody pauses. What is received and not consumed is not acknowledged, so it is still at the producers, and
    the new copy has it from there. Reference: 3.4.3.1
    """
    assert otherwise("pause") == "buffers drain: 1.0A keeps [(1, 0)] for ever"
    machines = recovering(FOUR, without=(FIVE, THREE)).work("ingress").settle("ingress", THREE, FIVE)
    machines.deliver(ONE, THREE)
    assert machines.is_at_work(THREE) and not machines.waiting(ONE, THREE)
    machines.deliver(FIVE, THREE).work(THREE).settle("ingress", FIVE)
    [state] = machines.waiting(THREE, FIVE, State)
    machines.settle((THREE, FIVE))
    assert machines.output == EXPECTED, "the dataflow did not wait for the state"
    machines.settle()
    assert machines.consumed(FIVE, 2) == machines.consumed(THREE, 2)
    assert machines.consumed(FIVE, 2)[-1][0] > state.position
    machines.rest()


def test_no_connection_waits_for_another_while_state_moves() -> None:
    """A pause-ack stalls a connection; an order-preserving merge of the others deadlocks unless they are buffered.

    Machines: no connection is stalled; a consumer of two producers is rebuilt at any step. Reference: 3.4.3.1
    """

    def run(seed: int, *variant: str) -> None:
        def route(value: int, stage: int, partitions: int) -> int:
            return value // 2 % partitions

        faults = [Fault(Copy(2, 0, 1), seed)]
        sequences([1, 3, 5, 7], (2, 1), faults, seed, route=route, fan=one_to_one, variant=variant)

    for seed in (0, 3, 7):
        run(seed)
        with pytest.raises(Violated, match="for ever"):
            run(seed, "internal_buffer")
    copies: Stages = (((ONE, TWO), (TWO, ONE)), ((THREE, FOUR),))
    for machines in at_every_step(lambda: Steered(copies, sites=5, bound_rows=TIGHT), seed=1, stride=4):
        assert machines.crash(FOUR).rest().output == plain(copies)


def test_a_producer_may_fail_while_its_consumer_catches_up() -> None:
    """Reversals are postponed during catch-up, for FH-Cons must receive only from its primary producers before it.

    Machines: the reversal is taken at once, with the state still on its way. Reference: 3.4.3.1
    """
    assert otherwise("postponing").startswith("recovery ends")
    machines = recovering(FOUR, without=(THREE, FIVE))
    assert machines.waiting(THREE, FIVE, State)
    machines.crash(ONE).deliver(CONTROLLER, THREE)
    assert machines.waiting(THREE, TWO, Attach)
    machines.settle((THREE, FIVE))
    assert machines.output == EXPECTED
    assert machines.rest().holds(FIVE, 2)


@pytest.mark.parametrize("variant", ["install_at_once", "recv_kept", "reverse_at_once"])
def test_failures_during_the_catch_up_of_a_partition_need_care(variant: str) -> None:
    """The thesis assumes none, and calls idempotence akin to that of a dataflow pair; these are what it takes.

    Reference: 3.4.3
    """
    assert otherwise(variant)


@pytest.mark.parametrize("victim", [ONE, TWO, FIVE])
def test_anybody_but_the_donor_may_fail_during_the_catch_up_of_a_partition(victim: str) -> None:
    """The same of the machines: a producer of either dataflow, or the standby, at any step of it.

    Reference: 3.4.3
    """
    for machines in at_every_step(lambda: Steered(PAIR_TO_PAIR, sites=6).start().crash(FOUR), seed=4, stride=3):
        assert machines.crash(victim).rest().output == EXPECTED


# --- 3.4.3.3: the controller ---------------------------------------------------------------------------------------


def test_catch_up_goes_from_source_to_destination() -> None:
    """A consumer is ready only when its producers have caught up: cu-ready waits for the fold-in of all of them.

    Machines: the order is policy, and no message is waited for. Reference: 3.4.3.2, 3.4.3.3
    """
    world = World(Scenario(values=(), partitions=(1, 1), crashes=2, standbys=2, prelude=("2.0B: crash", "1.0B: crash")))
    state = after(world, world.start(), "2.0A: fail_pair", "2.0A: fail")
    assert ("cu_ready", "2.0A") not in [choice for choice, _ in world.steps(state)]
    for seed in range(5):
        faults = [Fault(Copy(2, 0, 1), 5), Fault(Copy(1, 0, 1), 6)]
        run = sequences([5, 7], (1, 1), faults, seed)
        started = [who for what, who in run.steps if what in ("cu_start", "cu_done") and who != "controller"]
        assert started == ["1.0A", "2.0A"]
    machines = Steered((((ONE, TWO),), ((TWO, THREE),)), sites=4).start().crash(TWO)
    assert machines.being_built == [(1, 0, FOUR)]
    machines.settle((FOUR, CONTROLLER)).deliver(FOUR, CONTROLLER)
    assert [stage for stage, _, _ in machines.being_built] == [2]
    machines.rest()


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_controller_catches_up_one_pair_at_a_time(at_once: int) -> None:
    """It scans from the source, performing catch-up on a single partition pair at a time.

    Machines: as many pairs of one stage as the setting says. Reference: 3.4.3.3
    """
    copies: Stages = (((ONE, TWO), (THREE, TWO)),)
    machines = Steered(copies, sites=5, at_once=at_once).start().crash(TWO)
    assert len(machines.being_built) == at_once
    assert machines.rest().output == plain(copies)


def test_nothing_starts_before_the_last_failure_is_known() -> None:
    """Once the numbers of cu-ready and of the last failure are equal, no failure message to that pair is outstanding.

    Machines: a request of a later view waits until the donor has seen that view. Reference: 3.4.3.3
    """
    prelude = ("2.0B: crash", "2.0C: standby")
    world = World(Scenario(values=(), partitions=(1, 1), crashes=2, standbys=2, prelude=prelude))
    state = after(world, world.start(), "2.0A: fail_pair", "2.0A: cu_ready", "1.0B: crash", "controller: cu_ready")
    assert ("cu_start", "controller") not in [choice for choice, _ in world.steps(state)]
    machines = Steered(PAIR_TO_PAIR, sites=5).start().crash(FOUR).deliver(CONTROLLER, FIVE)
    assert machines.waiting(FIVE, THREE, RequestState)
    assert not machines.deliver(FIVE, THREE).waiting(THREE, FIVE, State)
    assert machines.deliver(CONTROLLER, THREE).waiting(THREE, FIVE, State)


def test_catch_up_is_complete_though_the_active_is_dead_by_then() -> None:
    """Once cu-done arrives, catch-up is complete for that pair.

    Departure: both copies send it, for the active may be dead. Machines: the new copy does. Reference: 3.4.3.3
    """
    assert otherwise("cu_done_of_active").startswith("recovery ends")
    world = World(Scenario(values=(), partitions=(1, 1), prelude=("2.0B: crash", "2.0C: standby")))
    story = ("2.0A: fail_pair", "2.0A: cu_ready", "controller: cu_ready", "controller: cu_start")
    state = after(world, world.start(), *story)
    assert CuStart(Copy(2, 0, 2)) in world.on_link(state, MODEL_CONTROLLER, Copy(2, 0, 0))
    machines = recovering(FOUR, without=(FIVE, CONTROLLER))
    assert machines.waiting(FIVE, CONTROLLER, CopyReady)
    machines.crash(THREE)
    assert machines.rest().output == EXPECTED and machines.holds(SIX, 2)
