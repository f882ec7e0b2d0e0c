"""Without Java, one line says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from flux.spark import check_java
from flux.types.errors import FluxError


def test_without_java_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        FluxError, match=r"Java 17 or later, and there is none on the PATH.*Install it.*JAVA_HOME"
    ) as caught:
        check_java()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25)])
def test_an_old_java_is_named_and_a_new_one_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, number: int
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if number >= 17:
        assert check_java() == number
        return
    with pytest.raises(FluxError, match=f"is version {number}"):
        check_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(FluxError, match=f"none in JAVA_HOME={tmp_path}"):
        check_java()
