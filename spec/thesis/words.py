"""The thesis's terms: marks, modes, connections, messages, and the row of a figure.

Chapter 3 prints each operator as a table of actions: an external action or none, a guard, a state change.
`Row` is one line of such a table. A nested condition of a figure is a row of its own here, with the whole
condition as its guard, so that the model can count whether it ever fired.

Nothing here imports the machines of protocols/: the models are independent, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

# Marks of a buffer entry, and the names of the two destinations (fig. 3.3).
PROD, PRIM, SEC = "PROD", "PRIM", "SEC"
DESTS = (PRIM, SEC)

# Modes of an operator (3.2.3.1).
ACTIVE, DEAD, STDBY, PAUSE = "ACTIVE", "DEAD", "STDBY", "PAUSE"

# What a connection is used for (fig. 3.3). PAUSE is a mode and a use, as in the thesis.
SEND, RECV, ACK = "SEND", "RECV", "ACK"
Uses = frozenset[str]
NOTHING: Uses = frozenset()
SENDING, RECEIVING, ACKING, PAUSED = frozenset({SEND}), frozenset({RECV}), frozenset({ACK}), frozenset({PAUSE})
BOTH_WAYS = frozenset({SEND, ACK})

NO_VERSION = 0  # Version numbers of checkpoints start at 1.
END = -1  # The value of the tuple that marks the end of the stream.
END_SN = (1 << 30,)

Sn = tuple[int, ...]  # Compound: the input's number, then an index for each one-to-many step (3.3.1).


class Copy(NamedTuple):
    """The name of one copy of a partition of a stage. Numbers 0 and 1 are the first two copies; others are standbys."""

    stage: int
    partition: int
    number: int

    @property
    def pair(self) -> tuple[int, int]:
        return self.stage, self.partition

    def __str__(self) -> str:
        return f"{self.stage}.{self.partition}{'ABCDEFGH'[self.number]}"


CONTROLLER = Copy(-1, 0, 0)
At = tuple[int, str]  # The partition and the destination that an action applies to.
NOWHERE: At = (0, "")


def p(dest: str) -> str:
    """Return the pair's other destination; the figures call it p."""
    return SEC if dest == PRIM else PRIM


@dataclass(frozen=True, slots=True)
class Message:
    """A message on a FIFO connection."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Data(Message):
    kind: ClassVar[str] = "data"
    sn: Sn
    value: int


@dataclass(frozen=True, slots=True)
class Ack(Message):
    kind: ClassVar[str] = "ack"
    sn: Sn


@dataclass(frozen=True, slots=True)
class Reverse(Message):
    kind: ClassVar[str] = "reverse"


@dataclass(frozen=True, slots=True)
class Pause(Message):
    kind: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True)
class PauseAck(Message):
    kind: ClassVar[str] = "pause-ack"


@dataclass(frozen=True, slots=True)
class CSync(Message):
    """Sent by both consumers of a recovered pair. `seen` counts the deaths and standbys of it that the sender knows."""

    kind: ClassVar[str] = "csync"
    ver: int
    seen: int


@dataclass(frozen=True, slots=True)
class PSync(Message):
    """Sent by both producers of a recovered pair; fields as in `CSync`."""

    kind: ClassVar[str] = "psync"
    ver: int
    seen: int


@dataclass(frozen=True, slots=True)
class SmReady(Message):
    """The other side's StateMover is ready: a send-req or recv-req that has arrived."""

    kind: ClassVar[str] = "sm_ready"


@dataclass(frozen=True, slots=True)
class State(Message):
    """The result of getState(), in transfer between two StateMovers."""

    kind: ClassVar[str] = "state"
    contents: Any


@dataclass(frozen=True, slots=True)
class Fail(Message):
    """`copy` is dead. `seq` numbers all failures; `event` those and the standbys of this pair."""

    kind: ClassVar[str] = "fail"
    copy: Copy
    seq: int
    event: int


@dataclass(frozen=True, slots=True)
class Avail(Message):
    """`copy` is the standby for the dead copy in `slot`, and is connected."""

    kind: ClassVar[str] = "avail"
    copy: Copy
    slot: int
    donor: Copy
    event: int


@dataclass(frozen=True, slots=True)
class CuStart(Message):
    """Catch up `copy`, a standby."""

    kind: ClassVar[str] = "cu-start"
    copy: Copy


@dataclass(frozen=True, slots=True)
class CuReady(Message):
    kind: ClassVar[str] = "cu-ready"
    seq: int


@dataclass(frozen=True, slots=True)
class CuDone(Message):
    """State movement to `copy` is completed or aborted."""

    kind: ClassVar[str] = "cu-done"
    copy: Copy


class Violated(Exception):
    """An operator, the egress or a whole world violates the invariants of 3.1.2."""


class Part:
    """State that can be copied and compared cheaply: fields are immutable, dicts, lists, or parts."""

    def clone(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__ = {name: _clone(value) for name, value in self.__dict__.items()}
        return twin

    def key(self) -> tuple[Any, ...]:
        """Return the whole state as one hashable value: equal keys, equal futures."""
        return tuple(_key(value) for value in self.__dict__.values())


def _clone(value: Any) -> Any:
    if isinstance(value, Part):
        return value.clone()
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clone(v) for v in value]
    return value


def _key(value: Any) -> Any:
    if isinstance(value, Part):
        return value.key()
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(_key(v) for v in value)
    return value


class ProcessModel(Part):
    """A process of a model: its name, its scenario, and the messages of its last step."""

    ROLE: ClassVar[str] = ""  # The name of its table; a segment has two roles instead.

    def __init__(self, scenario: Any, name: Copy) -> None:
        self.scenario = scenario
        self.name = name
        self.sent: list[tuple[Copy, Message]] = []

    def has(self, variant: str) -> bool:
        return variant in self.scenario.variant

    def send(self, to: Copy, message: Message) -> None:
        self.sent.append((to, message))

    def action_of(self, sender: Copy, message: Message) -> tuple[str, At] | None:
        """Return the external action of `message`, and its place; None if it must wait."""
        raise NotImplementedError

    def folded_copies(self) -> frozenset[Copy]:
        """Return the copies at other ends that this node has folded in."""
        return frozenset()


N = TypeVar("N")


def once(node: Any) -> Iterable[At]:
    """Return the single place of rows that do not range over destinations."""
    return (NOWHERE,)


@dataclass(frozen=True, slots=True)
class Row(Generic[N]):
    """One action of a figure.

    `on` is the external action, or "" for an action that is enabled by state alone; such a row is tried for each
    (partition, destination) that `each` returns. `quiet` rows send nothing and can be fused with the step before them.
    """

    name: str
    on: str
    guard: Callable[[N, At, Any], bool]
    change: Callable[[N, At, Any], None]
    cites: str
    each: Callable[[N], Iterable[At]] = once
    quiet: bool = False
