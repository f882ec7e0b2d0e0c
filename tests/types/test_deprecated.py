"""Old names of public modules and classes work for one release, and the warning has the new name."""

from __future__ import annotations

import importlib
import sys

import pytest

import flux
from flux.types.deprecated import MODULES


@pytest.mark.parametrize("old", sorted(MODULES))
def test_an_old_module_is_the_new_one(old: str) -> None:
    new = importlib.import_module(MODULES[old])
    spec = new.__spec__
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {MODULES[old]} now") as warned:
        assert importlib.import_module(old) is new
    assert new.__spec__ is spec and new.__name__ == MODULES[old]
    assert len(warned) == 1
    sys.modules.pop(old, None)


def test_the_warning_points_to_the_import() -> None:
    sys.modules.pop("flux.errors", None)
    with pytest.warns(DeprecationWarning, match="flux.types.errors") as warned:
        from flux.errors import PlanError
    assert warned[0].filename == __file__
    assert PlanError is flux.PlanError


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"flux\.nothing"):
        importlib.import_module("flux.nothing")


def test_an_old_class_is_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"flux\.Cluster is called flux\.AsyncRun now"):
        assert flux.Cluster is flux.AsyncRun
    with pytest.raises(AttributeError, match="no attribute 'Clutter'"):
        _ = flux.Clutter
