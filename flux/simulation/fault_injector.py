"""Fault injector: which faults a world has, and when. It causes none by which Flux must lose data.

A site is killed, stopped or cut off only while every partition has a live copy elsewhere, and no other site is in
danger. Ingress, egress and controller may die at any time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import trio

from ..driver.local.driver import Driver
from ..driver.run_state import RunState
from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..protocols.messages import View
from .doom import DISK, MOMENTS, SEND, SINK, Doom
from .kernel import WorldProcess
from .memory_shortage import MemoryShortage
from .replaced_calls import SimulatedSystem

FAULTS = {
    "kill": "a process is killed",
    "crash": "a process dies before, within or after an effect: a write, a send, a call of the sink",
    "stop": "a process is stopped for a while, or for good",
    "slow": "everything that is sent arrives late",
    "cut": "two processes cannot reach each other",
    "lost": "a site cannot reach the controller for so long that it is declared dead",
    "reset": "a connection breaks",
    "disk": "the disk has no room for journals",
    "read": "a process is killed, and the next read from the disk fails: an error may be the end",
    "tail": "a process is killed, and its journal loses its end: an error may be the end",
    "memory": "a site has no memory for one call; its partners go on",
    "drain": "a site is emptied and stopped",
}

_ENDS = (INGRESS, EGRESS, CONTROLLER)
_JOURNALS = {INGRESS: "numbering.journal", EGRESS: "egress.journal", CONTROLLER: "controller.journal"}
_CUT = (*(INGRESS,) * 8, EGRESS, EGRESS, CONTROLLER)  # Most runs that lose views end; an ingress goes on.
_CALLS_MAX = 3_000
_FOR_GOOD_S = 1_000.0  # Longer than a world lasts.
_PLANNED = (0, 4, 8, 8, 12, 12, 20, 40)  # Faults of a world.
_UNREADABLE_WORLDS = 0.06  # Their last fault is of the kind `read`,
_CUT_WORLDS = 0.06  # and that of these `tail`.
_SHORT_S = 0.25  # Less than the time after which a silent process is suspected.


class FaultyWorld(Protocol):
    """What a world is to its injector."""

    seed: int
    system: SimulatedSystem
    driver: Driver | None
    live: dict[str, WorldProcess]  # By role.
    excused: set[str]  # Roles that a fault may have had declared dead.
    is_ending: bool
    may_lose_while_moving: bool

    @property
    def now(self) -> float:
        """The time of the world."""

    @property
    def run_state(self) -> RunState | None:
        """What the driver knows."""

    def note_fault(self, number: int | None, text: str) -> None:
        """Note a fault that is caused now."""

    def directory_of(self, role: str) -> Path:
        """Return where a process has its journal."""


class FaultInjector:
    """Causes the faults of one world."""

    def __init__(
        self,
        world: FaultyWorld,
        faults_max: int | None = None,
        left_out: frozenset[int] = frozenset(),
        kinds: Collection[str] = (),
    ) -> None:
        self._world = world
        self._left_out = left_out
        self._rng = random.Random(f"{world.seed} faults")
        self._planned = self._rng.choice(_PLANNED)
        self._pause_s = self._rng.choice((0.003, 0.006, 0.012))
        self._kinds = self._named(kinds) if kinds else self._draw_kinds()
        self._last = None if kinds else self._draw_last()
        self._last_number = 0
        if self._last is not None:
            self._planned += 1
            self._last_number = self._planned
        if faults_max is not None:
            self._planned = min(self._planned, faults_max)
        self._drawn = 0
        self.last_at = 0.0
        self.is_done = False

    async def run(self, scope: trio.CancelScope) -> None:
        """Cause faults, until enough or the run has ended."""
        rng, world = self._rng, self._world
        while (state := world.run_state) is None or state.started_at is None:
            await trio.sleep(0.005)
        while self._drawn < self._planned and not state.ended:
            await trio.sleep(rng.expovariate(1 / self._pause_s))
            if not world.is_ending:
                is_last = self._drawn + 1 == self._last_number
                (self._last if self._last is not None and is_last else rng.choice(self._kinds))()
        self.is_done = True

    @property
    def has_faults(self) -> bool:
        """Whether the world is to have any."""
        return self._planned > 0

    def _draw_kinds(self) -> list[Callable[[], None]]:
        """Return the kinds of fault of this world: few, so that each world is of another character."""
        deaths = [self._kill_end, self._doom_end, self._doom_end, self._doom_end, self._kill_site, self._doom_site]
        others = [
            self._stop,
            self._delay,
            self._cut_off,
            self._reset,
            self._reset,
            self._fill_disk,
            self._lose_controller,
            self._drain,
            self._starve,
        ]
        chosen = self._rng.sample(others, self._rng.randint(0, 3))
        return [*deaths, *chosen] if self._rng.random() < 0.9 else chosen or deaths

    def _draw_last(self) -> Callable[[], None] | None:
        """Return the fault of which the run may end, if there is to be one."""
        if random.Random(f"{self._world.seed} reads").random() < _UNREADABLE_WORLDS:
            return self._fail_read
        return self._cut_journal if random.Random(f"{self._world.seed} tails").random() < _CUT_WORLDS else None

    def _named(self, kinds: Collection[str]) -> list[Callable[[], None]]:
        """Return what causes faults of these kinds, of `FAULTS`."""
        causes = {
            "kill": [self._kill_end, self._kill_site],
            "crash": [self._doom_end, self._doom_end, self._doom_site],
            "stop": [self._stop],
            "slow": [self._delay],
            "cut": [self._cut_off],
            "lost": [self._lose_controller],
            "reset": [self._reset],
            "disk": [self._fill_disk],
            "read": [self._fail_read],
            "tail": [self._cut_journal],
            "memory": [self._starve],
            "drain": [self._drain],
        }
        assert causes.keys() == FAULTS.keys()
        return [cause for kind in FAULTS if kind in kinds for cause in causes[kind]]

    def _begin(self, text: str) -> bool:
        """Note a fault that was drawn; return whether it is to be caused, or is left out."""
        self._drawn += 1
        if self._drawn in self._left_out:
            return False
        self.last_at = self._world.now
        self._world.note_fault(self._drawn, text)
        return True

    # Processes that are started again.

    def _kill_end(self) -> None:
        process = self._world.live.get(self._rng.choice(_ENDS))
        if process is not None and self._begin(f"kill {process.name}"):
            self._world.system.kernel.end(process, -9)

    def _doom_end(self) -> None:
        role = self._rng.choice(_ENDS)
        process = self._world.live.get(role)
        if process is not None and process.doom is None:
            doom = self._draw_doom((DISK, DISK, SEND, *((SINK, SINK) if role == EGRESS else ())))
            if self._begin(f"{process.name} is to die: {doom}"):
                process.doom = doom

    def _draw_doom(self, kinds: tuple[str, ...]) -> Doom:
        rng = self._rng
        return Doom(kind=rng.choice(kinds), n=rng.choice((1, 1, 1, 2, 3, 8)), moment=rng.choice(MOMENTS))

    def _fail_read(self) -> None:
        """Kill a process with a journal; a read of the disk fails, most likely that of the one that is started next."""
        process = self._world.live.get(self._rng.choice(_ENDS))
        if process is not None and self._begin(f"kill {process.name}, and the next read of the disk fails"):
            self._world.system.disk.fail_read()
            self._world.system.kernel.end(process, -9)

    def _cut_journal(self) -> None:
        """Kill a process; its journal loses its end, as with the power of a machine of its own."""
        role = self._rng.choice(_CUT)
        process = self._world.live.get(role)
        if process is not None and self._begin(f"kill {process.name}, and its journal loses its end"):
            self._world.system.kernel.end(process, -9)
            self._world.system.disk.cut(str(self._world.directory_of(role) / _JOURNALS[role]))

    # Sites.

    def _kill_site(self) -> None:
        if (site := self._site_to_lose()) is not None and self._begin(f"kill {site}"):
            self._world.system.kernel.end(self._world.live[site], -9)
            self._replace()

    def _doom_site(self) -> None:
        """Have a site die at its next send: within a beat, so that the danger is short."""
        if (site := self._site_to_lose()) is not None:
            doom = Doom(kind=SEND, n=1, moment=self._rng.choice(MOMENTS))
            if self._begin(f"{site} is to die: {doom}"):
                self._world.live[site].doom = doom
                self._replace()

    def _starve(self) -> None:
        """Have a site find no memory in one of its next calls; a site that beats makes some hundred in a second.

        It must know that others have all that it has: one with the last copy ends the run with the error.
        """
        site = self._site_to_lose()
        view = None if site is None else self._world.live[site].runnable.shell.node.view
        if site is not None and view is not None and not view.needs(site):
            calls = int(math.exp(self._rng.uniform(0, math.log(_CALLS_MAX))))
            if self._begin(f"{site} is to have no memory, after {calls} calls"):
                self._world.live[site].shortage = MemoryShortage(calls)
                self._risk(site)

    def _drain(self) -> None:
        """Have a site emptied and stopped, as a user may."""
        driver = self._world.driver
        assert driver is not None
        site = self._site_to_lose()
        if site is not None and CONTROLLER in driver._links and self._begin(f"drain {site}"):
            self._risk(site)
            driver.ask_to_drain(site)

    # Stops, delays and broken connections.

    def _stop(self) -> None:
        """Stop a process for a short time, or for so long that it is taken for dead."""
        world, rng = self._world, self._rng
        role: str | None = rng.choice(list(world.live))
        is_long = rng.random() < 0.3
        if is_long and role not in _ENDS:
            role = self._site_to_lose()
        if role is None or world.live[role].is_stopped:
            return
        process = world.live[role]
        for_s = rng.choice((rng.uniform(0.8, 3.0), _FOR_GOOD_S)) if is_long else rng.uniform(0.01, _SHORT_S)
        if not self._begin(f"stop {process.name} for {for_s:.3f} s"):
            return
        if is_long:
            self._risk(role)
        world.system.kernel.stop(process)
        world.system.kernel.at(world.now + for_s, lambda: world.system.kernel.go_on(process))

    def _delay(self) -> None:
        """Have everything arrive late for a while."""
        network = self._world.system.network
        if network.is_slow:
            return
        for_s = self._rng.uniform(0.1, 1.0)
        if self._begin(f"slow network for {for_s:.3f} s"):
            network.slow_down(for_s, (_SHORT_S / 5, _SHORT_S / 2))

    def _cut_off(self) -> None:
        """Cut two processes off from each other, one way or both, for less time than matters to the controller."""
        roles = [role for role in self._world.live if role != CONTROLLER]
        if len(roles) < 2:
            return
        a, b = self._rng.sample(roles, 2)
        self._cut_for(a, b, self._rng.uniform(0.01, 1.2))

    def _lose_controller(self) -> None:
        """Cut a site off from the controller for so long that it is declared dead."""
        site = self._site_to_lose()
        if site is not None and self._cut_for(site, CONTROLLER, self._rng.uniform(1.0, 5.0)):
            self._risk(site)

    def _cut_for(self, a: str, b: str, for_s: float) -> bool:
        network = self._world.system.network
        both_ways = self._rng.random() < 0.7
        if not self._begin(f"cut {a} from {b}{'' if both_ways else ', one way'}, for {for_s:.3f} s"):
            return False
        network.cut(a, b, both_ways)
        self._world.system.kernel.at(self._world.now + for_s, lambda: network.heal(a, b))
        return True

    def _reset(self) -> None:
        """Break a connection between two processes; not one to the driver or the controller, which are on a machine."""
        network = self._world.system.network
        apart = ("program", CONTROLLER)
        between = [s for s in network.sockets if s.role not in apart and s.peer and s.peer.role not in apart]
        if between:
            sock = self._rng.choice(between)
            assert sock.peer is not None
            if self._begin(f"break a connection from {sock.role} to {sock.peer.role}"):
                network.break_off(sock)

    def _fill_disk(self) -> None:
        if self._begin("full disk"):
            self._world.system.disk.fill()

    def _risk(self, role: str) -> None:
        """Expect that a process is declared dead; a site gets a replacement."""
        self._world.excused.add(role)
        if role not in _ENDS:
            self._replace()

    def _replace(self) -> None:
        assert self._world.driver is not None
        self._world.driver._start_site()

    def _site_to_lose(self) -> str | None:
        """Return a site that may die now; None if there is none."""
        view = self._view()
        if view is None or not self._is_whole(view):
            return None
        sites = [role for role in self._world.live if role not in _ENDS and role in view.nodes]
        able = [site for site in sites if not view.needs(site)]
        return self._rng.choice(able) if able else None

    def _view(self) -> View | None:
        controller = self._world.live.get(CONTROLLER)
        machine: Any = None if controller is None else getattr(controller.runnable, "machine", None)
        return None if machine is None else machine.view

    def _is_whole(self, view: View) -> bool:
        """Whether all copies are there, and every process of the view lives and is in no danger."""
        live = {process.name: process for process in self._world.live.values()}
        members = [node for node in view.nodes if view.alive(node)]
        sites = [node for node in members if node.partition(".")[0] not in _ENDS]
        return (
            (not view.standby or self._world.may_lose_while_moving)
            and all(node in live and live[node].doom is None and not live[node].is_stopped for node in sites)
            and not self._world.excused.intersection(sites)
            and not any(node in view.dead for stage in view.copies for copies in stage for node in copies)
        )
