"""Every error a user can cause in what is written: columns, operators, state, sites. Real runs, as a user starts them.

Each says who, what and where, and what to do. Errors of connections (secrets, certificates, other releases) are beside
the tests of those.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import flux
from flux.wire import address

from .user_errors import ROWS, Cases, batched, check, flow_of, keyed

CASES = Cases()
case = CASES.add


# Columns.


@case(flux.PlanError, "exchange('nope')", "no column 'nope'", "it has k, v")
def a_key_that_is_no_column(tmp_path: Path) -> None:
    flux.Dataflow("wrong").source(flux.sources.Table(ROWS)).exchange("nope")


@case(flux.OperatorError, "step 'Mine'", "no column 'nope'; its columns are k, v", "Fix the operator")
def a_batch_without_the_column(tmp_path: Path) -> None:
    flow_of(batched(lambda batch: batch["nope"])).run()


@case(flux.OperatorError, "'nope'; its columns are k, v", "the row was {'k': ", 'on_error="skip"')
def a_row_without_the_column(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: row.nope)).run()


@case(flux.OperatorError, "raised KeyError", "this row has no column 'nope'; its columns are k, v")
def a_row_without_the_column_of_a_name(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: row["nope"])).run()


@case(
    flux.OperatorError,
    "raised AttributeError",
    "'Batch' object has no attribute 'v'; a column of a batch is batch['v']",
)
def a_batch_that_is_taken_for_a_row(tmp_path: Path) -> None:
    flow_of(batched(lambda batch: batch.v)).run()


@case(flux.OperatorError, "emitted {'other': 1}", "with the keys k", "Return (state, [{...}, ...])")
def an_output_with_another_column(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: (None, [{"other": 1}]))).run()


@case(flux.OperatorError, "step 'Mine'", "column 'k': expected int64", "Convert the values in the operator")
def an_output_of_another_type(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: (None, [{"k": "text"}]))).run()


# Operators.


@case(flux.OperatorError, "raised TypeError", "expected (state, outputs)", "the row was {'k': ")
def an_operator_that_forgets_to_return(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: None)).run()


@case(flux.OperatorError, "row 151", "user_errors.py:", "ZeroDivisionError", "'v': 150}", 'on_error="skip"')
def a_row_that_makes_both_copies_raise(tmp_path: Path) -> None:
    flow_of(keyed(lambda key, row, state: (1 / (row.v - 150), None))).run()


@case(flux.OperatorError, "both died while they worked on rows", "signal 9", "Take the rows out of the source")
def a_row_that_kills_both_copies(tmp_path: Path) -> None:
    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        if row.v == 150:
            signal.raise_signal(signal.SIGKILL)
        return None, None

    flow_of(keyed(on_tuple)).run(sites=3)


@case(
    flux.PlanError,
    "operator Mine",
    "missing a required argument: 'history'",
    "reach the operator as context.parameters",
)
def an_operator_that_wants_arguments(tmp_path: Path) -> None:
    def init(self: Any, history: int) -> None:
        pass

    flow_of(batched(lambda batch: None, __init__=init)).run()


@case(flux.PlanError, "step 'dict'", "expected an operator class", "Derive it from one of them")
def what_is_no_operator(tmp_path: Path) -> None:
    flow_of(dict).run()


@case(flux.PlanError, "on_error is 'stop' or 'skip', got 'ignore'")
def a_setting_that_is_none(tmp_path: Path) -> None:
    flow_of().run(on_error="ignore")


# State.


def lose_a_site(operator: Any) -> None:
    with flow_of(operator, flux.sources.Table(ROWS, rate=100)).start(sites=2, standby=1) as run:
        run.wait_for_output(20)
        run.kill("site-1")
        run.wait(timeout=60)


@case(
    flux.StateError,
    "step 'Mine', stage 1, partition ",
    "of type lock, at the state of key (",
    "cannot be moved to another site",
    "Give the operator static methods encode_state",
)
def state_that_cannot_be_moved(tmp_path: Path) -> None:
    lose_a_site(keyed(lambda key, row, state: (threading.Lock(), [{"k": row.k}])))


@case(flux.StateError, "Mine has the attributes seen and no get_state", "Define get_state and install_state")
def an_operator_without_get_state(tmp_path: Path) -> None:
    def opened(self: Any, context: Any) -> None:
        self.seen = 0

    lose_a_site(batched(lambda batch: batch.emit({"k": batch["k"]}), open=opened))


def hooked(decode: Any) -> Any:
    """An operator whose states go as the number of the process that they come from."""
    operator = keyed(lambda key, row, state: (range(1), [{"k": row.k}]))
    operator.encode_state, operator.decode_state = staticmethod(lambda value: [os.getpid()]), staticmethod(decode)
    return operator


@case(
    flux.StateError, "step 'Mine', stage 1, partition ", "range(0, 1) of type range, at the state of key (", "KeyError"
)
def a_decode_state_that_raises(tmp_path: Path) -> None:
    lose_a_site(hooked(lambda state: {}["nothing"]))


@case(flux.StateError, "'Mine'", "decode_state, given [", "raised ZeroDivisionError", "the same in every process")
def a_decode_state_that_raises_elsewhere_only(tmp_path: Path) -> None:
    lose_a_site(hooked(lambda state: 1 // (state[0] == os.getpid())))


@case(flux.OperatorError, "step 'Mine', partition ", "test_user_errors.py:", "raised RuntimeError: cannot take it")
def an_install_state_that_raises(tmp_path: Path) -> None:
    def install(self: Any, state: Any) -> None:
        raise RuntimeError("cannot take it")

    emit = batched(lambda batch: batch.emit({"k": batch["k"]}), get_state=lambda self: 1, install_state=install)
    lose_a_site(emit)


# Sites.


@case(flux.PlanError, "keeps every partition on two sites", 'give sites=2 or more, or availability="none"')
def one_site_for_pairs(tmp_path: Path) -> None:
    flow_of().run(sites=1)


@case(flux.NoSites, "need 2 other sites to live on, and there are 1", "Call add_site() first")
def no_site_to_drain_to(tmp_path: Path) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=2) as run:
        run.drain("site-1")


@case(flux.DataLost, "both copies are lost of 8 partitions: Counts/0", "with more sites or a standby")
def no_site_left(tmp_path: Path) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=2) as run:
        run.wait_for_output(20)
        run.kill("site-1")
        run.kill("site-2")
        run.wait(timeout=60)


@case(
    flux.DataLost,
    "the only copy is lost of 8 partitions: Counts/0",
    "Output is complete up to sequence number",
    'restart the flow from the source rows after it, with availability="pairs"',
)
def no_site_left_and_one_copy_of_each_partition(tmp_path: Path) -> None:
    with flow_of(source=flux.sources.Table(ROWS, rate=100)).start(sites=1, availability="none") as run:
        run.wait_for_output(20)
        run.kill("site-1")
        run.wait(timeout=60)


@case(flux.FluxError, "cannot listen at tcp:127.0.0.1:", "in use", "or choose another port")
def a_port_in_use(tmp_path: Path) -> None:
    with address.listen("tcp:127.0.0.1:0") as first:
        address.listen(address.bound(first)).close()


@pytest.mark.parametrize("name", CASES)
def test_an_error_says_what_happened_and_what_to_do(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


def test_what_cannot_be_pickled_can_be_an_operator() -> None:
    """Sites are forked: a closure over a lock is no mistake."""
    lock = threading.Lock()

    def on_tuple(key: Any, row: Any, state: Any) -> Any:
        with lock:
            return None, [{"k": row.k}]

    assert flow_of(keyed(on_tuple)).run().outputs == len(ROWS)
