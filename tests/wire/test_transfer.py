"""State as a stream in chunks: what arrives is what was sent, in memory of its own, however the stream is cut."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flux.types.errors import StateError
from flux.wire.frames import BadFrame
from flux.wire.transfer import Arrival, items, state_chunks

LARGE = 50_000  # Numbers, or entries: beyond what stays in the packed value.


def streamed(values: Any) -> bytes:
    return b"".join(b"".join(parts) for parts in items(values, "a test"))


def arrived(stream: bytes, draw: random.Random) -> list[Any]:
    arrival = Arrival()
    while stream:
        size = draw.choice([1, 7, 9, 100, 10_000, 1_000_000])
        arrival.take(pa.py_buffer(stream[:size]))
        stream = stream[size:]
    return list(arrival.values())


@pytest.mark.parametrize("seed", range(5))
def test_what_arrives_is_what_was_sent_however_it_is_cut(seed: int) -> None:
    values = [
        None,
        {
            "small": np.arange(3),
            "large": np.arange(LARGE, dtype="f8").reshape(-1, 10),
            "when": np.zeros(LARGE, "M8[s]"),
        },
        pa.table({"text": [f"word {i}" for i in range(LARGE)]}),
        [pa.record_batch({"n": np.arange(LARGE)}), np.array([], "i4"), np.int64(7), (1, (2, [3]))],
    ]
    _, arrays, table, rest = arrived(streamed(values), random.Random(seed))
    for name, array in values[1].items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert table == values[2]
    assert rest[0] == values[3][0]
    assert rest[1].shape == (0,) and rest[2] == 7 and rest[3] == (1, (2, [3]))


def test_arrays_that_arrive_can_be_written_to() -> None:
    [array] = arrived(streamed([np.zeros(LARGE)]), random.Random(0))
    array[3] = 1.0
    assert array.sum() == 1.0


def test_long_lists_and_dicts_travel_in_slices_and_keep_their_order() -> None:
    draw = random.Random(1)
    keys = draw.sample(range(10 * LARGE), LARGE)
    value = {"by key": {key: [key, (key, str(key))] for key in keys}, "list": [{"n": key} for key in keys]}
    sizes: list[int] = []
    stream = [part for parts in items([value], "a test", sizes.append) for part in parts]
    [again] = arrived(b"".join(stream), draw)
    assert again == value
    assert list(again["by key"]) == keys
    assert len(sizes) > 10, "a thread that decodes it lets others run only between slices"


def test_large_arrays_and_tables_are_not_copied_to_be_sent() -> None:
    array = np.zeros(LARGE)
    table = pa.table({"n": pa.array(np.zeros(LARGE))})
    parts = [part for each in items([array, table], "a test") for part in each]
    large = [np.frombuffer(part, np.uint8) for part in parts if len(part) > LARGE]
    assert np.shares_memory(large[0], array)
    assert np.shares_memory(large[1], table.column(0).chunk(0).to_numpy())


def test_a_generator_may_use_its_memory_again_for_the_next_piece() -> None:
    def pieces() -> Iterator[Any]:
        memory = np.zeros(LARGE)
        for number in range(3):
            memory[:] = number
            yield memory

    assert [int(piece[0]) for piece in arrived(streamed(pieces()), random.Random(0))] == [0, 1, 2]


def test_who_is_told_of_sizes_may_make_an_end() -> None:
    class Enough(Exception):
        pass

    def note(size: int) -> None:
        if size > 1_000_000:
            raise Enough

    assert list(items([np.zeros(10)], "a test", note))
    with pytest.raises(Enough):
        list(items([np.zeros(1_000_000)], "a test", note))


def test_what_cannot_be_moved_is_named_wherever_it_is() -> None:
    with pytest.raises(StateError, match=r"a test: .* of type object, at \['long'\]\[0\], cannot be moved"):
        streamed([{"long": [object()] * LARGE}])


def test_chunks_are_the_stream() -> None:
    stream = random.Random(0).randbytes(3_000_000)
    assert b"".join(state_chunks(stream)) == stream
    assert len(list(state_chunks(stream))) > 1


@pytest.mark.parametrize("cut", [1, 8, 9, 10, 400_000])
def test_a_stream_that_ends_early_is_refused(cut: int) -> None:
    arrival = Arrival()
    arrival.take(pa.py_buffer(streamed([np.zeros(LARGE)])[:cut]))
    with pytest.raises(BadFrame, match="ended in the middle of a value"):
        list(arrival.values())


@pytest.mark.parametrize(
    ("head", "says"),
    [((7, 10), "an item of kind 7"), ((0, 2**62), "no memory for"), ((1, 2**64 - 1), "no memory for")],
)
def test_an_item_that_cannot_be_is_refused(head: tuple[int, int], says: str) -> None:
    with pytest.raises(BadFrame, match=says):
        Arrival().take(pa.py_buffer(struct.pack("<BQ", *head)))


def test_a_value_that_refers_to_a_buffer_that_did_not_come_is_refused() -> None:
    stream = streamed([np.zeros(LARGE)])
    value = stream[9 + 8 * LARGE :]  # Behind the buffer and its head.
    arrival = Arrival()
    arrival.take(pa.py_buffer(value))
    with pytest.raises(BadFrame, match="invalid state of a partition"):
        list(arrival.values())
