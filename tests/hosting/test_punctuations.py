"""Where rows are cut: at the punctuations that an operator heeds one by one, and nowhere else."""

# ruff: noqa: RUF012 - operators declare `output` as users do, without ClassVar.

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import flux
from flux.model.punctuation import Punctuation
from tests.operators.feeding import batch_of, opened, step_of, tuples

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Sized(flux.PooledOperator):
    """Tells how many rows it was given at once."""

    output = {"rows": "int64"}

    def process(self, batch: Any) -> Any:
        return batch.emit({"rows": [len(batch)] * len(batch)})


class Hearing(Sized):
    def on_punctuation(self, p: Any) -> Any:
        return {"rows": [-1]}, [0]


class Gathering(Hearing):
    def process_with_punctuations(self, batch: Any, punctuations: Any) -> Any:
        return batch.emit({"rows": [len(batch) + 100 * len(punctuations)] * len(batch)})


class OfItsOwn(Gathering):
    process = Sized.process


class HearingItsOwn(Gathering):
    on_punctuation = Hearing.on_punctuation


class SetLater(Gathering):
    def __init__(self) -> None:
        self.process = super().process  # type: ignore[method-assign]


class Standing(Hearing):
    """What it does not have itself is that of another operator for which it stands."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Gathering(), name)


class Deaf(Sized):
    process_with_punctuations = Gathering.process_with_punctuations


class SizedByPartition(flux.Operator):
    output = {"rows": "int64"}
    process = Sized.process


class HearingByPartition(SizedByPartition):
    def on_punctuation(self, p: Any) -> Any:
        return {"rows": [-1]}


@pytest.mark.parametrize(
    ("operator", "told"),
    [
        (Sized, [4, 4, 4, 4]),
        (Hearing, [1, -1, 2, 2, -1, 1]),
        (Gathering, [204, 204, 204, 204]),
        (OfItsOwn, [1, -1, 2, 2, -1, 1]),
        (HearingItsOwn, [1, -1, 2, 2, -1, 1]),
        (SetLater, [1, -1, 2, 2, -1, 1]),
        (Standing, [1, -1, 2, 2, -1, 1]),
        (Deaf, [4, 4, 4, 4]),
        (SizedByPartition, [4, 4, 4, 4]),
        (HearingByPartition, [1, -1, 2, 2, -1, 1]),
    ],
)
def test_rows_are_cut_only_at_punctuations_that_an_operator_heeds_one_by_one(operator: Any, told: list[int]) -> None:
    rows = batch_of([(0, 1)] * 4, SCHEMA, [0] * 4)
    punctuations = [Punctuation(int(rows.sn[place]), "watermark", 5, frozenset({0})) for place in (0, 2)]
    out = opened(step_of(operator, SCHEMA, ("k",)), [0]).work(rows, punctuations)
    assert out is not None and [row[0] for row in tuples(out)] == told


def test_who_takes_rows_and_punctuations_together_must_hear_of_those_without_rows() -> None:
    rows = flux.Dataflow("deaf").source(flux.sources.Table([{"k": 1, "v": 2}]))
    with pytest.raises(flux.PlanError, match=r"'Deaf': Deaf defines process_with_p.*Define on_punctuation\(self, p\)"):
        rows.exchange("k").apply(Deaf)
