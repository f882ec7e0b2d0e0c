"""Every block of code in the pages runs, or is a command that exists.

It takes about 20 s: the programs of the pages are run.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from flux.commands.main import _parser

from .node_ids import is_test
from .pages import PAGES, ROOT, blocks, literals, page_id, run_page

LANGUAGES = {"python", "console", "text", "ini", "yaml"}
# The page whose blocks need a JVM: tests/spark/test_page.py runs them.
WITH_SPARK = {"spark"}
ELSEWHERE = WITH_SPARK | {"README"}  # test_readme.py looks at its output, too.
# Pages that consist of doctests: tests/testing/test_page.py runs them.
WITH_DOCTESTS = {"testing"}
LOOKS_LIKE_PYTHON = re.compile(r"\bflux\.\w+\(|^import |^from \w+ import")
# Commands of other projects, which are not checked.
FOREIGN = {"spark-submit", "pip", "openssl", "systemctl", "venv-pack", "export", "cd", "df", "env/bin/pip"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in ELSEWHERE], ids=page_id)
@pytest.mark.usefixtures("deadline")
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page, {"__name__": page.stem})


def test_pages_with_doctests_are_run_elsewhere() -> None:
    assert {page.stem for page in PAGES if ">>> " in page.read_text()} == WITH_DOCTESTS


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_says_its_language(page: Path) -> None:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        is_literal = line.endswith("::") and not line.lstrip().startswith("..")
        assert not is_literal, f"{page.name}:{number}: write .. code-block:: LANGUAGE instead"
        assert line == line.rstrip(), f"{page.name}:{number} ends with spaces"
    marked = len(re.findall(r"^\s*\.\. code-block::", page.read_text(), re.MULTILINE))
    assert len(blocks(page)) == marked, f"{page.name}: a code block does not have the usual form"
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: {block.language}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_code_that_is_meant_to_run_is_marked_as_python(page: Path) -> None:
    for block in blocks(page, "text", "console"):
        shown = [
            line for line in block.text.splitlines() if re.search(r"\bflux\.\w+\(|^import |^from \w+ import", line)
        ]
        assert block.is_output or not shown, f"{block.place} shows code that no test runs: {shown}"


def typed_lines(page: Path) -> list[str]:
    """The commands that a reader is to type: after a dollar sign, without comments; lines may be continued."""
    lines = []
    for block in blocks(page, "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                lines.append(" ".join(line[2:].split()))
    return lines


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_in_a_console_exists(page: Path) -> None:
    for line in typed_lines(page):
        for command in line.partition(" #")[0].split(";"):
            assert is_known(shlex.split(command), strict=True), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_in_the_text_exists(page: Path) -> None:
    for text in literals(page):
        words = text.split()
        if words[0] in ("flux", "make", "pytest", "python") and len(words) > 1:
            assert is_known(words, strict=False), f"{page.name}: ``{text}``"


def is_known(words: list[str], strict: bool) -> bool:
    """Whether a command is one of Flux's, with options that it has; unless `strict`, arguments may be missing."""
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program == "flux":
        return flux_accepts(arguments, strict)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return all(word in targets or "=" in word for word in arguments)
    if program == "pytest" or arguments[:2] == ["-m", "pytest"]:
        return all(is_test(word) for word in arguments if word.startswith("tests/"))
    if program == "python" and arguments[0] == "-m":
        return module_exists(arguments[1])
    if program == "python" and "/" in arguments[0]:
        return (ROOT / arguments[0]).is_file()
    return program in FOREIGN or program == "python"


def flux_accepts(arguments: list[str], strict: bool) -> bool:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _parser().parse_args(arguments)
    except SystemExit as error:
        missing = "the following arguments are required" in said.getvalue()
        return not error.code or (missing and not strict)
    return True


def module_exists(name: str) -> bool:
    if name == "venv":
        return True
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_a_wrong_command_is_noticed() -> None:
    assert is_known(["flux", "status", "--json"], strict=True)
    assert is_known(["flux", "controller"], strict=False)
    assert not is_known(["flux", "controller"], strict=True)
    assert not is_known(["flux", "status", "--nothing"], strict=False)
    assert not is_known(["flux", "nothing"], strict=False)
    assert not is_known(["make", "nothing"], strict=True)
    assert not is_known(["python", "-m", "experiments.nothing"], strict=True)
    assert not is_known(["pytest", "tests/docs/test_pages.py::test_nothing"], strict=True)
