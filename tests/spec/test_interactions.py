"""Interaction tests: commands and the trace they give, in tests/interactions/*.txt.

A file is a list of blocks: a command, a line `----`, and what happens, up to an empty line. Lines with # are
for the reader. `pytest --rewrite` writes what happens now; the diff is then reviewed like code.

    world pool=10 source=1,2|3 stage=site-1+site-2   a new world; sources and partitions are cut by |
          [sites=3] [at_once=0]                      more sites than the stages use; nothing is rebuilt
    settle [quietly] [without NODE ...]              the oldest choice, until none is left at other nodes
    deliver A B                                      the head of the link from A to B
    work A STAGE [COHORT]                            the operator, sink or source of A is through
    crash A ; notice A                               A is gone ; the controller sees it
    move STAGE PARTITION SLOT NODE                   somebody asks the controller for a move
    view                                             who holds what in the controller's view
    copies                                           how far each copy has come, by stage and partition
    feeds                                            who feeds whom, by edge and partitions
    pools                                            what every live buffer keeps, and up to where it was acked
    check                                            settle, and check every invariant
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flux.protocols.egress import Egress
from flux.protocols.messages import Move
from flux.protocols.pooler import Pooler
from flux.spec.dataflow import Scenario
from flux.spec.invariants import RecoveryEnds, Violated, all_checkers
from flux.spec.process import CONTROLLER
from flux.spec.world import NO_DETAIL, Choice, World

FILES = sorted((Path(__file__).parent.parent / "interactions").glob("*.txt"))
CRASHES_MAX = 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_interaction_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text()
    after = play(before)
    if request.config.getoption("--rewrite"):
        path.write_text(after)
    else:
        assert after.splitlines() == before.splitlines()


def test_there_are_interactions() -> None:
    assert len(FILES) >= 18


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


class Stage:
    """The world that the commands of one file act on."""

    world: World

    def do(self, line: str) -> list[str]:
        """Carry out a command; return the lines it gives."""
        verb, *words = line.split()
        acts: dict[str, Callable[[list[str]], list[str]]] = {
            "world": self.make,
            "settle": self.settle,
            "move": self.move,
            "view": self.view,
            "copies": self.copies,
            "feeds": self.feeds,
            "pools": self.pools,
            "check": self.check,
        }
        if verb in acts:
            return acts[verb](words)
        return self._recorded(lambda: self.world.do(_choice(verb, words)))

    def make(self, words: list[str]) -> list[str]:
        options = [word.split("=") for word in words]
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
            crashes=CRASHES_MAX,
            at_once=int(given.get("at_once", 1)),
        )
        # Where nothing is to be rebuilt, recovery cannot end.
        checkers = [c for c in all_checkers() if scenario.at_once or not isinstance(c, RecoveryEnds)]
        self.world = World(scenario, checkers, record=True)
        return [f"{sites} sites, {len(stages)} stages"]

    def settle(self, words: list[str]) -> list[str]:
        quietly = "quietly" in words
        without = words[words.index("without") + 1 :] if "without" in words else []

        def go_on() -> None:
            while True:
                possible = [choice for choice in self.world.choices if _place(choice) not in without]
                if not possible:
                    return
                self.world.do(possible[0])

        lines = self._recorded(go_on)
        return ["..."] if quietly else lines

    def move(self, words: list[str]) -> list[str]:
        stage, partition, slot = map(int, words[:3])
        wanted = Move(stage=stage, partition=partition, slot=slot, to=words[3])
        index = len(self.world.scenario.moves)
        self.world.scenario = replace(self.world.scenario, moves=(*self.world.scenario.moves, wanted))
        self.world._enable(("move", CONTROLLER, index))
        return self._recorded(lambda: self.world.do(("move", CONTROLLER, index)))

    def view(self, words: list[str]) -> list[str]:
        """Where copies live, the dead in brackets; and those on their way."""
        view = self.world.controller.view
        lines = [f"view {view.number}"]
        for stage, partitions in enumerate(view.copies[1:-1], start=1):
            for partition, copies in enumerate(partitions):
                nodes = " ".join(f"({node})" if node in view.dead else node for node in copies)
                lines.append(f"s{stage}p{partition}: {nodes}")
        for s in view.standby:
            lines.append(
                f"s{s.stage}p{s.partition}: v{s.version} on its way from {s.donor} to slot {s.slot} on {s.node}"
            )
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
        """Who feeds whom, as the consumers have asked for it."""
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
                    floors = " ".join(f"{name}:{floor}" for name, floor in sorted(buffer.floors.items()))
                    place = f"e{stage} {process.name}"
                    produced = "/".join(map(str, machine.prod.produced.values())) or "nothing"
                    lines.append(f"{place} produced {produced} keeps {buffer.rows} acked {floors or 'by nobody'}")
        return lines

    def check(self, words: list[str]) -> list[str]:
        self._recorded(self.world.finish)
        if self.world.lost:
            return [f"no copy is left of {list(self.world.lost)}"]
        return ["all invariants hold"]

    def _recorded(self, act: Callable[[], None]) -> list[str]:
        trace = self.world.trace
        assert trace is not None
        start = len(trace)
        try:
            act()
        except Violated as violation:
            return [*trace[start:], f"=> {violation}"]
        return trace[start:] or ["nothing"]


def _choice(verb: str, words: list[str]) -> Choice:
    """The choice that a command of one event names."""
    if verb == "deliver":
        return "deliver", words[0], words[1]
    if verb == "work":
        return "answer", words[0], (int(words[1]), int(words[2]) if len(words) > 2 else 0)
    assert verb in ("crash", "notice"), f"there is no command {verb!r}"
    return verb, words[0], NO_DETAIL


def _place(choice: Choice) -> str:
    """The node at which a choice happens."""
    kind, name, detail = choice
    return str(detail) if kind == "deliver" else CONTROLLER if kind == "notice" else name
