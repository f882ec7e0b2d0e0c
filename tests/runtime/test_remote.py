"""Runs whose processes are commands of their own, over TCP: each is killed and started again, and nothing is lost.

Some start six or more commands. In most tests they are forks of one interpreter; in one each has its own.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flux.commands.main import main
from flux.driver.remote.process_names import ProcessNames
from flux.plan import Plan, Policy
from flux.site.shell import FENCED
from tests.wire.ipv6 import needs_ipv6

from .commands import DEADLINE_S, ROOT, Processes, controller, encrypt, expected, said
from .fakes import flow as collecting
from .waiting import wait_until


def documented(processes: Processes, pattern: str, parts: Callable[[str], list[str]]) -> list[list[str]]:
    """The calls of flux in docs/remote.rst, with the addresses and paths of this test; the controller's comes first."""
    places = {
        "myjob:flow": "job:flow",
        "10.0.0.1:7000": processes.controller,
        "0.0.0.0:7000": processes.controller,
        "myjob-controller:7000": processes.controller,
    }
    found = re.findall(pattern, (ROOT / "docs" / "remote.rst").read_text(), re.MULTILINE)
    calls = [parts(call) for call in found]
    return [[places.get(part, part.removeprefix("/var/lib/flux/")) for part in call] for call in calls]


def units(processes: Processes) -> dict[str, list[str]]:
    """Those of the units of systemd, by what they start."""
    return {call[0]: call for call in documented(processes, r"ExecStart=/opt/myjob/bin/flux (.*)$", str.split)}


def test_under_kubernetes_the_commands_are_those_of_systemd(processes: Processes) -> None:
    def parts(listed: str) -> list[str]:
        return [part.strip().strip('"') for part in listed.split(",")]

    manifest = documented(processes, r"command: \[flux, (.*)\]$", parts)
    assert {call[0]: call for call in manifest} == units(processes)
    assert set(units(processes)) == {"controller", "ingress", "egress", "site"}


def test_each_kind_is_killed_and_started_again_by_its_supervisor_and_the_output_is_exact(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt(monkeypatch)
    calls = units(processes)
    for name in ("site-a", "egress", "controller", "site-b", "ingress", "site-c"):  # In any order.
        processes.supervise(name, *calls[name.partition("-")[0]])
    processes.advance(200)
    for name in ("ingress", "egress"):
        processes.kill(name)
        processes.await_up(lambda up, name=name: (name, 2) in up, f"{name}.2 is not up")  # type: ignore[misc]
        processes.advance(200)
    processes.kill("site-a")
    processes.await_up(lambda up: ("site-4", 1) in up, "no further site joined")
    processes.advance(200)
    processes.kill("controller")
    processes.advance(200)
    (tmp_path / "enough").touch()
    processes.await_end()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((tmp_path / "ended-at").read_text()))
    # A controller that is started once more knows that there is nothing left to do.
    assert processes.call("controller", *calls["controller"]).wait(DEADLINE_S) == 0


@pytest.mark.long
def test_a_controller_without_its_journal_leads_another_run_and_harms_none(
    processes: Processes, tmp_path: Path
) -> None:
    others = ("site-a", "site-b", "site-c", "ingress", "egress")
    for name in ("controller", *others):
        processes.start(name)
    processes.advance(100)
    processes.kill("controller")
    Path("journal-c").rename("kept")
    processes.start("controller")
    for name in others:
        log, says = tmp_path / f"{name}.log", "the other end is of another run, not of run"
        wait_until(lambda log=log, says=says: says in log.read_text(), f"{name} does not say it: {processes.logs()}")  # type: ignore[misc]
        assert processes.running[name].poll() is None
    processes.kill("controller")
    shutil.rmtree("journal-c")
    Path("kept").rename("journal-c")
    processes.start("controller")
    processes.advance(100)
    (tmp_path / "enough").touch()
    for name, process in processes.running.items():
        assert process.wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((tmp_path / "ended-at").read_text()))


