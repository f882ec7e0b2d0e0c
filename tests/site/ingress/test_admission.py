"""With a limit on latency, as many rows are under way as come out in time, and pieces are as large as that needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from flux.site.ingress.admission import WINDOW_MIN_ROWS, Admission
from flux.site.ingress.batch_coalescer import BatchCoalescer
from flux.sources import SourceBatch

POOL_ROWS = 256 * 1024
DELAY_S = 0.005  # What a row takes that waits for nobody.


def saturated(limit_s: float, rate: Callable[[float], float], seconds: float = 10.0) -> tuple[list[float], float]:
    """A dataflow that works off so many rows a second, and a source that is never at a loss.

    Returns how long each piece took in the second half, and the rows per second in it.
    """
    admission = Admission(limit_s, POOL_ROWS)
    now = busy_until = 0.0
    upto = 0
    pieces: list[tuple[float, int, float]] = []  # When it comes out, up to where, when it was let in.
    latencies: list[float] = []
    first = position = 0
    while now < seconds:
        while admission.has_room():
            upto += admission.piece_rows
            admission.let_in(upto, now)
            busy_until = max(busy_until, now) + admission.piece_rows / rate(now)
            pieces.append((busy_until + DELAY_S, upto, now))
        came_out, position, since = pieces.pop(0)
        now = came_out
        admission.come_out(position, now)
        if now > seconds / 2:
            first = first or position
            latencies.append(now - since)
    return latencies, (position - first) / (seconds / 2)


@pytest.mark.parametrize("limit_s", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("rate", [300_000.0, 1_000_000.0])
def test_a_source_that_is_too_fast_does_not_make_rows_late(limit_s: float, rate: float) -> None:
    latencies, rows_per_s = saturated(limit_s, lambda now: rate)
    least_s = DELAY_S + WINDOW_MIN_ROWS / rate
    assert max(latencies) <= max(limit_s, least_s)
    assert rows_per_s >= 0.7 * rate


def test_a_dataflow_that_becomes_slower_gets_fewer_rows_at_once() -> None:
    latencies, rows_per_s = saturated(0.1, lambda now: 1_000_000.0 if now < 3 else 200_000.0)
    assert max(latencies) <= 0.1
    assert rows_per_s >= 0.7 * 200_000


def test_a_window_that_is_never_full_does_not_grow() -> None:
    admission = Admission(1.0, POOL_ROWS)
    before = admission.window_rows
    for n in range(1, 100):
        assert admission.has_room()
        admission.let_in(10 * n, n)
        admission.come_out(10 * n, n + 0.001)
    assert admission.window_rows == before
    assert admission.is_idle


def test_no_more_is_under_way_than_the_pool_holds() -> None:
    admission = Admission(60.0, 1_000)
    upto = 0
    for turn in range(50):
        while admission.has_room():
            upto += admission.piece_rows
            admission.let_in(upto, turn)
        admission.come_out(upto, turn + 0.5)
    assert admission.window_rows == 1_000


def test_what_is_told_twice_or_late_does_no_harm() -> None:
    admission = Admission(1.0, POOL_ROWS, upto=500)
    assert admission.is_idle
    admission.let_in(600, 1.0)
    admission.come_out(400, 1.1)
    assert not admission.is_idle
    admission.come_out(900, 1.2)
    assert admission.is_idle
    admission.come_out(600, 1.3)
    assert admission.is_idle


def batch(count: int, offset: int, received: list[int] | None = None) -> SourceBatch:
    rows = pa.record_batch({"n": range(offset - count, offset)})
    return SourceBatch(rows, None if received is None else lambda: received.append(offset), offset)


def gathered(batches: AsyncIterator[SourceBatch], admission: Admission, act: Any) -> None:
    """Let `act` use what is gathered of `batches`; time passes only while everybody waits."""

    async def main() -> None:
        gathering = BatchCoalescer(batches, admission)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gathering.read)
            await act(gathering)
            await gathering.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def every(
    seconds: float, count: int, times: int, received: list[int] | None = None
) -> AsyncIterator[SourceBatch]:
    for n in range(1, times + 1):
        yield batch(count, n * count, received)
        await trio.sleep(seconds)


def test_rows_do_not_wait_when_nothing_is_under_way() -> None:
    async def act(gathering: BatchCoalescer) -> None:
        for n in range(1, 6):
            piece = await anext(gathering)
            assert (piece.rows.num_rows, piece.offset) == (1, n)
            assert trio.current_time() - began == pytest.approx((n - 1) * 0.01)

    async def source() -> AsyncIterator[SourceBatch]:
        nonlocal began
        began = trio.current_time()
        async for each in every(0.01, 1, 5):
            yield each

    began = 0.0
    gathered(source(), Admission(1.0, POOL_ROWS), act)


def test_rows_that_come_while_others_are_under_way_go_together() -> None:
    admission, received = Admission(0.8, POOL_ROWS), list[int]()
    admission.let_in(1, 0.0)

    async def act(gathering: BatchCoalescer) -> None:
        began = trio.current_time()
        piece = await anext(gathering)
        assert trio.current_time() - began == pytest.approx(admission.linger_s)
        assert 8 <= piece.rows.num_rows // 5 <= 11, "as many as come in a tenth of a second, and no more"
        assert piece.rows["n"].to_pylist() == list(range(piece.rows.num_rows))
        assert piece.offset == piece.rows.num_rows
        assert piece.received is not None
        piece.received()
        assert received == list(range(5, piece.rows.num_rows + 1, 5))

    gathered(every(0.01, 5, 50, received), admission, act)


def test_a_piece_is_no_larger_than_the_window_wants() -> None:
    admission = Admission(0.8, POOL_ROWS)
    admission.let_in(1, 0.0)
    count = admission.piece_rows // 3 + 1

    async def act(gathering: BatchCoalescer) -> None:
        pieces = [piece async for piece in gathering]
        assert [piece.rows.num_rows for piece in pieces] == [2 * count, 2 * count, count]
        assert [piece.offset for piece in pieces] == [2 * count, 4 * count, 5 * count]

    gathered(every(0.0, count, 5), admission, act)


def test_what_a_source_raises_comes_behind_its_rows() -> None:
    async def failing() -> AsyncIterator[SourceBatch]:
        yield batch(3, 3)
        raise LookupError("gone")

    async def act(gathering: BatchCoalescer) -> None:
        assert (await anext(gathering)).rows.num_rows == 3
        with pytest.raises(LookupError, match="gone"):
            await anext(gathering)

    admission = Admission(0.8, POOL_ROWS)
    admission.let_in(1, 0.0)
    gathered(failing(), admission, act)
