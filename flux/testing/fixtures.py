"""Fixtures for pytest: `check_operator` and `simulate`, with options on the command line for longer searches.

In ``conftest.py``: ``pytest_plugins = ["flux.testing.fixtures"]``. Then ``pytest --flux-examples 2000 --flux-seeds 50``
tries more, at night for instance. ``--flux-seed 17`` simulates the world of one seed and prints its events.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from . import flow_simulation, operator_check

__all__ = ["check_operator", "pytest_addoption", "simulate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that set how much is tried."""
    group = parser.getgroup("flux")
    group.addoption("--flux-examples", type=int, metavar="N", help="inputs for each claim of check_operator")
    group.addoption("--flux-seeds", type=int, metavar="N", help="worlds for each call of simulate")
    group.addoption("--flux-seed", type=int, metavar="SEED", help="simulate the world of this seed, and print it")


@pytest.fixture
def check_operator(request: pytest.FixtureRequest) -> Callable[..., operator_check.Checked]:
    """`flux.testing.check_operator`; ``--flux-examples`` sets how many inputs it generates."""
    examples = request.config.getoption("--flux-examples")
    return partial(_call_with, operator_check.check_operator, {} if examples is None else {"examples": examples})


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., flow_simulation.Simulated]:
    """`flux.testing.simulate`; ``--flux-seeds`` sets the number of worlds, ``--flux-seed`` chooses one."""
    seeds, seed = (request.config.getoption(name) for name in ("--flux-seeds", "--flux-seed"))
    options: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    if seed is not None:
        options = {"seeds": [seed], "tell": True}
    return partial(_call_with, flow_simulation.simulate, options)


def _call_with(function: Callable[..., Any], options: dict[str, Any], *values: Any, **named: Any) -> Any:
    """Call a function; options of the command line override the arguments of the test."""
    return function(*values, **(named | options))
