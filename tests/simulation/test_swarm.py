"""Swarms: worlds with chosen faults, several at once; and the status of a run, which must be true."""

from __future__ import annotations

from typing import Any

import pytest

from flux.commands.main import main
from flux.driver.status import ProcessStatus, Status
from flux.protocols.messages import View
from flux.simulation import process_world, swarm
from flux.simulation.process_world import ProcessWorld
from flux.simulation.status_check import untrue_at_rest, untrue_now
from flux.simulation.swarm import Smaller, replay_command, run_world, shrink, simulate_worlds
from flux.simulation.world_result import WorldResult

NAMES = ("controller", "ingress", "egress", "site-1", "site-2")


def status(inputs: int = 9, outputs: int = 9, up: tuple[str, ...] = NAMES, **said: Any) -> Status:
    processes = [ProcessStatus(name, 1, "up" if name in up else "dead", 1, 0.0) for name in NAMES]
    return Status(
        "flow", 1.0, processes, said.pop("whole", True), inputs, outputs, 0.0, 0.0, [], **{"ended": False, **said}
    )


@pytest.mark.parametrize(
    ("shown", "rows_at_sink", "says"),
    [
        (status(), 9, None),
        (status(), None, None),
        (status(), 8, "9 rows of output, and the sink has 8"),
        (status(inputs=13), 12, "13 rows of input, and the sources have 12"),
        (status(inputs=8), 12, "9 rows of output, and only 8 of input"),
        (status(ended=True), 12, "has ended, with 9 rows of output of 12"),
        (status(12, 12, ended=True), 12, None),
    ],
)
def test_a_status_that_is_not_true_is_found(shown: Status, rows_at_sink: int | None, says: str | None) -> None:
    found = untrue_now(shown, 12, rows_at_sink, knows_inputs=True)
    assert found is None if says is None else found is not None and says in found


def test_the_status_of_a_run_at_rest_has_its_processes_and_its_copies() -> None:
    copies = ((("ingress",),), (("site-1", "site-2"),), (("egress",),))
    view = View(number=2, nodes=NAMES[1:], dead=frozenset(), copies=copies)
    without = View(number=3, nodes=NAMES[1:], dead=frozenset({"site-2"}), copies=copies)
    assert untrue_at_rest(status(), set(NAMES), view) is None
    assert "shows" in (untrue_at_rest(status(up=NAMES[:-1]), set(NAMES), view) or "")
    assert "copies missing" in (untrue_at_rest(status(whole=False), set(NAMES), view) or "")
    assert "all copies" in (untrue_at_rest(status(), set(NAMES), without) or "")


def test_a_status_that_counts_rows_too_early_fails_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    real = process_world.make_status

    def early(*given: Any) -> Status:
        shown = real(*given)
        shown.outputs += 1
        return shown

    assert not ProcessWorld(6, faults_max=0).run().violations
    monkeypatch.setattr(process_world, "make_status", early)
    assert "a status" in ProcessWorld(6, faults_max=0).run().violations[0]


def test_only_faults_of_the_chosen_kinds_are_caused() -> None:
    texts = [text.split(": ", 1)[1] for seed in (1, 2, 3) for text in run_world(seed, ("reset",)).faults]
    assert texts and all(text.startswith(("break", "loss of power")) for text in texts)
    assert replay_command(7, ("reset", "kill")) == "flux spec simulate --seed 7 --worlds 1 --faults reset,kill --trace"


def test_a_run_whose_disk_cannot_be_read_ends_with_an_error_that_says_so_or_goes_on() -> None:
    worlds = [ProcessWorld(seed, kinds=("read",)) for seed in range(5_000, 5_006)]
    assert not [violation for world in worlds for violation in world.run().violations]
    errors = [str(world.run_state.failure) for world in worlds if world.run_state and world.run_state.failure]
    assert errors and all("Input/output error" in error for error in errors)


