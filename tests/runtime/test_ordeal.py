"""What an ordeal counts: a death with nothing to lose is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from .ordeal import ordeal


def test_the_death_of_a_site_counts_only_if_it_holds_a_copy_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ordeal(tmp_path, monkeypatch) as under:
        under.await_load("site-1", "site-2", "site-3")
        spare, holder = under.process("site-4"), under.process("site-2")
        for victim in (spare, holder):
            under.run.kill(victim.name)
            under.settle()
        assert not under.counts(spare)
        assert under.counts(holder)
        emptied = under.begin_drain().name
        under.settle()
        assert not under.watch.held(emptied), "it has held copies, and does no more"
        under.finish()
    assert under.deaths_that_counted == 1
