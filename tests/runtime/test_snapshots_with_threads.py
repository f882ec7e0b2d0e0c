"""Large state is read while threads of libraries work in its process: a fork that would wait for them is not made."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import flux

from .test_transfers import PATIENCE_S, whole_without

ROWS, KEYS = 4_000, 100
VALUES = 3_000_000  # 24 MB: more than is copied in place.
RECOVERED_WITHIN_S = 30.0  # A fork that waits is given up after 60 s.


class WithThreads(flux.Operator):
    """Counts its rows, beside state that is made, changed and read by a library with threads."""

    output: ClassVar = {"count": "int64"}

    def open(self, context: flux.Context) -> None:
        self._count = 0
        self._values: Any = None

    def process(self, batch: flux.Batch) -> Any:
        if self._values is None:
            self._values = self.make(np.ones(VALUES, np.int64))
        self.work()
        first = self._count + 1
        self._count += len(batch)
        return batch.emit({"count": np.arange(first, first + len(batch))})

    def get_state(self) -> Any:
        yield {"count": self._count}
        if self._values is not None:
            yield {"values": self.read()}

    def install_state(self, state: Any) -> None:
        if "count" in state:
            self._count = state["count"]
        else:
            assert int(state["values"].sum()) == VALUES
            self._values = self.make(state["values"])

    def make(self, values: Any) -> Any:
        raise NotImplementedError

    def work(self) -> None:
        raise NotImplementedError

    def read(self) -> Any:
        raise NotImplementedError


class InPolars(WithThreads):
    """Its threads are a pool that a fork lacks."""

    def make(self, values: Any) -> Any:
        import polars as pl

        return pl.DataFrame({"g": np.arange(len(values)) % 7, "v": values})

    def work(self) -> None:
        assert self._values.head(10_000).group_by("g").sum().height == 7

    def read(self) -> Any:
        return self._values.sort("g", "v")["v"].to_numpy()


class InDuckDb(WithThreads):
    """Its threads are not waited for in a fork."""

    def make(self, values: Any) -> Any:
        import duckdb

        connection = duckdb.connect()
        rows = pa.table({"v": values})
        connection.register("given", rows)
        connection.execute("create table held as select v from given")
        connection.unregister("given")
        return connection

    def work(self) -> None:
        [(rows,)] = self._values.execute("select count(*) from held where v > 0").fetchall()
        assert rows == VALUES

    def read(self) -> Any:
        return self._values.execute("select v from held order by v").fetchnumpy()["v"]


class InNumpy(WithThreads):
    """OpenBLAS starts its threads again in a fork."""

    def make(self, values: Any) -> Any:
        return values

    def work(self) -> None:
        matrix = np.ones((300, 300))
        assert (matrix @ matrix)[0, 0] == 300

    def read(self) -> Any:
        self.work()
        return self._values


@pytest.mark.parametrize("operator", [InPolars, InDuckDb, pytest.param(InNumpy, marks=pytest.mark.long)])
def test_state_is_transferred_while_threads_of_a_library_work(operator: type[WithThreads]) -> None:
    assert_state_is_transferred(operator)


def assert_state_is_transferred(operator: type[WithThreads]) -> None:
    """Run it, kill a site, and check that its state is read for the standby, soon, and that the output is exact."""
    flow = flux.Dataflow("threads")
    rows = pa.record_batch({"key": pa.array(np.arange(ROWS) % KEYS)})
    source = flow.source(flux.sources.Table(rows, rate=2_000))
    source.exchange("key", partitions=1).apply(operator).sink(flux.sinks.Collect())
    with flow.start(sites=2, standby=1) as run:
        run.wait_for_output(500)
        began = time.monotonic()
        run.kill("site-2")
        assert run._driver is not None and run._driver.wait(whole_without("site-2"), PATIENCE_S)
        assert time.monotonic() - began < RECOVERED_WITHIN_S, "a fork waited for threads that it lacks"
        report = run.wait(PATIENCE_S)
    assert report.table.column("count").to_pylist() == list(range(1, ROWS + 1))
