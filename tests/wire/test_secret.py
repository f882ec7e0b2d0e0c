"""The secret of a run: found where it was said to be, or the error says what to do."""

from __future__ import annotations

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


def test_a_file_goes_before_the_environment(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "secret", f" {GOOD}\n")
    assert secret_from(path, {"FLUX_SECRET": "another"}) == GOOD.encode()
    assert secret_from(environ={"FLUX_SECRET": GOOD}) == GOOD.encode()


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


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o666])
def test_a_file_that_others_may_open_is_an_error_that_says_how_to_close_it(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "secret", GOOD, mode)
    with pytest.raises(AuthError, match=f"others than its owner can open {path}.* `chmod 600 {path}`"):
        secret_from(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_file_of_its_owner_or_a_group_to_read_is_taken(tmp_path: Path, mode: int) -> None:
    assert secret_from(secret_file(tmp_path / "secret", GOOD, mode)) == GOOD.encode()


def test_a_short_secret_is_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="has only 5 bytes and may be guessed; 16 are the minimum") as caught:
        secret_from(environ={"FLUX_SECRET": "tiger"})
    assert "tiger" not in str(caught.value)
    assert secret_from(environ={"FLUX_SECRET": GOOD[:16]}) == GOOD[:16].encode()
