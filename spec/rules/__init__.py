"""The rules of the position protocol, and what happens in a world without each of them.

The protocol of the thesis marks tuples one by one and pauses senders; ours uses absolute positions everywhere. Each
rule has a text, and *removals*: ways to take it, or its replacement here, out of the production machines. With a
removal a simulated world fails, and the failure is printed as a short story. A rule, or a part of one, that the
machines do not need has an *argument* instead. A part of it that is present but not needed is among the `spare`
removals, and no world may fail with those.

The seed of a removal is the first one to try in its world: the machines change, and the story with them.
"""

from __future__ import annotations

from ..scenario_walk import WORLDS, wander
from ..walk import Walked
from . import balance as balance
from . import copies as copies
from . import early as early
from . import feeding as feeding
from . import lost_tails as lost_tails
from . import views as views
from .patch import Patch
from .protocol_rule import ProtocolRule as ProtocolRule
from .protocol_rule import Removal as Removal
from .rules_of_changes import CHANGE_RULES
from .stories import FailureStory, make_story

SEEDS_MAX = 3_000  # Worlds tried for each removal.


def counterexample(removal: Removal) -> Walked | None:
    """Return a walk that fails without the rule; None if there is none."""
    with Patch() as patch:
        removal.take_out(patch)
        return _find_failure(removal)


def failure_story(removal: Removal) -> FailureStory | None:
    """Return the story of a failure without the rule; None if there is none."""
    with Patch() as patch:
        removal.take_out(patch)
        walked = _find_failure(removal)
        return make_story(walked) if walked is not None else None


def _find_failure(removal: Removal) -> Walked | None:
    for seed in range(removal.seed, removal.seed + SEEDS_MAX):
        walked = wander(WORLDS[removal.world], seed)
        if walked.violation is not None:
            return walked
    return None


