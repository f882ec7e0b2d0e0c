"""Claims of thesis 3.2.4 and 3.2.5: catch-up of a dataflow pair. See tests/test_thesis.py for how they are shown.

Where the thesis quiesces the segment, pauses its egress and matches synchronization messages, the machines carry exact
positions: the state says where it was cut, an attach says from where, an ack up to where.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from flux.protocols.messages import Ack, Attach, Data, RequestState, State
from flux.spec.process import CONTROLLER
from flux.spec.thesis import Copy, Scenario, explore

from .steering import FOUR, ONE, THREE, TWO, VALUES, Stages, Steered, at_every_step, otherwise, plain, without

SPARE = 3  # Sites: a pair, and one without copies.
SHARED: Stages = (((ONE, TWO), (THREE, TWO)),)  # When site 2 dies, each of the others gets the copy it has not.


def about_to_move() -> Steered:
    """Half of the input is consumed, the secondary is dead, and the standby's request is on its way to the active."""
    machines = Steered(sites=SPARE).start()
    for _ in range(2):
        machines.work("ingress").settle("ingress", kinds=("deliver", "answer"))
    machines.crash(TWO).settle("ingress", (THREE, ONE), kinds=("deliver",))
    assert machines.waiting(THREE, ONE, RequestState)
    return machines


def test_after_catch_up_the_dataflow_is_fault_tolerant_again() -> None:
    """The new replica can take over from the one it was copied from, at any later step.

    Reference: 3.2.4.2
    """
    world = Scenario(values=(5,), crashes=2, fused=True, prelude=("1.0A: crash",), victims=frozenset({Copy(1, 0, 1)}))
    assert not explore(world).violation
    tolerated = 0
    for machines in at_every_step(lambda: Steered(sites=SPARE).start().crash(ONE), seed=2):
        if machines.holds(THREE, 1):
            tolerated += 1
            assert machines.crash(TWO).rest().output == plain()
    assert tolerated > 5


def test_a_standby_starts_with_the_state_and_exactly_where_the_active_left_off() -> None:
    """Before that point the copies have consumed the same input, and after it they will produce the same output.

    Reference: 3.2.1.3.2, 3.2.4.1
    """
    machines = about_to_move().deliver(THREE, ONE)
    [state] = machines.waiting(ONE, THREE, State)
    assert state.position == 2
    machines.deliver(ONE, THREE)
    assert machines.consumed(THREE, 1) == machines.consumed(ONE, 1) == [(1, 0, VALUES[0]), (2, 0, VALUES[1])]
    [attach] = machines.waiting(THREE, "ingress", Attach)
    assert attach.position == state.position
    assert machines.rest().consumed(THREE, 1) == machines.consumed(ONE, 1)


def test_state_is_not_changed_while_it_is_read() -> None:
    """S-Prod pauses to prevent additional state changes from occurring during movement.

    Machines: the state is cut between two steps of the operator; nothing waits but the next of them.
    Reference: 3.2.4.1
    """
    machines = about_to_move().work("ingress").deliver("ingress", ONE)
    assert machines.is_at_work(ONE)
    machines.deliver(THREE, ONE)
    assert not machines.waiting(ONE, THREE, State)
    machines.work(ONE)
    assert [state.position for state in machines.waiting(ONE, THREE, State)] == [3]
    assert machines.rest().output == plain()


def test_the_dataflow_goes_on_while_state_moves() -> None:
    """The thesis stalls the segment completely, and promises methods for alleviating this stall.

    Machines: there is none; the active goes on to the end of the stream while its state is still on its way.
    Reference: 3.2.4.1
    """
    machines = about_to_move().deliver(THREE, ONE).settle((ONE, THREE))
    assert machines.waiting(ONE, THREE, State) and not machines.holds(THREE, 1)
    assert machines.output == plain()
    assert machines.rest().consumed(THREE, 1) == machines.consumed(ONE, 1)


