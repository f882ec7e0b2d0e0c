"""Two editions of a step at once: whatever is batched, moved and left lying, rows are as of a plain run."""

from __future__ import annotations

from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.hosting import HostedEditions, StateChange, StepEdition, host, hosted_editions
from flux.hosting.step_editions import rehearse
from flux.model.operator import OperatorStep, output_of
from flux.wire.state_codec import decode, encode
from tests.operators.feeding import batch_of

from . import changing

SCHEMA = pa.schema({"k": pa.int64()})
PARTITIONS = 4
BY = 7  # What is added for a row after the change.


class Case(NamedTuple):
    """An operator, what it is after the change, and what that does to sums."""

    first: Any
    second: Any
    change: StateChange
    factor: int = 1


CASES = {
    "plain, copied": Case(changing.Plain, changing.Plain, StateChange()),
    "plain, in pieces": Case(changing.PlainInPieces, changing.PlainInPieces, StateChange()),
    "plain, goes on": Case(changing.PlainGoesOn, changing.PlainGoesOn, StateChange(keeps=True)),
    "plain, migrated": Case(changing.Plain, changing.Plain, StateChange(migrate=changing.doubled), 2),
    "plain, upgraded": Case(changing.Plain, changing.PlainTwice, StateChange(from_version=1), 2),
    "keyed": Case(changing.Keyed, changing.Keyed, StateChange()),
    "keyed, goes on": Case(changing.KeyedGoesOn, changing.KeyedGoesOn, StateChange(keeps=True)),
    "keyed, migrated": Case(changing.Keyed, changing.Keyed, StateChange(migrate=changing.doubled), 2),
    "keyed, upgraded": Case(changing.Keyed, changing.KeyedTwice, StateChange(from_version=1), 2),
    "pooled, copied": Case(changing.Pooled, changing.Pooled, StateChange()),
    "pooled, goes on": Case(changing.PooledGoesOn, changing.PooledGoesOn, StateChange(keeps=True)),
    "pooled, migrated": Case(changing.Pooled, changing.Pooled, StateChange(migrate=changing.doubled), 2),
    "pooled, upgraded": Case(changing.Pooled, changing.PooledTwice, StateChange(from_version=1), 2),
}


def step_of(operator: Any, **parameters: Any) -> OperatorStep:
    output = output_of(operator, parameters, ("k",), SCHEMA)
    return OperatorStep(operator, parameters, "sums", ("k",), PARTITIONS, 0, output)


class Site:
    """A step on one site, with some partitions; `now` is the edition of each."""

    def __init__(self, case: Case, held: list[int], editions: int = 1) -> None:
        self.case = case
        self.step: HostedEditions = hosted_editions(step_of(case.first))
        self.step.open(held)
        for number in range(2, editions + 1):
            self.learn(number)

    def learn(self, number: int) -> None:
        """Add an edition: each adds more for a row, and changes the state in the same way."""
        second = step_of(self.case.second, by=BY ** (number - 1))
        self.step.add(number, StepEdition(second, self.case.change))

    def feed(self, edition: int, rows: list[tuple[int, int]], begun: frozenset[int]) -> list[tuple[int, int]]:
        """Feed (partition, key) of one edition; return what is emitted."""
        self.step.begin(edition, begun)
        if not rows:
            return []
        batch = batch_of([(key,) for _, key in rows], SCHEMA, [partition for partition, _ in rows])
        made = self.step.work(batch, ())
        assert made is not None
        return [(row["k"], row["sum"]) for row in made.arrow.to_pylist()]

    def take_state(self, pid: int) -> bytes:
        state = self.step.get_partition_state(pid)
        packed = encode(list(state) if isinstance(state, GeneratorType) else [state], "here")
        self.step.drop_partition(pid)
        return packed

    def install(self, pid: int, edition: int, packed: bytes) -> None:
        self.step.expect(pid, edition)
        for piece in decode(packed):
            self.step.install_partition_state(pid, piece)


