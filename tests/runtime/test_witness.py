"""Beside each process of a remote run is a witness: it tells what a site died of."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .commands import DEADLINE_S, Processes

SITES = ("site-a", "site-b", "site-c")

# As by a bug in native code: row 701 kills whoever works on it.
DEADLY = """
import os
import signal
import flux

class Deadly(flux.KeyedOperator):
    output = {"v": "int64"}
    def on_tuple(self, key, row, state):
        if row.v == 700:
            os.kill(os.getpid(), signal.SIGSEGV)
        return None, [{"v": row.v}]

flow = flux.Dataflow("deadly")
stream = flow.source(flux.sources.Table([{"k": n % 10, "v": n} for n in range(2_000)], rate=2_000))
stream.exchange("k", partitions=4).apply(Deadly).sink(flux.sinks.Jsonl("out.jsonl"))
"""


def may_make_namespaces() -> bool:
    tried = ["unshare", "--pid", "--fork", "true"]
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


def in_a_namespace(command: Callable[..., list[str]], name: str, *arguments: str) -> list[str]:
    """Sites are the first process of a namespace, as in a container: with it all others in it are killed."""
    call = command(name, *arguments)
    return ["unshare", "--pid", "--fork", "--kill-child", *call] if name in SITES else call


def the_row_is_named(processes: Processes, tmp_path: Path) -> str:
    """Run the deadly flow under supervisors until its controller ends; return what it said last."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    processes.flow = "deadly:flow"
    processes.start("controller")
    there = ("deadly:flow", "--controller", processes.controller)
    for name in SITES:
        processes.supervise(name, "site", *there)
    for name in ("ingress", "egress"):
        processes.start(name)
    assert processes.running["controller"].wait(DEADLINE_S) == 1, processes.logs()
    said = (tmp_path / "controller.log").read_text().splitlines()[-1]
    both_died = r"step 'Deadly', row \d+: site-\d+ and site-\d+ both died while they worked on rows "
    named = re.search(both_died + r"([\d,]+) to ([\d,]+), site", said)
    assert named is not None, said
    first, last = (int(number.replace(",", "")) for number in named.groups())
    assert first <= 701 <= last
    return said


def test_a_row_that_kills_each_site_that_works_on_it_is_named(processes: Processes, tmp_path: Path) -> None:
    said = the_row_is_named(processes, tmp_path)
    assert "with a status that its supervisor knows" in said and "Take the rows out of the source" in said


@pytest.mark.long
def test_in_a_container_the_row_is_named_too(tmp_path: Path, processes: Processes) -> None:
    if not may_make_namespaces():
        pytest.skip("this user may not make namespaces of processes")
    processes.has_interpreters = True
    processes.command = partial(in_a_namespace, processes.command)  # type: ignore[method-assign]
    the_row_is_named(processes, tmp_path)
