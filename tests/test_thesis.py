"""One test per claim that chapter 3 of the thesis makes about its protocol, shown on the reference models.

A claim of the form "otherwise ..." is shown by leaving the measure out: the story that follows is the thesis's own
(spec/thesis/stories.py). Claims about the production machines stand beside these, with the same reference.
"""

from __future__ import annotations

import pytest

from flux.spec.thesis import Copy, Fault, Scenario, Violated, explore, one_to_one, sequences
from flux.spec.thesis.buffer import Buffer
from flux.spec.thesis.explore import replay
from flux.spec.thesis.stories import steps
from flux.spec.thesis.words import CONTROLLER, PRIM, PROD, SEC, CuStart
from flux.spec.thesis.world import GlobalState, World
from flux.spec.thesis.worlds import wrong

ALL = frozenset({PROD, PRIM, SEC})
ONE, TWO = (1,), (2,)


def otherwise(variant: str) -> str:
    """What goes wrong without a measure."""
    return replay(wrong(variant), steps(variant))


def after(world: World, state: GlobalState, *story: str) -> GlobalState:
    """The state after the steps of a story, each "who: what"."""
    for line in story:
        possible = [*world.steps(state), *world.arrivals(state), *world.crashes(state)]
        state = next(a for (what, who), a in possible if f"{who}: {what}" == line)
    return state


# --- 3.1: the invariants ---------------------------------------------------------------------------------------


def test_replicas_process_the_same_input_in_the_same_order() -> None:
    """Loss-free and dup-free: no tuple of the input sequence is lost or duplicated.

    Reference: 3.1.2
    """
    run = sequences([5, 7, 3], (1,), fan=one_to_one)
    assert run.consumed[Copy(1, 0, 0)] == run.consumed[Copy(1, 0, 1)] == ((ONE, 5), (TWO, 7), ((3,), 3))


def test_one_failure_between_recovery_points_is_tolerated() -> None:
    """With two replicas a single failure is tolerated, and another one after recovery.

    Reference: 3.1.2
    """
    faults = [Fault(Copy(1, 0, 0), 5), Fault(Copy(1, 0, 1), 60)]
    assert sequences([5, 7, 3], (1,), faults, seed=1).egress == sequences([5, 7, 3], (1,)).egress


# --- 3.2.2: the buffer ---------------------------------------------------------------------------------------------


def test_an_entry_goes_when_it_has_all_marks_in_del() -> None:
    """Once produced and acknowledged by both destinations an entry is removed, in whatever order that happens.

    Reference: 3.2.2.2
    """
    buffer = Buffer(capacity=4)
    buffer.put(7, ONE, ALL)
    buffer.ack(ONE, SEC, ALL)
    assert buffer.holds(ONE)
    buffer.ack(ONE, PRIM, ALL)
    assert not buffer.entries


def test_a_dangling_sequence_number_waits_for_its_tuple() -> None:
    """S-Prod may receive an ack before the output is produced; then the buffer discards both.

    Reference: 3.2.2.2
    """
    buffer = Buffer(capacity=4)
    buffer.ack(ONE, PRIM, frozenset({PROD, PRIM}))
    assert buffer.peek(PRIM) is None
    buffer.put(7, ONE, frozenset({PROD, PRIM}))
    assert not buffer.entries


def test_cursors_of_the_two_destinations_are_independent() -> None:
    """peek() gives the first undelivered tuple for a destination, and advance() moves to the next.

    Reference: 3.2.2.2
    """
    buffer = Buffer(capacity=4)
    for sn, value in ((ONE, 7), (TWO, 8)):
        buffer.put(value, sn, ALL)
    buffer.advance(PRIM)
    first, second = buffer.peek(SEC), buffer.peek(PRIM)
    assert first is not None and first.sn == ONE
    assert second is not None and second.sn == TWO


def test_ack_all_leaves_what_the_remaining_destination_needs() -> None:
    """ack_all() removes entries relevant only to the failed connection, and its dangling numbers.

    Reference: 3.2.3.2
    """
    buffer = Buffer(capacity=4)
    buffer.put(7, ONE, ALL)
    buffer.put(8, TWO, ALL)
    buffer.ack(ONE, PRIM, ALL)
    buffer.ack((3,), SEC, ALL)
    buffer.ack_all(SEC, ALL)
    assert [entry.sn for entry in buffer.entries] == [TWO]


def test_reset_points_to_the_first_unacknowledged_tuple() -> None:
    """When S-Prod starts sending, the cursor points to the first undelivered, that is unacknowledged, tuple.

    Reference: 3.2.3.2
    """
    buffer = Buffer(capacity=4)
    for sn in (ONE, TWO):
        buffer.put(7, sn, ALL)
    buffer.ack(ONE, SEC, ALL)
    buffer.reset(SEC)
    entry = buffer.peek(SEC)
    assert entry is not None and entry.sn == TWO


