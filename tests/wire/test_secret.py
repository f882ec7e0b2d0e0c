"""The secret of a run: found where it was said to be, or the error says what to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flux import AuthError
from flux.wire.secret import new_secret, secret_from

GOOD = "0123456789abcdef0123456789abcdef"


def secret_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_secret_is_long_and_new() -> None:
    assert len(new_secret()) == 32 and new_secret() != new_secret()


def test_a_file_goes_before_the_environment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secret_file(tmp_path / "secret", f" {GOOD}\n")
    assert secret_from(path, {"FLUX_SECRET": "another"}) == GOOD.encode()
    assert secret_from(environ={"FLUX_SECRET": GOOD}) == GOOD.encode()
    assert not caplog.records


def test_no_secret_is_an_error_that_says_where_to_put_it() -> None:
    with pytest.raises(AuthError, match=r"there is no secret: name a file .* FLUX_SECRET"):
        secret_from(environ={})


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_secret_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(AuthError, match="secret is empty"):
        secret_from(secret_file(tmp_path / "secret", text))
    with pytest.raises(AuthError, match="FLUX_SECRET is empty"):
        secret_from(environ={"FLUX_SECRET": text})


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match=r"cannot read the run's secret from .*nowhere: No such file"):
        secret_from(tmp_path / "nowhere")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_open_is_warned_of(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flux"):
        assert secret_from(secret_file(tmp_path / "secret", GOOD, mode)) == GOOD.encode()
    assert "chmod 600" in caplog.text


def test_a_short_secret_is_warned_of_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flux"):
        assert secret_from(environ={"FLUX_SECRET": "tiger"}) == b"tiger"
    assert "only 5 bytes" in caplog.text and "tiger" not in caplog.text
