"""Crash points: moments at which a process of a run can be made to kill itself.

`FLUX_CRASH_AT=<process>:<point>[:<n>]` makes the process die by SIGKILL the n-th time it reaches the point; several are
separated by commas. The process is "ingress", "egress", "controller" or a site such as "site-2", in any incarnation;
"site" is every site. `FLUX_CRASH_AT=@DIRECTORY` arms points while the run goes on: a file in it, called
`<process>:<point>`, kills the first process that reaches the point. That process appends a dot and its pid to the name.

The points are read from the machines: before a message of each kind that a machine has rules for is stepped
(`step-data`), before and after each kind of effect that it can give (`before-send-ack`, `after-install`). Before an
effect, the earlier effects of the same step have been carried out, and what they sent has gone to the system. After it,
so has what it sent itself, except the state of a partition: its snapshot was taken, and is sent in chunks from then on.
A view is first written and then sent: at `after-publish` it is in the journal and was not sent, at `sent-publish` it
was sent to every node.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from ..plan.plan import CONTROLLER, EGRESS, INGRESS
from ..protocols import controller, egress, fh_cons, fh_prod, ingress, node, pooler, state_mover
from ..protocols.controller import Controller
from ..protocols.egress import Egress
from ..protocols.fh_cons import FhCons
from ..protocols.fh_prod import FhProd
from ..protocols.ingress import Ingress
from ..protocols.machine import Machine
from ..protocols.messages import Connected, Consume, Effect, Message, PeerMessage, Publish, Send, SendToController
from ..protocols.node import Node
from ..protocols.pooler import Pooler
from ..protocols.state_mover import StateMover
from ..types.errors import FluxError

VARIABLE = "FLUX_CRASH_AT"
SITE = "site"

# What a process is made of: its machines, and those of its peers that take what it sends.
_STEPS: dict[str, type[Machine]] = {INGRESS: Ingress, SITE: Pooler, EGRESS: Egress, CONTROLLER: Controller}
_TAKERS: dict[str, tuple[type[Machine], ...]] = {
    INGRESS: (FhCons,),
    SITE: (FhCons, FhProd, StateMover, Ingress),
    EGRESS: (FhProd, Ingress),
    CONTROLLER: (),
}
_MODULES: dict[str, tuple[ModuleType, ...]] = {
    INGRESS: (node, ingress, fh_prod),
    SITE: (node, pooler, fh_cons, fh_prod, state_mover),
    EGRESS: (node, egress, fh_cons),
    CONTROLLER: (controller,),
}


def crash_points() -> dict[str, tuple[str, ...]]:
    """Return the points of each kind of process, in the order in which a step reaches them."""
    return {kind: tuple(_points(kind)) for kind in _STEPS}


def _points(kind: str) -> Iterator[str]:
    yield from (f"step-{_dashed(message)}" for message in _stepped(kind))
    given = [effect for effect in get_args(Effect) if _names(kind, effect)]
    for effect in given:
        for carried in _carried(kind, effect):
            text = _dashed(effect) if carried is None else f"{_dashed(effect)}-{_dashed(carried)}"
            yield from (f"{moment}-{text}" for moment in _moments(effect))


def _stepped(kind: str) -> list[type[Any]]:
    """Return the messages that the process's machine has rules for; a node connects for all its machines."""
    known = {rule.on for rule in _STEPS[kind].RULES}
    if kind != CONTROLLER:
        known = (known | {Connected}) & {rule.on for rule in Node.RULES}
    return [message for message in get_args(Message) if message in known]


def _carried(kind: str, effect: type[Any]) -> list[type[Any] | None]:
    """Return the kinds of message in an effect; one None for an effect that carries none."""
    if effect is Send:
        taken = {rule.on for machine in _TAKERS[kind] for rule in machine.RULES}
        return [message for message in get_args(PeerMessage) if message in taken]
    if effect is SendToController:
        return [message for message in get_args(get_type_hints(SendToController)["message"]) if _names(kind, message)]
    return [None]


