"""The rules by which the code of stages is changed while rows flow: 43 to 54."""

from __future__ import annotations

from . import attempts, code_changes, returns
from .protocol_rule import ProtocolRule, Removal

CHANGE_RULES: tuple[ProtocolRule, ...] = (
    ProtocolRule(
        43,
        "A change of code is a cut",
        "The code of some stages is changed after one sequence number, the same for all of them, and for all copies. "
        "The view lists the changes as editions. No step goes across one, and the edition of a step follows from where "
        "it begins. The edition of a state follows from its position: at the cut it is still the one before, and it is "
        "migrated as the first act of the next step. No step of a sink goes across a change of what is before it, "
        "because rows may have other columns from there on.",
        (
            Removal(code_changes.step_across_a_change, "a change, patience", 138),
            Removal(code_changes.change_each_stage_at_its_own_position, "a change of two stages", 12),
            Removal(code_changes.take_a_state_at_the_change_for_a_new_one, "a change and a move", 17),
            Removal(code_changes.give_a_sink_rows_of_both_editions, "a change", 1),
        ),
    ),
    ProtocolRule(
        44,
        "Bind, then hold",
        "The controller proposes a position. A node that is bound to it begins nothing after it, in the stages that "
        "are to change, before the next view or before it is freed. It goes on to receive, send and acknowledge.",
        (Removal(code_changes.hold_nothing, "a change", 1),),
    ),
    ProtocolRule(
        45,
        "A node that is past the position refuses",
        "It answers how far it is; what an operator is at work on counts, what an unordered stage has taken early, and "
        "a state that waits to be installed. The next proposal is some steps after the furthest, twice as many each "
        "time. From the fourth on the ingress is bound first: it numbers nothing more, so all agree to its position. "
        "No position is before that of an earlier change of the same stage.",
        (
            Removal(code_changes.never_refuse, "a change", 2),
            Removal(code_changes.count_finished_steps_only, "a change, patience", 2),
            Removal(code_changes.count_no_early_rows, "a change, any order and a move", 1),
            Removal(code_changes.propose_earlier_positions, "two changes", 15),
            Removal(code_changes.never_bind_the_ingress, "a change of slow readers", 19),
        ),
    ),
    ProtocolRule(
        46,
        "All that receive are asked",
        "Sites with copies of later stages are asked as well, and the egress, which must be live: a copy that has died "
        "or moved away may have sent them rows of the old code. Whatever they have received from a stage that changes, "
        "or from one after it, counts.",
        (
            Removal(code_changes.count_nothing_received, "a change and a crash", 615),
            Removal(code_changes.let_the_egress_agree, "a change and a crash", 615),
            Removal(code_changes.ask_the_changing_stages_only, "a change and a crash", 385),
        ),
        "That the egress must be live shows in no world yet: a copy and the egress that has its rows would have to "
        "die, and the change be agreed on, before another egress is there. The explicit model of the design has it.",
    ),
    ProtocolRule(
        47,
        "Copies in transfer are held where they arrive",
        "The site of a copy in transfer is asked, and holds the copy when it arrives. Its donor is asked too, and "
        "answers for where it cuts the state. A copy that was cut after the position is not held: its donor refuses.",
        (
            Removal(code_changes.ask_no_site_of_a_copy_in_transfer, "a change and a crash", 34),
            Removal(code_changes.hold_only_copies_that_are_here, "a change and a move", 7),
        ),
        "A site need not refuse to answer when the donor has died: a state of the dead is not taken (rule 12).",
    ),
    ProtocolRule(
        48,
        "An attempt ends with its view",
        "Each view ends an attempt, and it is made again in that view. Answers count for the view and the position "
        "that they name, and a position is proposed once in a view. While an attempt is open the controller makes "
        "views for deaths and arrivals only: moves, marks and finished copies wait for its end, a second at most. So a "
        "change is made although moves are always wanted.",
        (
            Removal(attempts.go_on_with_an_attempt_in_the_next_view, "a change and a crash", 2),
            Removal(attempts.count_answers_of_earlier_views, "a change, moves and crashes", 9),
            Removal(attempts.propose_a_position_again, "a change and marks", 596),
            Removal(attempts.let_moves_end_attempts, "a change while moves never end", 0),
        ),
    ),
    ProtocolRule(
        49,
        "The next view commits a change",
        "A change that all agree on is in the next view, and so in the journal before any node has it. If it is not "
        "there, nothing has happened. A program repeats its request under the same number to a controller that was "
        "started again; numbers rise.",
        (
            Removal(attempts.commit_one_view_later, "a change", 1),
            Removal(attempts.publish_a_change_before_it_is_in_the_journal, "a change and restarts", 18),
            Removal(attempts.make_a_repeated_request_again, "changes and restarts", 5),
        ),
    ),
    ProtocolRule(
        50,
        "A node is freed from one position",
        "When a proposal has failed, its nodes are freed from it, and from no other. A node that connects repeats what "
        "it is bound to, and is freed if no attempt knows of it. What it has said to the last controller does not "
        "count before that.",
        (
            Removal(attempts.free_from_any_position, "a change and marks", 192),
            Removal(attempts.do_not_repeat_what_is_bound, "a change that is aborted, restarts", 746),
            Removal(attempts.leave_a_node_bound_that_no_attempt_knows, "a change that is aborted, restarts", 746),
            Removal(attempts.listen_before_the_hello, "a change, restarts and a crash", 2),
        ),
    ),
    ProtocolRule(
        51,
        "Prepare first",
        "Each live node has prepared a change before a position is proposed, also one that joins meanwhile. A node "
        "that cannot make it has the request refused. Until it is committed it may be aborted.",
        (
            Removal(attempts.propose_before_all_are_prepared, "a change that a spare cannot make", 0),
            Removal(attempts.do_not_ask_sites_that_join, "a change, an arrival that cannot make it", 1),
            Removal(attempts.change_although_one_cannot, "a change that two sites cannot make", 0),
        ),
    ),
    ProtocolRule(
        52,
        "A change is closed when all have passed it",
        "Each site reports when all its copies of the stages, also those in transfer to it, have consumed rows after "
        "the change; it says so anew in each view. When all have, and the oldest checkpoint is not before the change, "
        "a view closes it, and the code before it is forgotten. The view keeps the last edition of each stage.",
        (
            Removal(attempts.close_at_once, "a change", 0),
            Removal(attempts.close_without_copies_in_transfer, "a change and a move", 91),
            Removal(attempts.do_not_ask_the_sites_of_copies_in_transfer, "a change and a move", 91),
            Removal(attempts.count_what_was_passed_in_earlier_views, "a change and a site that is ahead", 692),
            Removal(attempts.close_before_the_oldest_checkpoint, "a change and an era", 2),
            Removal(attempts.forget_a_change_that_is_closed, "a change", 1),
        ),
    ),
    ProtocolRule(
        53,
        "Early rows wait for a change",
        "A stage that does not wait for the merge takes no row after a change, or after the position to which its site "
        "is bound, before it has all rows up to there.",
        (
            Removal(code_changes.take_early_rows_across_a_change, "a change, any order and a move", 2),
            Removal(code_changes.take_early_rows_while_bound, "a change, any order", 2),
        ),
    ),
    ProtocolRule(
        54,
        "Changes outlive an era",
        "When all copies go back to a checkpoint, the changes in the last view stay, and each row after the checkpoint "
        "has the edition that it had before. Attempts, and what had been passed, are void. An egress has reached what "
        "its sinks have made durable, and not only what it has received since.",
        (
            Removal(returns.forget_changes_in_an_era, "a change and an era", 28),
            Removal(returns.count_what_was_received_in_this_era, "a change and an era", 100),
        ),
        "Copies go back in these worlds by what a checkpoint would have held, taken from the plain run: all processes "
        "begin again, with the journals and the sinks. A single copy that is built from a checkpoint beside live ones "
        "is not in them.",
    ),
)
