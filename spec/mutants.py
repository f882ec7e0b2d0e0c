"""Mutants: copies of a protocol module with one guard or one state change spoilt.

For every function of a machine: a statement left out, a condition negated, one operand of an `and` or `or`
left out, and a guard that always holds. Asserts, docstrings and what only describes a machine are left alone:
they change no behaviour.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = ("buffer", "channels", "fh_prod", "fh_cons", "pooler", "ingress", "egress", "node", "controller")
_DESCRIBE = {"title", "__init__"}
_FOLDER = Path(__file__).resolve().parent.parent / "protocols"


@dataclass(frozen=True)
class Mutant:
    """One spoilt module."""

    module: str
    line: int
    what: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line} {self.what}"


def folder() -> Path:
    """Where the protocol modules are."""
    import flux.protocols

    return Path(flux.protocols.__file__ or _FOLDER).resolve().parent


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse((folder() / f"{module}.py").read_text())
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        if function.name not in _DESCRIBE:
            yield from _spoilt(module, tree, function)


def _spoilt(module: str, tree: ast.Module, function: ast.FunctionDef) -> Iterator[Mutant]:
    for place in ast.walk(function):
        for what, change in _changes(place):
            spoilt = copy.deepcopy(tree)
            twin = _same(spoilt, tree, place)
            change(twin)
            ast.fix_missing_locations(spoilt)
            line = getattr(place, "lineno", function.lineno)
            yield Mutant(module, line, f"{function.name}: {what}", ast.unparse(spoilt))


def _changes(place: ast.AST) -> Iterator[tuple[str, _Change]]:
    for block in ("body", "orelse"):
        statements = getattr(place, block, None)
        if isinstance(statements, list):
            for index, statement in enumerate(statements):
                if _is_state_change(statement):
                    text = ast.unparse(statement).splitlines()[0][:80]
                    yield f"without `{text}`", _LeaveOut(block, index)
    if isinstance(place, ast.If | ast.While):
        yield f"negate `{ast.unparse(place.test)[:80]}`", _Negate("test")
    if isinstance(place, ast.Return) and isinstance(place.value, ast.Compare | ast.BoolOp):
        yield f"negate `{ast.unparse(place.value)[:80]}`", _Negate("value")
    if isinstance(place, ast.BoolOp):
        for index, value in enumerate(place.values):
            yield f"without operand `{ast.unparse(value)[:80]}`", _LeaveOut("values", index)


def _is_state_change(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Constant):
            return False  # A docstring.
        return ast.unparse(statement) != "yield from ()"  # It only makes a generator.
    return isinstance(statement, ast.AugAssign | ast.Delete) or (
        isinstance(statement, ast.Assign | ast.AnnAssign) and not isinstance(_target(statement), ast.Name)
    )


def _target(statement: ast.Assign | ast.AnnAssign) -> ast.expr:
    return statement.targets[0] if isinstance(statement, ast.Assign) else statement.target


class _Change:
    """Something done to a node of a syntax tree."""

    def __call__(self, node: ast.AST) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _LeaveOut(_Change):
    block: str
    index: int

    def __call__(self, node: ast.AST) -> None:
        items = getattr(node, self.block)
        if self.block == "values":
            del items[self.index]
        else:
            items[self.index] = ast.Pass()


@dataclass(frozen=True)
class _Negate(_Change):
    field: str

    def __call__(self, node: ast.AST) -> None:
        setattr(node, self.field, ast.UnaryOp(op=ast.Not(), operand=getattr(node, self.field)))


def _same(twin: ast.AST, tree: ast.AST, place: ast.AST) -> ast.AST:
    """The node of `twin` that stands where `place` stands in `tree`."""
    for original, copied in zip(ast.walk(tree), ast.walk(twin), strict=True):
        if original is place:
            return copied
    raise AssertionError("a node is not in its own tree")
