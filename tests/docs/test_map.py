"""The walks of docs/map.rst name functions that exist, and the tree of the page has every module."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from .pages import ROOT, literals

MAP = ROOT / "docs" / "map.rst"
NAMED = sorted({text for text in literals(MAP) if re.fullmatch(r"flux(\.\w+)+", text)})
OUTSIDE = ("protocols", "spec")  # Layers whose folders are not in flux/.


@cache
def generated() -> ModuleType:
    """The extension of the pages, which is in no package."""
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs" / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def split(name: str) -> tuple[Path, list[str]] | None:
    """The file of a dotted name, and what is named in it; read from the tree, so that nothing is imported."""
    parts = name.split(".")[1:]
    folder = ROOT if parts[0] in OUTSIDE else ROOT / "flux"
    for at in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:at]).with_suffix(".py")
        if path.exists():
            return path, parts[at:]
    return None


def is_defined(name: str) -> bool:
    """Whether a module defines the class, the function or the method of the class itself."""
    found = split(name)
    if found is None:
        return False
    path, names = found
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in names:
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((node for node in body if isinstance(node, kinds) and node.name == part), None)
        if node is None:
            return False
        body = node.body
    return bool(names)


@pytest.mark.parametrize("name", NAMED)
def test_what_a_walk_names_is_defined_there(name: str) -> None:
    assert is_defined(name), f"docs/map.rst names {name}"


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert is_defined("flux.site.shell.Shell.run")
    assert is_defined("flux.protocols.controller.Controller.declare_dead")
    assert not is_defined("flux.site.shell.Shell.nothing")
    assert not is_defined("flux.site.nothing.Shell")


def test_the_walks_are_all_there() -> None:
    assert len(NAMED) > 60
    packages = {name.split(".")[1] for name in NAMED}
    assert {"sources", "site", "exchange", "protocols", "hosting", "wire", "driver", "sinks", "spark"} <= packages


def test_the_tree_has_every_layer_and_every_module() -> None:
    text = generated().map_text()
    layers = [line for line in (ROOT / "flux" / "layers.txt").read_text().splitlines() if line[:1] not in ("#", "")]
    for layer in layers:
        folder = {".": "flux/*.py", "protocols": "protocols/", "spec": "spec/"}.get(layer, f"flux/{layer}/")
        assert f"* ``{folder}``: " in text, layer
    modules = [path for folder in ("flux", *OUTSIDE) for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()]
    for path in modules:
        if path.name != "__init__.py" and path.relative_to(ROOT).parts[:2] not in [("flux", name) for name in OUTSIDE]:
            assert f"``{path.stem}``: " in text, path


def test_the_rules_and_the_commands_are_made_from_the_code() -> None:
    from flux.spec.rules import RULES

    assert generated().rules_text().count("**Rule ") == len(RULES)
    commands = generated().commands_text()
    assert all(f"\nflux {name}\n" in commands for name in ("run", "status", "controller", "spec rules"))
