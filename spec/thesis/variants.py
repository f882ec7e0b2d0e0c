"""Variants of the models: literal readings of the thesis, and parts of it left out.

The default of every model is the repaired reading. A name of `LITERAL` in a scenario's `variant` switches back to the
printed text, and has a counterexample in tests/spec/test_thesis_models.py. A name of `WITHOUT` leaves out a measure
for which the thesis has a reason: the counterexample is the thesis's own "otherwise".
"""

from __future__ import annotations

LITERAL = {
    "r_done_only": (
        "Fig. 3.7, tk_done(): p_fail ^ r_done. r_done is set by a reversal only, so when the secondary dies, or a "
        "dead consumer has no reversal to request (case 3 of 3.4.2), take-over never counts as done and catch-up "
        "never begins. Repaired: a connection that sends already, or whose other end is dead, needs no reversal."
    ),
    "one_reset": (
        "In 3.2.4.2 reset() also makes the marks of both connections match. Fig. 3.13 calls reset(SEC) at a "
        "reversal. There, the acks of the secondary would be overwritten by what was sent to the primary, so that "
        "tuples are sent again or lost. Repaired: marks are matched at fold-in only."
    ),
    "put_guard": (
        "Fig. 3.3 (1): not B.full() guards every put(). A buffer full of dangling sequence numbers then blocks the "
        "tuples that would empty it. Repaired: a tuple whose number dangles may be put."
    ),
    "sync_at_once": (
        "3.2.3.1 says that controller messages are not ordered with the dataflow's. A csync or psync may then "
        "arrive before the fail() or avail() that its sender acted on, and fail() undoes the fold-in. Repaired: a "
        "synchronization message waits until the receiver knows what its sender knew of the pair."
    ),
    "version_kept": (
        "Fig. 3.6 and 3.7, avail(): ver[dest] keeps the version of a standby that died, and a late csync or psync "
        "of the active matches it. Repaired: avail() forgets the version."
    ),
    "del_of_the_dead": (
        "Fig. 3.6 (6c), and 3.14 (a): csync from the active adds its pair to del though the standby has died since. "
        "The buffer then fills without a receiver. Repaired: only for a standby that is alive."
    ),
    "abort_forgets": (
        "Fig. 3.6 (5) read with 3.2.5, 'completes the protocol as if movement did finish': p_fail := false although "
        "the standby is dead, and the next avail() finds no pair to catch up. Repaired: p_fail stays when it died."
    ),
    "cu_done_of_active": (
        "3.4.3.1: the active alone notifies the controller with cu-done. If it dies when fold-in is complete but "
        "cu-done has not arrived, the controller waits for ever and no other catch-up starts. Repaired: both copies "
        "send it."
    ),
    "install_at_once": (
        "Fig. 3.6 (4): the standby installs state when it arrives. The controller's messages to it may be later than "
        "those to the active: then it sends no csync or psync to a copy that the active knows and it does not yet. "
        "Repaired: it first processes the controller's messages up to those the active had, then installs."
    ),
    "recv_kept": (
        "Fig. 3.15: psync of the secondary that was sending leaves conn[SEC] = {RECV} though it has stopped "
        "(3.4.3.2). If the standby dies then, fail() sees a connection that receives, sends no reverse, and no copy "
        "sends. Repaired: conn[SEC] := {} at that psync, and reverse at once if the standby is dead by then."
    ),
    "reverse_at_once": (
        "In fig. 3.13 a reverse is accepted in any state. From a consumer that is being folded in, it can arrive "
        "before the csync of the other: the marks of the new consumer are still those of its dead predecessor. "
        "Repaired: it waits until that connection is folded in."
    ),
    "received_is_processed": (
        "4.4.2: once all acknowledgments have arrived, 'all in-flight tuples for the candidate partition have been "
        "received and processed'. They have been received. By 4.4.1 the operator dequeues from an input queue: a tuple "
        "in it is processed after the state has left. Repaired: the state is extracted when the queue has none of them."
    ),
    "all_processed": (
        "4.4.2, the same sentence, if FL-Cons merges in order (3.3.1): what was received of one producer cannot be "
        "processed before the next tuple of another, which is stalled. The partition is never quiesced. Repaired: what "
        "is not merged moves with the state, as in Flux-HA (3.4.3.1)."
    ),
}

WITHOUT = {
    "dangling": "3.2.1.2: acks that precede their tuples are kept; otherwise they are sent again after take-over.",
    "ack_all": "3.2.3.2: otherwise the buffer fills indefinitely after a failure.",
    "reversal": "3.2.1.3.1: otherwise the remaining segment stalls when the primary dies.",
    "both_csync": "3.2.4.2, labels (b): otherwise tuples with acks in flight are sent to the new replica again.",
    "csync_del": "3.2.4.2, label (c): otherwise input for the new replica is evicted.",
    "psync_pause": "3.2.4.2, label (a): otherwise egress misses acks for tuples received after state movement.",
    "both_psync": "3.2.4.2, labels (b): otherwise egress acks to the new replica what was sent before movement.",
    "pause": "3.4.3.1: otherwise acks for data in flight at the pause remain in the buffer indefinitely.",
    "internal_buffer": "3.4.3.1: otherwise an order-preserving FH-Cons deadlocks while it drains the network.",
    "postponing": "3.4.3.1: otherwise FH-Cons receives from a secondary before state movement begins.",
    "swap": "3.4.3: primary and secondary are swapped for the new replica.",
    "quiescing": "4.4.2: otherwise tuples in flight arrive where the state is not any more.",
    "ordered_delivery": "4.4.2: otherwise acknowledgments do not show that all tuples in flight were received.",
    "whole_rounds": "4.4.3: otherwise an instance is ordered to move on a partition that it does not have yet.",
    "buffer_in_connections": "4.4.2: otherwise FL-Prod blocks when a tuple for a stalled partition arrives.",
}
