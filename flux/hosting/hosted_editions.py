"""Hosted editions: a step whose code may change while rows flow: a host for each edition that some partition is of.

The copies on a site stand at different positions, so two editions may be at work at once, each for its own partitions.
A partition goes over to the next edition when it first has a row or a punctuation after the position of the change, or
when there is time. What leaves the step is always of the edition that was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.batch import Batch
from ..model.operator import OperatorStep, Punctuation
from ..wire.state_types import StateTypes
from .hosted import Hosted
from .state_change import StateChange

HostMaker = Callable[[OperatorStep], Hosted]
_NONE_AROUND: tuple[list[Hosted], list[Hosted]] = ([], [])


@dataclass(frozen=True)
class StepEdition:
    """The step as it is in one edition, what that does to the state of the edition before, and steps around it."""

    step: OperatorStep
    change: StateChange
    before: tuple[OperatorStep, ...] = ()  # Rows pass these first,
    after: tuple[OperatorStep, ...] = ()  # and these last. They have no state.


class HostedEditions(Hosted):
    """The hosts of one step, by the number of the first edition that each is for; 0 is the code of the plan."""

    def __init__(self, step: OperatorStep, make: HostMaker) -> None:
        first = make(step)
        super().__init__(step, first.state_in_memory)
        self._make = make
        self._editions = {0: StepEdition(step, StateChange())}
        self._hosts = {0: first}
        self._around: dict[int, tuple[list[Hosted], list[Hosted]]] = {}  # Hosts of the steps around that of an edition.
        self._places: dict[int, int] = {}  # The host of each partition, by its number.
        self._due: dict[int, int] = {}  # Partitions that have not gone over yet, and to which host they are to go.
        self._arriving: set[int] = set()  # Partitions of whose state nothing is installed yet.
        self._now = 0  # The host of the step in progress.
        self._times_partitions = False

    # Editions.

    def add(self, number: int, edition: StepEdition, host: Hosted | None = None) -> None:
        """Add an edition; `host` is one that was opened for it."""
        assert number > max(self._editions), f"step {self.step.name!r}: edition {number} comes too late"
        self._editions[number] = edition
        if edition.before or edition.after:
            before, after = (list(map(self._opened, steps)) for steps in (edition.before, edition.after))
            self._around[number] = (before, after)
        if host is not None and not self._keeps_host(number):
            self._adopt(number, host)

    def knows(self, number: int) -> bool:
        """Whether the step is changed by the edition of this number."""
        return number in self._editions

    def edition(self, number: int) -> StepEdition:
        """Return the step as it is in the edition of this number, or in the last one before it."""
        return self._editions[self._first(number)]

    def has_begun_last(self, pid: int) -> bool:
        """Whether a partition is of the last edition that is known."""
        return self._due.get(pid, self._places.get(pid)) == max(self._editions)

    def begin(self, number: int, partitions: Iterable[int]) -> set[int]:
        """Process rows of this edition next, of these partitions; return those for which it is another than before."""
        if len(self._editions) == 1:
            return set()
        self._now = self._first(number)
        begun = {pid for pid in partitions if self._due.get(pid, self._places.get(pid, self._now)) != self._now}
        if begun and self._keeps_host(self._now) and self._now not in self._hosts:
            self._let_host_go_on(begun)
        for pid in begun:
            if self._places[pid] == self._now:
                self._due.pop(pid, None)
            else:
                self._due[pid] = self._now
        return begun

    def expect(self, pid: int, number: int) -> None:
        """Note that the state of a partition, which is about to be installed, is of this edition."""
        self._places[pid] = self._first(number)
        self._arriving.add(pid)

    def forget_before(self, number: int) -> None:
        """Forget the code before this edition: no partition will be of it any more."""
        keep = self._first(number)
        needed = {*self._places.values(), *self._due.values(), keep}
        for old in [old for old in self._hosts if old < keep and old not in needed]:
            self._hosts.pop(old).close()
        for old in [old for old in self._editions if old < min(needed)]:
            del self._editions[old]
            self._around.pop(old, None)
        self._now = max(self._now, min(self._editions))

    def change_some_state(self) -> bool:
        if self._due:
            self._go_over(next(iter(self._due)))
            return True
        return any(host.change_some_state() for host in self._hosts.values())

    def _first(self, number: int) -> int:
        """Return the number of the edition that made the step what it is in this edition."""
        return max(each for each in self._editions if each <= number)

    def _before(self, number: int) -> int:
        return max(each for each in self._editions if each < number)

    def _keeps_host(self, number: int) -> bool:
        """Whether the host of the edition before goes on in this one: its instance has the state of many partitions."""
        return self._editions[number].change.keeps and not self._host(self._before(number)).has_instance_by_partition

    def _host(self, number: int) -> Hosted:
        """Return the host of an edition; it is made when it is needed."""
        if number not in self._hosts:
            self._adopt(number, self._opened(self._editions[number].step))
        return self._hosts[number]

    def _opened(self, step: OperatorStep) -> Hosted:
        host = self._make(step)
        host.open(())
        return host

    def _adopt(self, number: int, host: Hosted) -> None:
        if host.output is None:
            host.learn(self._hosts[max(self._hosts)].output)
        if self._times_partitions:
            host.time_partitions()
        self._hosts[number] = host

    def _let_host_go_on(self, begun: set[int]) -> None:
        """Let the host of the edition before go on in this one; partitions that are not begun get another one."""
        before = self._before(self._now)
        host = self._host(before)
        left = [pid for pid, place in self._places.items() if place == before and pid not in begun]
        self._hosts[self._now] = self._hosts.pop(before)
        for pid in left:
            if pid not in self._arriving:
                self._host(before).take_over(host, pid, StateChange())
        host.go_on_as(self._editions[self._now].step)
        self._places |= {pid: self._now for pid in begun if self._places[pid] == before}

    def _go_over(self, pid: int) -> None:
        """Bring the state of a partition to the edition that was begun, through those in between."""
        to = self._due.pop(pid)
        for number in sorted(each for each in self._editions if self._places[pid] < each <= to):
            edition = self._editions[number]
            change = edition.change
            if change.keeps and not self._host(number).has_instance_by_partition:
                change = StateChange()  # Another instance has the state now: it is copied.
            self._host(number).take_over(self._host(self._places[pid]), pid, change)
            self._places[pid] = number

    def _settle(self, pid: int) -> Hosted:
        """Return the host of a partition, after it has gone over."""
        if pid in self._due:
            self._go_over(pid)
        return self._host(self._places.get(pid, self._now))

    # What hosts do.

    @property
    def words(self) -> StateTypes:  # type: ignore[override]
        return self._host(self._now).words

    def words_in(self, number: int) -> StateTypes:
        """Return the types of which the state consists in the edition of this number."""
        first = self._first(number)
        return (self._hosts.get(first) or self._make(self._editions[first].step)).words

    def words_of(self, pid: int) -> StateTypes:
        return self._settle(pid).words

    def open(self, partitions_held: Iterable[int]) -> None:
        held = list(partitions_held)
        self._hosts[0].open(held)
        self._places = dict.fromkeys(held, 0)

    @property
    def partition_opened(self) -> int | None:
        return self._host(self._now).partition_opened

    @property
    def needs_punctuations(self) -> bool:
        return self._host(self._now).needs_punctuations

    def work(self, rows: Batch | None, punctuations: Sequence[Punctuation]) -> Batch | None:
        host = self._host(self._now)
        if self._due:
            self._go_over_for(host, rows, punctuations)
        before, after = self._around.get(self._now, _NONE_AROUND)
        made = host.work(_through(before, rows), punctuations)
        return _through(after, made)

    def _go_over_for(self, host: Hosted, rows: Batch | None, punctuations: Sequence[Punctuation]) -> None:
        needed: set[int] = set() if rows is None else set(np.unique(rows.partition).tolist())
        if punctuations and host.needs_punctuations:
            for each in punctuations:
                needed |= self._due.keys() if each.partitions is None else each.partitions
        for pid in sorted(needed & self._due.keys()):
            if self._due[pid] == self._now:
                self._go_over(pid)

    def process(self, batch: Batch) -> Batch | None:
        host = self._host(self._now)
        if self._due:
            self._go_over_for(host, batch, ())
        before, after = self._around.get(self._now, _NONE_AROUND)
        rows = _through(before, batch)
        return None if rows is None else _through(after, host.process(rows))

    def punctuate(self, p: Punctuation) -> Batch | None:
        host = self._host(self._now)
        if self._due:
            self._go_over_for(host, None, (p,))
        _, after = self._around.get(self._now, _NONE_AROUND)
        return _through(after, host.punctuate(p))

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    def get_partition_state(self, pid: int) -> Any:
        return self._settle(pid).get_partition_state(pid)

    def install_partition_state(self, pid: int, state: Any) -> None:
        self._arriving.discard(pid)
        self._host(self._places.setdefault(pid, self._now)).install_partition_state(pid, state)

    def drop_partition(self, pid: int) -> None:
        self._due.pop(pid, None)
        self._arriving.discard(pid)
        if pid in self._places:
            self._hosts[self._places.pop(pid)].drop_partition(pid)

    def init_trans(self, pid: int) -> None:
        if pid in self._due:
            self._go_over(pid)
        self._host(self._places.get(pid, self._now)).init_trans(pid)

    def end_trans(self, pid: int) -> None:
        self._host(self._places.get(pid, self._now)).end_trans(pid)

    def take_late(self) -> dict[int, int]:
        return {pid: rows for host in self._hosts.values() for pid, rows in host.take_late().items()}

    def time_partitions(self) -> None:
        self._times_partitions = True
        for host in self._hosts.values():
            host.time_partitions()

    def take_costs(self) -> dict[int, float]:
        if len(self._hosts) == 1:
            return next(iter(self._hosts.values())).take_costs()
        costs_s: dict[int, float] = {}
        for host in self._hosts.values():
            for pid, cost_s in host.take_costs().items():
                costs_s[pid] = costs_s.get(pid, 0.0) + cost_s
        return costs_s

    def key_counts(self) -> dict[int, int]:
        return {pid: keys for host in self._hosts.values() for pid, keys in host.key_counts().items()}

    @property
    def output(self) -> Any:
        return self._host(self._now).output

    def learn(self, output: Any) -> None:
        self._host(self._now).learn(output)


def _through(steps: Sequence[Hosted], rows: Batch | None) -> Batch | None:
    """Return what rows become when they pass these steps."""
    for step in steps:
        if rows is None:
            break
        rows = step.work(rows, ())
    return rows
