"""Imports point one way, in an order that is a list in `flux/layers.txt`, and nothing is unpickled.

Everything is read from the source, not from what happens to be loaded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The folders of the layers by the name they are imported under; flux/protocols and flux/spec are links.
PROTOCOLS, SPEC, FLUX = ROOT / "protocols", ROOT / "spec", ROOT / "flux"
LAYERS = [line for line in (FLUX / "layers.txt").read_text().splitlines() if line and not line.startswith("#")]
ROOF = "."  # The layer of the modules directly in flux/.
# A link to experiments/dmz/sessions.py, which imports flux as experiments do: one file, gone with the next release.
MAY_IMPORT_BY_FULL_NAME = {"flux.operators._packet_sessions"}
MAY_IMPORT_SPEC = ("flux.simulation", "flux.testing", "flux.mutation", "flux.commands")
# All that flux/*.py holds.
PUBLIC_MODULES = {"__init__", "async_run", "dataflow", "governor", "reconfigure", "run", "stream"}
# What a user may import: the roof and the packages whose names are part of the interface.
USER_MAY_IMPORT = ("flux.adapters", "flux.operators", "flux.sinks", "flux.sources", "flux.spark", "flux.testing")
# Where experiments and the helpers of tests look below the roof, and why. Keys are beginnings of module names.
LOOKS_BELOW = {
    "experiments.balance": "knows the machines and processes whose place and kind it exchanges",
    "experiments.bench.balance_reports": "times what the controller does with reports, without a run around it",
    "experiments.bench.operators": "times one hosted operator without a run around it",
    "experiments.bench.whole_runs": "gives a join its two sides as one table, as the plan does",
    "experiments.catchup.run": "prints the heartbeat timeout beside the gaps",
    "experiments.cluster": "runs the machines, the balancer and the policies on a simulated cluster",
    "experiments.demo": "draws the timeline of a run that is still going on",
    "experiments.dmz.sessions": "an operator like those of the library, which it is part of for one release",
    "experiments.kill": "measures gaps as the report does",
    "experiments.machines": "is a site with another clock for its work",
    "experiments.merge_wait": "times a machine of protocols/ by itself",
    "experiments.replaced": "reads the controller's journal from outside, as an operator of the system would",
    "experiments.reconfigured.run": "measures the gap around a change as reports do around a death",
    "experiments.soak": "reads the controller's journal while it is written, and kills processes by role",
    "experiments.spark_sites": "measures gaps as the report does",
    "tests.adapters": "plays an operator by hand, to move its state at any point",
    "tests.balance": "plays a cluster and its statistics, for the balancer and the policies",
    "tests.operators": "runs operators without a run around them",
    "tests.protocols": "helpers of the machines' own tests",
    "tests.runtime": "stands in for single processes of a run, and reads what they write",
    "tests.simulation": "plants bugs in the code around the machines",
    "tests.spec": "helpers of the specification's own tests",
    "tests.thesis": "steers worlds of the specification",
    "tests.wire": "frames and codecs byte by byte",
}


def modules(folder: Path, package: str) -> list[tuple[str, Path]]:
    """Every module below `folder` with its full name; links are not followed."""
    listed = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if package == "flux" and parts[0] in ("protocols", "spec"):
            continue
        name = ".".join((package, *(part for part in parts if part != "__init__")))
        listed.append((name, path))
    return listed


EVERYTHING = [
    *modules(PROTOCOLS, "flux.protocols"),
    *modules(SPEC, "flux.spec"),
    *modules(FLUX, "flux"),
]
NAMES = {name for name, _ in EVERYTHING}


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


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else ROOF


def wrong_imports(name: str, path: Path) -> list[str]:
    """The imports of a module that point to a layer after its own."""
    own = LAYERS.index(layer_of(name))
    targets = {module for module in imports(name, path) if module in NAMES and module != "flux"}
    return sorted(module for module in targets if LAYERS.index(layer_of(module)) > own)


def first_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """A path of modules that import each other in a circle; empty if there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        path.append(module)
        for target in sorted(graph.get(module, ())):
            if cycle := visit(target):
                return cycle
        path.pop()
        done.add(module)
        return []

    return next((cycle for module in sorted(graph) if (cycle := visit(module))), [])


def test_every_package_has_its_layer() -> None:
    packages = {name.split(".")[1] for name, path in EVERYTHING if path.name == "__init__.py" and name != "flux"}
    assert packages | {ROOF} == set(LAYERS)


@pytest.mark.parametrize(("name", "path"), [each for each in EVERYTHING if each[0] != "flux"], ids=ids)
def test_a_module_imports_only_its_own_layer_and_those_above(name: str, path: Path) -> None:
    wrong = wrong_imports(name, path)
    assert not wrong, f"{name} is in layer {layer_of(name)!r} and imports {wrong}: see flux/layers.txt"


def test_a_planted_import_against_the_order_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "arrays.py"
    planted.write_text("def late():\n    from ..site.shell import Shell\n    return Shell\n")
    assert wrong_imports("flux.types.arrays", planted) == ["flux.site.shell"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    # A package's own __init__ re-exports its modules; what matters is what these import.
    graph = {
        name: {module for module in imports(name, path) if module in NAMES and module != "flux" and module != name}
        for name, path in EVERYTHING
        if path.name != "__init__.py"
    }
    assert len(graph) > 200
    assert first_cycle(graph) == []


def test_a_circle_of_imports_is_found() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_flux_itself_holds_only_what_users_import() -> None:
    assert {path.stem for path in FLUX.glob("*.py")} == PUBLIC_MODULES


def test_imports_inside_flux_are_relative() -> None:
    for name, path in EVERYTHING:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and name not in MAY_IMPORT_BY_FULL_NAME:
                assert (node.module or "").split(".")[0] != "flux", f"{name} imports {node.module} by its full name"


def looks_below(name: str, path: Path) -> list[str]:
    """The imports of a module that are not for users."""
    ours = {module for module in imports(name, path) if module in NAMES and module != "flux"}
    return sorted(m for m in ours if layer_of(m) != ROOF and not belongs(m, USER_MAY_IMPORT))


HELPERS = [each for each in modules(ROOT / "tests", "tests") if not each[1].name.startswith("test_")]


@pytest.mark.parametrize(("name", "path"), [*modules(ROOT / "experiments", "experiments"), *HELPERS], ids=ids)
def test_experiments_and_helpers_import_what_a_user_may(name: str, path: Path) -> None:
    below = looks_below(name, path)
    assert not below or belongs(name, tuple(LOOKS_BELOW)), f"{name} imports {below}, which is not for users"


def test_every_exception_is_in_use() -> None:
    both = [*modules(ROOT / "experiments", "experiments"), *HELPERS]
    for prefix in LOOKS_BELOW:
        assert any(belongs(name, (prefix,)) and looks_below(name, path) for name, path in both), prefix


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
