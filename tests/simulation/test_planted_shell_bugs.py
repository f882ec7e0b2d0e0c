"""Bugs that were planted around the machines are found by simulated worlds, and worlds without them do not fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from flux.simulation.swarm import replay_command, run_world, shrink

from .planted_shell_bugs import (
    PLANTED,
    beat_on_one_connection,
    delete_what_is_planned,
    fail_for_want_of_memory,
    keep_links_to_the_dead,
    leave_the_old_file_open,
    never_suspect,
    publish_an_unnamed_attempt,
    publish_before_journal,
    read_once,
    send_before_journal,
    suspect_at_once,
    take_before_sink,
    take_the_unreadable_for_empty,
)

FOUND_WITHIN_S = 60.0  # Of the processor.
Plant = Callable[[], AbstractContextManager[Any]]
# Where to begin, and the step to the next seed. At present the first world fails; if it does not, the search goes on.
FROM = {
    publish_before_journal: (3, 1),
    send_before_journal: (5, 1),
    take_before_sink: (27, 1),
    beat_on_one_connection: (6, 1),
    publish_an_unnamed_attempt: (9, 10),
    read_once: (10, 1),
    leave_the_old_file_open: (27, 1),
    keep_links_to_the_dead: (6, 1),
    delete_what_is_planned: (94, 10),
}
QUICK = tuple(plant for plant in FROM if plant is not beat_on_one_connection)  # A world with that takes long.


def found_from(plant: Plant, seed: int, step: int = 1, kinds: tuple[str, ...] = ()) -> int:
    """The first seed from this one on whose world, with faults of these kinds, fails with the bug."""
    began_s = time.process_time()
    with plant():
        while not run_world(seed, kinds).violations:
            seed += step
            assert time.process_time() - began_s < FOUND_WITHIN_S, f"not found up to the world of seed {seed}"
    return seed


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.__name__)
def test_the_bug_is_found_and_the_same_world_without_it_does_not_fail(plant: Plant) -> None:
    assert not run_world(found_from(plant, *FROM[plant])).violations


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (take_the_unreadable_for_empty, ("read",)),
        (fail_for_want_of_memory, ("memory",)),
        (suspect_at_once, ("disk", "stop")),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else value.__name__,
)
def test_the_bug_is_found_by_faults_of_its_kinds(plant: Plant, kinds: tuple[str, ...]) -> None:
    assert not run_world(found_from(plant, 0, kinds=kinds), kinds).violations


def test_a_failure_is_shrunk_to_fewer_faults() -> None:
    with publish_an_unnamed_attempt():
        seed = 9
        while not (whole := run_world(seed)).violations or len(whole.faults) < 5:
            seed += 10
        shrunk, smaller = shrink(seed)
    assert shrunk.violations and len(shrunk.faults) < len(whole.faults)
    assert smaller.left_out and str(smaller).startswith(" --without ")


def test_a_failure_is_shrunk_to_fewer_rows_and_the_command_replays_it() -> None:
    with send_before_journal():
        seed, step = FROM[send_before_journal]
        while not (whole := run_world(seed)).violations or whole.rows < 8:
            seed += step
        shrunk, smaller = shrink(seed)
        again = run_world(seed, **smaller.settings())
    assert shrunk.rows < whole.rows
    assert again.digest == shrunk.digest, "the smaller world is one that can be replayed"
    assert f" --rows-max {shrunk.rows}" in replay_command(seed, (), smaller)


@pytest.mark.long
def test_a_death_that_a_failure_needs_is_left_when_it_is_shrunk() -> None:
    seed = found_from(take_before_sink, *FROM[take_before_sink])
    with take_before_sink():
        whole, (shrunk, _) = run_world(seed), shrink(seed)
    assert len(shrunk.faults) < len(whole.faults)
    assert any("egress" in fault for fault in shrunk.faults)


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_bug_is_found_within_a_minute_from_the_first_seed_on(plant: Plant) -> None:
    found_from(plant, 0)


@pytest.mark.long
def test_a_run_that_waits_for_a_stopped_site_without_end_is_found() -> None:
    found_from(never_suspect, 50_020)
