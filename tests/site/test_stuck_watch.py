"""Where code of the user does not return: sources and steps of an ingress, and sinks in threads."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import trio

import flux
from flux.plan import Plan, Segment
from flux.site.ingress.watched_batches import WatchedBatches
from flux.site.stuck_watch import StuckWatch
from flux.sources import Source, SourceBatch, SourceContext
from tests.runtime.waiting import wait_until

PLAN = Plan(
    name="stuck",
    segments=(Segment(columns=("n",), partitions=1, availability="none", steps=()),),
    sites=1,
    standby=0,
    pool_rows=100,
)
AFTER_S = 0.05
BATCH = SourceBatch(pa.record_batch({"n": [1]}))


def hang(until: threading.Event) -> None:
    until.wait(60)


def first_news(watch: StuckWatch) -> str:
    found: list[str] = []

    def look() -> bool:
        if (text := watch.news()) is not None:
            found.append(text)
        return bool(found)

    wait_until(look, "nothing was noticed")
    return found[0]


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_call_in_a_thread_is_named_once_and_that_it_goes_on() -> None:
    watch, done = StuckWatch(PLAN, AFTER_S), threading.Event()

    def write() -> None:
        watch.begin(("sink Mine", "stage 2, rows up to 9"))
        hang(done)
        watch.end()

    thread = in_thread(write)
    text = first_news(watch)
    assert text.startswith("sink Mine has not returned for 0 s: stage 2, rows up to 9. It is in hang (")
    assert "test_stuck_watch.py" in text and ", called by " in text
    assert watch.news() is None
    done.set()
    thread.join()
    assert (watch.news(), watch.news()) == ("", None)


def test_a_sink_of_flux_that_waits_in_a_thread_is_no_news() -> None:
    watch, done, begun = StuckWatch(PLAN, 0.0), threading.Event(), threading.Event()
    names = {"watch": watch, "begun": begun, "done": done}
    # Code of a library, called by a library: no frame is the user's.
    exec(
        compile("def wait():\n watch.begin(('a sink', ''))\n begun.set()\n done.wait(60)", threading.__file__, "exec"),
        names,
    )
    thread = in_thread(names["wait"])  # type: ignore[arg-type]
    begun.wait(60)
    assert watch.news() is None
    done.set()
    thread.join()


class Blocks(Source):
    schema = pa.schema({"n": pa.int64()})

    def __init__(self, between: Callable[[], Any]) -> None:
        self._between = between

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        yield BATCH
        await self._between()
        yield BATCH


def read(source: Source, watch: StuckWatch) -> int:
    async def main() -> int:
        batches = WatchedBatches(source.batches(SourceContext(Path())), watch, "Blocks", lambda: "it was asked")
        return len([batch async for batch in batches])

    return trio.run(main)


def test_a_source_that_blocks_the_loop_is_named() -> None:
    watch, done = StuckWatch(PLAN, AFTER_S), threading.Event()

    async def blocks() -> None:
        hang(done)

    count: list[int] = []
    thread = in_thread(lambda: count.append(read(Blocks(blocks), watch)))
    text = first_news(watch)
    assert text.startswith("source Blocks has not returned for 0 s: it was asked. It is in hang (")
    assert "called by Blocks.batches" in text and "test_stuck_watch.py" in text.split("called by")[-1]
    assert "<lambda>" not in text, "what called the loop is not named"
    done.set()
    thread.join()
    assert (count, watch.news()) == ([2], "")


def test_a_source_that_waits_is_no_news_and_may_be_cancelled() -> None:
    watch = StuckWatch(PLAN, 0.0)
    cancelled: list[bool] = []

    async def waits() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(True)
            raise

    async def main() -> None:
        batches = WatchedBatches(Blocks(waits).batches(SourceContext(Path())), watch, "Blocks", lambda: "")
        with trio.move_on_after(0.02):
            async for _ in batches:
                assert watch.news() is None
        await batches.aclose()

    trio.run(main)
    assert cancelled == [True] and watch.news() is None


def test_what_a_source_raises_is_raised() -> None:
    async def fails() -> None:
        raise LookupError("no more")

    watch = StuckWatch(PLAN, 0.0)
    with pytest.raises(LookupError, match="no more"):
        read(Blocks(fails), watch)
    assert watch.news() is None


def stuck_of(run: flux.Run) -> list[str]:
    return [process.stuck for process in run.status().processes if process.stuck]


def test_a_step_of_the_ingress_is_named_in_the_status(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def wait_for_it(row: Any) -> dict[str, Any]:
        while row.n == 20 and not go.exists():
            pass
        return {"n": row.n}

    flow = flux.Dataflow("stuck")
    rows = flow.source(flux.sources.Table([{"n": n} for n in range(100)], batch_rows=10))
    rows.map(wait_for_it, output={"n": "int64"}).sink(flux.sinks.Collect())
    with flow.start(stuck_after_s=0.2) as run:
        wait_until(lambda: bool(stuck_of(run)), "the ingress is stuck in it")
        [text] = stuck_of(run)
        assert text.startswith("step map(wait_for_it) has not returned for 0 s: stage 0, rows 21 to 30. It is in ")
        assert "test_stuck_watch.py" in text
        go.touch()
        assert run.wait(60).outputs == 100


class Holds(flux.Operator):
    """Its state can be read when the file `go` is there."""

    output: ClassVar = {"n": "int64"}

    def open(self, context: flux.Context) -> None:
        self.go = Path(context.parameters["go"])

    def process(self, batch: flux.Batch) -> flux.Batch:
        return batch.emit({"n": batch["n"]})

    def get_state(self) -> int:
        while not self.go.exists():
            pass
        return 1

    def install_state(self, state: int) -> None: ...


class Holding(flux.sinks.Sink):
    """It can be flushed when the file `go` is there."""

    flush_every_s = 0.05

    def __init__(self, go: Path, blocks: bool) -> None:
        self.go, self.blocks = go, blocks

    def write(self, rows: pa.RecordBatch, after: int, upto: int) -> None: ...

    def flush(self) -> None:
        while not self.go.exists():
            pass


@pytest.mark.parametrize("what", ["get_state", "flush", "flush in a thread"])
def test_state_that_is_read_and_a_sink_that_is_flushed_are_named(what: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    flow = flux.Dataflow("held")
    rows = flow.source(flux.sources.Table([{"n": n} for n in range(200)] * 100, rate=200)).exchange("n", partitions=2)
    if what == "get_state":
        rows.apply(Holds, go=str(go)).sink(flux.sinks.Null())
        expected = (
            r"step Holds has not returned .*: stage 1, its state is read or installed\. It is in Holds\.get_state"
        )
    else:
        rows.filter(lambda row: True).sink(Holding(go, blocks=what != "flush"))
        expected = r"sink Holding has not returned .*: stage 2, it is flushed\. It is in Holding\.flush"
    with flow.start(sites=2, stuck_after_s=0.3) as run:
        wait_until(lambda: bool(stuck_of(run)), "something is stuck in it")
        assert re.match(expected, stuck_of(run)[0])
        go.touch()
        wait_until(lambda: not stuck_of(run), "that it goes on is reported")
