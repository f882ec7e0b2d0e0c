"""State that could not be transferred is found while nothing has failed, not when its pair is needed."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest

import flux

from .user_errors import ROWS, batched, flow_of, keyed

STEADY = 300  # Rows a second: the source lasts for minutes.
PATIENCE_S = 30.0


def run_until_refused(operator: Any, **settings: Any) -> str:
    source = flux.sources.Table(ROWS * 200, rate=STEADY)
    with flow_of(operator, source).start(sites=2, **settings) as run, pytest.raises(flux.StateError) as refused:
        run.wait(PATIENCE_S)
    return str(refused.value)


def test_a_state_of_a_key_that_cannot_be_encoded_is_an_error_at_once() -> None:
    text = run_until_refused(keyed(lambda key, row, state: (threading.Lock(), [{"k": row.k}])))
    assert "step 'Mine', stage 1, partition " in text and "of type lock" in text


def test_a_state_of_a_partition_that_cannot_be_encoded_is_an_error_at_once() -> None:
    operator = batched(
        lambda batch: batch.emit({"k": batch["k"]}),
        get_state=lambda self: threading.Lock(),
        install_state=lambda self, state: None,
    )
    assert "step 'Mine', stage 1, partition " in run_until_refused(operator)


def test_a_state_that_becomes_bad_later_is_found() -> None:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        count = (state or 0) + 1 if isinstance(state, (int, type(None))) else state
        return threading.Lock() if count == 50 and row.k == 7 else count, [{"k": row.k}]

    text = run_until_refused(keyed(on_tuple))
    assert "of type lock, at the state of key (7,)" in text


@pytest.mark.parametrize("form", ["Operator", "PooledOperator"])
def test_state_that_no_site_could_install_is_an_error_at_once(form: str) -> None:
    get = "get_state" if form == "Operator" else "get_partition_state"
    methods = {
        "output": {"k": "int64"},
        "process": lambda self, batch: batch.emit({"k": batch["k"]}),
        get: lambda self, *pid: 1,
        **({} if form == "Operator" else {"drop_partition": lambda self, pid: None}),
    }
    text = run_until_refused(type("Mine", (getattr(flux, form),), methods))
    assert "Mine" in text and ("no install_state" in text or "must define install_partition_state" in text)


class Prepared(flux.Operator):
    """State that can be read only between `init_trans` and `end_trans`."""

    output: ClassVar = {"k": "int64"}

    def init_trans(self) -> None:
        self.is_ready = True

    def process(self, batch: flux.Batch) -> flux.Batch:
        return batch.emit({"k": batch["k"]})

    def get_state(self) -> bool:
        return self.is_ready

    def install_state(self, state: bool) -> None: ...


def test_state_that_must_be_prepared_is_left_alone() -> None:
    source = flux.sources.Table(ROWS, rate=150)  # Two seconds: several checks.
    assert flow_of(Prepared, source).run(sites=2).outputs == len(ROWS)


@pytest.mark.parametrize(("balance", "is_warned"), [("auto", True), ("off", False)])
def test_a_single_copy_that_could_not_be_moved_is_warned_of(
    balance: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    operator = keyed(lambda key, row, state: (state or threading.Lock(), [{"k": row.k}]))
    source = flux.sources.Table(ROWS * 2, rate=len(ROWS))
    report = flow_of(operator, source).run(sites=2, availability="none", balance=balance)
    assert report.outputs == 2 * len(ROWS)
    assert ("exchange(..., balance=False)" in caplog.text) == is_warned
