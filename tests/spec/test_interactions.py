"""Interaction tests: commands and the trace they give, in tests/interactions/*.txt.

A file is a list of blocks: a command, a line `----`, and what happens, up to an empty line. Lines with # are
for the reader. `pytest --rewrite` writes what happens now; the diff is then reviewed like code.

    world pool=10 source=1,2|3 stage=site-1+site-2   a new world; sources and partitions are cut by |
          [sites=3] [at_once=0]                      more sites than the stages use; nothing is rebuilt
          [edges=0-1,1-2,1-3] [slow_start]           not a chain; no node has connected to the controller yet
    remember ; again                                 all commands up to here are done once more, in a new world
    settle [quietly] [without NODE ...]              the oldest choice, until none is left at other nodes; `views`
                                                     stands for the views that are in flight
    views A B ...                                    the next view at A, and what follows; then at B
    deliver A B                                      the head of the link from A to B
    work A STAGE [COHORT]                            the operator, sink or source of A finishes
    crash A ; notice A                               A is gone ; the controller notices it
    restart A ; connect A                            A is started again ; A connects to a new controller
    suspect A                                        A does not answer the controller, and lives
    cut A B ; report A B ; heal A B                  a link breaks ; the controller gets a report ; the link is back
    arrive A                                         a site that is not in the plan appears
    move STAGE PARTITION SLOT NODE                   a move is requested from the controller
    view                                             the nodes of all copies in the controller's view
    copies                                           the position of each copy, by stage and partition
    feeds                                            the sender of each channel, by edge and partitions
    pools                                            what every live buffer keeps, and up to where it was acked
    check                                            settle, and check every invariant

What a node refuses, because its sender is dead in its view, is marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flux.protocols.buffer import Buffer
from flux.protocols.egress import Egress
from flux.protocols.messages import Move, PeerMessage
from flux.protocols.pooler import Pooler
from flux.spec.dataflow import Scenario
from flux.spec.invariants import Checker, Violated, all_checkers
from flux.spec.process import CONTROLLER, SimulatedProcess
from flux.spec.recovery import RecoveryEnds
from flux.spec.story import show
from flux.spec.walk import is_possible
from flux.spec.world import NO_DETAIL, Choice, World

FILES = sorted((Path(__file__).parent.parent / "interactions").glob("*.txt"))
FAULTS_MAX = 4  # Of each kind, in one file.
VIOLATED = "=> "
VIEWS = "views"  # Stands in the place of a node for the views in flight.


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_interaction_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text()
    after = play(before)
    if request.config.getoption("--rewrite"):
        path.write_text(after)
    else:
        assert after.splitlines() == before.splitlines()


def test_there_are_interactions() -> None:
    assert len(FILES) >= 70


def test_a_file_that_breaks_an_invariant_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Buffer, "_release", lambda buffer: None)
    assert "=> buffers drain" in play("world pool=10 source=1 stage=site-1+site-2\n\ncheck\n")


def test_what_cannot_happen_cannot_be_commanded() -> None:
    for command in ("deliver site-1 site-2", "notice site-1", "work ingress 0", "heal site-1 site-2"):
        with pytest.raises(AssertionError, match="cannot happen now"):
            play(f"world pool=10 source=1 stage=site-1+site-2\n\n{command}\n")


def play(text: str) -> str:
    """The text with the trace of each command brought up to date."""
    stage = Stage()
    out: list[str] = []
    for block in text.strip().split("\n\n"):
        head = block.split("\n----")[0]
        command = [line for line in head.splitlines() if not line.startswith("#")]
        if not command:
            out.append(head)
            continue
        (line,) = command
        out.append("\n".join([head, "----", *stage.do(line)]))
    return "\n\n".join(out) + "\n"


class MessageCounter(Checker):
    """Counts the messages that nodes accept from each other, so that what is refused shows."""

    def __init__(self) -> None:
        self.accepted_count = 0

    def accepted(self, process: SimulatedProcess, message: PeerMessage) -> None:
        self.accepted_count += 1


class Stage:
    """The world that the commands of one file act on."""

    world: World
    counter: MessageCounter

    def __init__(self) -> None:
        self.done: list[str] = []
        self.remembered: list[str] = []

    def do(self, line: str) -> list[str]:
        """Carry out a command; return the lines it gives."""
        self.done.append(line)
        verb, *words = line.split()
        acts: dict[str, Callable[[list[str]], list[str]]] = {
            "world": self.make,
            "remember": self.remember,
            "again": self.again,
            "settle": self.settle,
            "views": self.views,
            "move": self.move,
            "arrive": self.arrive,
            "view": self.view,
            "copies": self.copies,
            "feeds": self.feeds,
            "pools": self.pools,
            "check": self.check,
        }
        if verb in acts:
            return acts[verb](words)
        choice = _choice(verb, words)
        assert is_possible(self.world, choice), f"{line!r} cannot happen now"
        return self._recorded(lambda: self._happen(choice))

    def make(self, words: list[str]) -> list[str]:
        options = [word.split("=") for word in words if "=" in word]
        given = dict(options)
        stages = tuple(
            tuple(tuple(copies.split("+")) for copies in value.split("|")) for name, value in options if name == "stage"
        )
        sites = int(given.get("sites", len({node for stage in stages for copies in stage for node in copies})))
        scenario = Scenario(
            sites=sites,
            copies=stages,
            batches=tuple(tuple(map(int, batch.split(","))) for batch in given["source"].split("|")),
            bound_rows=int(given["pool"]),
            at_once=int(given.get("at_once", 1)),
            edges=_edges(given.get("edges", "")),
            crashes=FAULTS_MAX,
            restarts=FAULTS_MAX,
            suspicions=FAULTS_MAX,
            cuts=FAULTS_MAX,
            slow_start="slow_start" in words,
        )
        self.counter = MessageCounter()
        # Where nothing is to be rebuilt, recovery cannot end.
        checkers = [c for c in all_checkers() if scenario.at_once or not isinstance(c, RecoveryEnds)]
        self.world = World(scenario, [*checkers, self.counter], record=True)
        return [f"{sites} sites, {len(stages)} stages"]

    def remember(self, words: list[str]) -> list[str]:
        self.remembered = self.done[:-1]
        return ["..."]

    def again(self, words: list[str]) -> list[str]:
        assert self.remembered, "nothing is remembered"
        for line in self.remembered:
            self.do(line)
        return ["..."]

    def settle(self, words: list[str]) -> list[str]:
        quietly = "quietly" in words
        without = words[words.index("without") + 1 :] if "without" in words else []
        lines = self._recorded(lambda: self._settle(without))
        return ["..."] if quietly else lines

    def views(self, words: list[str]) -> list[str]:
        def take_in_turn() -> None:
            for node in words:
                self._happen(("deliver", CONTROLLER, node))
                self._settle([VIEWS])

        return self._recorded(take_in_turn)

    def move(self, words: list[str]) -> list[str]:
        stage, partition, slot = map(int, words[:3])
        wanted = Move(stage=stage, partition=partition, slot=slot, to=words[3])
        index = len(self.world.scenario.moves)
        self.world.scenario = replace(self.world.scenario, moves=(*self.world.scenario.moves, wanted))
        self.world._enabled.add(("move", CONTROLLER, index))
        return self._recorded(lambda: self._happen(("move", CONTROLLER, index)))

    def arrive(self, words: list[str]) -> list[str]:
        choice: Choice = ("arrive", words[0], NO_DETAIL)
        self.world._enabled.add(choice)
        return self._recorded(lambda: self._happen(choice))

    def view(self, words: list[str]) -> list[str]:
        """Where copies live, the dead in brackets; and those in transfer."""
        view = self.world.controller.view
        lines = [f"view {view.number}"]
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                nodes = " ".join(f"({node})" if node in view.dead else node for node in copies)
                lines.append(f"s{stage}p{partition}: {nodes}")
        for s in view.standby:
            lines.append(
                f"s{s.stage}p{s.partition}: v{s.version} in transfer from {s.donor} to slot {s.slot} on {s.node}"
            )
        ends = [stage for stage in range(len(view.copies)) if view.is_end(stage)]
        lines += [f"s{stage}: no node" for stage in ends if not view.live_copies(stage, 0)]
        return lines

    def copies(self, words: list[str]) -> list[str]:
        lines = []
        for process in self.world.live():
            for stage, machine in process.node.machines.items():
                if isinstance(machine, Pooler):
                    for number, cohort in machine.cons.cohorts.items():
                        at_work = "" if cohort.idle else f", at work up to {cohort.working_upto}"
                        partitions = ",".join(map(str, sorted(cohort.partitions)))
                        lines.append(
                            f"s{stage}p{partitions} {process.name} cohort {number} at {cohort.consumed}{at_work}"
                        )
        return sorted(lines) or ["none"]

    def feeds(self, words: list[str]) -> list[str]:
        """The sender of each channel, as the consumers have asked for it."""
        lines = []
        for process in self.world.live():
            for (edge, producer, consumer), sender in sorted(process.feeds.items()):
                lines.append(f"e{edge} {sender} {producer} -> {process.name} {consumer}")
        return lines

    def pools(self, words: list[str]) -> list[str]:
        lines = []
        for process in self.world.live():
            for stage, machine in process.node.machines.items():
                if not isinstance(machine, Egress):
                    buffer = machine.prod.buffer
                    if not machine.prod.produced and not buffer.rows:
                        continue  # No copy of the stage is here.
                    floors = " ".join(f"e{edge}-{name}:{at}" for (edge, name), at in sorted(buffer.floors.items()))
                    produced = "/".join(map(str, machine.prod.produced.values())) or "nothing"
                    done = f"s{stage} {process.name} produced {produced} keeps {buffer.rows}"
                    lines.append(f"{done} acked {floors or 'by no site'}")
        return lines

    def check(self, words: list[str]) -> list[str]:
        *_, last = self._recorded(self.world.finish)
        if last.startswith(VIOLATED):
            return [last]
        return [f"no copy is left of {show(self.world.lost)}" if self.world.lost else "all invariants hold"]

    def _happen(self, choice: Choice) -> None:
        """Let a choice happen, and say so if it was a message that was refused."""
        before = self.counter.accepted_count
        self.world.do(choice)
        kind, sender, to = choice
        if kind == "deliver" and CONTROLLER not in (sender, to) and self.counter.accepted_count == before:
            assert self.world.trace is not None
            self.world.trace.append(f"    {to} refuses it")

    def _settle(self, without: list[str]) -> None:
        while True:
            possible = [choice for choice in self.world.choices if not _is_at(choice, without)]
            if not possible:
                return
            self._happen(possible[0])

    def _recorded(self, act: Callable[[], None]) -> list[str]:
        trace = self.world.trace
        assert trace is not None
        start = len(trace)
        try:
            act()
        except Violated as violation:
            return [*trace[start:], f"{VIOLATED}{violation}"]
        return trace[start:] or ["nothing"]


def _edges(text: str) -> tuple[tuple[int, int], ...]:
    pairs = [edge.split("-") for edge in text.split(",") if edge]
    return tuple((int(producer), int(consumer)) for producer, consumer in pairs)


def _choice(verb: str, words: list[str]) -> Choice:
    """The choice that a command of one event names."""
    if verb == "work":
        return "answer", words[0], (int(words[1]), int(words[2]) if len(words) > 2 else 0)
    if verb in ("report", "heal"):
        words = sorted(words)
    if len(words) == 2:
        return verb, words[0], words[1]
    return verb, words[0], NO_DETAIL


def _is_at(choice: Choice, places: list[str]) -> bool:
    """Whether a choice happens at one of these nodes."""
    kind, name, detail = choice
    if kind == "deliver":
        return detail in places or (name == CONTROLLER and VIEWS in places)
    return (CONTROLLER if kind in ("notice", "report", "move") else name) in places