def test_ingress_does_not_resend_what_was_consumed_before_the_movement() -> None:
    """If the csync of the standby arrives first, acks of the active are in transit; their tuples would be resent.

    Machines: acks in transit do not matter; the standby's attach says from where. Reference: 3.2.4.2
    """
    assert otherwise("both_csync") == "dup-free: partition 0 of stage 1 gets tuple (1,) again"
    machines = Steered(sites=SPARE).start().work("ingress").settle("ingress", (ONE, "ingress"))
    machines.crash(TWO).settle("ingress", (ONE, "ingress"))
    assert machines.waiting(ONE, "ingress", Ack) and machines.holds(THREE, 1)
    machines.deliver(CONTROLLER, "ingress").deliver(THREE, "ingress")
    assert not [frame for frame in machines.waiting("ingress", THREE, Data) if frame.after < 1]
    assert machines.rest().consumed(THREE, 1) == machines.consumed(ONE, 1)


def test_ingress_keeps_input_for_the_new_replica_before_it_can_ask_for_it() -> None:
    """To avoid dropping input for the new replica, ingress updates del at the csync of the active.

    Machines: from the view that names it on, the site of the standby must acknowledge too. Reference: 3.2.4.2
    """
    assert otherwise("csync_del") == "no deadlock: 1.0C has consumed 0 of 1 tuples"
    machines = about_to_move().deliver(THREE, ONE).settle((ONE, THREE))
    assert machines.output == plain()
    assert machines.released == 2 and machines.kept("ingress", 0) == len(VALUES) - 2 + 1  # And the end.
    assert machines.rest().released == len(VALUES) + 1


def test_a_site_that_is_ahead_of_the_active_keeps_input_for_its_new_replica_too() -> None:
    """The same, where the standby's site has another partition of the operator and has acknowledged more.

    Machines: the state is cut at once, where the donor is; producers keep for the site what they keep for the donor.
    Reference: 3.2.4.2
    """
    machines = Steered(SHARED).start().settle(("ingress", ONE)).crash(TWO).settle(("ingress", ONE), (THREE, ONE))
    machines.deliver(THREE, ONE)
    assert [state.position for state in machines.waiting(ONE, THREE, State)] == [0]
    assert machines.rest().holds(THREE, 1) and machines.output == plain(SHARED)


def test_a_site_acknowledges_nothing_that_its_new_replica_will_need() -> None:
    """The same, where the standby's site goes on with its other partition while the state is on its way.

    Reference: 3.2.4.2
    """
    machines = Steered(SHARED).start()
    for _ in range(2):
        machines.work("ingress").settle("ingress")
    machines.deliver(ONE, "ingress").deliver(TWO, "ingress").deliver(THREE, "ingress")
    machines.crash(TWO).settle("ingress", (ONE, THREE))
    [state] = machines.waiting(ONE, THREE, State)
    machines.settle((ONE, THREE))
    assert machines.consumed(THREE, 1, 1)[-1][0] > state.position
    assert machines.released == state.position
    assert machines.rest().consumed(THREE, 1) == machines.consumed(ONE, 1)


def test_the_new_replica_learns_what_the_egress_has_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """Egress pauses the active until the second psync; otherwise it would miss sending acks to the new replica.

    Machines: no pause; whoever is new is told the position, changed or not. Reference: 3.2.4.2
    """
    assert otherwise("psync_pause") == "buffers drain: 1.0C keeps [(1, 0)] for ever"
    machines = about_to_move().settle((ONE, THREE), ("egress", THREE))
    assert machines.output == plain()
    machines.settle(("egress", THREE))
    assert machines.kept(THREE, 1) > 0  # The state brought them; nobody else will say that they have arrived.
    assert machines.rest().kept(THREE, 1) == 0

    def is_left_out(to: str, message: object) -> bool:
        return to == THREE and isinstance(message, Ack)

    assert without(monkeypatch, is_left_out, about_to_move).startswith("buffers drain: site-3, stage 1 keeps")


