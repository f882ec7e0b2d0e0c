"""Slow-site log: what the log of a run says of slow sites, and what to do about them.

The first mark of a site, and the first time that the source waits for it, are warnings. Later marks are information: a
site may be slow many times in a day. Later waits are for debugging: they may begin and end many times in a second.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from ..balance import KeptForSite, KeptRows
from ..protocols.messages import Standby, View
from ..protocols.view import RETIRED

_ADVICE = "Take other load off its machine, or add a site"


class SlowSiteLog:
    """Follows the views and the reports of a run that begins with `view`; `note` writes a line to the log."""

    def __init__(self, view: View, gives_up: bool, note: Callable[[int, str], None]) -> None:
        self._view = view
        self._since = dict.fromkeys(view.slow, view.number)  # The view that first listed each slow site.
        self._gives_up = gives_up
        self._note = note
        self._said: set[tuple[str, str]] = set()  # What was said of which site.
        self._timed: set[str] = set()  # Slow sites of which the time left was said.
        self._waited_for: set[str] = set()
        self._alone: frozenset[str] = frozenset()

    def follow_view(self, view: View) -> Counter[str]:
        """Log which sites are slow from now on, and which are not; return how many copies of each were given up."""
        before, self._view = self._view, view
        self._since = {site: self._since.get(site, view.number) for site in view.slow}
        given_up = _new_retired(before, view)
        for site in sorted(view.slow - before.slow):
            text = f"site is slow, and {self._consequence(site)}: site={site}"
            self._say("slow", site, text, logging.WARNING, logging.INFO)
        for site in sorted(before.slow - view.slow):
            self._timed.discard(site)
            self._note(logging.INFO, f"site is not slow any more: site={site}")
        for site, copies in given_up.items():
            self._waited_for.discard(site)
            text = "the copies of a slow site are given up. Their partitions have one copy less until another site is "
            self._note(logging.WARNING, f"{text}added, or this one is not slow any more: site={site} copies={copies}")
        return given_up

    def follow_alone(self, sites: frozenset[str]) -> None:
        """Log which sites are slow and hold single copies only: no view lists them, because all wait for them."""
        before, self._alone = self._alone, sites
        for site in sorted(sites - before):
            copies = sum(len(self._view.held(stage, site)) for stage in range(len(self._view.copies)))
            text = (
                f"site is slow, and its {copies} partitions have no other copy: what follows them waits for it until "
            )
            advice = f'they have moved. {_ADVICE}, or run with availability="pairs"'
            self._say("alone", site, f"{text}{advice}: site={site}", logging.WARNING, logging.INFO)
        for site in sorted(before - sites - self._view.slow):
            self._note(logging.INFO, f"site is not slow any more, or holds nothing: site={site}")

    def follow_kept(self, kept: KeptRows) -> None:
        """Log how long there is room for rows of slow sites, and for which of them the source waits."""
        for site in sorted(self._view.slow | self._waited_for):
            found = self.kept_for(site, kept)
            is_waited_for = found is not None and found.is_waited_for
            if found is not None and is_waited_for and site not in self._waited_for:
                self._waited_for.add(site)
                text = f"the source waits for a slow site{self._why()}: site={site}{_shown(found)}"
                self._say("waits", site, text, logging.WARNING, logging.DEBUG)
            elif not is_waited_for and site in self._waited_for:
                self._waited_for.discard(site)
                text = f"the source does not wait for the site any more: site={site}"
                self._say("goes on", site, text, logging.INFO, logging.DEBUG)
            if found is not None and found.time_left_s and site not in self._timed:
                self._timed.add(site)
                self._note(logging.INFO, f"rows are kept for a slow site: site={site}{_shown(found)}")

    def kept_for(self, site: str, kept: KeptRows) -> KeptForSite | None:
        """Return what is kept for a slow site that has copies; None for others, and without a report of this time."""
        is_slow = site in self._since and _holds_copies(self._view, site)
        return kept.of(site, self._since[site]) if is_slow else None

    def _say(self, what: str, site: str, text: str, first: int, later: int) -> None:
        """Log `text`, at one level the first time that this is said of the site, and at another level later."""
        level = later if (what, site) in self._said else first
        self._said.add((what, site))
        self._note(level, text)

    def _consequence(self, site: str) -> str:
        alone = _partitions_without_another(self._view, site)
        if alone:
            return f"{alone} of its partitions have no copy that is not slow: what follows them waits for it. {_ADVICE}"
        then = "its copies are given up" if self._gives_up else "the source waits for it"
        return f"no other waits for it. Rows are kept for it; when there is no room for more, {then}. {_ADVICE}"

    def _why(self) -> str:
        if not self._gives_up:
            return f', and rows go in at its pace. {_ADVICE}, or run with slow="give-up"'
        return f", because some of its partitions have no other copy that is not slow, or one in transfer. {_ADVICE}"


def is_retired(view: View, standby: Standby) -> bool:
    """Whether a copy in transfer replaces one that was given up."""
    return view.copies[standby.stage][standby.partition][standby.slot] == RETIRED


def _shown(kept: KeptForSite) -> str:
    left = f" time_left_s={kept.time_left_s:.1f}" if kept.time_left_s else ""
    return f" kept_rows={kept.rows} kept_rows_max={kept.rows_max}{left}"


def _new_retired(before: View, view: View) -> Counter[str]:
    """The sites whose copies were retired in `view`, and how many."""
    pairs = (
        (old, new)
        for was, now in zip(before.copies, view.copies, strict=True)
        for old_slots, new_slots in zip(was, now, strict=True)
        for old, new in zip(old_slots, new_slots, strict=True)
    )
    return Counter(old for old, new in pairs if new == RETIRED != old)


def _holds_copies(view: View, site: str) -> bool:
    return any(view.held(stage, site) for stage in range(len(view.copies)))


def _partitions_without_another(view: View, site: str) -> int:
    """How many partitions of `site` have no live copy that is not slow."""
    places = ((stage, partition) for stage in range(len(view.copies)) for partition in view.held(stage, site))
    return sum(view.slow.issuperset(view.live_copies(*place)) for place in places)
