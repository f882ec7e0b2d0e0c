"""Sites are replaced again and again: views and their journal stay as small as they were, and the output is exact."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from experiments.soak.stream import Checked, Packets, flow
from experiments.soak.watching import Watch
from flux.controller import view_journal
from flux.controller.controller_process import JOURNAL
from flux.site.shell import FENCED

ROWS_PER_S, POOL_ROWS = 10_000, 2_048
REPLACED = 5
SHORTEN_BYTES = 2_048
PATIENCE_S = 60.0


def test_views_and_their_journal_stay_small_and_a_forgotten_site_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_journal, "SHORTEN_BYTES", SHORTEN_BYTES)
    packets, sink = Packets(tmp_path / "end"), Checked()
    with flow(packets, sink, partitions=4, rate=ROWS_PER_S).start(sites=3, pool_rows=POOL_ROWS) as run:
        sink.start()
        watch, biggest = Watch(run), 0
        watch.wait_whole()
        # Given a site that is stopped, and taken for dead,
        assert run._driver is not None
        stopped = run._driver.processes.live("site-1")
        os.kill(stopped.pid, signal.SIGSTOP)
        watch.until(lambda: not watch.view().alive("site-1"), "site-1 to be declared dead")
        # when others are replaced, and the controller is killed as well,
        for number in range(REPLACED):
            run.add_site()
            watch.until(lambda: is_whole(watch), "every partition to have two live copies")
            if number < REPLACED - 1:
                run.kill(f"site-{number + 2}")
            if number == 2:
                run.kill("controller")
            biggest = max(biggest, (run.directory / JOURNAL).stat().st_size)
        # then neither view nor journal has grown, as soon as everybody has seen that they are gone,
        watch.until(lambda: watch.view().forgotten >= REPLACED - 1, "the dead to be forgotten")
        view = watch.view()
        assert "site-1" not in view.nodes and len(view.nodes) <= 3 + 2 + 1
        assert biggest < 4 * SHORTEN_BYTES, f"view {view.number}, {biggest} bytes"
        # and the site, which nobody lists any more, is told when it wakes.
        os.kill(stopped.pid, signal.SIGCONT)
        assert run._driver.wait(lambda run_state: stopped.gone, PATIENCE_S)
        packets.end(last := watch.numbered() + 8 * POOL_ROWS)
        run.wait(timeout=PATIENCE_S)
    sink.finish(last)
    assert stopped.exited == FENCED


def is_whole(watch: Watch) -> bool:
    view = watch.view()
    sites = watch.sites()
    held = {node for stage in view.copies for copies in stage for node in copies}
    is_known = all(view.alive(site) for site in sites if site != "site-1")
    return is_known and not view.standby and not held & view.dead and len(held) >= 4
