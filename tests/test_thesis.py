"""One test per claim of chapter 3 of the thesis, 3.1 to 3.2.3: invariants, normal case and take-over of dataflow pairs.

Catch-up (3.2.4, 3.2.5) and partition pairs (3.3, 3.4) are in tests/thesis.

Each claim is shown twice: on the reference models, which are the thesis's protocol to the letter, and on the
production machines, which keep its purpose where they depart from its means; then the docstring says so in a line
that begins with "Machines:". A claim of the form "otherwise ..." is shown by leaving the measure out: in the models
by a variant, with the story of spec/thesis/stories.py; in the machines by leaving out the messages that carry it.
"""

from __future__ import annotations

import pytest

from flux.protocols.buffer import Buffer as MachineBuffer
from flux.protocols.messages import Ack, Attach, Data, OutputRun, RequestState, View
from flux.spec.invariants import Violated
from flux.spec.process import CONTROLLER
from flux.spec.thesis import Copy, Fault, Scenario, explore, one_to_one, sequences
from flux.spec.thesis.buffer import Buffer
from flux.spec.thesis.words import PRIM, PROD, SEC
from tests.thesis.steering import ONE, THREE, TIGHT, TWO, VALUES, Steered, at_every_step, otherwise, plain, without

ALL = frozenset({PROD, PRIM, SEC})
SN_1, SN_2 = (1,), (2,)


def run(upto: int) -> OutputRun:
    return OutputRun(after=upto - 1, upto=upto, rows=1, body=())


def two_consumers() -> MachineBuffer:
    buffer = MachineBuffer(bound_rows=4)
    for dest in (ONE, TWO):
        buffer.entitle(dest)
    return buffer


# --- 3.1: the invariants ---------------------------------------------------------------------------------------


def test_replicas_process_the_same_input_in_the_same_order() -> None:
    """Loss-free and dup-free: no tuple of the input sequence is lost or duplicated.

    Reference: 3.1.2
    """
    model = sequences([5, 7, 3], (1,), fan=one_to_one)
    assert model.consumed[Copy(1, 0, 0)] == model.consumed[Copy(1, 0, 1)] == ((SN_1, 5), (SN_2, 7), ((3,), 3))
    machines = Steered(values=(5, 7, 3)).rest()
    assert machines.consumed(ONE, 1) == machines.consumed(TWO, 1) == [(1, 0, 5), (2, 0, 7), (3, 0, 3)]


def test_one_failure_between_recovery_points_is_tolerated() -> None:
    """With two replicas a single failure is tolerated, and another one after recovery.

    Reference: 3.1.2
    """
    faults = [Fault(Copy(1, 0, 0), 5), Fault(Copy(1, 0, 1), 60)]
    assert sequences([5, 7, 3], (1,), faults, seed=1).egress == sequences([5, 7, 3], (1,)).egress
    machines = Steered(sites=3, bound_rows=TIGHT).start().wander(12, seed=1).crash(ONE).settle("ingress")
    assert machines.holds(THREE, 1)
    assert machines.crash(TWO).rest().output == plain()


def test_two_failures_between_recovery_points_are_not() -> None:
    """With two replicas we can tolerate a single failure; the machines then stop, and say what is lost.

    Reference: 3.1.2
    """
    machines = Steered(sites=3).start().crash(ONE, TWO).settle()
    assert machines.world.lost == ((1, 0),)
    assert not machines.output


def test_the_controller_is_not_relied_upon_for_data_in_flight() -> None:
    """It maintains membership and layout; no information about in-flight data or internal state of operators.

    Reference: 3.1.1
    """
    machines = Steered().start()
    assert machines.settle(CONTROLLER).output == plain()
    told = Steered(sites=3).start().settle("ingress").crash(TWO)
    views = told.waiting(CONTROLLER, ONE)
    assert [type(view) for view in views] == [View]
    told.deliver(CONTROLLER, THREE).deliver(CONTROLLER, ONE)
    assert told.waiting(THREE, ONE, RequestState) and not told.waiting(THREE, CONTROLLER)


# --- 3.2.1.2: the normal case ----------------------------------------------------------------------------------