def test_a_site_that_reaches_nobody_any_more_ends(processes: Processes) -> None:
    for name in ("controller", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    site = processes.call("site-a", "site", "job:flow", "--controller", processes.controller, "--lease", "1")
    processes.advance(100)
    processes.kill("controller")
    with pytest.raises(subprocess.TimeoutExpired):
        site.wait(3)  # It reaches the others, and goes on.
    for name in ("site-b", "site-c", "ingress", "egress"):
        processes.kill(name)
    assert site.wait(DEADLINE_S) == FENCED
    assert "neither the controller nor any other process for 1 s" in processes.logs()


def test_a_site_that_comes_back_to_its_controller_at_the_end_is_sent_home(processes: Processes, tmp_path: Path) -> None:
    for name in ("controller", "site-a", "site-b"):
        processes.start(name)
    processes.await_up(lambda up: {("site-1", 1), ("site-2", 1)} <= up, "the sites that hold partitions did not come")
    for name in ("site-c", "ingress", "egress"):
        processes.start(name)
    processes.advance(100)
    standby = processes.running["site-c"]
    standby.send_signal(signal.SIGSTOP)
    (tmp_path / "enough").touch()
    processes.kill("controller")
    processes.start("controller")
    for name in ("site-a", "site-b", "ingress", "egress"):
        assert processes.running[name].wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    # It has not heard of the standby yet, but the view says that there is one.
    with pytest.raises(subprocess.TimeoutExpired):
        processes.running["controller"].wait(0.5)
    standby.send_signal(signal.SIGCONT)
    for name in ("site-c", "controller"):
        assert processes.running[name].wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"


def test_commands_ask_the_controller(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    processes.advance(10)
    there = ("--controller", processes.controller)
    assert main(["status", "--json", *there]) == 0
    status = json.loads(capsys.readouterr().out)
    assert {process["name"] for process in status["processes"]} >= {"controller", "ingress", "egress", "site-1"}
    assert sum(process["copies"] for process in status["processes"]) == 8
    assert main(["drain", "site-2", *there]) == 0
    processes.await_up(lambda up: ("site-2", 1) not in up, "site-2 has not ended")
    assert "site-2 is drained" in capsys.readouterr().out
    processes.advance(10)
    assert "no live site is called 'site-9'; the nodes are" in said(capsys, 1, "drain", "site-9", *there)
    assert "its processes are started where they run" in said(capsys, 1, "add-site", *there)
    unknown = said(capsys, 1, "kill", "site-9", *there)
    assert "no process of this run is called 'site-9'; there are controller, egress, ingress, site-1, site-3" in unknown
    for victim in ("ingress", "egress", "controller"):
        assert main(["kill", victim, *there]) == 0
        assert processes.running[victim].wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.long
@needs_ipv6
def test_processes_find_each_other_by_ipv6(processes: Processes, tmp_path: Path) -> None:
    processes.controller = f"[::1]:{processes.port}"
    names = ("controller", "site-a", "site-b", "site-c", "ingress", "egress")
    for name in names:
        processes.start(name)
    processes.advance(10)
    (tmp_path / "enough").touch()
    assert {processes.running[name].wait(DEADLINE_S) for name in names} == {0}, processes.logs()
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected(int((tmp_path / "ended-at").read_text()))
    assert (tmp_path / "controller.log").read_text() == "", "a good end is nothing to warn of"


def test_stop_ends_all_processes_of_a_run(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    processes.has_interpreters = True
    names = ("controller", "site-a", "site-b", "site-c", "ingress", "egress")
    for name in names:
        processes.start(name)
    processes.advance(10)
    assert main(["stop", "--controller", processes.controller]) == 0
    assert capsys.readouterr().out == "job is stopped\n"
    assert {processes.running[name].wait(DEADLINE_S) for name in names} == {1}
    assert "job was stopped by `flux stop`. Output up to then is right" in processes.logs()


# What a user can do wrong.


def test_a_port_in_use_is_said(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", processes.port))
        taken.listen()
        err = said(capsys, 1, *controller(processes.controller))
    assert f"cannot listen at tcp:{processes.controller}: Address already in use; end the process" in err


@pytest.mark.usefixtures("deadline")  # A site that is not refused goes on in the process of the test.
def test_an_address_that_nobody_can_connect_to_is_refused(
    processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.start("controller")
    call = ("site", "job:flow", "--controller", processes.controller, "--listen", "0.0.0.0:7123")
    assert "--listen 0.0.0.0:7123 is not an address at which others reach this machine" in (
        err := said(capsys, 1, *call)
    )
    assert "such as 127.0.0.1:7123" in err


def test_a_run_without_a_secret_is_refused(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLUX_SECRET")
    call = controller(processes.controller)
    assert "by --secret-file, or set the variable FLUX_SECRET" in said(capsys, 1, *call)
    assert "cannot read the run's secret from nowhere: No such file" in said(
        capsys, 1, *call, "--secret-file", "nowhere"
    )


@pytest.mark.parametrize("where", ["7000", "host", "host:port", ":7000", "host:70000"])
def test_an_address_that_is_none_is_a_wrong_call(
    processes: Processes, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    assert f"an address is HOST:PORT, such as 10.0.0.5:7000 or [fd00::5]:7000, got {where!r}" in said(
        capsys, 2, *controller(where)
    )


def test_a_name_that_no_site_has_is_a_wrong_call(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(capsys, 2, "site", "job:flow", "--controller", processes.controller, "--name", "alpha")
    assert "sites are called site-1, site-2 and so on, got 'alpha'" in err


def test_a_flow_that_needs_a_program_is_refused(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(capsys, 1, "controller", "job:collecting", "--listen", "127.0.0.1:1", "--journal", "journal-c")
    assert "a remote run has none: use flux.sinks.Parquet(directory) or flux.sinks.Jsonl(path)" in err


def test_a_controller_that_is_not_there_is_said(processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--controller", processes.controller)
    err = said(capsys, 1, "site", "job:flow", *there, "--patience", "0")
    assert "no process answers at" in err and "Is `flux controller` running there" in err
    assert "no process answers at" in said(capsys, 1, "status", *there)


def test_those_who_do_not_belong_are_refused(
    processes: Processes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.start("controller")
    processes.await_up(lambda up: up != set(), "the controller is not up")
    there = ("--controller", processes.controller)
    assert "another than its controller's" in said(capsys, 1, "site", "job:other", *there)
    assert "no module 'nowhere'" in said(capsys, 1, "site", "nowhere:flow", *there)
    Path("journal-i").mkdir(0o700)
    Path("journal-i/run").write_text("of last week")
    err = said(capsys, 1, "ingress", "job:flow", *there, "--journal", "journal-i")
    assert "journal-i holds the journal of another run" in err
    second = said(capsys, 1, *controller("127.0.0.1:0"))
    assert "in use by a process that still lives" in second
    monkeypatch.setenv("FLUX_SECRET", "guessed, and long enough")
    for call in (("site", "job:flow"), ("status",)):
        assert "has another secret than the run there; give both the same" in said(capsys, 1, *call, *there)


# Names and incarnations.


def plan() -> Plan:
    return collecting()._logical.plan(2, 1, "pairs", 1_000, Policy())


def test_sites_get_the_names_of_the_plan_and_then_further_ones() -> None:
    roll, view = ProcessNames(plan()), plan().view()
    assert roll.site(None, view, []) == "site-1"
    assert roll.site("site-3", view, []) == "site-3"
    assert roll.site("site-3", view, []) == "site-2"
    assert roll.site(None, view, []) == "site-4"


def test_a_name_that_is_or_was_in_the_view_is_not_given_by_the_next_controller() -> None:
    view = replace(plan().view(), number=3, dead=frozenset({"site-2"}))
    assert ProcessNames(plan()).site("site-2", view, ["site-1"]) == "site-4"


def test_a_name_that_views_do_not_list_any_more_is_not_given_again() -> None:
    made = plan().view()
    left = tuple(node for node in made.nodes if node not in ("site-1", "site-2"))
    view = replace(made, number=9, nodes=(*left, "site-8"), forgotten=7)
    roll = ProcessNames(plan())
    assert [roll.site(wish, view, []) for wish in ("site-2", "site-7", None)] == ["site-9", "site-10", "site-11"]
    assert ProcessNames(plan()).site(None, replace(view, forgotten=12), []) == "site-13"


def test_a_site_that_wishes_for_a_name_without_a_number_gets_one_with() -> None:
    assert ProcessNames(plan()).site("mine", plan().view(), []) == "site-1"


def test_an_end_that_joins_again_is_the_next_incarnation_also_after_the_controllers() -> None:
    roll, view = ProcessNames(plan()), plan().view()
    assert [roll.incarnation("ingress", view) for _ in range(3)] == [1, 2, 3]
    assert ProcessNames(plan()).incarnation("egress", replace(view, number=1)) == 2
    assert ProcessNames(plan()).incarnation("ingress", replace(view, number=9, incarnations=((0, 4),))) == 5


# Two sources, of which one goes on until there is a file `enough`, and two sinks.
GRAPH = """
from job import Counts, rows
import flux
import pyarrow as pa

flow = flux.Dataflow("graph")
schema = pa.schema({"k": "int64", "v": "int64"})
one = flow.source(flux.sources.Generator(rows, rate=1_000, schema=schema))
two = flow.source(flux.sources.Table([{"k": n % 5, "w": n} for n in range(100)], rate=100, batch_rows=10))
odd = one.filter(lambda row: row.v % 2)
odd.exchange("k", partitions=4).apply(Counts).sink(flux.sinks.Jsonl("counts.jsonl"))
one.join(two, on={"v": "w"}, within=10**9, partitions=3).select("v", "k_right").sink(flux.sinks.Jsonl("pairs.jsonl"))
"""


@pytest.mark.long
def test_a_graph_with_two_sources_and_two_sinks_runs_on_several_machines(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    processes.flow = "graph:flow"
    for name in ("controller", "site-a", "site-b", "site-c", "ingress", "egress"):
        processes.start(name)
    processes.advance(100)
    for name in ("ingress", "egress"):
        processes.kill(name)
        processes.start(name)
        processes.advance(100)
    (tmp_path / "enough").touch()
    for name, process in processes.running.items():
        assert process.wait(DEADLINE_S) == 0, f"{name}: {processes.logs()}"
    counts = [json.loads(line) for line in (tmp_path / "counts.jsonl").read_text().splitlines()]
    seen: Counter[int] = Counter()
    for row, v in zip(counts, range(1, int((tmp_path / "ended-at").read_text()), 2), strict=True):
        seen[v % 7] += 1
        assert row == {"k": v % 7, "v": v, "n": seen[v % 7]}
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert sorted((pair["v"], pair["k_right"]) for pair in pairs) == [(n, n % 5) for n in range(100)]
