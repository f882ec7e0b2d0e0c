"""Write docs/renames.rst: every old name of the tree before the renovation with its new one.

    git worktree add ../before d78be9f && python docs/make_renames.py ../before . > docs/renames.rst

Names are read from both trees: modules, classes, functions, methods and fields, private ones too. A name that is gone
is matched with the new name in the same module or class whose text is most alike; what has no match was removed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = ("flux", "protocols", "spec")
MODULE_LEAST, NAME_LEAST = 0.30, 0.40  # How alike two texts are that count as one thing.
_WORD = re.compile(r"[A-Za-z]{3,}")


@dataclass
class Thing:
    """A module, class, function or field: its kind, a bag of the words in its text, and what is in it."""

    kind: str
    words: Counter[str]
    parts: dict[str, Thing] = field(default_factory=dict)


def words_of(text: str, name: str = "") -> Counter[str]:
    """The words of a thing's text, but for those of its own name."""
    own = {word.lower() for word in _WORD.findall(name)}
    return Counter(word for word in map(str.lower, _WORD.findall(text)) if word not in own)


def alike(one: Counter[str], other: Counter[str]) -> float:
    both = sum((one & other).values())
    return both / max(1, sum((one | other).values()))


def modules(tree: Path) -> dict[str, Thing]:
    found = {}
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            parts = path.relative_to(tree).with_suffix("").parts
            if parts[:2] in (("flux", "protocols"), ("flux", "spec")) or parts[-1] == "__init__":
                continue
            name = ".".join(parts if parts[0] == "flux" else ("flux", *parts))
            text = path.read_text()
            found[name] = Thing("module", words_of(text), dict(things(ast.parse(text), text)))
    return found


def things(node: ast.AST, text: str) -> Iterator[tuple[str, Thing]]:
    for part in getattr(node, "body", ()):
        source = ast.get_source_segment(text, part) or ""
        if isinstance(part, ast.ClassDef):
            inner = dict(things(part, text)) | dict(attributes(part, text))
            yield part.name, Thing("class", words_of(source, part.name), inner)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "method" if isinstance(node, ast.ClassDef) else "function"
            yield part.name, Thing(kind, words_of(source, part.name))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            kind = "field" if isinstance(node, ast.ClassDef) else "name"
            yield part.target.id, Thing(kind, words_of(source, part.target.id))
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            yield part.targets[0].id, Thing("name", words_of(source, part.targets[0].id))


def attributes(node: ast.ClassDef, text: str) -> Iterator[tuple[str, Thing]]:
    """What `__init__` sets on self."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for each in ast.walk(part):
                targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
                for target in targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        source = ast.get_source_segment(text, each) or ""
                        yield target.attr, Thing("field", words_of(source, target.attr))


def matched(old: dict[str, Thing], new: dict[str, Thing], least: float) -> dict[str, str | None]:
    """The new name of each old one: the same if it is still there, else the most alike of those that are new."""
    left = {name: thing for name, thing in new.items() if name not in old}
    pairs = sorted(
        (
            (alike(gone.words, thing.words), before, after)
            for before, gone in old.items()
            if before not in new
            for after, thing in left.items()
            if thing.kind == gone.kind
        ),
        reverse=True,
    )
    names: dict[str, str | None] = {name: name if name in new else None for name in old}
    taken: set[str] = set()
    for score, before, after in pairs:
        if score >= least and names[before] is None and after not in taken:
            names[before] = after
            taken.add(after)
    return names


def rows(old: dict[str, Thing], new: dict[str, Thing]) -> Iterator[tuple[str, str, str]]:
    """Kind, old name and new name of everything that changed."""
    where = {name: module for module, thing in new.items() for name in thing.parts}
    for module, now in sorted(matched(old, new, MODULE_LEAST).items()):
        if now != module:
            yield "module", module, now or "(divided or merged, see its names)"
        target = new[now].parts if now is not None else {}
        for name, after in matched(old[module].parts, target, NAME_LEAST).items():
            thing = old[module].parts[name]
            moved = where.get(name) if after is None else None
            if after is None and moved is None:
                if thing.kind != "name":
                    yield thing.kind, f"{module}.{name}", "(removed)"
                continue
            home, after = (moved, name) if moved is not None else (now, after)
            assert home is not None and after is not None
            if after != name or moved is not None:
                yield thing.kind, f"{module}.{name}", f"{home}.{after}"
            yield from inner_rows(module, name, thing, after, new[home].parts[after])


def inner_rows(module: str, name: str, thing: Thing, after: str, now: Thing) -> Iterator[tuple[str, str, str]]:
    for part, new_part in matched(thing.parts, now.parts, NAME_LEAST).items():
        if new_part is not None and new_part != part:
            yield thing.parts[part].kind, f"{module}.{name}.{part}", f"{after}.{new_part}"


def main(before: str, after: str) -> None:
    found = list(rows(modules(Path(before)), modules(Path(after))))
    print("Renames\n=======\n")
    print(
        "Every name that changed in the renovation, made by ``docs/make_renames.py`` from both trees. The design pages"
    )
    print("speak of the old names.\n")
    for kind in ("module", "class", "function", "method", "field", "name"):
        these = [(old, new) for each, old, new in found if each == kind]
        title = {"class": "Classes and messages", "name": "Constants and aliases"}.get(kind, f"{kind.title()}s")
        print(f"{title}\n{'-' * len(title)}\n\n.. list-table::\n   :header-rows: 1\n\n   * - old\n     - new")
        for old, new in these:
            print(f"   * - ``{old}``\n     - {new if new.startswith('(') else f'``{new}``'}")
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
