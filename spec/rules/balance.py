"""Removals of the rules of balance: the donor, what slow sites may do, the length of a step, what a pool holds."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from ...protocols import charges as charges_module
from ...protocols import placement
from ...protocols.buffer import Buffer
from ...protocols.charges import Charges, Dest, Group
from ...protocols.controller import Controller
from ...protocols.fh_cons import FhCons
from ...protocols.fh_prod import FhProd
from ...protocols.messages import PendingInput, Position, View
from ..bounds import ChargedByNeed, ShortSteps, WithinBounds
from ..recovery import LeastFirst
from ..slow_sites import AnotherDonates, PromptCopyStays, SlowFeedNone
from .patch import Patch, disable_checker


def take_the_first_copy_as_donor(patch: Patch) -> None:
    """A copy is built from the first live one, also if that is the one that is to leave its slow site."""
    patch.put(placement, "donor", lambda view, stage, partition, slot: view.live_copies(stage, partition)[0])
    disable_checker(patch, AnotherDonates)  # A world shows what that leads to.


def wait_for_slow_senders(patch: Patch) -> None:
    """Consumers stay with the copy in their slot, also if it is slow."""
    own = View.feeder

    def feeder(view: View, stage: int, partition: int, slot: int, now: str, last: View | None) -> str | None:
        return own(replace(view, slow=frozenset()), stage, partition, slot, now, last)

    patch.put(View, "feeder", feeder)
    disable_checker(patch, SlowFeedNone)


def stay_with_a_sender_that_became_slow(patch: Patch) -> None:
    """A consumer that is fed by a copy stays with it when it becomes slow; only new lanes go to others."""
    own = View.feeder

    def feeder(view: View, stage: int, partition: int, slot: int, now: str, last: View | None) -> str | None:
        return now if now in view.live_copies(stage, partition) else own(view, stage, partition, slot, now, last)

    patch.put(View, "feeder", feeder)
    disable_checker(patch, SlowFeedNone)


def keep_no_more_for_slow_sites(patch: Patch) -> None:
    """A pool is full when it keeps its bound for a slow site, as for any other."""
    own = FhProd.adopt

    def adopt(prod: FhProd, view: View) -> Any:
        return own(prod, replace(view, slow=frozenset()))

    patch.put(FhProd, "adopt", adopt)


def rebuild_where_the_fewest_copies_are(patch: Patch) -> None:
    """A lost copy is rebuilt where the fewest copies are, whatever they cost there."""
    own = placement.best_place
    patch.put(placement, "best_place", lambda view, stage, partition, costs: own(view, stage, partition, {}))


def rebuild_on_slow_sites(patch: Patch) -> None:
    """A lost copy is rebuilt where the least load is, also on a slow site."""
    own = placement.best_place

    def best_place(view: View, stage: int, partition: int, costs: dict[str, float]) -> str | None:
        return own(replace(view, slow=frozenset()), stage, partition, costs)

    patch.put(placement, "best_place", best_place)


def forget_that_sites_are_slow(patch: Patch) -> None:
    """A mark is lost with the next view."""
    own = Controller._forgetting

    def forgetting(controller: Controller, view: View) -> View:
        kept = view if view.slow != controller.view.slow else replace(view, slow=frozenset())
        return own(controller, kept)

    patch.put(Controller, "_forgetting", forgetting)


def retire_nothing(patch: Patch) -> None:
    """A slow site keeps its copies, however little can be kept for it."""
    patch.put(View, "can_retire", lambda view, node: False)


def retire_last_copies(patch: Patch) -> None:
    """A slow site's copies are retired, also those that have no live partner."""
    patch.put(View, "can_retire", lambda view, node: node in view.slow)
    disable_checker(patch, PromptCopyStays)  # A world shows what that leads to.


def retire_the_last_copy_that_is_not_slow(patch: Patch) -> None:
    """A slow site's copies are retired if they have any live partner, also one that is slow itself."""
    own = View.can_retire

    def can_retire(view: View, node: str) -> bool:
        return node in view.slow and own(replace(view, slow=frozenset({node})), node)

    patch.put(View, "can_retire", can_retire)