def test_acks_for_what_was_sent_before_the_movement_do_no_harm() -> None:
    """Egress acks to the standby only after both psyncs; otherwise it would forward acks for tuples sent before.

    Machines: such an ack is a position the standby is beyond, and drops nothing that it has. Reference: 3.2.4.2
    """
    assert otherwise("both_psync") == "buffers drain: 1.0C keeps [(1, 0)] for ever"
    machines = Steered(sites=SPARE).start().work("ingress").settle("ingress")
    machines.crash(TWO).settle("ingress", (THREE, ONE), ("egress", THREE))
    assert [ack.position for ack in machines.waiting("egress", THREE, Ack)] == [1]
    machines.work("ingress").settle("ingress", "egress", (THREE, ONE))  # The active goes on to the second tuple.
    machines.settle("ingress", "egress").deliver("egress", THREE)
    assert machines.holds(THREE, 1) and machines.kept(THREE, 1) > 0
    machines.settle("ingress", "egress").crash(ONE)  # What it had sent is lost, and the standby must have it.
    assert machines.rest().output == plain()


@pytest.mark.parametrize("order", tuple(permutations(("ingress", ONE, THREE, "egress"))), ids=" ".join)
def test_synchronization_messages_may_arrive_in_any_order(order: tuple[str, ...]) -> None:
    """The csyncs and psyncs of active and standby can arrive in any order; and so may views, attaches and acks.

    As long as the first in `order` can go on, nobody else does.

    Reference: 3.2.4.2
    """
    assert about_to_move().settle_in_turn(*order).rest().output == plain()


def test_the_models_take_synchronization_messages_in_any_order() -> None:
    """Each of csync and psync, of active and standby, is the first somewhere.

    Reference: 3.2.4.2
    """
    fired = explore(Scenario(values=(), fused=True)).fired
    for role, sync in (("ingress", "csync"), ("egress", "psync")):
        for who in ("active", "standby"):
            assert fired[role, f"{sync}_{who}_first"] and fired[role, f"{sync}_{who}_second"]


def test_catch_up_is_idempotent() -> None:
    """Even if the standby fails during movement, the dataflow continues to process and attempts catch-up again.

    Reference: 3.2.1.3.2, 3.2.5
    """
    story = ("1.0B: crash", "1.0C: standby")
    standby = frozenset({Copy(1, 0, 2)})
    world = Scenario(values=(), crashes=2, standbys=2, prelude=story, victims=standby, fused=True)
    found = explore(world)
    assert not found.violation
    assert found.fired["s_cons", "give_up"] and found.fired["s_cons", "avail_active"]

    for machines in at_every_step(lambda: Steered(sites=SPARE + 1).start().crash(TWO), seed=3):
        assert machines.crash(THREE).rest().output == plain()
        assert machines.holds(FOUR, 1)


@pytest.mark.parametrize("variant", ["version_kept", "del_of_the_dead", "abort_forgets"])
def test_idempotence_needs_more_than_the_printed_actions(variant: str) -> None:
    """The ingress and egress psync(), csync() and fail() actions must be modified to track the gap in versions.

    Reference: 3.2.5
    """
    assert otherwise(variant)


def test_each_attempt_has_a_version_of_its_own() -> None:
    """The version number tracks which checkpoint has been transferred; messages of an earlier one are not mixed up.

    Machines: a state that comes for a copy not wanted any more is ignored. Reference: 3.2.4.1, 3.2.5
    """
    machines = about_to_move()
    [first] = machines.waiting(THREE, ONE, RequestState)
    machines.crash(THREE)
    again = Steered(sites=SPARE + 1).start().crash(TWO).settle("ingress", (THREE, ONE)).crash(THREE)
    again.settle("ingress", (FOUR, ONE), (THREE, ONE))
    [second] = again.waiting(FOUR, ONE, RequestState)
    assert second.version > first.version
    assert again.deliver(THREE, ONE).waiting(ONE, FOUR, State) == []
    assert again.rest().holds(FOUR, 1)
