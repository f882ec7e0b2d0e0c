"""Who is silent, and who is only late: nobody who lives may be taken for dead because the machine is busy."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from flux.controller.failure_detector import LATE_MAX_S, LOOK_EVERY_S, MISSED_MAX, FailureDetector
from flux.controller.link_suspicions import LinkSuspicions
from flux.controller.os_process import is_stopped, pid_of
from flux.site.heartbeat import BEAT_EVERY_S
from flux.site.peers import UNREACHABLE_AFTER_S
from tests.runtime.waiting import wait_until

NODES = ("site-1", "site-2")
LISTENED_S = 40.0  # Long enough to know what is usual.
HERE = 4_711  # The number of a process on this machine.


class Beating:
    """A pulse that is looked at as it should be, while a clock goes on."""

    def __init__(self, pid: int | None = None, stopped: bool = False, runs_every_s: float | None = None) -> None:
        self.now = 100.0
        self.pulse = FailureDetector(
            is_stopped=lambda asked: stopped and asked == pid,
            run_ns_of=lambda asked: 7 if runs_every_s is None else int(self.now / runs_every_s),
        )
        self._pid = pid

    def go_on(self, seconds: float, beating: tuple[str, ...] = NODES, every_s: float = BEAT_EVERY_S) -> list[str]:
        """Who was silent when `beating` had beaten `every_s`, and nobody else."""
        end, beat_at = self.now + seconds, self.now
        silent: list[str] = []
        while self.now < end:
            if self.now >= beat_at:
                beat_at = self.now + every_s
                for node in beating:
                    self.pulse.beat(node, self.now, self._pid)
            self.now += LOOK_EVERY_S
            silent = self.pulse.silent(NODES, self.now)
        return silent


def test_who_beats_is_not_silent() -> None:
    assert Beating().go_on(5.0) == []


def test_who_never_beat_is_not_missed() -> None:
    assert Beating().go_on(5.0, beating=("site-1",)) == []


def test_who_is_there_and_is_stopped_before_its_first_beat_is_silent() -> None:
    hearts = Beating(pid=HERE, stopped=True)
    hearts.go_on(LISTENED_S, beating=("site-1",))
    hearts.pulse.expect("site-2", hearts.now, HERE)
    assert hearts.go_on((MISSED_MAX + 1.5) * BEAT_EVERY_S, beating=("site-1",)) == ["site-2"]


@pytest.mark.parametrize("pid", [None, HERE])
def test_who_is_there_may_take_its_time_until_its_first_beat_but_not_for_ever(pid: int | None) -> None:
    hearts = Beating(pid=pid)
    hearts.go_on(LISTENED_S, beating=("site-1",))
    hearts.pulse.expect("site-2", hearts.now, pid)
    assert hearts.go_on(0.9 * LATE_MAX_S, beating=("site-1",)) == []
    assert hearts.go_on(0.2 * LATE_MAX_S, beating=("site-1",)) == ["site-2"]


def test_how_long_one_took_to_begin_is_not_taken_for_usual() -> None:
    hearts = Beating()
    hearts.pulse.expect("site-2", hearts.now)
    hearts.go_on(5.0, beating=("site-1",))
    hearts.pulse.beat("site-2", hearts.now)
    assert hearts.pulse.usual_s < 2 * BEAT_EVERY_S


def test_who_misses_too_many_beats_is_silent() -> None:
    hearts = Beating()
    hearts.go_on(LISTENED_S)
    assert hearts.go_on((MISSED_MAX + 1.5) * BEAT_EVERY_S, beating=("site-1",)) == ["site-2"]


def test_who_has_not_listened_for_long_does_not_know_what_is_usual_and_waits() -> None:
    """A controller that was started again declared a site dead whose second beat came late on a busy machine."""
    hearts = Beating()
    hearts.go_on(0.5)
    assert hearts.go_on(2.0, beating=("site-1",)) == []
    assert hearts.go_on(1.5, beating=("site-1",)) == ["site-2"]


def test_who_is_gone_is_not_missed() -> None:
    hearts = Beating()
    hearts.go_on(1.0)
    hearts.pulse.forget("site-2")
    assert hearts.go_on(2 * LATE_MAX_S, beating=("site-1",)) == []


def test_where_beats_come_late_one_is_waited_for_longer() -> None:
    hearts = Beating()
    hearts.go_on(LISTENED_S, every_s=0.4)
    assert hearts.go_on(1.0, beating=("site-1",)) == []
    assert hearts.go_on(1.0, beating=("site-1",)) == ["site-2"]


def test_what_was_usual_long_ago_is_not_usual() -> None:
    hearts = Beating()
    hearts.go_on(5.0, every_s=0.4)
    hearts.go_on(40.0)
    assert hearts.go_on(1.0, beating=("site-1",)) == ["site-2"]


def test_nobody_is_waited_for_without_end() -> None:
    hearts = Beating()
    hearts.go_on(25.0, every_s=8.0)
    assert hearts.go_on(LATE_MAX_S + 1.0, beating=("site-1",), every_s=8.0) == ["site-2"]


def test_on_this_machine_who_is_not_stopped_is_late_and_not_silent() -> None:
    hearts = Beating(pid=HERE)
    hearts.go_on(5.0)
    assert hearts.go_on(LATE_MAX_S - 1.0, beating=("site-1",)) == []
    assert hearts.go_on(2.0, beating=("site-1",)) == ["site-2"]


def test_on_this_machine_who_is_stopped_is_silent_also_where_beats_come_late() -> None:
    hearts = Beating(pid=HERE, stopped=True)
    hearts.go_on(5.0, every_s=0.4)
    assert hearts.go_on(1.0, beating=("site-1",), every_s=0.4) == ["site-2"]


def test_on_this_machine_who_is_stopped_and_continued_in_turn_is_late_and_not_dead() -> None:
    hearts = Beating(pid=HERE, stopped=True, runs_every_s=0.115)  # At every look it happens to be stopped.
    hearts.go_on(5.0)
    assert hearts.go_on(LATE_MAX_S - 1.0, beating=("site-1",)) == []
    assert hearts.go_on(2.0, beating=("site-1",)) == ["site-2"]


def test_who_ran_long_ago_and_is_stopped_is_dead() -> None:
    hearts = Beating(pid=HERE, stopped=True, runs_every_s=3.0)
    hearts.go_on(5.0)
    assert hearts.go_on(2.0, beating=("site-1",)) == ["site-2"]


def test_a_controller_that_was_late_itself_takes_nobody_for_dead() -> None:
    hearts = Beating()
    hearts.go_on(5.0)
    hearts.now += 60.0
    assert hearts.pulse.silent(NODES, hearts.now) == []


def test_who_was_heard_lately_beats() -> None:
    pulse = FailureDetector()
    assert not pulse.beats("site-1", 1.0)
    pulse.beat("site-1", 1.0)
    assert pulse.beats("site-1", 1.0 + LATE_MAX_S)
    assert not pulse.beats("site-1", 1.5 + LATE_MAX_S)


def test_the_system_knows_who_is_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), "a process to be stopped")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_stopped(process.pid), "a process to go on")
    finally:
        process.kill()
        process.communicate()
    assert is_stopped(process.pid), "it is gone"


def test_the_system_knows_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as elsewhere:
        pid = pid_of(ours)
        assert pid is not None
        assert not is_stopped(pid)
        assert pid_of(elsewhere) is None


def test_what_is_usual_is_the_longest_pause_of_anybody() -> None:
    hearts = Beating()
    assert hearts.pulse.usual_s == BEAT_EVERY_S
    hearts.go_on(5.0, every_s=0.4)
    hearts.go_on(5.0)
    assert hearts.pulse.usual_s == pytest.approx(0.4, abs=2 * LOOK_EVERY_S)


class Saying:
    """What nodes say every `UNREACHABLE_AFTER_S`, where nobody has to wait more than `turn_s`."""

    def __init__(self, turn_s: float = BEAT_EVERY_S) -> None:
        self.now = 100.0
        self._doubts = LinkSuspicions()
        self._turn_s = turn_s

    def say(self, *pairs: tuple[str, str], times: int = 1) -> bool:
        """Whether two are cut off when each of `pairs` has said so many times that the first cannot reach the other."""
        are_cut_off = False
        for _ in range(times):
            self.now += UNREACHABLE_AFTER_S
            said = [self._doubts.add(*pair, self.now, self._turn_s) for pair in pairs]
            are_cut_off = any(said)
        return are_cut_off


THERE, BACK = ("site-1", "site-2"), ("site-2", "site-1")


def test_two_that_both_cannot_reach_each_other_are_cut_off() -> None:
    assert Saying().say(THERE, BACK)


def test_what_one_alone_says_does_not_count_however_often() -> None:
    assert not Saying().say(THERE, ("site-3", "site-1"), times=50)


def test_the_other_may_say_it_later() -> None:
    saying = Saying()
    assert not saying.say(THERE)
    assert saying.say(BACK)


def test_what_was_said_long_ago_does_not_count() -> None:
    saying = Saying()
    saying.say(THERE)
    saying.now += 3 * UNREACHABLE_AFTER_S
    assert not saying.say(BACK)


def test_on_a_busy_machine_both_must_go_on_to_say_so() -> None:
    saying = Saying(turn_s=0.4)
    assert not saying.say(THERE, BACK, times=3)
    assert saying.say(THERE, BACK)


def test_who_has_stopped_to_say_so_begins_anew() -> None:
    saying = Saying(turn_s=0.4)
    saying.say(THERE, BACK, times=3)
    saying.now += 3 * UNREACHABLE_AFTER_S
    assert not saying.say(THERE, BACK)


def test_on_the_busiest_machine_both_are_heard_in_the_end() -> None:
    assert Saying(turn_s=60.0).say(THERE, BACK, times=16)
