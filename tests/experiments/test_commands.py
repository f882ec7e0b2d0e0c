"""What the experiments' commands tell the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.kill import run as kill


@pytest.mark.parametrize(("equal", "fails"), [([True, True], False), ([True, False], True)])
def test_kill_exact_fails_when_an_output_differs(
    equal: list[bool], fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(*settings: Any) -> list[dict[str, Any]]:
        return [{"run": number, "equal": found} for number, found in enumerate(equal)]

    monkeypatch.setattr(kill, "exact", exact)
    monkeypatch.setattr(kill.results, "write", lambda *taken, **settings: tmp_path)
    if fails:
        with pytest.raises(SystemExit) as caught:
            kill.main(["exact", "--json"])
        assert caught.value.code == 1
    else:
        kill.main(["exact", "--json"])
