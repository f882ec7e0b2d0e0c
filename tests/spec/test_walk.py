"""Random worlds, replaying and shrinking.

It takes about half a minute of one core: so many worlds are walked or explored.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flux.protocols.fh_cons import FhCons
from flux.spec.check import QUICK_CHANGING, QUICK_WALKS
from flux.spec.dataflow import EGRESS, INGRESS
from flux.spec.process import CONTROLLER, role_of
from flux.spec.replay import main
from flux.spec.story import LINES
from flux.spec.walk import REPLAY, replay, scenario_of, shrink, story, walk

WORLDS = range(QUICK_WALKS, QUICK_WALKS + 120)  # After those of the quick check.
NO_CHOICES = {"send", "lost", "ends", "outcome", "checkpoint"}  # Of a random world; a small one has checkpoints.
CHANGING = (
    *range(QUICK_CHANGING, QUICK_CHANGING + 20),
    1312,
    2055,
)  # The last two accused a controller that was right.
TRACED = 60  # Of these, the ones whose traces are compared: enough for every kind of fault.


def test_random_worlds_obey_the_invariants() -> None:
    crashed = lost = 0
    happened: set[tuple[str, str]] = set()
    for seed in WORLDS:
        walked = walk(seed)
        assert walked.violation is None, str(walked)
        crashed += any(choice[0] == "crash" for choice in walked.choices)
        lost += walked.lost
        happened |= {(kind, role_of(name).partition("-")[0]) for kind, name, _ in walked.choices}
    for seed in CHANGING:
        changing = walk(seed, changes=True)
        assert changing.violation is None, str(changing)
        happened |= {(kind, role_of(name).partition("-")[0]) for kind, name, _ in changing.choices}
    assert crashed > len(WORLDS) // 3, "most worlds must see a crash"
    assert 0 < lost < len(WORLDS) // 2, "few worlds should lose a partition: they end early"
    assert {kind for kind, _ in happened} == LINES.keys() - NO_CHOICES, "everything that may happen must happen"
    assert {role for kind, role in happened if kind == "crash"} == {INGRESS, EGRESS, CONTROLLER, "site"}
    assert {role for kind, role in happened if kind == "restart"} == {INGRESS, EGRESS, CONTROLLER}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(min_value=WORLDS.stop, max_value=2**32))
def test_worlds_that_hypothesis_thinks_of_obey_them_too(seed: int) -> None:
    walked = walk(seed)
    assert walked.violation is None, str(walked)


@pytest.mark.long
def test_the_same_seed_gives_the_same_trace_whatever_the_order_of_hash_tables() -> None:
    program = (
        "from flux.spec.walk import story, walk\n"
        f"for seed in range({TRACED}):\n"
        "    for changes in (False, True):\n"
        "        walked = walk(seed, changes=changes)\n"
        "        print(walked.choices, story(walked.scenario, walked.choices))\n"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    for kind in LINES.keys() - NO_CHOICES:
        assert f"('{kind}', ".encode() in traces[0], f"there is no {kind} in these worlds"
    for who in (INGRESS, EGRESS, CONTROLLER):
        assert f"\n{who} is started again\n".encode() in traces[0]


def test_a_replayed_walk_ends_like_the_walk() -> None:
    walked = walk(4)
    world, violation = replay(walked.scenario, walked.choices, record=True)
    assert violation is None
    assert not world.choices
    assert story(walked.scenario, walked.choices).endswith("=> all invariants hold")


def test_a_failing_walk_prints_the_line_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a bug: consumers acknowledge to nobody but the first producer.
    acknowledge = FhCons.acknowledge
    monkeypatch.setattr(FhCons, "acknowledge", lambda cons, *receiving: list(acknowledge(cons, *receiving))[:1])
    # When a seed fails, then it says how to replay it, and the replay tells a shorter story.
    failed = next(walked for walked in map(walk, range(100)) if walked.violation)
    assert f"{REPLAY} {failed.seed}" in str(failed)
    short = shrink(failed.scenario, failed.choices)
    assert len(short) <= len(failed.choices)
    assert replay(failed.scenario, short)[1] is not None
    assert main([str(failed.seed)]) == 1
    printed = capsys.readouterr().out
    assert f"{REPLAY} {failed.seed}" in printed
    assert "=> " in printed


def test_a_pool_is_looked_at_when_all_that_a_step_cuts_is_cut() -> None:
    """A view releases held acks: the source is asked between the cuts of two runs, in one step."""
    walked = walk(3853, scale=20)
    assert walked.violation is None, str(walked)


def test_replaying_a_seed_that_holds_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["4"]) == 0
    assert "choices" in capsys.readouterr().out
    assert main(["4", "--full"]) == 0
    assert "all invariants hold" in capsys.readouterr().out


def test_scenarios_stay_within_what_is_promised() -> None:
    for seed in range(200):
        scenario = scenario_of(random.Random(seed))
        assert 2 <= scenario.sites <= 7
        assert 1 <= scenario.stages <= 3
        assert sum(map(len, scenario.batches)) <= 40
        assert all(1 <= len(partitions) <= 8 for partitions in scenario.copies)
