"""The examples in the docstrings of Flux run and give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def modules_with_examples() -> list[str]:
    """Modules of flux/, of protocols/ and of spec/, the last two through the links in flux/."""
    found = []
    for folder, package in (
        (ROOT / "flux", "flux"),
        (ROOT / "protocols", "flux.protocols"),
        (ROOT / "spec", "flux.spec"),
    ):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            linked = package == "flux" and parts[0] in ("protocols", "spec")
            if not linked and ">>> " in path.read_text():
                found.append(".".join((package, *(part for part in parts if part != "__init__"))))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_examples_are_found_at_all() -> None:
    assert {"flux.dataflow", "flux.model.operator", "flux.types.normalize"} <= set(modules_with_examples())