def _names(kind: str, what: type[Any]) -> bool:
    """Return whether a module of the process's machines imports an effect: only those that give it do."""
    return any(vars(module).get(what.__name__) is what for module in _MODULES[kind])


def _moments(effect: type[Any]) -> tuple[str, ...]:
    return ("before", "after", "sent") if effect is Publish else ("before", "after")


def _dashed(kind: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


def _kind(process: str) -> str:
    return SITE if process.startswith(f"{SITE}-") else process


class Crashes:
    """The crash points of the process `name`; `flush` writes what it has queued."""

    def __init__(self, name: str, text: str, flush: Callable[[], None]) -> None:
        self._process = name.partition(".")[0]
        self._points = frozenset(crash_points()[_kind(self._process)])
        self._flush = flush
        self._armed = Path(text[1:]) if text.startswith("@") else None
        self._left: dict[str, int] = {}  # How often each point is still to be reached.
        if self._armed is None:
            for process, point, n in _parsed(text):
                if process in (self._process, _kind(self._process)):
                    self._left[point] = n

    def step(self, message: Message) -> None:
        """Reach the point before a message is stepped. One without a rule has no point: the machine refuses it."""
        point = f"step-{_dashed(type(message))}"
        if point in self._points:
            self._reach(point)

    def along(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        """Yield the effects of one step; the caller carries each out before it takes the next."""
        for effect in effects:
            is_job = isinstance(effect, Consume)  # It is queued, and performed when nothing else is to be done.
            if not is_job:
                self.before(effect)
            yield effect
            if not is_job:
                self.after(effect)

    def before(self, effect: Effect) -> None:
        """Reach the point before an effect is carried out."""
        self._reach(f"before-{_text(effect)}")

    def after(self, effect: Effect) -> None:
        """Reach the points after an effect was carried out."""
        if isinstance(effect, Publish):
            self._reach(f"after-{_text(effect)}", flush=False)
            self._reach(f"sent-{_text(effect)}")
        else:
            self._reach(f"after-{_text(effect)}")

    def _reach(self, point: str, flush: bool = True) -> None:
        assert point in self._points, f"{self._process} reached {point}, which is not among its crash points"
        if self._is_the_end(point):
            if flush:
                self._flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_the_end(self, point: str) -> bool:
        if self._armed is None:
            if point in self._left:
                self._left[point] -= 1
            return self._left.get(point) == 0
        return any(_disarm(self._armed / f"{name}:{point}") for name in {self._process, _kind(self._process)})


def watch(name: str, flush: Callable[[], None]) -> Crashes | None:
    """Return the crash points that the environment asks for; None if it asks for none."""
    text = os.environ.get(VARIABLE)
    return Crashes(name, text, flush) if text else None


def check() -> None:
    """Raise `FluxError` if the environment names an unknown crash point."""
    text = os.environ.get(VARIABLE, "")
    if text and not text.startswith("@"):
        for _ in _parsed(text):
            pass


def _disarm(armed: Path) -> bool:
    """Disarm a point; return whether it was armed. Of several processes one succeeds."""
    try:
        armed.rename(f"{armed}.{os.getpid()}")
    except FileNotFoundError:
        return False
    return True


def _text(effect: Effect) -> str:
    if isinstance(effect, Send | SendToController):
        return f"{_dashed(type(effect))}-{_dashed(type(effect.message))}"
    return _dashed(type(effect))


def _parsed(text: str) -> Iterator[tuple[str, str, int]]:
    known = crash_points()
    for part in text.split(","):
        process, _, rest = part.strip().partition(":")
        point, colon, count = rest.partition(":")
        if point not in known.get(_kind(process), ()) or (colon and not (count.isdecimal() and int(count))):
            raise FluxError(
                f"{VARIABLE}={text!r}: {part!r} is not a crash point. Expected PROCESS:POINT or PROCESS:POINT:N, with "
                "N from 1 on, such as site-2:before-send-ack:3; `flux crash-points` lists them"
            )
        yield process, point, int(count or 1)
