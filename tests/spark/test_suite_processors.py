"""The processors of Spark's own tests, in both row formats: Flux emits what Spark did, in each micro-batch.

`recorded/suite_*` has what Spark made of them; `suite_cases.py` says how they are run. Partitions move meanwhile.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from cases import SUITE, recorded
from replaying import outputs
from test_processors import emitted, expected
from traces import comparable

IN_PROCESSES = ("suite_composite_output_pandas", "suite_given_timers_rows", "suite_sessions_rows")


@pytest.mark.parametrize("name", SUITE)
def test_a_processor_of_sparks_tests_emits_what_it_does_in_spark(name: str) -> None:
    trace = recorded(name)
    by_batch: list[list[Any]] = []
    emitted(SUITE[name], trace, random.Random(name), by_batch)
    assert [comparable(rows) for rows in by_batch[: len(trace)]] == [comparable(batch.output) for batch in trace]
    assert expected(trace), "nothing was recorded, so it shows nothing"


@pytest.mark.parametrize("name", IN_PROCESSES)
def test_it_does_so_in_a_run(name: str) -> None:
    trace = recorded(name)
    assert comparable(outputs([SUITE[name].flux()], SUITE[name].keys, trace)) == expected(trace)
