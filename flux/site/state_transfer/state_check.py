"""State check: encodes some state of each step now and then, so that state which cannot be transferred is found early.

A pair whose state cannot be encoded is worth nothing, and would show that only when a site has died. So, soon after
the start and every few seconds, each step of a stage in pairs has the state of some partitions encoded, and the bytes
dropped. It is done between two steps of the operator, and ends when its budget is spent. The next check goes on with
the next partition. A step whose state took long to read twice is not read again: rows have priority.

Left alone are operators that must be prepared for a transfer (`init_trans`) or have their state elsewhere, and
partitions that were transferred to this site: their state was encoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import trio

from ...hosting import Hosted
from ...model.gc_control import gc_paused
from ...model.operator import operator_class
from ...wire.transfer import StateOwner, items
from .partition_copy import state_values

_FIRST_S = 0.5
_INTERVAL_MAX_S = 5.0
_BUDGET_S = 0.005  # Of this thread's time, for one step.
_BUDGET_BYTES = 1 << 20  # Of one partition.
_SLOW_S = 0.05


class StateCheck:
    """Checks the states of one stage; `place_of` returns the place of a partition for errors."""

    def __init__(
        self, stage: int, steps: Sequence[Hosted], held: Sequence[int], place_of: Callable[[int], str]
    ) -> None:
        self._stage = stage
        self._partitions = list(held)  # The next to be checked first.
        self._place_of = place_of
        self._names = tuple(step.step.name for step in steps)
        self._steps = {number: step for number, step in enumerate(steps) if _can_be_read(step)}
        self._slow: set[int] = set()  # Steps whose last check took long.

    def forget(self, partition: int) -> None:
        """Leave out a partition: it has left, or is about to be installed."""
        if partition in self._partitions:
            self._partitions.remove(partition)

    def stop(self) -> None:
        """Check nothing from now on: the operators are about to be closed."""
        self._steps.clear()

    async def run(
        self, fail: Callable[[BaseException], None], watched: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Check now and then, each time in a block of `watched`; call `fail` with the first error, and end."""
        interval_s = _FIRST_S
        while self._steps:
            await trio.sleep(interval_s)
            interval_s = min(2 * interval_s, _INTERVAL_MAX_S)
            try:
                with gc_paused(), watched():
                    self.check()
            except Exception as error:
                fail(error)
                return

    def check(self) -> None:
        """Encode some state of each step; raise what the transfer of it would raise."""
        done = 1
        for number, step in list(self._steps.items()):
            began_s = time.thread_time()
            checked = 0
            for partition in self._partitions:
                self._encode(number, step, partition, began_s + _BUDGET_S)
                checked += 1
                if time.thread_time() - began_s > _BUDGET_S:
                    break
            done = max(done, checked)
            self._note_time(number, time.thread_time() - began_s)
        self._partitions = self._partitions[done:] + self._partitions[:done]

    def _note_time(self, number: int, took_s: float) -> None:
        if took_s <= _SLOW_S:
            self._slow.discard(number)
        elif number in self._slow:
            del self._steps[number]
        else:
            self._slow.add(number)  # Once is not enough: the first check may import a library.

    def _encode(self, number: int, step: Hosted, partition: int, until_s: float) -> None:
        owner = StateOwner(self._place_of(partition), self._names)
        size_bytes = 0
        for parts in items(state_values(self._stage, number, step, partition), owner):
            size_bytes += sum(map(len, parts))
            if time.thread_time() > until_s or size_bytes > _BUDGET_BYTES:
                return


def _can_be_read(step: Hosted) -> bool:
    is_prepared = hasattr(operator_class(step.step.factory, step.step.name), "init_trans")
    return step.state_in_memory and not is_prepared
