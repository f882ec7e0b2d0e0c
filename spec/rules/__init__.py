"""The rules of the position protocol, and what happens in a world without each of them.

The protocol of the thesis marks tuples one by one and pauses senders; ours says everything in absolute positions.
Each rule has a text, and *removals*: ways to take it, or what stands in its place here, out of the production
machines. With a removal a simulated world fails, and the failure is told as a short story. A rule, or a part of one,
that the machines do not need has an *argument* instead; where something of it is still there, and nothing would
miss it, it is among the `spare` removals, and no world may fail with those.

The seed of a removal is where to begin to look in its world: the machines change, and the story with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..scenario_walk import WORLDS, wander
from ..walk import Walked
from . import copies as copies
from . import early as early
from . import feeding as feeding
from . import views as views
from .patch import Patch
from .stories import Told, tell

SEEDS_MAX = 3_000  # Worlds tried for one removal.


@dataclass(frozen=True)
class Removal:
    """A rule taken out of the machines, and the world that shows what is wrong then."""

    take_out: Callable[[Patch], None]
    world: str
    seed: int

    @property
    def name(self) -> str:
        return self.take_out.__name__.replace("_", " ")

    @property
    def what(self) -> str:
        return " ".join((self.take_out.__doc__ or "").split())


@dataclass(frozen=True)
class ProtocolRule:
    """One rule: what it says, and why it is there, or why not."""

    number: int
    title: str
    text: str
    removals: tuple[Removal, ...] = ()
    argument: str = ""
    spare: tuple[Callable[[Patch], None], ...] = ()


def counterexample(removal: Removal) -> Walked | None:
    """A walk that fails without the rule; None if there is none."""
    with Patch() as patch:
        removal.take_out(patch)
        return _failing(removal)


def told(removal: Removal) -> Told | None:
    """The story of a failure without the rule; None if there is none."""
    with Patch() as patch:
        removal.take_out(patch)
        walked = _failing(removal)
        return tell(walked) if walked is not None else None


def _failing(removal: Removal) -> Walked | None:
    for seed in range(removal.seed, removal.seed + SEEDS_MAX):
        walked = wander(WORLDS[removal.world], seed)
        if walked.violation is not None:
            return walked
    return None


RULES: tuple[ProtocolRule, ...] = (
    ProtocolRule(
        1,
        "Acknowledge to every producer copy",
        "A consumer copy says what it has consumed to all copies of its producers, also to those that do not feed it. "
        "Only acknowledgements release a row; sending it does not.",
        (
            Removal(feeding.acknowledge_to_the_feeder_only, "pair to pair", 12),
            Removal(feeding.release_what_was_sent, "a move", 61),
            Removal(feeding.acknowledge_what_was_received, "a move", 641),
        ),
    ),
    ProtocolRule(
        2,
        "Who is entitled",
        "A row is dropped when every site with a consumer copy, finished or on its way, has acknowledged it. Who has "
        "not been heard from has acknowledged nothing.",
        (
            Removal(feeding.drop_what_one_has_acknowledged, "pair to pair", 2),
            Removal(feeding.keep_nothing_for_copies_on_their_way, "a spare", 7),
            Removal(feeding.take_silence_for_an_ack, "a move", 26),
        ),
        "That nobody at all is entitled cannot be: a stage without a member is lost, and the place of a dead egress is "
        "entitled (rule 22). The buffer drops nothing then all the same.",
    ),
    ProtocolRule(
        3,
        "Nothing behind the cut is dropped",
        "What a copy on its way will need is kept from before its state is cut. Here there is no message for it: the "
        "site asks for the state at its own position or later, and acknowledges nothing beyond until it has it.",
        (
            Removal(copies.acknowledge_beyond_the_request, "ahead", 26),
            Removal(copies.ask_for_any_state, "ahead", 278),
            Removal(copies.cut_before_the_position_asked_for, "ahead", 64),
            Removal(copies.acknowledge_later_when_a_copy_is_here, "restarts and a move", 134),
        ),
        "An entitlement that is sent, and repeated to producer copies that come later, is not needed: a receiver that "
        "limits its own acknowledgements states the limited position to everybody, also to those.",
    ),
    ProtocolRule(
        4,
        "State your position on join",
        "A consumer that sees a new producer copy in the view tells it what it has acknowledged, changed or not.",
        (Removal(feeding.say_nothing_to_a_new_producer, "a move", 8),),
    ),
    ProtocolRule(
        5,
        "Completion",
        "A copy is made live when its state is installed.",
        (Removal(copies.say_that_it_is_done_when_it_is_asked_for, "a spare", 15),),
        "Confirmations of its attaches by every producer copy are not waited for: the site has had a floor at each of "
        "them since the view that named the copy, so nothing that it will ask for can be dropped meanwhile.",
    ),
    ProtocolRule(
        6,
        "Stints",
        "Every attach has a number, and every frame names it. Frames of an earlier attach are discarded, also those "
        "that begin at the right position.",
        (Removal(feeding.take_frames_of_an_old_stint, "there and back", 56),),
        "There is no message that says that a stint has begun: the first frame says at which position it begins.",
    ),
    ProtocolRule(
        7,
        "The frontier",
        "A consumer goes as far as the last of all its producer partitions, also of one that nobody sends at the "
        "moment. A partition that changes its sender keeps its own position.",
        (
            Removal(feeding.merge_up_to_the_fastest_lane, "a shortcut", 1),
            Removal(feeding.forget_producers_that_nobody_sends, "a shortcut, restarts", 75),
            Removal(feeding.go_as_far_as_the_first_producer, "ahead", 13),
        ),
    ),
    ProtocolRule(
        8,
        "Room for who is furthest behind",
        "Nobody begins work whose output has no room, but for partitions that are behind what the full pool holds.",
        (
            Removal(copies.hold_who_is_behind_in_a_full_pool, "two partitions meet", 6),
            Removal(copies.work_with_a_full_pool, "a pair", 1),
            Removal(copies.hold_who_is_behind_in_a_full_pool, "any order, small pools", 1),
            Removal(early.take_early_rows_with_a_full_pool, "any order, a full pool", 7),
        ),
        "There are no credits, and so none to reserve. Acknowledgements are of what was consumed, so a consumer has "
        "never more waiting than its producers' pools hold.",
    ),
    ProtocolRule(
        9,
        "Messages are of a view",
        "An acknowledgement, attach, stop or merge that a site sent before it last became a consumer of the stage does "
        "not count. Who comes back begins anew on both sides.",
        (
            Removal(feeding.listen_to_what_was_said_before_the_sender_left, "there and back", 12),
            Removal(feeding.go_on_acknowledging_from_where_it_left, "to and fro", 376),
        ),
    ),
    ProtocolRule(
        10,
        "The view of a state",
        "A state names the view in which it was cut, and is held until its site has come as far.",
        argument="It is held because all messages are (rule 11), not because it must be. What moves has no floors and "
        "names no other copy, only absolute positions; so no later view can make it wrong.",
    ),
    ProtocolRule(
        11,
        "Hold, do not refuse",
        "A message of a view that its receiver has not seen waits until it has.",
        (Removal(views.discard_what_comes_too_early, "a pair", 5),),
    ),
    ProtocolRule(
        12,
        "The dead are mute",
        "What a node says that is dead in the view of the receiver is refused and changes nothing; it may live on.",
        (Removal(views.hear_the_dead, "a spare, two crashes", 142),),
    ),
    ProtocolRule(
        13,
        "Changing the sender",
        "When the copy that feeds a consumer dies or moves away, the consumer attaches to another at its exact "
        "position. A sender that lives is stopped, and what it sent before it knew does not count.",
        (
            Removal(feeding.stay_with_a_dead_feeder, "a pair", 3),
            Removal(feeding.attach_without_a_stop, "a move of a producer", 4),
            Removal(feeding.take_what_was_stopped, "one of two there and back", 2),
        ),
        "Nobody switches back when the first sender is rebuilt: a copy that was just built is behind, and its "
        "consumers would wait for it.",
    ),
    ProtocolRule(
        14,
        "Attach at the exact position",
        "An attach names the position received; the sender begins exactly behind it. A copy that has produced less "
        "sends nothing until it has come past it.",
        (
            Removal(feeding.skip_a_row_at_take_over, "pair to pair", 3),
            Removal(feeding.go_back_at_take_over, "two moves", 63),
            Removal(feeding.feed_from_where_the_producer_is, "restarts", 9),
        ),
        "That an attach below what was dropped is refused is a check and not a rule: without any other mistake it "
        "never happens. Most of the stories here end with it.",
    ),
    ProtocolRule(
        15,
        "Floors have names",
        "What was acknowledged is kept by the name of the site, never by its place.",
        (Removal(feeding.keep_floors_by_place, "a spare, roomy", 347),),
        "That a new copy feeds nobody until it is asked needs no rule: only an attach opens a lane.",
    ),
    ProtocolRule(
        16,
        "What moves is of one instant",
        "State, position and the output that is not acknowledged move together, cut between two steps of the operator. "
        "What has left a site does not count there any more.",
        (
            Removal(copies.leave_the_output_behind, "a move of a producer", 24),
            Removal(copies.cut_under_the_operator, "a move", 83),
            Removal(copies.drop_a_copy_under_the_operator, "a move", 180),
            Removal(copies.keep_the_output_of_a_stage_that_was_left, "a move of a producer", 50),
            Removal(copies.count_the_output_of_copies_that_left, "one of two there and back", 105),
            Removal(copies.count_what_was_put_before_a_copy_left, "one of two there and back", 49),
        ),
        "Rows received and not consumed do not move: they are not acknowledged, and the new copy is sent them again.",
    ),
    ProtocolRule(
        17,
        "The death of a donor or a standby",
        "A copy on its way to a site that died is given up. If the donor died, the copy counts if it is installed; if "
        "not, its site says so, and it is begun again from another copy, or the partition is lost.",
        (
            Removal(copies.say_nothing_of_a_dead_donor, "a move and a crash", 115),
            Removal(views.give_up_a_copy_on_its_way, "a move and a crash", 395),
            Removal(views.keep_a_dead_standby, "a spare, two crashes", 17),
        ),
        "Whether the state was here when its donor died, only the site knows: the controller waits for its word, also "
        "when another copy could give the state.",
    ),
    ProtocolRule(
        18,
        "Positions inside a sequence number",
        "A frame that is cut inside one sequence number would need positions with a second part.",
        argument="Frames are cut only between sequence numbers, so a position is a whole one. Ties between branches "
        "break by edge and partition, in the order of rows, which is the shell's; the operators' emit refuses a "
        "decreasing origin.",
    ),
    ProtocolRule(
        19,
        "Never the last copy",
        "A site that does not answer or cannot reach another is declared dead only if every partition on it has "
        "another copy. If neither of two may go, the link is resumed where it broke.",
        (
            Removal(views.declare_the_last_copy_dead, "a suspicion of the last copy", 7),
            Removal(views.declare_the_last_copy_dead, "a cut to the last copy", 7),
            Removal(views.forget_who_has_the_last_copy_on_its_way, "a suspicion of a last copy in transfer", 6),
            Removal(
                views.keep_everybody_while_a_last_copy_is_on_its_way, "a suspicion of a last copy in transfer", 155
            ),
        ),
    ),
    ProtocolRule(
        20,
        "A death discards what is undelivered",
        "With the view that says that a node is dead, what it sent and was not taken yet is void.",
        argument="It is rule 12 for all that comes after the view. Of what is held for a later view nothing can be of "
        "the dead: it was sent in a view in which its sender lived, views come in order, and so it is handed over in "
        "that very view.",
        spare=(views.keep_what_the_dead_had_said,),
    ),
    ProtocolRule(
        21,
        "What the thesis has and nobody needs here",
        "Postponing reversals, swapping marks, and recovery from source to destination as a matter of safety.",
        argument="There are no marks, and attaches carry exact positions, so they may come in any order. From source "
        "to destination is only the controller's preference.",
        spare=(views.rebuild_from_destination_to_source,),
    ),
    ProtocolRule(
        22,
        "The place of a dead egress is entitled",
        "Until an egress that died is replaced, everything is kept for it, whatever other edges say.",
        (Removal(feeding.keep_nothing_for_a_dead_egress, "two streams, restarts", 27),),
    ),
    ProtocolRule(
        23,
        "A position of nothing is not stated",
        "Who has acknowledged nothing since he became a consumer says nothing to a new producer: it may know more.",
        (Removal(feeding.state_a_position_of_nothing, "restarts and a spare", 458),),
    ),
    ProtocolRule(
        24,
        "Ends have incarnations",
        "A process that serves an end is replaced only by one that was started later. An egress goes on behind what "
        "its sink has made durable.",
        (
            Removal(views.let_any_process_serve_an_end, "two restarts", 169),
            Removal(views.begin_the_output_anew, "restarts", 66),
        ),
    ),
    ProtocolRule(
        25,
        "Journal, then publish",
        "A view is in the journal before anybody is sent it; a controller that is started again begins with the last.",
        (Removal(views.send_a_view_before_it_is_in_the_journal, "restarts", 36),),
    ),
    ProtocolRule(
        26,
        "Views come without gaps",
        "A view is sent to the nodes that are connected. Who connects says what he has seen, is sent the rest, and "
        "repeats what he had reported. A node begins with the first view that lists it.",
        (
            Removal(views.send_views_to_everybody, "restarts and a spare", 24),
            Removal(views.do_not_send_views_again, "restarts and a spare", 19),
            Removal(copies.report_once, "restarts and a spare", 230),
            Removal(copies.report_a_dead_donor_once, "restarts and a move", 687),
            Removal(views.begin_with_the_first_view_only, "an arrival", 2),
        ),
    ),
    ProtocolRule(
        27,
        "Never two copies on one site",
        "A copy is rebuilt on, and moved to, a site that has none of its partition and is to have none.",
        (
            Removal(views.rebuild_where_the_other_copy_is, "a spare", 3),
            Removal(views.move_to_a_site_that_has_a_copy, "a move of a pair", 9),
        ),
    ),
    ProtocolRule(
        28,
        "Cohorts meet",
        "Partitions are consumed in one step when they have come equally far and the operator is busy with none.",
        (
            Removal(copies.step_over_a_cohort, "ahead", 91),
            Removal(copies.fuse_a_cohort_at_work, "everything moves", 3847),
            Removal(copies.fuse_cohorts_at_different_positions, "two partitions meet", 6),
            Removal(copies.fuse_cohorts_at_work, "ahead", 11),
            Removal(copies.lose_what_was_pending_when_cohorts_fuse, "ahead", 83),
        ),
    ),
    ProtocolRule(
        29,
        "Lanes meet",
        "Two lanes become one when both have been sent equally far; the old name goes on to be understood. A lane goes "
        "on when the producer that held it back is taken out.",
        (
            Removal(feeding.merge_lanes_at_any_position, "everything moves", 89),
            Removal(feeding.forget_old_names_of_lanes, "everything moves", 9),
            Removal(early.keep_lanes_of_one_sender_apart, "any order, restarts and a crash", 125),
            Removal(feeding.wait_for_a_producer_that_was_taken_out, "one of two there and back", 2369),
        ),
    ),
    ProtocolRule(
        30,
        "Ahead of the frontier",
        "A stage that does not wait for the merge consumes what has come, and acknowledges its frontier as others do. "
        "How far ahead of it the rows of each producer were taken goes with its state, and with what a sink has made "
        "durable; each producer's rows are asked for from there. What it emits is kept until the frontier of its "
        "consumers has passed it, and sent when its own has. Cohorts that are to meet take no rows early.",
        (
            Removal(early.cut_without_what_is_ahead, "any order and a move", 1),
            Removal(early.count_what_waits_as_taken, "any order, there and back", 11),
            Removal(early.begin_the_egress_at_its_position, "any order, restarts", 2),
            Removal(early.acknowledge_what_was_taken_early, "any order", 0),
            Removal(feeding.go_back_at_take_over, "any order", 51),
            Removal(early.end_a_run_at_the_frontier, "any order", 0),
            Removal(early.send_what_was_emitted_early, "any order", 14),
            Removal(early.take_early_rows_before_a_meeting, "any order and a move", 11),
        ),
    ),
    ProtocolRule(
        31,
        "Nobody waits for a copy on its way",
        "A site to which a copy is on its way acknowledges nothing until it is there, however long that takes. What is "
        "kept for it alone has a bound of its own. When it catches up, it does so in steps between which others have "
        "their turn, and what may be kept for it becomes less with each row that it takes.",
        (
            Removal(feeding.wait_for_copies_on_their_way, "a spare, patience", 3),
            Removal(feeding.keep_as_much_for_who_has_caught_up, "a spare, patience", 2),
            Removal(feeding.wait_for_all_that_a_copy_has_to_take, "small steps", 37),
        ),
    ),
    ProtocolRule(
        32,
        "The dead are forgotten",
        "A view tells of a death, and the next one leaves out the dead whose slots others have: all see every view, so "
        "nobody asks for them any more. A site that was left out is known by its number, because no number is given "
        "twice and the view has the highest that was left out; an end by having seen a view. Both stay mute, and may "
        "not come back. A site that is so slow to come that a later one has lived, died and been forgotten is taken "
        "for one of them, and is started again.",
        (
            Removal(views.leave_the_dead_out_at_once, "restarts", 29),
            Removal(views.leave_out_who_is_in_a_slot, "a spare, two crashes", 3),
            Removal(views.hear_the_forgotten, "a forgotten site", 122),
            Removal(views.take_the_forgotten_for_strangers, "a forgotten site", 5),
            Removal(views.take_in_a_forgotten_site, "a forgotten site", 29),
        ),
    ),
    ProtocolRule(
        33,
        "The journal keeps what somebody may ask for",
        "A view is in the journal until everybody who lives in the last one has seen it, and the last one always. Who "
        "has not been heard by a controller that was started again may have seen none.",
        (
            Removal(views.keep_the_last_view_only, "restarts and a spare", 34),
            Removal(views.take_silence_for_having_seen, "two restarts and a spare", 20),
        ),
    ),
)
