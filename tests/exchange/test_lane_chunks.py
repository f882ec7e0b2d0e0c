"""A backlog is sent in chunks that follow each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flux.exchange.lane_chunks import CHUNK_ROWS, chunks
from flux.exchange.rows import SN, Rows
from flux.model.punctuation import Punctuation
from flux.protocols.messages import Block, Data

EVERYTHING = ((Block(producers=(0,), consumers=(0,)),),)


def rows(after: int, upto: int, every: int = 1, punctuations: tuple[Punctuation, ...] = ()) -> Rows:
    sn = np.arange(after + 1, upto + 1, every, dtype=np.int64)
    none = np.zeros(len(sn), np.uint16)
    return Rows.of(pa.record_batch({"value": pa.array(sn * 3)}), sn, None, none, none, punctuations)


def sent(bodies: list[Rows], after: int, upto: int) -> Data:
    return Data(sender="ingress", view=1, edge=0, lane_id=1, after=after, upto=upto, bodies=tuple(bodies))


def numbers(parts: list[Data]) -> list[int]:
    """The sequence numbers of all rows in the range of their message."""
    found: list[int] = []
    for part in parts:
        for body in part.bodies:
            within = body.between(part.after, part.upto)
            found += [] if within.wide is None else within.hidden(SN).tolist()
    return found


def test_much_is_sent_in_pieces_that_follow_each_other() -> None:
    step = CHUNK_ROWS // 2
    bodies = [rows(start, start + step) for start in range(0, 10 * step, step)]
    parts = [part for part, _ in chunks(sent(bodies, 5, 10 * step), EVERYTHING * 10)]
    assert len(parts) == 5
    assert [part.after for part in parts] == [5, *(part.upto for part in parts[:-1])]
    assert parts[-1].upto == 10 * step
    assert numbers(parts) == list(range(6, 10 * step + 1))
    assert all(len(part.bodies) == 2 for part in parts)


def test_little_is_sent_at_once() -> None:
    message = sent([rows(0, 10), rows(10, 20)], 0, 25)
    assert list(chunks(message, EVERYTHING * 2)) == [(message, EVERYTHING * 2)]


def test_bodies_that_overlap_are_cut_where_others_begin() -> None:
    """They are of partitions that have come to the site at different times."""
    step = CHUNK_ROWS
    bodies = [rows(0, 3 * step, every=3), rows(step, 4 * step, every=2), rows(2 * step, 5 * step)]
    parts = [part for part, _ in chunks(sent(bodies, 0, 5 * step), EVERYTHING * 3)]
    assert len(parts) > 1
    assert [part.after for part in parts] == [0, *(part.upto for part in parts[:-1])]
    expected = sorted(n for body in bodies for n in body.hidden(SN).tolist())
    assert sorted(numbers(parts)) == expected


def test_a_punctuation_goes_with_the_piece_in_whose_range_it_is() -> None:
    mark = Punctuation(2 * CHUNK_ROWS + 1, "end")
    bodies = [rows(0, CHUNK_ROWS), rows(CHUNK_ROWS, 2 * CHUNK_ROWS), Rows(None, (mark,))]
    parts = [part for part, _ in chunks(sent(bodies, 0, 2 * CHUNK_ROWS + 1), EVERYTHING * 3)]
    punctuations = [
        [m for body in part.bodies for m in body.between(part.after, part.upto).punctuations] for part in parts
    ]
    assert punctuations[-1] == [mark]
    assert not any(punctuations[:-1])


def test_what_is_kept_in_many_bodies_is_cut_in_one_pass() -> None:
    """Each body is looked into once, not once for each piece: with thousands of them that took seconds."""

    class Counted(Rows):
        looked = 0

        @property
        def span(self) -> tuple[int, int] | None:
            Counted.looked += 1
            return super().span

    step = CHUNK_ROWS // 4
    bodies: list[Rows] = [Counted(rows(start, start + step).wide) for start in range(0, 100 * step, step)]
    parts = list(chunks(sent(bodies, 0, 100 * step), EVERYTHING * 100))
    assert len(parts) == 25
    assert Counted.looked == 100
