"""The blocks of the pages: README.rst, CONTRIBUTING.rst and docs/*.rst, each with its language and its line."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *sorted((ROOT / "docs").glob("*.rst")))
OUTPUT_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n((?: {3,4}:[\w-]+:.*\n)*)\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
_LITERAL = re.compile(r"(?<!`)``([^`]+)``(?!`)")


@dataclass(frozen=True)
class Block:
    """One code block; `is_output` marks the expected output of the Python block before it."""

    page: Path
    line: int
    language: str
    is_output: bool
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def page_id(page: Path) -> str:
    return page.stem


def blocks(page: Path, *languages: str) -> list[Block]:
    """The code blocks of a page in order; those of the given languages, if any are given."""
    text = page.read_text() + "\n"
    found = [
        Block(
            page=page,
            line=text.count("\n", 0, match.start()) + 1,
            language=match[1],
            is_output=":class: output" in match[2],
            text=textwrap.dedent(match[3]).rstrip("\n") + "\n",
        )
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def literals(page: Path) -> list[str]:
    """The texts between double backquotes, on one line each."""
    return [" ".join(text.split()) for text in _LITERAL.findall(page.read_text())]


def run_page(page: Path, names: dict[str, Any]) -> list[str]:
    """Run the Python blocks of a page in order, in one namespace; return what each printed.

    A block of text with ``:class: output`` after one of them must match what that one printed.
    """
    printed: list[str] = []
    for block in blocks(page, "python", "text"):
        if block.language == "python":
            output = io.StringIO()
            # The lines of the block keep their numbers in the page, so that a traceback names the right one.
            code = compile("\n" * (block.line + 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(output):
                exec(code, names)
            printed.append(output.getvalue())
        elif block.is_output:
            assert printed, f"{block.place}: output without a Python block before it"
            matches = doctest.OutputChecker().check_output(block.text, printed[-1], OUTPUT_OPTIONS)
            assert matches, f"{block.place} says\n{block.text}\nand the block before it printed\n{printed[-1]}"
    return printed