def test_ingress_keeps_a_tuple_until_both_replicas_have_acknowledged_it() -> None:
    """Once both destinations have received an input, the ingress, and its source, no longer need to hold onto it.

    Machines: an ack says that the tuple was consumed and its output is in the buffer. Reference: 3.2.1.2
    """
    buffer = Buffer(capacity=4)
    buffer.put(7, SN_1, ALL)
    buffer.ack(SN_1, SEC, ALL)
    assert buffer.holds(SN_1)
    buffer.ack(SN_1, PRIM, ALL)
    assert not buffer.entries
    machines = Steered().start().settle(TWO)
    assert machines.output and machines.kept("ingress", 0) and machines.released == 0
    machines.rest()
    assert machines.kept("ingress", 0) == 0 and machines.released == len(VALUES) + 1  # And the end.


def test_a_tuple_is_acknowledged_before_it_can_be_forgotten_downstream() -> None:
    """S-Cons does not forward a tuple to downstream operators unless it has sent an ack for it.

    Machines: ack and output leave in one step, output first, so that a crash loses both or neither.
    Reference: 3.2.1.2
    """
    machines = Steered().start().work("ingress").deliver("ingress", ONE)
    assert machines.is_at_work(ONE)
    assert not machines.waiting(ONE, "ingress") and not machines.waiting(ONE, "egress")
    machines.work(ONE)
    assert machines.waiting(ONE, "ingress", Ack) and machines.waiting(ONE, "egress", Data)


def test_only_the_primary_forwards_and_the_secondary_keeps_what_is_in_flight() -> None:
    """S-Prod of the secondary redundantly stores in-flight data from the primary to the egress, until it is acked.

    Reference: 3.2.1.2
    """
    machines = Steered().start().settle("egress")
    assert machines.waiting(ONE, "egress", Data) and not machines.waiting(TWO, "egress", Data)
    assert machines.kept(TWO, 1) > 0
    assert machines.rest().kept(TWO, 1) == 0


def test_acks_go_to_the_copy_that_does_not_feed() -> None:
    """Egress sends an ack to the secondary for every tuple received; otherwise it keeps its results for ever.

    Machines: acks go to the copy that feeds too, because it may be the donor of the next one. Reference: 3.2.1.2
    """
    assert otherwise("dangling") == "buffers drain: 1.0B keeps [(1, 0)] for ever"
    machines = Steered().start().settle(("egress", ONE), ("egress", TWO))
    assert machines.waiting("egress", ONE, Ack) and machines.waiting("egress", TWO, Ack)