def retire_while_a_copy_is_in_transfer(patch: Patch) -> None:
    """A slow site's copies are retired also while another copy of one of them is in transfer."""
    own = View.can_retire
    patch.put(View, "can_retire", lambda view, node: own(replace(view, standby=()), node))


def rebuild_retired_copies_on_slow_sites(patch: Patch) -> None:
    """A copy that was retired is rebuilt at once, if need be where it was."""
    own = Controller._with_recovery

    def with_recovery(controller: Controller, view: View) -> View:
        return replace(own(controller, replace(view, slow=frozenset())), slow=view.slow)

    patch.put(Controller, "_with_recovery", with_recovery)
    for checker in (AnotherDonates, LeastFirst):
        disable_checker(patch, checker)  # They are about other effects of the same removal.


def ask_in_vain_for_shorter_steps(patch: Patch) -> None:
    """What a site asks for after a step changes nothing."""
    patch.put(FhCons, "pace", lambda cons, most: None)


def take_whole_frames(patch: Patch) -> None:
    """A step of an unordered stage takes all frames, whole."""
    own = FhCons._cut

    def cut(cons: FhCons, cohort: int, upto: int, early: bool) -> list[PendingInput]:
        most, cons.step_most = cons.step_most, None
        taken = own(cons, cohort, upto, early)
        cons.step_most = most
        return taken

    patch.put(FhCons, "_cut", cut)


def keep_the_whole_of_a_cut_frame(patch: Patch) -> None:
    """The rest of a frame that was cut begins where the frame began."""
    own = FhCons._cut

    def cut(cons: FhCons, cohort: int, upto: int, early: bool) -> list[PendingInput]:
        begins = {(frame.edge, frame.upto, frame.channels): frame.after for frame in cons.pending.get(cohort, ())}
        taken = own(cons, cohort, upto, early)
        left = cons.pending[cohort]
        kept = [replace(frame, after=begins[frame.edge, frame.upto, frame.channels]) for frame in left]
        cons.pending[cohort] = tuple(kept)
        return taken

    patch.put(FhCons, "_cut", cut)
    disable_checker(patch, ShortSteps)


def charge_whole_runs(patch: Patch) -> None:
    """A pool is charged for a whole run until every site has acknowledged it."""
    own = Buffer.put
    patch.put(Buffer, "put", lambda buffer, run: own(buffer, replace(run, counts=())))


def grant_no_run(patch: Patch) -> None:
    """Every row that is needed counts against the bound, also those of the first run of each site."""
    patch.put(Charges, "beyond_one_run", lambda charges, floors, lagging, reached: charges.rows)


def count_what_only_lagging_sites_need(patch: Patch) -> None:
    """A row that only a slow site still needs, or one with a copy in transfer, counts against the bound of all."""
    own = Charges.beyond_one_run

    def beyond_one_run(
        charges: Charges, floors: Mapping[Dest, Position], lagging: Container[Dest], reached: Mapping[Dest, Position]
    ) -> int:
        groups = [group for group in charges.needed if not all((group[0], node) in lagging for node in group[1])]
        some = charges.clone()
        some.needed = {group: charges.needed[group] for group in groups}
        return own(some, floors)

    patch.put(Charges, "beyond_one_run", beyond_one_run)


def count_what_is_not_counted_for_all(patch: Patch) -> None:
    """A row of a run without counts counts against the bound of all, also if only a slow site still needs it."""
    patch.put(Buffer, "_uncounted_rows", lambda buffer: buffer.rows - buffer.counted)


def hold_what_none_needs(patch: Patch) -> None:
    """Bodies keep the rows that no site needs until all sites have the run."""
    patch.put(Buffer, "trim", lambda buffer: [])


def cut_what_one_site_has(patch: Patch) -> None:
    """Rows are released when one of the sites that take them has acknowledged them."""

    def floor(group: Group, floors: Mapping[Dest, Position]) -> Position:
        edge, nodes = group
        return max([floors.get((edge, node), -1) for node in nodes], default=-1)

    patch.put(charges_module, "_floor", floor)
    disable_checker(patch, ChargedByNeed)
    disable_checker(patch, WithinBounds)
