"""Crash points: they are read from the machines, and a process dies exactly where it was told to."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import flux
from experiments import dmz
from flux.commands.main import main
from flux.protocols.messages import Ack, Effect, Publish, Pull, Released, RequestState, Send, View
from flux.site.crash_points import VARIABLE, Crashes, crash_points, watch

from .foreigner import Foreigner
from .relay import relayed

VIEW = View(number=1, nodes=("ingress",), dead=frozenset(), copies=((("ingress",),),))


class Killed(Exception):
    """In place of the end of this process."""


@pytest.fixture(autouse=True)
def survive(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGKILL)
        raise Killed

    monkeypatch.setattr("flux.site.crash_points.os.kill", kill)


def done_until_the_end(crashes: Crashes, effects: list[Effect]) -> list[Effect]:
    """Carry the effects out; which of them were, when the process died."""
    done: list[Effect] = []

    def carry_out() -> None:
        for effect in crashes.along(effects):
            done.append(effect)

    with pytest.raises(Killed):
        carry_out()
    return done


def test_without_the_variable_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert watch("site-1", lambda: None) is None


def test_before_an_effect_those_in_front_of_it_are_carried_out_and_sent() -> None:
    flushed: list[str] = []
    effects: list[Effect] = [Released(upto=1), Pull(after=1), Pull(after=2)]

    def crashes(point: str) -> Crashes:
        return Crashes("ingress.3", f"ingress:{point}", lambda: flushed.append(point))

    assert done_until_the_end(crashes("before-pull"), effects) == effects[:1]
    assert done_until_the_end(crashes("after-pull"), effects) == effects[:2]
    assert done_until_the_end(crashes("after-pull:2"), effects) == effects
    assert flushed == ["before-pull", "after-pull", "after-pull:2"]


def test_a_message_counts_by_its_kind() -> None:
    ack = Ack(sender="site-2", view=1, edge=1, position=5)
    with pytest.raises(Killed):
        Crashes("site-1", "site-2:step-data,site-1:step-ack", lambda: None).step(ack)
    Crashes("site-2", "site-1:step-ack", lambda: None).step(ack)
    effects: list[Effect] = [Send(to="site-2", message=ack)]
    assert done_until_the_end(Crashes("egress", "egress:before-send-ack", lambda: None), effects) == []


def test_a_view_can_be_written_and_not_sent() -> None:
    flushed: list[bool] = []
    publish: list[Effect] = [Publish(view=VIEW, to=("ingress",))]

    def crashes(point: str) -> Crashes:
        return Crashes("controller", f"controller:{point}", lambda: flushed.append(True))

    assert done_until_the_end(crashes("after-publish"), publish) == publish
    assert not flushed
    assert done_until_the_end(crashes("sent-publish"), publish) == publish
    assert flushed


def test_a_point_that_is_armed_kills_one_process(tmp_path: Path) -> None:
    first, second = (Crashes(name, f"@{tmp_path}", lambda: None) for name in ("site-1", "site-2"))
    first.step(VIEW)
    (tmp_path / "site:step-view").touch()
    with pytest.raises(Killed):
        first.step(VIEW)
    assert [path.name for path in tmp_path.iterdir()] == [f"site:step-view.{os.getpid()}"]
    second.step(VIEW)


@pytest.mark.parametrize("text", ["site-1", "site-1:step-nothing", "ingress:step-data", "site-1:step-data:0", "x:y:z"])
def test_what_is_no_crash_point_is_refused_with_the_way_to_list_them(text: str) -> None:
    with pytest.raises(flux.FluxError, match=r"is not a crash point.*flux crash-points"):
        Crashes("site-1", text, lambda: None)


def test_the_command_lists_them_by_kind_of_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crash-points", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == {kind: list(points) for kind, points in crash_points().items()}
    assert set(listed) == {"ingress", "site", "egress", "controller"}
    assert {"step-request-state", "before-send-state", "after-drop", "before-send-to-controller-copy-failed"} <= set(
        listed["site"]
    )
    assert not {"before-send-data", "before-pull"} & set(listed["egress"])
    assert main(["crash-points"]) == 0
    assert "  before-pull" in capsys.readouterr().out


def test_a_run_is_not_begun_with_what_is_no_crash_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "site-1:step-nothing")
    with pytest.raises(flux.FluxError, match=r"^FLUX_CRASH_AT='site-1:step-nothing': .* is not a crash point"):
        dmz.flow(dmz.packets(100), partitions=6).start(sites=3)


def test_a_message_that_is_not_for_this_kind_of_process_is_refused_as_it_is_without_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, f"@{tmp_path}")
    flow = dmz.flow(dmz.packets(50_000), partitions=6, rate=1_000)
    with relayed(monkeypatch, "ingress", "egress") as relay:
        foreigner = Foreigner(relay, back=False)
        with flow.start(sites=2) as run:
            relay.start()
            foreigner.say(RequestState(sender="ingress", view=1, stage=1, version=1))
            refused = r"^node egress refuses RequestState\(.*a bug or a foreign process"
            with pytest.raises(flux.FluxError, match=refused):
                run.wait(timeout=60)


@pytest.mark.parametrize("victim", ["site-2:before-send-ack:3", "site-1:after-consume:2"])
def test_a_process_of_a_run_dies_where_the_variable_says(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # Here it is to be the end.
    monkeypatch.setenv(VARIABLE, victim)
    packets = dmz.packets(50_000, batch_rows=4_096)
    # With a small pool no process is through before it has acknowledged some times, however large its batches are.
    with dmz.flow(packets, partitions=6).start(sites=3, pool_rows=8_192) as run:
        report = run.wait(timeout=60)
    assert report.table.equals(dmz.plain_table(packets))
    assert [failure.site for failure in report.failures] == [victim.partition(":")[0]]
