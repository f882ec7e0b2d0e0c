"""What a `PooledOperator` may return at a punctuation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from flux.model.batch import Batch
from flux.model.operator import Context, PooledOperator, Punctuation
from flux.types.errors import OperatorError
from tests.operators.feeding import opened, step_of, tuples


class Marks(PooledOperator):
    """Returns at a punctuation what its parameter says."""

    output: ClassVar = {"n": "int64"}

    def open(self, context: Context) -> None:
        self.returned = context.parameters["returned"]

    def process(self, batch: Batch) -> None:
        return None

    def on_punctuation(self, p: Punctuation) -> Any:
        return self.returned


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"n": [1]}, "returned a dict"),
        (({"n": [1]},), "returned a tuple"),
        (({"n": [1, 2]}, [0] * 3), r"3 partitions for 2 rows"),
        (({"n": [1, 2]}, [0]), r"1 partitions for 2 rows"),
        (({"n": [1]}, [[0]]), "partitions of int64, of shape"),
        (({"n": [1]}, [77]), "partition 77; partitions are from 0 to 3"),
        (({"n": [1]}, [-1]), "partition -1; partitions are"),
        (({"n": [1]}, 4), "partition 4; partitions are"),
        (({"n": [1]}, [0.5]), "partitions of float64"),
        (({"n": [1]}, ["a"]), "partitions of"),
        (({"n": [1]}, None), "partitions of object"),
    ],
)
def test_what_a_pooled_operator_may_not_return_at_a_punctuation_is_said(returned: Any, says: str) -> None:
    hosted = opened(step_of(Marks, None, returned=returned))
    with pytest.raises(OperatorError, match=says) as caught:
        hosted.punctuate(Punctuation(5, "end"))
    assert (caught.value.step, caught.value.row) == ("step", 5)
    assert "(columns, the partition of each row)" in str(caught.value)


def test_a_pooled_operator_may_name_one_partition_for_all_rows_of_a_punctuation() -> None:
    for partition in (1, [1, 1], np.array([1, 1], np.uint16)):
        out = opened(step_of(Marks, None, returned=({"n": [7, 8]}, partition))).punctuate(Punctuation(5, "end"))
        assert out is not None and out.partition.tolist() == [1, 1] and tuples(out) == [(7,), (8,)]
