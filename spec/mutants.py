"""Mutants: copies of a protocol module with one guard or one state change altered.

For every function of a machine: a statement left out, a condition negated, one operand of an `and` or `or` left out,
the filter of a comprehension left out, a guard that always holds or never. And each row of a machine's table left
out. Asserts, docstrings and what only describes a machine are not mutated: they change no behaviour.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MODULES = (
    "view",
    "machine",
    "buffer",
    "charges",
    "channels",
    "input_lanes",
    "editions",
    "fh_prod",
    "fh_cons",
    "state_mover",
    "pooler",
    "ingress",
    "egress",
    "node",
    "controller",
    "placement",
    "changes",
    "view_retention",
)
_DESCRIBE = {"title", "describe", "table", "__init__"}
_TEXT_MAX = 90

Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One mutated module; its name does not depend on where in the file the mutation is: on `lines`."""

    name: str
    module: str
    source: str
    lines: range = range(0)


def folder() -> Path:
    """The folder of the protocol modules."""
    import flux.protocols

    assert flux.protocols.__file__ is not None
    return Path(flux.protocols.__file__).resolve().parent


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its functions."""
    return mutants_of(module, (folder() / f"{module}.py").read_text())


def mutants_of(module: str, text: str, wanted: Container[int] | None = None) -> Iterator[Mutant]:
    """Every mutant of the module with this text; or only those with the `wanted` numbers, from 0 on."""
    for number, (name, place, lines, change) in enumerate(_named_changes(module, text)):
        if wanted is None or number in wanted:
            mutated = ast.parse(text)
            change(next(islice(ast.walk(mutated), place, None)))
            ast.fix_missing_locations(mutated)
            yield Mutant(name, module, ast.unparse(mutated), lines)


def names(module: str) -> list[str]:
    """The names of the mutants of a module; they need not be made for that."""
    return [name for name, *_ in _named_changes(module, (folder() / f"{module}.py").read_text())]


def count_mutants(text: str) -> int:
    """Return how many mutants the module with this text has."""
    return sum(1 for _ in _changes(ast.parse(text)))


def _named_changes(module: str, text: str) -> Iterator[tuple[str, int, range, Change]]:
    """Each mutation: its name, the index of its place in a walk through the tree, its lines, and the change."""
    tree = ast.parse(text)
    places = {id(node): index for index, node in enumerate(ast.walk(tree))}
    seen: Counter[str] = Counter()
    for where, place, what, altered, change in _changes(tree):
        name = f"{module}.{where}: {what}"
        seen[name] += 1
        if seen[name] > 1:
            name += f" ({seen[name]})"
        yield name, places[id(place)], _lines(altered), change


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str, ast.AST, Change]]:
    """Each mutation: the function, the place in the tree, in words, the part that is altered, and the change."""
    guards = _guards(tree)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        if function.name in _DESCRIBE:
            continue
        if function.name in guards:
            yield function.name, function, "always holds", function, _returns(True)
            yield function.name, function, "never holds", function, _returns(False)
        asserted = {id(part) for node in ast.walk(function) if isinstance(node, ast.Assert) for part in ast.walk(node)}
        for place in ast.walk(function):
            for what, altered, change in _mutations(place) if id(place) not in asserted else ():
                yield function.name, place, what, altered, change
    for place in ast.walk(tree):
        if isinstance(place, ast.Tuple):
            for index, item in enumerate(place.elts):
                if _is_row(item):
                    yield "RULES", place, f"without row `{_text(item)}`", item, _leave_out("elts", index)


def _guards(tree: ast.Module) -> set[str]:
    """The functions that a table names as guards."""
    rows = [node for node in ast.walk(tree) if _is_row(node)]
    keywords = [keyword for row in rows if isinstance(row, ast.Call) for keyword in row.keywords]
    return {k.value.attr for k in keywords if k.arg == "guard" and isinstance(k.value, ast.Attribute)}


def _is_row(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Rule"


def _mutations(place: ast.AST) -> Iterator[tuple[str, ast.AST, Change]]:
    for block in ("body", "orelse"):
        statements = getattr(place, block, None)
        if isinstance(statements, list):
            for index, statement in enumerate(statements):
                if _is_state_change(statement):
                    yield f"without `{_text(statement)}`", statement, _pass(block, index)
    if isinstance(place, ast.If | ast.While | ast.IfExp):
        yield f"negate `{_text(place.test)}`", place.test, _negate("test")
    if isinstance(place, ast.BoolOp):
        for index, value in enumerate(place.values):
            yield f"without operand `{_text(value)}` of `{_text(place)}`", value, _leave_out("values", index)
    if isinstance(place, ast.comprehension):
        for index, test in enumerate(place.ifs):
            yield f"without filter `{_text(test)}` of {_text(place.iter)}", test, _leave_out("ifs", index)


def _lines(node: ast.AST) -> range:
    assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def _is_state_change(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Constant):
            return False  # A docstring.
        return ast.unparse(statement) != "yield from ()"  # It only makes a generator.
    if isinstance(statement, ast.Assign):
        return not isinstance(statement.targets[0], ast.Name)
    return isinstance(statement, ast.AugAssign | ast.Delete)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"


def _pass(block: str, index: int) -> Change:
    def change(node: ast.AST) -> None:
        statements = getattr(node, block)
        yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(statements[index]))
        # A function that yields nothing must stay a generator, or the mutant would be noticed for the wrong reason. An
        # async one may not have `yield from ()`.
        statements[index] = ast.parse("if False:\n    yield").body[0] if yields else ast.Pass()

    return change


def _leave_out(field: str, index: int) -> Change:
    def change(node: ast.AST) -> None:
        del getattr(node, field)[index]

    return change


def _negate(field: str) -> Change:
    def change(node: ast.AST) -> None:
        setattr(node, field, ast.UnaryOp(op=ast.Not(), operand=getattr(node, field)))

    return change


def _returns(value: bool) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.FunctionDef)
        node.body = [ast.Return(value=ast.Constant(value=value))]

    return change
