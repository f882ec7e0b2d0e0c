"""Runs on several hosts, each with a network stack of its own: cables are pulled, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flux.site.shell import FENCED

from .commands import DEADLINE_S, JOB, Processes, expected
from .hosts import Hosts, hosts
from .waiting import wait_until

pytestmark = pytest.mark.gauntlet

SITES = ("a", "b", "c")
HEAD = "head"  # Where controller, ingress and egress are.
RATE = 20_000


class OnHosts(Processes):
    """The commands of one run, each site on a host of its own."""

    def __init__(self, directory: Path, network: Hosts) -> None:
        super().__init__(directory)
        self.has_interpreters = True
        self.network = network
        self.controller = f"{network.address(HEAD)}:{self.port}"

    def host(self, name: str) -> str:
        return name.removeprefix("site-") if name.startswith("site-") else HEAD

    def command(self, name: str, *arguments: str) -> list[str]:
        return [*self.network.call(self.host(name)), *super().command(name, *arguments)]

    def status(self) -> dict[str, Any]:
        return dict(self.network.on(HEAD, super().status))


@pytest.fixture
def run(processes: Processes, tmp_path: Path) -> Iterator[OnHosts]:
    (tmp_path / "job.py").write_text(JOB.replace("rate=1_000", f"rate={RATE:_}"))
    with hosts(HEAD, *SITES) as network:
        if network is None:
            pytest.skip("network namespaces need the rights of root, and the program `ip`")
        on_hosts = OnHosts(tmp_path, network)
        try:
            for name in ("controller", "ingress", "egress"):
                on_hosts.start(name)
            for number, host in enumerate(SITES, start=1):  # The last is the spare one.
                on_hosts.start(f"site-{host}", "--name", f"site-{number}")
            on_hosts.advance(RATE // 2)
            yield on_hosts
        finally:
            on_hosts.end()


def is_over(run: OnHosts, name: str) -> bool:
    return run.running[name].poll() is not None


def finish(run: OnHosts, gone: str) -> None:
    """Let the stream end: everybody but `gone` ends well, and every row is there once, in order."""
    (run.directory / "enough").touch()
    for name, process in run.running.items():
        if name != gone:
            assert process.wait(DEADLINE_S) == 0, f"{name}: {run.logs()}"
    lines = (run.directory / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((run.directory / "ended-at").read_text()))


def test_a_host_whose_cable_is_pulled_is_done_without_and_ends_when_it_is_back(run: OnHosts) -> None:
    run.network.unplug("a")
    run.advance(RATE)  # The pairs are whole again: on the two others.
    assert not is_over(run, "site-a")
    run.network.plug_in("a")
    assert run.running["site-a"].wait(DEADLINE_S) == FENCED, run.logs()
    finish(run, "site-a")


def test_of_two_hosts_that_cannot_reach_each_other_one_is_removed(run: OnHosts) -> None:
    run.network.part("a", "b")
    pair = ("site-a", "site-b")
    wait_until(lambda: any(is_over(run, name) for name in pair), f"neither was removed: {run.logs()}")
    [gone] = [name for name in pair if is_over(run, name)]
    assert run.running[gone].returncode == FENCED
    run.advance(RATE)
    finish(run, gone)
