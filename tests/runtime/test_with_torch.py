"""PyTorch on the CPU: used by the program before its flow starts, inside operators, and while their state is read.

It takes half a minute, and needs a large package: `make test-all` installs it, by the extra ``torch``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .test_forked_programs import FLOW, program
from .test_snapshots_with_threads import WithThreads, assert_state_is_transferred

pytestmark = pytest.mark.long
with pytest.MonkeyPatch.context() as patch:
    # Read as the library is loaded. On a busy machine, threads of OpenMP that spin as they wait hold up all processes.
    patch.setenv("OMP_WAIT_POLICY", "passive")
    pytest.importorskip("torch", reason="PyTorch is not installed here: pip install '.[torch]', as make test-all does")

IN_TORCH = """
import torch
torch.set_num_threads(2)
def total(size):
    return int((torch.ones(size, size) @ torch.ones(size, size)).trace())
class InTorch(flux.Operator):
    output = {"v": "int64"}
    def process(self, batch):
        assert total(600) == 600 * 600
        return batch.emit({"v": batch["v"]})
"""
USED_BEFORE = "total(600)\n"


class InTorch(WithThreads):
    """Its threads are those of OpenMP, which a fork waits for and lacks."""

    def make(self, values: Any) -> Any:
        import torch

        torch.set_num_threads(2)
        return torch.from_numpy(np.array(values))

    def work(self) -> None:
        import torch

        assert int((self._values > 0).sum()) == len(self._values)
        assert float((torch.ones(300, 300) @ torch.ones(300, 300))[0, 0]) == 300

    def read(self) -> Any:
        return (self._values * 1).sort().values.numpy()


def test_torch_in_an_operator_alone_runs_without_a_warning(tmp_path: Path) -> None:
    assert program(tmp_path, FLOW + IN_TORCH + "run(InTorch)") == (0, "20000\n", "")


def test_torch_that_the_program_has_used_before_is_refused_in_an_operator(tmp_path: Path) -> None:
    status, out, errors = program(tmp_path, FLOW + IN_TORCH + USED_BEFORE + "run(InTorch)")
    assert (status, out) == (1, "")
    last = errors.strip().splitlines()[-1]
    assert "PlanError" in last and "InTorch" in last and "total" in last
    assert "GNU OpenMP" in last and "libgomp" in last and "OMP_NUM_THREADS=1" in last


def test_torch_that_only_the_program_uses_is_a_warning(tmp_path: Path) -> None:
    status, out, errors = program(tmp_path, FLOW + IN_TORCH + USED_BEFORE + "run(Plain)")
    assert (status, out) == (0, "20000\n"), errors
    assert "WARNING" in errors and "libgomp" in errors and "OMP_NUM_THREADS=1" in errors


def test_state_is_transferred_while_torch_works() -> None:
    assert_state_is_transferred(InTorch)