def test_without_acks_a_replica_never_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgments are used to drain the buffer.

    Reference: 3.1.2.1
    """

    def is_left_out(to: str, message: object) -> bool:
        return to == TWO and isinstance(message, Ack)

    assert without(monkeypatch, is_left_out, Steered).startswith("buffers drain: site-2, stage 1 keeps")


def test_an_ack_may_come_before_its_tuple_is_produced() -> None:
    """S-Prod keeps the ack until the output is produced; then the buffer discards both: it is a duplicate filter.

    Reference: 3.2.1.2, 3.2.2.2
    """
    model = Buffer(capacity=4)
    model.ack(SN_1, PRIM, frozenset({PROD, PRIM}))
    assert model.peek(PRIM) is None
    model.put(7, SN_1, frozenset({PROD, PRIM}))
    assert not model.entries
    machines = Steered(at_once=0).start().settle(("ingress", TWO))
    assert machines.output == plain() and not machines.consumed(TWO, 1)
    machines.crash(ONE).settle(("ingress", TWO)).settle("egress")
    assert machines.consumed(TWO, 1) and machines.kept(TWO, 1) == 0
    assert not [frame for frame in machines.waiting(TWO, "egress", Data) if any(frame.bodies)]


# --- 3.2.2.2: the buffer ---------------------------------------------------------------------------------------


def test_an_entry_goes_when_it_has_all_marks_in_del() -> None:
    """Once produced and acknowledged by both destinations an entry is removed, in whatever order that happens.

    Machines: a floor for each destination instead of marks. Reference: 3.2.2.2
    """
    for order in ((ONE, TWO), (TWO, ONE)):
        buffer = two_consumers()
        buffer.put(run(1))
        buffer.ack(order[0], 1)
        assert buffer.runs
        buffer.ack(order[1], 1)
        assert not buffer.runs
        buffer.put(run(1))  # Dangling: acknowledged by both, and produced only now.
        assert not buffer.runs


def test_cursors_of_the_two_destinations_are_independent() -> None:
    """peek() gives the first undelivered tuple for a destination, and advance() moves to the next.

    Reference: 3.2.2.2
    """
    buffer = Buffer(capacity=4)
    for sn, value in ((SN_1, 7), (SN_2, 8)):
        buffer.put(value, sn, ALL)
    buffer.advance(PRIM)
    first, second = buffer.peek(SEC), buffer.peek(PRIM)
    assert first is not None and first.sn == SN_1
    assert second is not None and second.sn == SN_2
    machines = Steered().start().settle(TWO)
    assert machines.consumed(ONE, 1) and machines.consumed(TWO, 1) == []
    assert machines.settle().consumed(TWO, 1) == machines.consumed(ONE, 1)


@pytest.mark.parametrize("bound_rows", [1, 2, 3])
def test_the_size_of_the_ingress_buffer_limits_the_drift(bound_rows: int) -> None:
    """The smaller the buffer, the less slack is possible between the two; and all of it still ends.

    Reference: 3.2.2.2
    """
    assert len(sequences([5, 7, 3, 4], (1,), fan=one_to_one, capacity=bound_rows, seed=5).egress) == 4
    assert otherwise("put_guard").startswith("buffers drain")
    machines = Steered(bound_rows=bound_rows).start().settle(TWO)
    assert len(machines.consumed(ONE, 1)) == bound_rows
    assert machines.rest().output == plain()


def test_acks_may_be_gathered() -> None:
    """The ack() method marks every tuple with sequence number <= SN as acknowledged, to amortize the overhead.

    Machines: they live on this order, so operators that only preserve sets (3.2.5) are not supported.
    Reference: 3.2.2.2
    """
    buffer = two_consumers()
    for upto in (1, 2, 3):
        buffer.put(run(upto))
    for dest in (ONE, TWO):
        buffer.ack(dest, 2)
    assert [kept.upto for kept in buffer.runs] == [3]


def test_sequence_numbers_are_identifiers_only() -> None:
    """The protocol of the models never takes advantage of their order, but for gathered acks.

    Reference: 3.2.5
    """
    buffer = Buffer(capacity=4)
    buffer.ack(SN_1, SEC, ALL)
    for sn in (SN_2, SN_1):  # Produced in another order than at the replica.
        buffer.put(7, sn, ALL)
    sent = []
    while (entry := buffer.peek(PRIM)) is not None:
        sent.append(entry.sn)
        buffer.advance(PRIM)
        buffer.ack(entry.sn, PRIM, ALL)
    assert sent == [SN_2, SN_1]
    assert [entry.sn for entry in buffer.entries] == [SN_2]


# --- 3.2.3: take-over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [0, 1], ids=["primary", "secondary"])
def test_the_remaining_segment_goes_on_without_a_standby(victim: int) -> None:
    """Take-over ensures that the dataflow does not stall and continues to deliver results correctly.

    Reference: 3.2.3
    """
    world = Scenario(values=(5,), standbys=0, victims=frozenset({Copy(1, 0, victim)}))
    assert not explore(world).violation
    for machines in at_every_step(lambda: Steered(bound_rows=TIGHT, at_once=0), seed=victim):
        assert machines.crash((ONE, TWO)[victim]).rest().output == plain()


def test_ingress_does_not_fill_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ingress adjusts its state to no longer account for the failed replica; otherwise its buffer fills.

    Reference: 3.2.3.2
    """
    assert otherwise("ack_all") == "buffers drain: 0.0A keeps [(1,)] for ever"
    for is_left_out in (False, True):
        machines = Steered(bound_rows=TIGHT, at_once=0).start().crash(TWO)
        if is_left_out:
            monkeypatch.setattr(MachineBuffer, "ack_all", lambda buffer, dest: None)
            with pytest.raises(Violated, match="buffers drain: ingress, stage 0 keeps"):
                machines.rest()
        else:
            assert machines.rest().released == len(VALUES) + 1


