"""The parts of the pages that are made from the code when they are built, so that they cannot go stale.

`.. generated:: map` is the tree of layers and modules, `rules` the rules of the protocol, `commands` the help of the
command line, `renames` the old names of modules. `python docs/generated.py map` prints the same as reStructuredText.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LAYERS_FILE = ROOT / "flux" / "layers.txt"
HELP_COLUMNS = 100
# The folders of layers that are not in flux/; links there lead to them.
OUTSIDE = {"protocols": ROOT / "protocols", "spec": ROOT / "spec"}
ROOF = "."  # The layer of the modules directly in flux/.


def layers() -> list[str]:
    """The layers in import order, as flux/layers.txt lists them."""
    lines = LAYERS_FILE.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    sentences = re.split(r"(?<=[.?])\s+(?=[A-Z`])", first)
    whole = next(upto for at in range(len(sentences)) if _is_closed(upto := " ".join(sentences[: at + 1])))
    return _escaped(_without_name(whole, path.stem))


def _without_name(text: str, name: str) -> str:
    """The sentence without the module's own name before its first colon."""
    head, colon, rest = text.partition(": ")
    is_name = re.sub(r"\W", "", head).lower() == name.replace("_", "")
    return rest[0].upper() + rest[1:] if colon and is_name else text


def _is_closed(text: str) -> bool:
    """Whether no name between backquotes is cut off."""
    return text.count("`") % 2 == 0


def _escaped(text: str) -> str:
    """The text with nothing that reStructuredText would take for markup, but for names between backquotes."""
    parts = text.split("`")
    return _spaced("`".join(part if at % 2 else re.sub(r"([*_|])", r"\\\1", part) for at, part in enumerate(parts)))


def _spaced(text: str) -> str:
    """The text with an empty separator after a name that goes on in letters, as in `Row`s."""
    return re.sub(r"(?<![`\w])(`[^`\s][^`]*`)(?=\w)", r"\1\\ ", text)


def map_text() -> str:
    """Every layer with its modules, as a nested list."""
    lines = [".. container:: tree", ""]
    for layer in layers():
        if layer == ROOF:
            lines += [f"   * ``flux/*.py``: {summary(ROOT / 'flux' / '__init__.py')}", ""]
            lines += _modules(ROOT / "flux", depth=2)
        else:
            lines += _package(OUTSIDE.get(layer, ROOT / "flux" / layer), depth=1)
    return "\n".join(lines)


def _package(folder: Path, depth: int) -> list[str]:
    name = f"{folder.relative_to(ROOT)}/" if depth == 1 else f"{folder.name}/"
    lines = [f"{_indent(depth)}* ``{name}``: {summary(folder / '__init__.py')}", "", *_modules(folder, depth + 1)]
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines += _package(inner, depth + 1)
    return lines


def _modules(folder: Path, depth: int) -> list[str]:
    modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    lines = [f"{_indent(depth)}* ``{path.stem}``: {summary(path)}" for path in modules]
    return [*lines, ""]


def _indent(depth: int) -> str:
    return "   " + "  " * (depth - 1)


def rules_text() -> str:
    """Every rule of the protocol: its text, and the ways to remove it or the argument why it is not needed."""
    from flux.spec.rules import RULES

    lines = []
    for rule in RULES:
        lines += [f"**Rule {rule.number}. {rule.title}.** {' '.join(rule.text.split())}", ""]
        lines += [f"* Without it: {removal.name}. {removal.what}" for removal in rule.removals]
        if rule.argument:
            lines += [f"* Not needed here: {' '.join(rule.argument.split())}"]
        lines += [""]
    return "\n".join(lines)


def commands_text() -> str:
    """The help of every command, as the command line prints it."""
    lines = []
    for parser in _parsers():
        help_text = parser.format_help().rstrip()
        lines += [parser.prog, "-" * len(parser.prog), "", ".. code-block:: text", ""]
        lines += [f"    {line}".rstrip() for line in help_text.splitlines()]
        lines += [""]
    return "\n".join(lines)


def _parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of each command; help is as wide as a page, whatever the terminal."""
    from flux.commands.main import _parser

    def walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        parser.formatter_class = _wide
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for inner in dict.fromkeys(action.choices.values()):
                    yield from walk(inner)

    return walk(_parser())


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, width=HELP_COLUMNS)


def renames_text() -> str:
    """Old names of public modules, with the new ones."""
    from flux.types.deprecated import MODULES

    rows = [f"   * - ``{old}``\n     - ``{new}``" for old, new in sorted(MODULES.items())]
    return "\n".join([".. list-table::", "   :header-rows: 1", "", "   * - old", "     - new", *rows, ""])


TEXTS: dict[str, Callable[[], str]] = {
    "map": map_text,
    "rules": rules_text,
    "commands": commands_text,
    "renames": renames_text,
}


def setup(app: Any) -> dict[str, bool]:
    """Register the directive with Sphinx."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Generated(SphinxDirective):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            self.env.note_reread()  # The code may have changed, though the page has not.
            text = TEXTS[self.arguments[0]]()
            return self.parse_text_to_nodes(text, allow_section_headings=True)

    def space_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
        lines[:] = [_spaced(line) for line in lines]

    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", space_docstring)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(TEXTS[sys.argv[1]]())
