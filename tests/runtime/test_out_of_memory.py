"""A site that has too little memory for what an operator asks: it ends, and its partner goes on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import flux
from flux.site.shell import Shell

from .user_errors import ROWS, flow_of

ROOM_BYTES = 256 << 20  # What the address space of a small site may still grow.
ASKED_BYTES = 1 << 30
AT_ROW = 150


class Keys(flux.KeyedOperator):
    """Emits the key of each row."""

    output: ClassVar = {"k": "int64"}

    def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
        return None, [{"k": row.k}]


def small_on(sites: int, tmp_path: Path) -> Any:
    """An operator that needs much memory for one row; so many sites do not have it."""

    class Greedy(flux.KeyedOperator):
        output: ClassVar = {"k": "int64"}

        def open(self, context: flux.Context) -> None:
            for number in range(sites):
                try:
                    (tmp_path / str(number)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
                return

        def on_tuple(self, key: Any, row: Any, state: Any) -> Any:
            if row.v == AT_ROW:
                np.empty(ASKED_BYTES, np.uint8)
            return None, [{"k": row.k}]

    return Greedy


def test_a_site_without_the_memory_ends_and_its_partner_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = flow_of(small_on(1, tmp_path)).run(sites=2)
    assert report.outputs == len(ROWS)
    assert len(report.failures) == 1
    assert "ends for want of memory" in caplog.text and "Greedy" in caplog.text


def test_rows_for_which_no_site_has_the_memory_are_named(tmp_path: Path) -> None:
    with pytest.raises(flux.OperatorError) as caught:
        flow_of(small_on(2, tmp_path)).run(sites=2)
    assert "Greedy" in str(caught.value) and "emory" in str(caught.value)


def test_a_site_without_a_partner_ends_the_run_with_the_error(tmp_path: Path) -> None:
    with pytest.raises(flux.OperatorError, match=r"step 'Greedy'.*MemoryError"):
        flow_of(small_on(1, tmp_path)).run(sites=1, availability="none")


def test_a_site_that_lacks_memory_outside_of_operators_ends_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send = Shell._send_rows

    def send_or_fail(shell: Shell, *args: Any) -> None:
        if shell.name == "site-1":  # Sites are forks.
            raise MemoryError("no room for a frame")
        send(shell, *args)

    monkeypatch.setattr(Shell, "_send_rows", send_or_fail)
    report = flow_of(Keys).run(sites=2)
    assert report.outputs == len(ROWS)
    assert [failure.site for failure in report.failures] == ["site-1"]
    assert "site-1 ends for want of memory" in caplog.text and "no room for a frame" in caplog.text