def test_ack_all_leaves_what_the_remaining_destination_needs() -> None:
    """ack_all() removes entries relevant only to the failed connection, and its dangling numbers.

    Reference: 3.2.3.2
    """
    buffer = Buffer(capacity=4)
    buffer.put(7, SN_1, ALL)
    buffer.put(8, SN_2, ALL)
    buffer.ack(SN_1, PRIM, ALL)
    buffer.ack((3,), SEC, ALL)
    buffer.ack_all(SEC, ALL)
    assert [entry.sn for entry in buffer.entries] == [SN_2]
    machines = two_consumers()
    for upto in (1, 2):
        machines.put(run(upto))
    machines.ack(ONE, 1)
    machines.ack_all(TWO)
    assert [kept.upto for kept in machines.runs] == [2]


def test_without_reversal_the_remaining_segment_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-Prod of the secondary does not forward, so its buffer fills, unless egress reverses the connection.

    Reference: 3.2.1.3.1
    """
    assert otherwise("reversal") == "buffers drain: 1.0B keeps [(1, 0)] for ever"

    def is_left_out(to: str, message: object) -> bool:
        return isinstance(message, Attach) and message.view > 1

    def crashed() -> Steered:
        return Steered(at_once=0).start().crash(ONE)

    assert without(monkeypatch, is_left_out, crashed).startswith("buffers drain: site-2, stage 1 keeps")
    assert crashed().rest().output == plain()


def test_the_secondary_sends_from_the_first_tuple_that_the_egress_has_not_received() -> None:
    """When S-Prod starts sending, the cursor points to the first undelivered, that is unacknowledged, tuple.

    Machines: the attach says exactly from where, so acks in flight do not matter. Reference: 3.2.3.2
    """
    buffer = Buffer(capacity=4)
    for sn in (SN_1, SN_2):
        buffer.put(7, sn, ALL)
    buffer.ack(SN_1, SEC, ALL)
    buffer.reset(SEC)
    entry = buffer.peek(SEC)
    assert entry is not None and entry.sn == SN_2

    machines = Steered(at_once=0).start().settle("egress", "ingress").work("ingress").settle("egress", "ingress")
    machines.world.do(("deliver", ONE, "egress"))  # One frame arrives; its ack does not.
    machines.settle("ingress", ("egress", TWO), (ONE, "egress")).settle(("egress", TWO), (ONE, "egress"))
    assert [sn for sn, _, _ in machines.output] == [1]
    machines.crash(ONE).deliver(CONTROLLER, "egress")
    [attach] = machines.waiting("egress", TWO, Attach)
    assert attach.position == 1
    assert machines.rest().output == plain()


def test_take_over_of_a_dead_secondary_needs_no_reversal() -> None:
    """If the egress receives from the remaining replica, nothing else happens; catch-up must begin all the same.

    Departure: tk_done() as printed asks for a reversal. Reference: 3.2.3.2, 3.2.4.1
    """
    assert otherwise("r_done_only") == "recovery ends: 1.0C still waits to be folded in"
    machines = Steered(sites=3).start().crash(TWO).deliver(CONTROLLER, "egress")
    assert not machines.waiting("egress", ONE, Attach)
    assert machines.being_built == [(1, 0, THREE)]
    assert machines.rest().holds(THREE, 1)


def test_what_the_dead_had_sent_is_ignored_once_their_death_is_known() -> None:
    """Faulty processes are fail-stop, and in-flight data is lost with them; a reset machine is a new site.

    Reference: 3.1.1, 3.2.3.1
    """
    machines = Steered(at_once=0).start().settle("egress").crash(ONE)
    assert machines.waiting(ONE, "egress", Data)
    machines.deliver(CONTROLLER, "egress").deliver(ONE, "egress")
    assert not machines.output
    assert machines.rest().output == plain()


def test_controller_messages_have_no_order_with_the_dataflow() -> None:
    """A fail() may arrive at one operator long after another has acted on it: synchronization has to wait for it.

    Departure: as printed, a csync or psync is taken at once. Machines: a message of a later view waits for that view.
    Reference: 3.2.3.1
    """
    assert otherwise("sync_at_once").startswith("buffers drain")
    machines = Steered(at_once=0).start().settle("egress").crash(ONE).deliver(CONTROLLER, "egress")
    machines.deliver("egress", TWO)
    assert not machines.waiting(TWO, "egress", Data)
    machines.deliver(CONTROLLER, TWO)
    assert machines.waiting(TWO, "egress", Data)
    assert machines.rest().output == plain()
