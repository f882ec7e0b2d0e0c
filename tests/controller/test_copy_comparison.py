"""At the end of a stream copies that lag are waited for while they advance; what is not compared is said."""

from __future__ import annotations

from collections.abc import Callable

import trio
import trio.testing

from flux.controller.copy_comparison import STALL_TIMEOUT_S, CopyComparison
from flux.model.operator import OperatorStep
from flux.plan import Plan, Segment
from flux.types.errors import OperatorError
from flux.wire.membership import EmittedDigests, FinalDigests, FinalDigestsWanted, FromController, RowWords

END = 1_000
Script = Callable[[float], FinalDigests | None]


def digests(position: int, digest: int = 7, stage: int = 1) -> FinalDigests:
    emitted = EmittedDigests(stage=stage, position=position, partitions=(0,), digests=(digest,))
    return FinalDigests(digests=(emitted,))


class Sites:
    """Sites that answer as their scripts say, by the time since the question was asked first."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.warnings: list[str] = []
        self.advances = 0
        step = OperatorStep(object, {}, "Step", ("k",), 1, 0, None)
        segment = Segment(columns=("k",), partitions=1, availability="pairs", steps=(step,))
        plan = Plan(name="p", segments=(segment, segment), sites=2, standby=0, pool_rows=1)
        self.comparison = CopyComparison(
            plan, lambda: list(self.scripts), self.send, advance=self.advance, warn=self.warnings.append
        )

    def advance(self) -> None:
        self.advances += 1

    def send(self, node: str, question: FromController) -> None:
        if not isinstance(question, FinalDigestsWanted):
            self.comparison.answer(node, RowWords(after=END, words=()))
        elif (answer := self.scripts[node](trio.current_time() - self.began)) is not None:
            self.comparison.answer(node, answer)

    def compare(self) -> tuple[OperatorError | None, float]:
        """Return the error and how long the comparison took, on a clock that does not wait."""

        async def run() -> tuple[OperatorError | None, float]:
            self.began = trio.current_time()
            return await self.comparison.compare_at_end(), trio.current_time() - self.began

        return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def at_end(seconds: float) -> FinalDigests:
    return digests(END)


def test_a_copy_that_lags_and_advances_is_compared_however_long_it_takes() -> None:
    sites = Sites({"site-1": at_end, "site-2": lambda s: digests(min(END, int(s) * 20), digest=8 if s >= 50 else 7)})
    error, seconds = sites.compare()
    assert error is not None and "copies on site-1 and site-2 emitted different rows" in str(error)
    assert 50 <= seconds < 51
    assert sites.warnings == []
    assert sites.advances >= 50  # So that the driver waits too.


def test_copies_that_are_equal_at_the_end_are_compared_at_once() -> None:
    sites = Sites({"site-1": at_end, "site-2": at_end})
    assert sites.compare() == (None, 0.0)
    assert sites.warnings == []


def test_a_copy_that_does_not_advance_is_given_up_and_that_is_said() -> None:
    sites = Sites({"site-1": at_end, "site-2": lambda s: digests(400, digest=8)})
    error, seconds = sites.compare()
    assert error is None
    assert STALL_TIMEOUT_S <= seconds < STALL_TIMEOUT_S + 1
    [warning] = sites.warnings
    assert "the copies on site-2 were not compared with the others: in stage 1 it has consumed up to 400 of 1,000" in (
        warning
    )


def test_a_site_that_does_not_answer_is_given_up_and_that_is_said() -> None:
    sites = Sites({"site-1": at_end, "site-2": lambda s: None})
    assert sites.compare()[0] is None
    assert (
        len(sites.warnings) == 1
        and "site-2 were not compared with the others: it did not answer" in (sites.warnings[0])
    )


def test_a_site_that_dies_is_not_waited_for() -> None:
    def dies(seconds: float) -> FinalDigests:
        if seconds > 2:
            del sites.scripts["site-2"]
        return digests(400)

    sites = Sites({"site-1": at_end, "site-2": dies})
    error, seconds = sites.compare()
    assert error is None and sites.warnings == [] and 2 <= seconds < 3


def test_stages_end_at_positions_of_their_own() -> None:
    both = FinalDigests(digests=(*digests(END).digests, *digests(END - 5, stage=2).digests))
    sites = Sites({"site-1": lambda s: both, "site-2": lambda s: both})
    assert sites.compare() == (None, 0.0)
    assert sites.warnings == []