RULES: tuple[ProtocolRule, ...] = (
    ProtocolRule(
        1,
        "Acknowledge to every producer copy",
        "A consumer copy acknowledges what it has consumed to all copies of its producers, also to those that do not "
        "feed it. Only acknowledgements release a row; sending it does not.",
        (
            Removal(feeding.acknowledge_to_the_feeder_only, "pair to pair", 12),
            Removal(feeding.release_what_was_sent, "a move", 61),
            Removal(feeding.acknowledge_what_was_received, "a move", 641),
        ),
    ),
    ProtocolRule(
        2,
        "Which sites must acknowledge",
        "A row is dropped when every site with a consumer copy, finished or in transfer, has acknowledged it. A site "
        "that has not sent an acknowledgement has acknowledged nothing.",
        (
            Removal(feeding.drop_what_one_has_acknowledged, "pair to pair", 2),
            Removal(feeding.keep_nothing_for_copies_in_transfer, "a spare", 7),
            Removal(feeding.take_silence_for_an_ack, "a move", 26),
        ),
        "There is always a site that must acknowledge: a stage without a member is lost, and the place of a dead "
        "egress must acknowledge (rule 22). Without any, the buffer would drop nothing all the same.",
    ),
    ProtocolRule(
        3,
        "Nothing after the cut is dropped",
        "The rows that a copy in transfer will need are kept from before its state is cut, also if its site is ahead "
        "of the donor. From the view that names the copy on, producers keep for the site what the donor has not "
        "acknowledged in that view. The site acknowledges nothing until it has the state, and then all of it anew: "
        "what it acknowledged in earlier views does not count. So the donor cuts at once, between two steps, and need "
        "not work off what it lags.",
        (
            Removal(copies.acknowledge_while_a_copy_is_in_transfer, "ahead", 0),
            Removal(copies.keep_what_the_site_itself_needs, "ahead", 0),
            Removal(copies.count_acks_from_before_a_transfer, "ahead", 0),
            Removal(copies.remember_acks_from_before_a_transfer, "ahead", 0),
            Removal(copies.work_off_the_backlog_first, "ahead", 0),
            Removal(copies.acknowledge_later_when_a_copy_is_here, "restarts and a move", 134),
        ),
        "A message that reserves rows, repeated to producer copies that join later, is not needed: the view says for "
        "which site they are kept, and a producer that joins later begins with the floors of none.",
    ),
    ProtocolRule(
        4,
        "State your position on join",
        "A consumer that sees a new producer copy in the view sends it its acknowledged position, changed or not.",
        (Removal(feeding.do_not_ack_to_a_new_producer, "a move", 8),),
    ),
    ProtocolRule(
        5,
        "Completion",
        "A copy becomes live when its state is installed.",
        (Removal(copies.report_ready_at_the_request, "a spare", 15),),
        "The site does not wait until every producer copy has confirmed its attach: it has had a floor at each of them "
        "since the view that named the copy, so nothing that it will request can be dropped meanwhile.",
    ),
    ProtocolRule(
        6,
        "Lane numbers",
        "Every attach has a number, and every frame names it. Frames of an earlier attach are discarded, also those "
        "that start at the right position.",
        (Removal(feeding.take_frames_of_an_old_lane, "there and back", 56),),
        "No message opens a lane: its first frame has the position at which it starts.",
    ),
    ProtocolRule(
        7,
        "The frontier",
        "A consumer advances up to the slowest of all its producer partitions, also one without a sender at the "
        "moment. A partition that changes its sender keeps its own position.",
        (
            Removal(feeding.merge_up_to_the_fastest_lane, "a shortcut", 1),
            Removal(feeding.ignore_producers_without_a_sender, "a shortcut, restarts", 75),
            Removal(feeding.advance_to_the_fastest_producer, "ahead", 13),
        ),
    ),
    ProtocolRule(
        8,
        "Room for the slowest partition",
        "No work starts whose output has no room, except for partitions that have not reached the newest row of the "
        "full pool.",
        (
            Removal(copies.hold_slow_partitions_in_a_full_pool, "two partitions meet", 6),
            Removal(copies.work_with_a_full_pool, "a pair", 1),
            Removal(copies.hold_slow_partitions_in_a_full_pool, "any order, small pools", 1),
            Removal(early.take_early_rows_with_a_full_pool, "any order, a full pool", 7),
        ),
        "There are no credits, and so none to reserve. Acknowledgements cover consumed rows, so a consumer never has "
        "more rows waiting than its producers' pools hold.",
    ),
    ProtocolRule(
        9,
        "Messages belong to a view",
        "An acknowledgement, attach, stop or merge that a site sent before it last became a consumer of the stage does "
        "not count. A site that joins a stage again starts anew on both sides.",
        (
            Removal(feeding.take_messages_sent_before_the_sender_left, "there and back", 12),
            Removal(feeding.resume_acknowledging_after_a_return, "to and fro", 376),
        ),
    ),
    ProtocolRule(
        10,
        "The view of a state",
        "A state names the view in which it was cut, and is held until its site has that view: that view says which "
        "edition of the code a state at its position is of (rule 43).",
        argument="It is held because all messages are (rule 11). A state has no floors and names no other copy, only "
        "absolute positions; what it needs of the view is which edition of the code its position is of.",
    ),
    ProtocolRule(
        11,
        "Hold, do not refuse",
        "A message of a view that its receiver does not have yet is held until it has.",
        (Removal(views.discard_early_messages, "a pair", 5),),
    ),
    ProtocolRule(
        12,
        "The dead are mute",
        "A message from a node that is dead in the receiver's view is refused and changes nothing. The node may still "
        "be running.",
        (Removal(views.accept_messages_from_the_dead, "a spare, two crashes", 142),),
    ),
    ProtocolRule(
        13,
        "Take-over by another sender",
        "When the copy that feeds a consumer dies or moves away, the consumer attaches to another at its exact "
        "position. A sender that is alive is stopped, and what it sent before it got the stop does not count. The "
        "other one is a copy that was live before that view, if there is one: a copy that was just built lags.",
        (
            Removal(feeding.stay_with_a_dead_feeder, "a pair", 3),
            Removal(feeding.take_from_a_copy_that_was_just_built, "a move of a pair", 0),
            Removal(feeding.attach_without_a_stop, "a move of a producer", 4),
            Removal(feeding.take_stopped_frames, "one of two there and back", 2),
        ),
        "No consumer switches back when the first sender is rebuilt either: its consumers would wait for it.",
    ),
    ProtocolRule(
        14,
        "Attach at the exact position",
        "An attach names the received position; the sender starts exactly after it. A copy that has produced less "
        "sends nothing until it has passed that position.",
        (
            Removal(feeding.skip_a_row_at_take_over, "pair to pair", 3),
            Removal(feeding.go_back_at_take_over, "two moves", 63),
            Removal(feeding.feed_from_where_the_producer_is, "restarts", 9),
        ),
        "The refusal of an attach below the dropped rows is a check and not a rule: without another fault it never "
        "happens. Most of the stories here end with it.",
    ),
    ProtocolRule(
        15,
        "Floors have names",
        "Acknowledged positions are stored by the name of the site, never by its place.",
        argument="A new copy's site begins with what the donor has acknowledged (rule 3), whatever was acknowledged in "
        "its place. A new copy feeds no consumer without a request; that needs no rule: only an attach opens a lane.",
        spare=(feeding.keep_floors_by_place,),
    ),
    ProtocolRule(
        16,
        "A state is a snapshot of one instant",
        "State, position and unacknowledged output move together, cut between two steps of the operator. A partition "
        "that has left a site does not count there any more.",
        (
            Removal(copies.move_without_the_output, "a move of a producer", 24),
            Removal(copies.cut_under_the_operator, "a move", 83),
            Removal(copies.drop_a_copy_under_the_operator, "a move", 180),
            Removal(copies.keep_the_output_of_a_stage_that_was_left, "a move of a producer", 50),
            Removal(copies.count_the_output_of_copies_that_left, "one of two there and back", 105),
            Removal(copies.count_what_was_put_before_a_copy_left, "one of two there and back", 49),
        ),
        "Rows received and not consumed do not move: they are not acknowledged, so the new copy gets them again.",
    ),
    ProtocolRule(
        17,
        "The death of a donor or a standby",
        "A copy in transfer to a site that died is given up. If the donor died, the copy counts if it is installed. "
        "If not, its site reports that, and the transfer is retried from another copy, or the partition is lost.",
        (
            Removal(copies.do_not_report_a_dead_donor, "a move and a crash", 115),
            Removal(views.give_up_a_copy_in_transfer, "a move and a crash", 395),
            Removal(views.keep_a_dead_standby, "a spare, two crashes", 17),
        ),
        "Only the site knows whether the state had arrived when its donor died: the controller waits for its report, "
        "also when another copy could send the state.",
    ),
    ProtocolRule(
        18,
        "Positions inside a sequence number",
        "A frame that is cut inside one sequence number would need positions with a second part.",
        argument="Frames are cut only between sequence numbers, so a position is a whole one. The tie-break between "
        "branches is by edge and partition, in the order of rows, which is the shell's; the operators' emit refuses a "
        "decreasing origin.",
    ),
    ProtocolRule(
        19,
        "Never the last copy",
        "A site that does not answer or cannot reach another is declared dead only if every partition on it has "
        "another copy. If neither of two sites can be spared, the link is resumed where it broke.",
        (
            Removal(views.declare_the_last_copy_dead, "a suspicion of the last copy", 7),
            Removal(views.declare_the_last_copy_dead, "a cut to the last copy", 7),
            Removal(views.spare_the_site_of_a_last_copy_in_transfer, "a suspicion of a last copy in transfer", 6),
            Removal(views.spare_no_site_during_a_last_transfer, "a suspicion of a last copy in transfer", 155),
        ),
    ),
    ProtocolRule(
        20,
        "A death discards undelivered messages",
        "With the view in which a node is dead, its messages that were not processed yet are void.",
        argument="For messages after the view it is rule 12. A message held for a later view cannot be from a dead "
        "node: it was sent in a view in which its sender was alive, views arrive in order, and so it is delivered in "
        "that very view.",
        spare=(views.keep_held_messages_of_the_dead,),
    ),
    ProtocolRule(
        21,
        "Measures of the thesis that are not needed here",
        "Postponed reversals, swapped marks, and recovery from source to destination as a matter of safety.",
        argument="There are no marks, and attaches carry exact positions, so they may arrive in any order. Recovery "
        "from source to destination is only the controller's preference.",
        spare=(views.rebuild_from_destination_to_source,),
    ),
    ProtocolRule(
        22,
        "The place of a dead egress must acknowledge",
        "Until an egress that died is replaced, everything is kept for it, whatever other edges acknowledge.",
        (Removal(feeding.keep_nothing_for_a_dead_egress, "two streams, restarts", 27),),
    ),
    ProtocolRule(
        23,
        "A position of nothing is not stated",
        "A site that has acknowledged nothing since it became a consumer sends no position to a new producer: that one "
        "may know more.",
        (Removal(feeding.state_a_position_of_nothing, "restarts and a spare", 458),),
    ),
    ProtocolRule(
        24,
        "Ends have incarnations",
        "A process that serves an end is replaced only by one that was started later. An egress resumes after what "
        "its sink has made durable.",
        (
            Removal(views.let_any_process_serve_an_end, "two restarts", 169),
            Removal(views.restart_the_output_from_zero, "restarts", 66),
        ),
    ),
    ProtocolRule(
        25,
        "Journal, then publish",
        "A view is in the journal before it is sent to any node; a controller that restarts begins with the last one.",
        (Removal(views.send_a_view_before_it_is_in_the_journal, "restarts", 36),),
    ),
    ProtocolRule(
        26,
        "Views arrive without gaps",
        "A view is sent to the connected nodes. A node that connects reports the last view it has, gets the rest, and "
        "repeats its earlier reports. A node begins with the first view that lists it.",
        (
            Removal(views.send_views_to_all_nodes, "restarts and a spare", 24),
            Removal(views.do_not_resend_views, "restarts and a spare", 19),
            Removal(copies.report_once, "restarts and a spare", 230),
            Removal(copies.report_a_dead_donor_once, "restarts and a move", 687),
            Removal(views.begin_with_the_first_view_only, "an arrival", 2),
        ),
    ),
    ProtocolRule(
        27,
        "Never two copies on one site",
        "A copy is rebuilt on, or moved to, only a site that has no other copy of its partition, and is to get none.",
        (
            Removal(views.rebuild_where_the_other_copy_is, "a spare", 3),
            Removal(views.move_to_a_site_that_has_a_copy, "a move of a pair", 9),
        ),
    ),
    ProtocolRule(
        28,
        "Cohorts meet",
        "Partitions are consumed in one step when they are at the same position and the operator is busy with none.",
        (
            Removal(copies.step_over_a_cohort, "ahead", 91),
            Removal(copies.fuse_cohorts_at_different_positions, "two partitions meet", 6),
            Removal(copies.fuse_cohorts_at_work, "ahead", 11),
            Removal(copies.lose_pending_rows_when_cohorts_fuse, "ahead", 83),
        ),
    ),
    ProtocolRule(
        29,
        "Lanes meet",
        "Two lanes become one when both were sent up to the same position; the old name stays valid. A lane advances "
        "when the producer that held it back is taken out.",
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
        "A stage that does not wait for the merge consumes rows as they arrive, and acknowledges its frontier as "
        "others do. How far ahead of it the rows of each producer were consumed is part of its state, and of what a "
        "sink has made durable; each producer's rows are requested from there. Its output is buffered until the "
        "frontier of its consumers has passed it, and sent when its own has. Cohorts that are to meet take no rows "
        "early.",
        (
            Removal(early.cut_without_what_is_ahead, "any order and a move", 1),
            Removal(early.count_pending_rows_as_consumed, "any order, there and back", 11),
            Removal(early.begin_the_egress_at_its_position, "any order, restarts", 2),
            Removal(early.acknowledge_early_rows, "any order", 0),
            Removal(feeding.go_back_at_take_over, "any order", 51),
            Removal(early.end_a_run_at_the_frontier, "any order", 0),
            Removal(early.send_early_output, "any order", 14),
            Removal(early.take_early_rows_before_a_meeting, "any order and a move", 11),
        ),
    ),
    ProtocolRule(
        31,
        "No stage waits for a copy in transfer",
        "A site with a copy in transfer to it acknowledges nothing until the copy has arrived, however long that "
        "takes. The rows kept for it alone have a bound of their own. Its catch-up goes in steps that alternate with "
        "those of others, and the bound shrinks with each row that it takes. Such a site still reports how far its "
        "other copies are: where more is kept for all that take a row, none produces further ahead of the first of "
        "them than the pool holds.",
        (
            Removal(feeding.run_ahead_of_sites_that_all_lag, "a move, patience", 0),
            Removal(feeding.wait_for_copies_in_transfer, "a spare, patience", 3),
            Removal(feeding.keep_the_quota_after_a_catch_up, "a spare, patience", 2),
            Removal(feeding.wait_for_a_whole_catch_up, "small steps", 37),
        ),
    ),
    ProtocolRule(
        32,
        "The dead are forgotten",
        "A view reports a death, and the next one omits the dead whose slots were reassigned: all nodes get every "
        "view, so none refers to the dead any more. An omitted site is recognized by its number, because no number is "
        "used twice and the view has the highest one omitted; an end is recognized by having a view. Both stay mute, "
        "and may not return. A site that joins so late that a later one has lived, died and been forgotten is taken "
        "for one of them, and is restarted.",
        (
            Removal(views.omit_the_dead_at_once, "restarts", 29),
            Removal(views.omit_the_dead_in_a_slot, "a spare, two crashes", 3),
            Removal(views.accept_messages_from_the_forgotten, "a forgotten site", 122),
            Removal(views.take_the_forgotten_for_strangers, "a forgotten site", 5),
            Removal(views.accept_a_forgotten_site, "a forgotten site", 29),
        ),
    ),
    ProtocolRule(
        33,
        "The journal keeps every view that a node may request",
        "A view is in the journal until every node that is alive in the last view has it; the last view always is. A "
        "node that has not connected to a restarted controller may have no view.",
        (
            Removal(views.keep_the_last_view_only, "restarts and a spare", 34),
            Removal(views.take_silence_for_having_all_views, "two restarts and a spare", 20),
        ),
    ),
    ProtocolRule(
        34,
        "Another copy is the donor",
        "A copy is built from a live copy other than the one it replaces, and from one that is not slow if there is "
        "one. Only a single copy is its own donor. The site that a copy leaves is often overloaded: it has to end a "
        "step before it can give the state away, and the new copy would begin as far back as it lags.",
        (Removal(balance.take_the_first_copy_as_donor, "a slow site is emptied", 0),),
    ),
    ProtocolRule(
        35,
        "No node waits for a slow site",
        "The view lists the sites that are slow. A slow site feeds no consumer for which another live copy is not "
        "slow, also if it does so now. For a slow site as many rows are kept as for one with a state transfer in "
        "flight. It still must acknowledge, and its copies count: nothing that it needs is released. So no node waits "
        "for it, and no partition has a single copy because of it.",
        (
            Removal(balance.wait_for_slow_senders, "a slow site", 0),
            Removal(balance.stay_with_a_sender_that_became_slow, "a slow site", 0),
            Removal(balance.keep_no_more_for_slow_sites, "a slow site", 0),
            Removal(balance.forget_that_sites_are_slow, "a slow site", 0),
            Removal(balance.rebuild_on_slow_sites, "a slow spare", 0),
        ),
    ),
    ProtocolRule(
        36,
        "Steps are short",
        "A step of the operator takes no more positions than was set, and than its site asked for after the last one, "
        "so that it lasts about as long on a slow site as on others. An unordered stage counts from the first row that "
        "waits: it cuts the frames that go further, and the rest of each begins where it was cut.",
        (
            Removal(balance.ask_in_vain_for_shorter_steps, "shorter steps", 0),
            Removal(balance.take_whole_frames, "shorter steps, any order", 0),
            Removal(balance.keep_the_whole_of_a_cut_frame, "shorter steps, any order", 0),
        ),
    ),
    ProtocolRule(
        37,
        "A pool is charged by destination",
        "Rows are counted by consumer partition. A row is charged until every site that takes its partition has "
        "acknowledged it, and once however many need it; the first run that a site needs is free. So a slow site takes "
        "room for its own rows only. What only a slow site needs, or one with a copy in transfer, counts against its "
        "own bound alone. A pool that is over half full has the rows cut out that no site needs, of runs of which at "
        "most three quarters are needed.",
        (
            Removal(balance.charge_whole_runs, "pools by destination", 0),
            Removal(balance.grant_no_run, "pools by destination", 0),
            Removal(balance.count_what_only_lagging_sites_need, "a slow site, pools by destination", 0),
            Removal(balance.count_what_is_not_counted_for_all, "a slow site, some rows counted", 0),
            Removal(balance.hold_what_none_needs, "pools by destination", 0),
            Removal(balance.cut_what_one_site_has, "pools by destination, pairs", 0),
        ),
    ),
    ProtocolRule(
        38,
        "Lost copies are rebuilt by load",
        "If the controller knows what a copy costs each site, a lost copy is rebuilt where the copies, with the new "
        "one, cost least.",
        (Removal(balance.rebuild_where_the_fewest_copies_are, "copies cost more there", 0),),
    ),
    ProtocolRule(
        39,
        "A sequence number has one meaning",
        "The journal of an ingress may have lost its end with the power of its machine. A restarted ingress "
        "numbers nothing beyond its journal before every live node, and every end, has reported the highest position "
        "it has seen, in views between which no node died. Numbers up to the highest of them go to the same rows "
        "again, or the run ends. It begins at the end of its journal, also if copies have acknowledged more.",
        (
            Removal(lost_tails.number_without_asking, "lost tails", 7),
            Removal(lost_tails.number_from_what_is_released, "lost tails, two restarts", 1_652),
            Removal(lost_tails.ask_live_nodes_only, "lost tails, two restarts", 15_977),
            Removal(lost_tails.count_positions_of_earlier_views, "lost tails and a crash", 1_081),
            Removal(lost_tails.report_what_was_consumed, "lost tails", 37),
        ),
    ),
    ProtocolRule(
        40,
        "A view number has one meaning",
        "The journal of views may have lost its end as well. A restarted controller numbers views from above all that "
        "were ever given, and each view names the one that it follows. A node that has seen another view refuses it, "
        "and a controller that a node with a later view connects to ends the run.",
        (
            Removal(lost_tails.number_views_on, "lost tails, restarts and a crash", 101),
            Removal(lost_tails.accept_a_view_that_follows_another, "lost tails, restarts and a crash", 181),
        ),
    ),
    ProtocolRule(
        41,
        "A sink is not given what it is known to have",
        "What an egress acknowledges is durable at its sink, and producers keep that position for the process that is "
        "started after it. If that one asks for less, or states less, the journal of its sink has lost its end, and "
        "the run ends with that reason.",
        (
            Removal(lost_tails.forget_what_a_sink_has, "lost sinks", 121),
            Removal(lost_tails.take_less_than_was_acknowledged_for_an_error, "lost sinks", 121),
        ),
    ),
    ProtocolRule(
        42,
        "Copies of a slow site may be retired",
        "If the user prefers that, the copies of a slow site are retired when no more rows can be kept for it, all at "
        "once: the view has a mark in their slots, and their partitions go on with one copy less. Of each partition "
        "another live copy must be on a site that is not slow, and none in transfer, whose donor may be the slow "
        "site. A retired copy is rebuilt as a lost one is, but not on a slow site: that waits until the site is not "
        "slow any more, or another site appears.",
        (
            Removal(balance.retire_nothing, "a slow site is retired", 0),
            Removal(balance.retire_last_copies, "two slow sites are retired", 0),
            Removal(balance.retire_the_last_copy_that_is_not_slow, "two slow sites are retired", 4),
            Removal(balance.retire_while_a_copy_is_in_transfer, "a slow donor is retired", 0),
            Removal(balance.rebuild_retired_copies_on_slow_sites, "slow sites are retired", 0),
        ),
    ),
    *CHANGE_RULES,
)