def test_sequence_numbers_are_identifiers_only() -> None:
    """The protocol never takes advantage of the order among sequence numbers, but for cumulative acks.

    Reference: 3.2.5
    """
    buffer = Buffer(capacity=4)
    buffer.ack(ONE, SEC, ALL)
    for sn in (TWO, ONE):  # Produced in another order than at the replica.
        buffer.put(7, sn, ALL)
    sent = []
    while (entry := buffer.peek(PRIM)) is not None:
        sent.append(entry.sn)
        buffer.advance(PRIM)
        buffer.ack(entry.sn, PRIM, ALL)
    assert sent == [TWO, ONE]
    assert [entry.sn for entry in buffer.entries] == [TWO]


def test_secondary_discards_what_the_egress_has_received() -> None:
    """Otherwise it keeps, and after a failure sends again, results the destination has.

    Reference: 3.2.1.2
    """
    assert otherwise("dangling") == "buffers drain: 1.0B keeps [(1, 0)] for ever"


def test_a_full_buffer_holds_back_the_producer_but_never_for_good() -> None:
    """The size of the buffers limits the drift of the two replicas; with room for one tuple all of it still ends.

    Reference: 3.2.2.2
    """
    assert len(sequences([5, 7, 3, 4], (1,), fan=one_to_one, capacity=1, seed=5).egress) == 4
    assert otherwise("put_guard").startswith("buffers drain")


# --- 3.2.3: take-over ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1], ids=["primary", "secondary"])
def test_the_remaining_segment_goes_on_without_a_standby(victim: int) -> None:
    """Take-over ensures that the dataflow does not stall and continues to deliver results correctly.

    Reference: 3.2.3
    """
    world = Scenario(values=(5,), standbys=0, victims=frozenset({Copy(1, 0, victim)}))
    assert not explore(world).violation


def test_ingress_does_not_fill_for_the_dead() -> None:
    """The ingress adjusts its state to no longer account for the failed replica; otherwise its buffer fills.

    Reference: 3.2.3.2
    """
    assert otherwise("ack_all") == "buffers drain: 0.0A keeps [(1,)] for ever"


def test_without_reversal_the_remaining_segment_stalls() -> None:
    """S-Prod of the secondary does not forward, so its buffer fills, unless egress reverses the connection.

    Reference: 3.2.1.3.1
    """
    assert otherwise("reversal") == "buffers drain: 1.0B keeps [(1, 0)] for ever"


def test_take_over_of_a_dead_secondary_needs_no_reversal() -> None:
    """If the egress receives from the remaining replica, nothing else happens; catch-up must begin all the same.

    Departure: tk_done() as printed asks for a reversal. Reference: 3.2.4.1
    """
    assert otherwise("r_done_only") == "recovery ends: 1.0C still waits to be folded in"


# --- 3.2.4: catch-up -----------------------------------------------------------------------------------------------


def test_after_catch_up_the_dataflow_is_fault_tolerant_again() -> None:
    """The new replica can take over from the one it was copied from, at any later step.

    Reference: 3.2.4.2
    """
    world = Scenario(values=(5,), crashes=2, fused=True, prelude=("1.0A: crash",), victims=frozenset({Copy(1, 0, 1)}))
    assert not explore(world).violation


def test_ingress_restarts_the_standby_after_both_csyncs() -> None:
    """If the csync of the standby arrives first, acks of the active are in transit; their tuples would be resent.

    Reference: 3.2.4.2
    """
    assert otherwise("both_csync") == "dup-free: partition 0 of stage 1 gets tuple (1,) again"


def test_ingress_keeps_input_for_the_new_replica_from_the_csync_on() -> None:
    """To avoid dropping input for the new replica, ingress updates del at the csync of the active.

    Reference: 3.2.4.2
    """
    assert otherwise("csync_del") == "no deadlock: 1.0C has consumed 0 of 1 tuples"


def test_egress_pauses_the_active_until_the_second_psync() -> None:
    """Otherwise, egress would miss sending acks for tuples received after state movement.

    Reference: 3.2.4.2
    """
    assert otherwise("psync_pause") == "buffers drain: 1.0C keeps [(1, 0)] for ever"


def test_egress_acks_to_the_standby_only_after_both_psyncs() -> None:
    """Otherwise, egress would forward acks for tuples sent before state movement.

    Reference: 3.2.4.2
    """
    assert otherwise("both_psync") == "buffers drain: 1.0C keeps [(1, 0)] for ever"