class Expected:
    """What a plain run makes of rows: sums by partition and key."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.sums: dict[tuple[int, int], int] = {}
        self.of: dict[int, int] = {}

    def add(self, edition: int, pid: int, key: int) -> tuple[int, int]:
        for _ in range(self.of.get(pid, 1), edition):
            self.sums |= {place: self.factor * value for place, value in self.sums.items() if place[0] == pid}
        self.of[pid] = max(edition, self.of.get(pid, 1))
        self.sums[pid, key] = self.sums.get((pid, key), 0) + BY ** (edition - 1)
        return key, self.sums[pid, key]


ROWS = st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 3)), max_size=8)
# What happens next: rows for the partitions of one edition, a partition moves to the next edition, or to another site
# and back, or some state is changed because there is time.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(1, 3), ROWS),
        st.tuples(st.just("next"), st.integers(0, PARTITIONS - 1), st.just([])),
        st.tuples(st.just("move"), st.integers(0, PARTITIONS - 1), st.just([])),
        st.tuples(st.just("tidy"), st.just(0), st.just([])),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40)
@given(events=EVENTS)
def test_partitions_of_several_editions_are_as_in_a_plain_run(name: str, events: list[Any]) -> None:
    case = CASES[name]
    site, other, expected = Site(case, [*range(PARTITIONS)], 3), Site(case, [], 3), Expected(case.factor)
    now = dict.fromkeys(range(PARTITIONS), 1)
    for kind, number, rows in events:
        if kind == "rows":
            begun = frozenset(pid for pid, edition in now.items() if edition == number)
            given_rows = [(pid, key) for pid, key in rows if pid in begun]
            got = site.feed(number, given_rows, begun)
            assert got == [expected.add(number, pid, key) for pid, key in given_rows]
        elif kind == "next" and now[number] < 3:
            now[number] += 1
        elif kind == "move":
            # What leaves is of the edition of its position: the last that was begun.
            begun_edition = site.step._due.get(number, site.step._places[number]) or 1
            other.install(number, begun_edition, site.take_state(number))
            site.install(number, begun_edition, other.take_state(number))
        elif kind == "tidy":
            site.step.change_some_state()


def test_state_that_nobody_needs_is_changed_when_there_is_time() -> None:
    calls: list[Any] = []

    def migrate(state: Any) -> Any:
        calls.append(state)
        return 2 * state

    site = Site(Case(changing.Keyed, changing.Keyed, StateChange(migrate=migrate)), [0, 1])
    site.feed(1, [(0, 1), (0, 2), (1, 3)], frozenset({0, 1}))
    site.learn(2)
    assert site.feed(2, [(0, 1)], frozenset({0, 1})) == [(1, 2 + BY)]
    assert calls == [1], "only the state of the key that had a row"
    while site.step.change_some_state():
        pass
    assert sorted(calls) == [1, 1, 1]
    assert site.feed(2, [(0, 2), (1, 3)], frozenset({0, 1})) == [(2, 2 + BY), (3, 2 + BY)]


def test_the_code_before_is_forgotten_when_no_partition_is_of_it() -> None:
    closed: list[str] = []

    class Closes(changing.Pooled):
        def close(self) -> None:
            closed.append("first")

    site = Site(Case(Closes, changing.Pooled, StateChange()), [0, 1])
    site.feed(1, [(0, 1), (1, 1)], frozenset({0, 1}))
    site.learn(2)
    site.feed(2, [(0, 1)], frozenset({0}))
    site.step.forget_before(2)
    assert closed == [], "partition 1 is of the first edition"
    site.feed(2, [(1, 1)], frozenset({1}))
    site.step.forget_before(2)
    assert closed == ["first"]
    assert site.step.partition_opened is None
    assert site.feed(2, [(1, 1)], frozenset({1})) == [(1, 1 + 2 * BY)]


def test_a_step_that_knows_one_edition_only_goes_on_with_it() -> None:
    """A site that came after the closing begins with the edition, and forgets the plan's before its first row."""
    site = Site(CASES["keyed, migrated"], [])
    site.learn(2)
    site.step.forget_before(2)
    site.install(0, 2, Site(CASES["keyed, migrated"], [0]).take_state(0))
    assert site.feed(2, [(0, 1)], frozenset({0})) == [(1, BY)]


@pytest.mark.parametrize("name", CASES)
def test_a_rehearsal_changes_nothing(name: str) -> None:
    case = CASES[name]
    site, expected = Site(case, [0, 1]), Expected(case.factor)
    rows = [(0, 1), (1, 2), (1, 2)]
    assert site.feed(1, rows, frozenset({0, 1})) == [expected.add(1, *row) for row in rows]
    edition = StepEdition(step_of(case.second, by=BY), case.change)
    trial = host(step_of(case.first) if case.change.keeps else edition.step)
    trial.open(())
    assert all(list(rehearse(site.step, trial, edition, [0, 1])))
    site.learn(2)
    assert site.feed(1, rows, frozenset({0, 1})) == [expected.add(1, *row) for row in rows]
    assert site.feed(2, rows, frozenset({0, 1})) == [expected.add(2, *row) for row in rows]


def test_a_rehearsal_raises_what_the_change_would_raise() -> None:
    def migrate(state: Any) -> Any:
        raise ValueError("no such field")

    site = Site(Case(changing.Plain, changing.Plain, StateChange()), [0])
    site.feed(1, [(0, 1)], frozenset({0}))
    edition = StepEdition(step_of(changing.Plain), StateChange(migrate=migrate))
    trial = host(edition.step)
    trial.open(())
    with pytest.raises(Exception, match="no such field"):
        list(rehearse(site.step, trial, edition, [0]))


def test_an_unneeded_array_is_not_copied() -> None:
    """The state of an operator that goes on is the same object in both editions."""
    site = Site(CASES["pooled, goes on"], [0])
    site.feed(1, [(0, 1)], frozenset({0}))
    own = site.step._hosts[0].operator(0).own
    site.learn(2)
    site.feed(2, [(0, 1)], frozenset({0}))
    assert site.step._hosts[2].operator(0).own is own
    assert np.array_equal([own[0].sums[1]], [1 + BY])