def test_a_run_whose_journals_lose_their_ends_goes_on_or_ends_with_an_error_that_says_so() -> None:
    worlds = [ProcessWorld(seed, kinds=("tail",)) for seed in (9_012, 9_025, 9_026, 9_030, 9_031)]
    assert not [violation for world in worlds for violation in world.run().violations]
    states = [world.run_state for world in worlds if world.system.disk.cuts and world.run_state is not None]
    assert [state.ended for state in states] == [True, True, False, False, False]
    assert all(state.ended or "has lost" in str(state.error) for state in states)


def test_a_site_without_memory_for_one_call_is_lost_and_its_partners_go_on() -> None:
    results = [run_world(seed, ("memory",)) for seed in range(7_100, 7_106)]
    assert not [violation for result in results for violation in result.violations]
    assert any("is to have no memory" in fault for result in results for fault in result.faults)
    assert sum(result.deaths for result in results) > 3


def test_a_drained_site_that_ends_while_the_controller_is_started_again_is_not_waited_for() -> None:
    result = run_world(32, ("drain", "kill"))
    assert not result.violations
    assert "drain site" in " ".join(result.faults) and "kill controller" in " ".join(result.faults)


def test_copies_move_and_sites_are_marked_as_slow_in_moving_worlds() -> None:
    results = [run_world(seed, keeps_trace=True) for seed in (6, 16, 26)]
    assert not [violation for result in results for violation in result.violations]
    assert sum(result.moves for result in results) > 10
    assert sum("site is slow" in line for result in results for line in result.trace) > 3
    assert any(" kill site-" in fault for result in results for fault in result.faults)


def test_worlds_that_run_at_once_are_those_that_run_one_after_another() -> None:
    one, two = (simulate_worlds(400, 4, None, jobs=jobs) for jobs in (1, 2))
    assert (one.worlds, one.faults, one.deaths, one.effects) == (two.worlds, two.faults, two.deaths, two.effects)
    assert one.worlds == 4 and not one.failures and two.seconds > 0


def test_a_failure_is_shrunk_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world that fails by its third and fifth fault, if it has at least four rows on three sites."""

    def run(seed: int, kinds: object, left_out: frozenset[int] = frozenset(), **most: int) -> WorldResult:
        caused = [number for number in range(1, 9) if number not in left_out]
        rows, sites = most.get("rows_max", 20), most.get("sites_max", 5)
        fails = {3, 5} <= set(caused) and rows >= 4 and sites >= 3
        return WorldResult(
            seed=seed,
            violations=("wrong",) if fails else (),
            faults=tuple(f"{number:3} at 0.1 s: kill egress" for number in caused),
            deaths=0,
            simulated_s=1.0,
            effects=1,
            digest="",
            rows=rows,
            sites=sites,
            trace=(),
        )

    monkeypatch.setattr(swarm, "run_world", run)
    shrunk, smaller = shrink(1)
    assert smaller == Smaller(left_out=frozenset({1, 2, 4, 6, 7, 8}), rows_max=4, sites_max=3)
    assert (len(shrunk.faults), shrunk.rows, shrunk.sites) == (2, 4, 3)
    options = "--without 1,2,4,6,7,8 --rows-max 4 --sites-max 3"
    assert replay_command(1, (), smaller) == f"flux spec simulate --seed 1 --worlds 1 {options} --trace"


def test_a_world_is_made_smaller_by_options_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    smaller = ["--without", "1,2", "--rows-max", "2", "--sites-max", "2"]
    assert main(["spec", "simulate", "--seed", "3", *smaller, "--trace"]) == 0
    assert "rows=2," in capsys.readouterr().out
    assert main(["spec", "simulate", "--seed", "3", *smaller]) == 2
    assert "give --trace too" in capsys.readouterr().err
    assert main(["spec", "simulate", "--without", "first", "--trace"]) == 2
    assert "such as 2,5; got 'first'" in capsys.readouterr().err


def test_kinds_of_faults_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "simulate", "--faults", "list"]) == 0
    assert "reset    a connection breaks" in capsys.readouterr().out
    assert main(["spec", "simulate", "--faults", "flood"]) == 2
    assert "no kind of fault is called 'flood'" in capsys.readouterr().err
