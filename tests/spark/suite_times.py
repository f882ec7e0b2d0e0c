"""The processors of Spark's own tests that are about time: timers, late rows, and initial states that set timers."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from suite_processors import Emitted, Given, InBothForms


def seconds(ts: Any) -> int:
    """A time of a row, which is naive and UTC in a DataFrame."""
    return int((ts if ts.tzinfo else ts.replace(tzinfo=UTC)).timestamp())


class GivenTimers(InBothForms):
    """An initial state that sets a timer which is due at once, and is deleted as it fires."""

    OUTPUT = "id string, value string"

    def ask(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "value long")

    def begin(self, key: Any, amounts: list[int], timers: Any) -> None:
        self.total.update((sum(amounts),))
        self.handle.registerTimer(timers.getCurrentProcessingTimeInMs() - 1)

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        total = (self.total.get() or (0,))[0] + sum(value for value, _ in given)
        self.total.update((total,))
        return [{"id": key[0], "value": str(total)}]

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        self.handle.deleteTimer(at_ms)
        return [{"id": f"{key[0]}-expired", "value": str(at_ms)}]


class LatestTimes(InBothForms):
    """The latest time of a key; a timer at the watermark as it is makes the key forget it."""

    OUTPUT = "id string, latest string"

    def ask(self, handle: Any) -> None:
        self.latest = handle.getValueState("latest", "value string")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        before = int(self.latest.get()[0]) if self.latest.exists() else 0
        latest = str(max(before, *(seconds(ts) for _, ts in given)))
        self.latest.update((latest,))
        self.handle.registerTimer(timers.getCurrentWatermarkInMs())
        return [{"id": key[0], "latest": latest}]

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        self.latest.clear()
        self.handle.deleteTimer(at_ms)
        return [{"id": f"{key[0]}-expired", "latest": str(at_ms)}]


class EarliestTimes(InBothForms):
    """The earliest time of a key that was not late."""

    OUTPUT = "id string, earliest string"

    def ask(self, handle: Any) -> None:
        self.earliest = handle.getValueState("earliest", "value string")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        times = [seconds(ts) for _, ts in given]
        earliest = str(min([int(self.earliest.get()[0]), *times] if self.earliest.exists() else times))
        self.earliest.update((earliest,))
        return [{"id": key[0], "earliest": earliest}]


class Resets(InBothForms):
    """Counts by processing time, reset by timers; the timers of a key are listed twice at once."""

    OUTPUT = "id string, count string, timers string"

    def ask(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "value string")

    def _timers(self) -> str:
        first, second = self.handle.listTimers(), list(self.handle.listTimers())
        assert [next(first, None) for _ in second] == second
        return str(len(second))

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        if key == ("a",):
            self.handle.registerTimer(timers.getCurrentProcessingTimeInMs() + 1)
        count = str((int(self.count.get()[0]) if self.count.exists() else 0) + len(given))
        self.count.update((count,))
        return [{"id": key[0], "count": count, "timers": self._timers()}]

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        listed = self._timers()
        self.count.clear()
        self.handle.deleteTimer(at_ms)
        return [{"id": key[0], "count": "-1", "timers": f"{listed} {self._timers()}"}]


class Sessions(InBothForms):
    """A session of a key ends five seconds of event time after its last row; each row moves the timer."""

    OUTPUT = "id string, said string"

    def ask(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "ms long")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        for _, ts in given:
            if self.last.exists():
                self.handle.deleteTimer(self.last.get()[0] + 5_000)
            self.last.update((seconds(ts) * 1_000,))
            self.handle.registerTimer(seconds(ts) * 1_000 + 5_000)
        return [{"id": key[0], "said": f"received {value} at {seconds(ts)}"} for value, ts in given]

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        self.last.clear()
        return [{"id": key[0], "said": f"expired {at_ms} at {timers.getCurrentWatermarkInMs()}"}]


class Timeouts(InBothForms):
    """A session of a key ends some time by the clock after its last micro-batch."""

    OUTPUT = "id string, said string"
    WAIT_MS = 2

    def ask(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "ms long")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        clock = timers.getCurrentProcessingTimeInMs()
        if self.last.exists():
            self.handle.deleteTimer(self.last.get()[0] + self.WAIT_MS)
        self.last.update((clock,))
        self.handle.registerTimer(clock + self.WAIT_MS)
        return [{"id": key[0], "said": f"received {value}"} for value, _ in given]

    def expire(self, key: Any, at_ms: int, timers: Any) -> Emitted:
        self.last.clear()
        return [{"id": key[0], "said": f"expired {at_ms}"}]


class OnTime(InBothForms):
    """Counts rows in event time: late ones are not there."""

    OUTPUT = "id string, count long"

    def ask(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "count long")

    def work(self, key: Any, given: Given, timers: Any) -> Emitted:
        count = (self.count.get() or (0,))[0] + len(given)
        self.count.update((count,))
        return [{"id": key[0], "count": count}]
