"""Interaction tests: commands and the trace they give, in tests/interactions/*.txt.

A file is a list of blocks: a command, a line `----`, and what happens, up to an empty line. Lines with # are
for the reader. `pytest --rewrite` writes what happens now; the diff is then reviewed like code.

    world pool=10 source=1,2|3 stage=site-1+site-2   a new world; sources and partitions are cut by |
    settle [quietly] [without NODE ...]              the oldest choice, until none is left at other nodes
    deliver A B                                      the head of the link from A to B
    work A STAGE                                     the operator, sink or source of A is through
    crash A ; notice A                               A is gone ; the controller sees it
    feeds                                            who feeds whom, by edge and partitions
    pools                                            what every live buffer keeps, and up to where it was acked
    check                                            settle, and check every invariant
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flux.protocols.egress import Egress
from flux.spec.dataflow import Scenario
from flux.spec.invariants import Violated
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
    assert len(FILES) >= 6


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
        sites = {node for partitions in stages for copies in partitions for node in copies}
        scenario = Scenario(
            sites=len(sites),
            copies=stages,
            batches=tuple(tuple(map(int, batch.split(","))) for batch in given["source"].split("|")),
            bound_rows=int(given["pool"]),
            crashes=CRASHES_MAX,
        )
        self.world = World(scenario, record=True)
        return [f"{len(sites)} sites, {len(stages)} stages"]

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
                    floors = " ".join(f"{name}:{floor}" for name, floor in sorted(buffer.floors.items()))
                    place = f"e{stage} {process.name}"
                    lines.append(
                        f"{place} produced {buffer.produced} keeps {buffer.rows} acked {floors or 'by nobody'}"
                    )
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
        return "answer", words[0], int(words[1])
    assert verb in ("crash", "notice"), f"there is no command {verb!r}"
    return verb, words[0], NO_DETAIL


def _place(choice: Choice) -> str:
    """The node at which a choice happens."""
    kind, name, detail = choice
    return str(detail) if kind == "deliver" else "controller" if kind == "notice" else name
