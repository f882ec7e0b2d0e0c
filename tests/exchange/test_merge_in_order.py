"""What is in order already is merged without a sort, and only that."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flux.exchange.merge import merge
from flux.exchange.rows import PRODUCER, SN, Rows


def _rows(sn: list[int], producer: int) -> Rows:
    user = pa.record_batch({"x": pa.array([10 * number + producer for number in sn])})
    numbers = np.array(sn, np.int64)
    return Rows.of(user, numbers, None, np.full(len(sn), producer, np.uint16), np.zeros(len(sn), np.uint16))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (([1, 2], [3, 5]), [(1, 0), (2, 0), (3, 1), (5, 1)]),
        (([3, 5], [1, 2]), [(1, 1), (2, 1), (3, 0), (5, 0)]),
        (([1, 4], [2, 3]), [(1, 0), (2, 1), (3, 1), (4, 0)]),
        (([1, 3], [3, 4]), [(1, 0), (3, 0), (3, 1), (4, 1)]),
    ],
)
def test_rows_of_two_lanes_are_in_the_order_of_numbers_and_producers(
    parts: tuple[list[int], ...], expected: list[tuple[int, int]]
) -> None:
    lanes = [_rows(sn, producer) for producer, sn in enumerate(parts)]
    for given in (lanes, lanes[::-1]):
        whole = merge(given)
        found = list(zip(whole.hidden(SN).tolist(), whole.hidden(PRODUCER).tolist(), strict=True))
        assert found == expected
        assert whole.user.column(0).to_pylist() == [10 * sn + producer for sn, producer in expected]