def test_synchronization_messages_may_arrive_in_any_order() -> None:
    """The csyncs and psyncs of active and standby can arrive in any order: each is first somewhere.

    Reference: 3.2.4.2
    """
    fired = explore(Scenario(values=(), fused=True)).fired
    for role, sync in (("ingress", "csync"), ("egress", "psync")):
        for who in ("active", "standby"):
            assert fired[role, f"{sync}_{who}_first"] and fired[role, f"{sync}_{who}_second"]


def test_controller_messages_have_no_order_with_the_dataflow() -> None:
    """A fail() may arrive at one operator long after another has acted on it: synchronization has to wait for it.

    Departure: as printed, a csync or psync is taken at once. Reference: 3.2.3.1
    """
    assert otherwise("sync_at_once").startswith("buffers drain")


def test_catch_up_is_idempotent() -> None:
    """Even if the standby fails during movement, the dataflow continues to process and attempts catch-up again.

    Reference: 3.2.5
    """
    story = ("1.0B: crash", "1.0C: standby")
    standby = frozenset({Copy(1, 0, 2)})
    world = Scenario(values=(), crashes=2, standbys=2, prelude=story, victims=standby, fused=True)
    found = explore(world)
    assert not found.violation
    assert found.fired["s_cons", "give_up"] and found.fired["s_cons", "avail_active"]


@pytest.mark.parametrize("variant", ["version_kept", "del_of_the_dead", "abort_forgets"])
def test_idempotence_needs_more_than_the_printed_actions(variant: str) -> None:
    """The ingress and egress psync(), csync() and fail() actions must be modified to track the gap in versions.

    Reference: 3.2.5
    """
    assert otherwise(variant)


# --- 3.3: parallel dataflows ---------------------------------------------------------------------------------------


def test_consumers_merge_their_input_in_the_order_of_the_ingress() -> None:
    """An order-preserving Ex-Cons recovers the order by merging on sequence numbers kept from the input.

    Reference: 3.3.1
    """
    run = sequences(list(range(12)), (2, 2), seed=4)
    for i in (0, 1):
        consumed = run.consumed[Copy(2, i, 0)]
        assert list(consumed) == sorted(consumed)
    assert list(run.egress) == sorted(run.egress)


def test_one_to_many_outputs_are_ordered_by_a_compound_key() -> None:
    """The output's number is the input's and another value that uniquely orders all tuples generated from it.

    Reference: 3.3.1
    """
    run = sequences([1], (1, 1), fan=lambda value: 2)
    assert [sn for sn, _ in run.egress] == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


# --- 3.4.2: take-over of partition pairs ----------------------------------------------------------------------------

CASES = {
    "case 1": [Copy(2, 0, 1)],
    "case 2": [Copy(1, 0, 1)],
    "case 3": [Copy(2, 0, 1), Copy(1, 0, 1)],
    "case 3, producer first": [Copy(1, 0, 1), Copy(2, 0, 1)],
    "case 4": [Copy(2, 0, 0), Copy(1, 0, 1)],
    "case 4, producer first": [Copy(1, 0, 1), Copy(2, 0, 0)],
}


