"""Fixtures for pytest: `check_operator` and `simulate`, which try harder where the command line asks for it.

In ``conftest.py``: ``pytest_plugins = ["flux.testing.fixtures"]``. Then ``pytest --flux-examples 2000 --flux-seeds 50``
tries more, at night for instance, and ``--flux-seed 17`` simulates the world of one seed and prints what happens there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from . import flow_simulation, operator_check

__all__ = ["check_operator", "pytest_addoption", "simulate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How hard to try."""
    group = parser.getgroup("flux")
    group.addoption("--flux-examples", type=int, metavar="N", help="inputs for each claim of check_operator")
    group.addoption("--flux-seeds", type=int, metavar="N", help="worlds for each call of simulate")
    group.addoption("--flux-seed", type=int, metavar="SEED", help="simulate the world of this seed, and print it")


@pytest.fixture
def check_operator(request: pytest.FixtureRequest) -> Callable[..., operator_check.Checked]:
    """`flux.testing.check_operator`; ``--flux-examples`` says how many inputs it makes up."""
    examples = request.config.getoption("--flux-examples")
    return partial(_called, operator_check.check_operator, {} if examples is None else {"examples": examples})


@pytest.fixture
def simulate(request: pytest.FixtureRequest) -> Callable[..., flow_simulation.Simulated]:
    """`flux.testing.simulate`; ``--flux-seeds`` says in how many worlds, ``--flux-seed`` in which one."""
    seeds, seed = (request.config.getoption(name) for name in ("--flux-seeds", "--flux-seed"))
    said: dict[str, Any] = {} if seeds is None else {"seeds": seeds}
    if seed is not None:
        said = {"seeds": [seed], "tell": True}
    return partial(_called, flow_simulation.simulate, said)


def _called(function: Callable[..., Any], said: dict[str, Any], *values: Any, **named: Any) -> Any:
    """What the command line says goes before what the test says."""
    return function(*values, **(named | said))
