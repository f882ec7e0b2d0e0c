"""The imports point one way, and nothing is unpickled. Read from the source, not from what happens to be loaded."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The folders of the layers by the name they are imported under; flux/protocols and flux/spec are links.
PROTOCOLS, SPEC, FLUX = ROOT / "protocols", ROOT / "spec", ROOT / "flux"
MAY_IMPORT_SPEC = ("flux.testing", "flux.cli", "flux.commands")  # And what lies in them.
# What the real processes are made of.
RUNTIME = ("flux.wire", "flux.site", "flux.controller", "flux.local", "flux.plan", "flux.operators", "flux.spark")


def modules(folder: Path, package: str) -> list[tuple[str, Path]]:
    """Every module below `folder` with its full name; links are not followed."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if package == "flux" and parts[0] in ("protocols", "spec"):
            continue
        name = ".".join((package, *(part for part in parts if part != "__init__")))
        found.append((name, path))
    return found


EVERYTHING = [
    *modules(PROTOCOLS, "flux.protocols"),
    *modules(SPEC, "flux.spec"),
    *modules(FLUX, "flux"),
]


def imports(name: str, path: Path) -> Iterator[str]:
    """The full names of all modules that the module `name` imports anywhere in its text."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, node.module] if node.module else base)
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def belongs(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def ids(values: object) -> str | None:
    return values if isinstance(values, str) else ""


@pytest.mark.parametrize(("name", "path"), modules(PROTOCOLS, "flux.protocols"), ids=ids)
def test_protocols_import_the_standard_library_sortedcontainers_and_themselves(name: str, path: Path) -> None:
    for module in imports(name, path):
        allowed = module.split(".")[0] in {*sys.stdlib_module_names, "sortedcontainers"}
        assert allowed or belongs(module, ("flux.protocols",)), f"{name} imports {module}"


@pytest.mark.parametrize(("name", "path"), modules(PROTOCOLS, "flux.protocols"), ids=ids)
def test_protocols_have_no_io_no_clock_and_no_randomness(name: str, path: Path) -> None:
    forbidden = ("time", "random", "secrets", "socket", "os", "asyncio", "threading", "datetime", "uuid", "io")
    for module in imports(name, path):
        assert not belongs(module, forbidden), f"{name} imports {module}"


@pytest.mark.parametrize(("name", "path"), modules(SPEC, "flux.spec"), ids=ids)
def test_spec_imports_protocols_only(name: str, path: Path) -> None:
    for module in imports(name, path):
        stdlib = module.split(".")[0] in sys.stdlib_module_names
        assert stdlib or belongs(module, ("flux.protocols", "flux.spec")), f"{name} imports {module}"


def test_only_testing_and_the_command_line_import_spec() -> None:
    for name, path in modules(FLUX, "flux"):
        if not belongs(name, MAY_IMPORT_SPEC):
            assert not any(belongs(module, ("flux.spec",)) for module in imports(name, path)), name


def test_the_wire_knows_nothing_above_it() -> None:
    above = tuple(layer for layer in RUNTIME if layer != "flux.wire")
    for name, path in modules(FLUX / "wire", "flux.wire"):
        assert not any(belongs(module, above) for module in imports(name, path)), name


def test_nothing_is_unpickled() -> None:
    assert len(EVERYTHING) > 20
    forbidden = ("pickle", "cloudpickle", "dill", "marshal", "shelve")
    for name, path in EVERYTHING:
        assert not any(belongs(module, forbidden) for module in imports(name, path)), name


def test_the_reader_of_imports_sees_what_it_must(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("import os.path\nfrom . import a\nfrom ..up import b\ndef f():\n    from x.y import z\n")
    assert list(imports("flux.deep.module", source)) == [
        "os.path",
        "flux.deep",
        "flux.deep.a",
        "flux.up",
        "flux.up.b",
        "x.y",
        "x.y.z",
    ]