@pytest.mark.parametrize("victims", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", range(6))
def test_the_four_survival_cases_lose_and_repeat_nothing(victims: list[Copy], seed: int) -> None:
    """As long as only one replica in each partition pair fails, the dataflow continues and delivers correctly.

    Reference: 3.4.2
    """
    faults = [Fault(victim, 8 + 9 * seed + k) for k, victim in enumerate(victims)]
    run = sequences([5, 7, 3], (1, 1), faults, seed, standbys=0, fan=one_to_one)
    assert run.egress == sequences([5, 7, 3], (1, 1), fan=one_to_one).egress


def test_after_its_replica_failed_a_producer_forwards_to_both_consumers() -> None:
    """The state change of the reversal allows FH-Prod to forward to both consumer partitions.

    Reference: 3.4.2
    """
    world = World(Scenario(values=(), partitions=(1, 1), standbys=0))
    state = after(world, world.start(), "1.0B: crash", "2.0B: fail_reverse", "1.0A: reverse")
    conn = world.node(state, Copy(1, 0, 0)).outs[0].conn
    assert conn == {PRIM: {"SEND"}, SEC: {"SEND"}}


def test_a_reversal_keeps_the_marks_of_both_destinations_apart() -> None:
    """FH-Prod receives all acks sent before the failure, and does not forward what they are for.

    Departure: reset() must not make the marks match here. Reference: 3.4.2
    """
    assert otherwise("one_reset") == "dup-free: partition 0 of stage 2 gets tuple (1, 0) again"


# --- 3.4.3: catch-up of partition pairs -------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [Copy(1, 0, 0), Copy(1, 0, 1), Copy(2, 0, 0), Copy(2, 0, 1)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_any_copy_is_recovered_on_its_own(victim: Copy, seed: int) -> None:
    """Piecemeal: only the failed partition is recovered, and its new copy is as good as the old.

    Reference: 3.4.3
    """
    dual = Copy(victim.stage, 0, 1 - victim.number)
    run = sequences([5, 7, 3], (1, 1), [Fault(victim, 15 * seed), Fault(dual, 150)], seed, fan=one_to_one)
    assert run.egress == sequences([5, 7, 3], (1, 1), fan=one_to_one).egress
    assert run.crashed == (victim, dual)


def test_marks_and_cursors_are_swapped_at_the_new_replica() -> None:
    """All markings in entries must be swapped: primary and secondary destinations are swapped for the new replica.

    Reference: 3.4.3
    """
    assert otherwise("swap") == "dup-free: partition 0 of stage 2 gets tuple (1, 0) again"


def test_producers_pause_before_state_moves() -> None:
    """Otherwise acks for tuples in flight arrive after catch-up and remain in the buffer indefinitely.

    Reference: 3.4.3.1
    """
    assert otherwise("pause") == "buffers drain: 1.0A keeps [(1, 0)] for ever"


def test_tuples_in_flight_are_buffered_while_the_network_drains() -> None:
    """A pause-ack stalls a connection; an order-preserving merge of the others deadlocks unless they are buffered.

    Reference: 3.4.3.1
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


def test_reversals_are_postponed_during_catch_up() -> None:
    """Catch-up requires that FH-Cons receives data only from its primary producers before state movement begins.

    Reference: 3.4.3.1
    """
    assert otherwise("postponing").startswith("recovery ends")


def test_a_consumer_is_ready_only_when_its_producers_have_caught_up() -> None:
    """Catch-up goes from source to destination: cu-ready waits for the fold-in of all upstream producers.

    Reference: 3.4.3.2
    """
    world = World(Scenario(values=(), partitions=(1, 1), crashes=2, standbys=2, prelude=("2.0B: crash", "1.0B: crash")))
    state = after(world, world.start(), "2.0A: fail_pair", "2.0A: fail")
    assert ("cu_ready", "2.0A") not in [choice for choice, _ in world.steps(state)]


def test_cu_start_waits_for_the_number_of_the_last_failure() -> None:
    """Once the numbers are equal there are no outstanding failure messages to that partition pair.

    Reference: 3.4.3.3
    """
    world = World(
        Scenario(values=(), partitions=(1, 1), crashes=2, standbys=2, prelude=("2.0B: crash", "2.0C: standby"))
    )
    state = after(world, world.start(), "2.0A: fail_pair", "2.0A: cu_ready", "1.0B: crash", "controller: cu_ready")
    assert ("cu_start", "controller") not in [choice for choice, _ in world.steps(state)]


def test_the_controller_catches_up_one_pair_at_a_time_from_source_to_destination() -> None:
    """It scans from the source, performing catch-up on a single partition pair at a time.

    Reference: 3.4.3.3
    """
    for seed in range(5):
        faults = [Fault(Copy(2, 0, 1), 5), Fault(Copy(1, 0, 1), 6)]
        run = sequences([5, 7], (1, 1), faults, seed)
        started = [who for what, who in run.steps if what in ("cu_start", "cu_done") and who != "controller"]
        assert started == ["1.0A", "2.0A"]


def test_the_controller_waits_for_its_cu_start_to_be_answered() -> None:
    """Once cu-done arrives, catch-up is complete for that pair; the active may be dead by then.

    Departure: both copies send it. Reference: 3.4.3.3
    """
    assert otherwise("cu_done_of_active").startswith("recovery ends")
    world = World(Scenario(values=(), partitions=(1, 1), prelude=("2.0B: crash", "2.0C: standby")))
    story = ("2.0A: fail_pair", "2.0A: cu_ready", "controller: cu_ready", "controller: cu_start")
    state = after(world, world.start(), *story)
    assert CuStart(Copy(2, 0, 2)) in world.on_link(state, CONTROLLER, Copy(2, 0, 0))


@pytest.mark.parametrize("variant", ["install_at_once", "recv_kept", "reverse_at_once"])
def test_failures_during_the_catch_up_of_a_partition_need_care(variant: str) -> None:
    """The thesis assumes none, and calls idempotence akin to that of a dataflow pair; these are what it takes.

    Reference: 3.4.3
    """
    assert otherwise(variant)
