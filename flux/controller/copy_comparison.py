"""Copy comparison: it compares what the copies of partitions have emitted, and asks both for the rows that differ.

Sites send digests at agreed positions (`site.digests`), and once more when the stream has ended. At the first
difference the two sites are asked for a word for each sequence number of the range, then for the rows of the first
numbers whose words differ: they keep their last output for that (`site.emitted_rows`). What they no longer keep cannot
be named, and the error says so. The run ends either way, so each question is asked once, and for a bounded time.

At the end of the stream a copy may lag: it was rebuilt, or its site is slower. What it lacks is in the buffers of its
producers, so it is waited for as long as it advances. A copy that does not is not compared, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import trio

from ..plan import Plan
from ..site.emitted_rows import differing_numbers
from ..types.errors import OperatorError
from ..wire.frames import BadFrame
from ..wire.membership import (
    EmittedDigests,
    FinalDigests,
    FinalDigestsWanted,
    FromController,
    FromNode,
    RowTexts,
    RowTextsWanted,
    RowWords,
    RowWordsWanted,
)
from .divergence import Difference, DifferingRows, Divergence

DIGESTS_TIMEOUT_S = 3.0  # A site may be busy with a long step.
ROWS_TIMEOUT_S = 10.0  # For 65,536 rows of one partition a site needs a second, on a busy machine more.
STALL_TIMEOUT_S = 5.0  # At the end of the stream, copies that lag are waited for until none has advanced for so long.
NUMBERS_SHOWN_MAX = 3
_ASK_AGAIN_S = 0.02
_ASK_AGAIN_MAX_S = 0.2
_LOOK_EVERY_S = 0.05

A = TypeVar("A", bound=FromNode)
FinalPositions = dict[str, tuple[EmittedDigests, ...]]  # By site.


class CopyComparison:
    """Compares the copies of a run.

    `send` sends to a connected site, of which `sites` returns the names. `advance` is called when a copy that the
    comparison waits for has advanced, `warn` with what was not compared.
    """

    def __init__(
        self,
        plan: Plan,
        sites: Callable[[], Iterable[str]],
        send: Callable[[str, FromController], None],
        advance: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._divergence = Divergence(plan)
        self._sites = sites
        self._send = send
        self._advance = advance
        self._warn = warn
        self._answers: dict[tuple[str, type[FromNode]], FromNode] = {}
        self._answered = trio.Event()
        self._naming = trio.Lock()  # The stream may end while rows are asked for.
        self._difference: Difference | None = None
        self._error: OperatorError | None = None

    def compare(self, node: str, emitted: EmittedDigests) -> Difference | None:
        """Compare digests of a node with those of other copies; return the difference if it is the first."""
        if emitted.stage not in self._plan.stages or len(emitted.partitions) != len(emitted.digests):
            raise BadFrame(f"expected a digest for each partition of a stage, got {emitted!r:.200}")
        if self._difference is None:
            place = emitted.stage, emitted.position, emitted.partitions, emitted.digests
            self._difference = self._divergence.compare(node, *place)
            return self._difference
        return None

    def answer(self, node: str, message: FromNode) -> None:
        """Take a site's answer to a question."""
        self._answers[node, type(message)] = message
        self._answered.set()

    async def error_of(self, difference: Difference) -> OperatorError:
        """Return the error that names the rows, or says why they cannot be named."""
        async with self._naming:
            if self._error is None:
                self._error = self._divergence.error(difference, await self._differing_rows(difference))
            return self._error

    async def compare_at_end(self) -> OperatorError | None:
        """Compare all copies when the stream has ended; return the error if some have emitted different rows."""
        final = await self._final_digests()
        ends = _ends(final)
        for node, digests in sorted(final.items()):
            for each in digests:
                if each.position == ends[each.stage]:
                    self.compare(node, each)
        return None if self._difference is None else await self.error_of(self._difference)

    async def _final_digests(self) -> FinalPositions:
        """Return the digests of all sites, at the end of the stream unless a site stalls before it."""
        final: FinalPositions = {}
        lagging = set(self._sites())
        advanced_at, pause_s = trio.current_time(), _ASK_AGAIN_S
        while lagging:
            answers = await self._ask(lagging, FinalDigestsWanted(), FinalDigests)
            if any(final.get(node) != answer.digests for node, answer in answers.items()):
                advanced_at = trio.current_time()
                self._advance()
            final |= {node: answer.digests for node, answer in answers.items()}
            lagging = {node for node in self._sites() if _lag(node, final) is not None}
            if trio.current_time() - advanced_at > STALL_TIMEOUT_S:
                break
            if lagging:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)
        for node in sorted(lagging):
            self._warn(
                f"at the end of the stream the copies on {node} were not compared with the others: "
                f"{_lag(node, final)}, and it has not advanced for {STALL_TIMEOUT_S:g} s. The output is complete, but "
                "rows in which these copies differ were not noticed"
            )
        return final

    async def _differing_rows(self, difference: Difference) -> DifferingRows | str:
        """Return the first rows that differ, or why they are not known."""
        place = {"stage": difference.stage, "partition": difference.partition}
        both = difference.first, difference.second
        wanted = RowWordsWanted(**place, after=difference.after, upto=difference.position)
        words = await self._ask(both, wanted, RowWords)
        for node in both:
            if node not in words:
                return f"{node} did not answer when it was asked for them"
            if words[node].after >= difference.position:
                return f"{node} does not keep them any more"
        kept_after = max(words[node].after for node in both)
        first, second = (
            [(sn, word) for sn, word in words[node].words if kept_after < sn <= difference.position] for node in both
        )
        numbers = differing_numbers(first, second)
        if not numbers:
            return f"those after {kept_after:,} are equal, and {_shorter(words, both)} does not keep earlier ones"
        shown = tuple(numbers[:NUMBERS_SHOWN_MAX])
        texts = await self._ask(both, RowTextsWanted(**place, numbers=shown), RowTexts)
        for node in both:
            if node not in texts or len(texts[node].texts) != len(shown):
                return f"{node} did not answer when it was asked for them"
        rows = tuple(zip(shown, *(texts[node].texts for node in both), strict=True))
        return DifferingRows(rows=rows, total=len(numbers), kept_after=kept_after)

    async def _ask(self, nodes: Iterable[str], question: FromController, kind: type[A]) -> dict[str, A]:
        """Return the answers of those nodes that answer in time and stay connected."""
        asked = sorted(nodes)
        for node in asked:
            self._answers.pop((node, kind), None)
            self._send(node, question)
        with trio.move_on_after(DIGESTS_TIMEOUT_S if isinstance(question, FinalDigestsWanted) else ROWS_TIMEOUT_S):
            while any((node, kind) not in self._answers for node in asked if node in self._sites()):
                self._answered = trio.Event()
                with trio.move_on_after(_LOOK_EVERY_S):
                    await self._answered.wait()
        found: dict[str, A] = {}
        for node in asked:
            answer = self._answers.pop((node, kind), None)
            if isinstance(answer, kind):
                found[node] = answer
        return found


def _shorter(words: dict[str, RowWords], both: tuple[str, str]) -> str:
    return max(both, key=lambda node: words[node].after)


def _ends(final: FinalPositions) -> dict[int, int]:
    """Return the position of each stage at the end of the stream: that of its copy which is furthest."""
    ends: dict[int, int] = {}
    for digests in final.values():
        for each in digests:
            ends[each.stage] = max(each.position, ends.get(each.stage, 0))
    return ends


def _lag(node: str, final: FinalPositions) -> str | None:
    """Return how a site lags; None if all its copies are at the end."""
    if node not in final:
        return "it did not answer"
    ends = _ends(final)
    short = [each for each in final[node] if each.partitions and each.position < ends[each.stage]]
    if not short:
        return None
    first = short[0]
    return f"in stage {first.stage} it has consumed up to {first.position:,} of {ends[first.stage]:,}"
