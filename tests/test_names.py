"""One name, one thing: classes, type aliases and modules whose name stands twice are listed here, with a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("flux", "protocols", "spec")

THESIS = "spec/thesis has the reference model of the machine of that name, figure by figure"
# Names of classes and aliases that stand for two things on purpose.
CLASSES = {
    **dict.fromkeys(
        ("Ack", "Buffer", "Channel", "Choice", "Controller", "Data", "Egress", "Explored", "Ingress"), THESIS
    ),
    **dict.fromkeys(("Message", "Node", "Operator", "Route", "Row", "Scenario", "Segment", "State"), THESIS),
    **dict.fromkeys(("Violated", "World", "Fault"), THESIS),
    "Table": "flux.sources.Table is public; the other is a table of the thesis",
    "Stream": "flux.Stream and flux.spark.Stream are both public, and each is one in its own world",
    "Change": "flux.Change is what a user gets; the other is a change that makes a mutant",
    "Report": "flux.Report is what a user gets; wire.reports.Report is the union of what processes report",
}
# Modules whose name stands twice.
MODULES = {
    **dict.fromkeys(
        ("buffer", "controller", "egress", "explore", "fh_cons", "fh_prod", "ingress", "node", "world"), THESIS
    ),
    "dataflow": "flux.Dataflow is what a user writes; spec.dataflow is the dataflow of a simulated world",
}


def sources() -> list[Path]:
    """Every module; the links flux/protocols and flux/spec are not followed."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if _is_own(path)]


def _is_own(path: Path) -> bool:
    return path.relative_to(ROOT).parts[:2] not in (("flux", "protocols"), ("flux", "spec"))


def defined(tree: ast.Module) -> Iterable[str]:
    """The classes and type aliases that a module defines at its top level."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if ast.unparse(node.annotation) == "TypeAlias":
                yield node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper() and "_" not in name:
                yield name


def twice(texts: dict[str, str]) -> dict[str, list[str]]:
    """Names of classes that several of these modules define."""
    places = defaultdict(list)
    for path, text in texts.items():
        for name in defined(ast.parse(text)):
            places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in sources()}


def test_a_class_has_a_name_of_its_own() -> None:
    found = {name: paths for name, paths in twice(TEXTS).items() if name not in CLASSES}
    assert not found, "rename one of each, or say in CLASSES why both have the name"


def test_a_module_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in TEXTS:
        places[Path(path).stem].append(path)
    found = {name: paths for name, paths in places.items() if len(paths) > 1 and name not in {*MODULES, "__init__"}}
    assert not found, "rename one of each, or say in MODULES why both have the name"


def test_what_is_allowed_is_needed() -> None:
    assert set(CLASSES) <= set(twice(TEXTS))
    stems = [Path(path).stem for path in TEXTS]
    assert all(stems.count(name) > 1 for name in MODULES)


def test_a_planted_second_refused_is_found() -> None:
    planted = {**TEXTS, "flux/wire/planted.py": "class Refused(Exception):\n    pass\n"}
    assert twice(planted)["Refused"] == ["protocols/machine.py", "flux/wire/planted.py"]
