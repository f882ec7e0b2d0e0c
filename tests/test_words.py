"""Flux is written in the plain English of the field: words that are not are listed here, and where they may stand.

Prose and identifiers are read alike: `_told_upto` has the word "told". STYLE of the project, words: terms of the field,
and a part of the system as the subject of each sentence.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("flux", "protocols", "spec", "docs")
# Each word with what to write instead.
INSTEAD = {
    **dict.fromkeys(("tell", "tells", "telling", "told", "untold"), "report, send, return, emit, say"),
    **dict.fromkeys(("hear", "hears", "hearing", "heard", "unheard"), "receive, read, get"),
    **dict.fromkeys(("who", "whom", "whoever", "nobody", "he", "him", "his"), "a part of the system"),
    "behind": "after",
    **dict.fromkeys(("mend", "mends", "mended"), "fix"),
}
PHRASES = {
    r"\bso far\b": "up to, until now",
    r"\bon (its|their) way\b": "in transfer, in flight",
    r"(?<!there )\bis no\b(?! longer| more)": "is not a; invalid: why",
}
# File and sentence of each that is meant so.
ALLOWED: dict[str, tuple[str, ...]] = {
    # The old name of a public attribute, which works for one release.
    "flux/sources/source.py": ('"tells_time" in', '.tells_time"', '["tells_time"]'),
    # A public argument of `flux.testing.simulate`.
    "flux/testing/fixtures.py": ('"tell": True',),
    "flux/testing/flow_simulation.py": ("tell: bool = False", "`tell`", "flow.name, tell, clock", "tell=True"),
    "docs/testing.rst": ("tell=True",),
    "flux/wire/state_codec.py": ("unpacker.tell()",),  # Of msgpack.
}

_WORD = re.compile(r"[A-Za-z][a-z]*|[A-Z]+(?![a-z])")


def pages() -> list[Path]:
    found = [ROOT / "README.rst"]
    for folder in FOLDERS:
        for suffix in ("*.py", "*.rst", "*.txt"):
            found += sorted((ROOT / folder).rglob(suffix))
    links = (ROOT / "flux" / "protocols", ROOT / "flux" / "spec")
    old_names = ROOT / "docs" / "renames.rst"  # It is there for the old names.
    return [path for path in found if path != old_names and not any(link in path.parents for link in links)]


def counted(text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """What of a text is on the lists, as line number, word and what to write instead."""
    for sentence in allowed:
        assert sentence in text, f"no longer there: {sentence!r}"
        text = text.replace(sentence, re.sub(r"[^\n]", " ", sentence))
    # Names of tests are claims, and not of these folders.
    text = re.sub(r"``[^`\n]*tests/[^`\n]*``", "", text)
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for word in _WORD.findall(line):
            if word.lower() in INSTEAD:
                found.append(f"line {number}: {word!r}; write {INSTEAD[word.lower()]}")
        for phrase, instead in PHRASES.items():
            if match := re.search(phrase, line, re.IGNORECASE):
                found.append(f"line {number}: {match[0]!r}; write {instead}")
    return found


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_has_none_of_the_words(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert counted(path.read_text(), ALLOWED.get(name, ())) == []


def test_a_planted_told_is_found() -> None:
    assert counted("def _told_upto(): ...\n") == ["line 1: 'told'; write report, send, return, emit, say"]
    assert counted("# The rows so far.\nthe HE\n")[0].startswith("line 1: 'so far'")
    assert counted("threshold, the, behindhand, retold, there is no column") == []


def test_every_file_on_the_list_is_there() -> None:
    assert all((ROOT / name).exists() for name in ALLOWED)
