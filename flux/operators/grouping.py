"""Rows of a batch grouped by slot: what a keyed operator of the library needs before it works on columns.

Within a group rows keep their order; groups stand in any order, the same for the same slots. Each slot is given the
number of one of its rows, which for batches of usual size has 16 bits: such numbers are sorted by radix, in one stable
pass. For larger ones the pairs (slot, row), packed into one word, are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flux.batch import Batch
from flux.errors import OperatorError, PlanError

__all__ = ["Groups", "check_key_type", "group_by_slot", "key_array", "plain_column", "unknown_parameters"]

# A word holds 40 bits of slot and 24 of row.
_ROW_BITS = np.uint64(24)
_ROW_MASK = np.uint64((1 << 24) - 1)
MAX_ROWS = 1 << 24
_RADIX_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Groups:
    """All arrays are in grouped order, except where said otherwise."""

    # Each entry's row in the batch, and its slot.
    row: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]
    # Whether the entry is the first, or the last, of its group.
    first: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]


def group_by_slot(slots: npt.NDArray[np.int64]) -> Groups:
    """Return rows grouped by slot, in row order within each."""
    assert len(slots) <= MAX_ROWS, "larger batches are cut before"
    if 0 < len(slots) <= _RADIX_ROWS:
        number = np.empty(int(slots.max()) + 1, np.uint16)
        number[slots] = np.arange(len(slots), dtype=np.uint16)
        row = np.argsort(number.take(slots), kind="stable")
        slot = slots.take(row)
    else:
        row, slot = _sorted_pairs(slots)
    first = np.ones(len(slots), np.bool_)
    np.not_equal(slot[1:], slot[:-1], out=first[1:])
    last = np.ones(len(slots), np.bool_)
    last[:-1] = first[1:]
    return Groups(row, slot, first, last)


def _sorted_pairs(slots: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    pairs = slots.astype(np.uint64)
    pairs <<= _ROW_BITS
    pairs |= np.arange(len(slots), dtype=np.uint64)
    pairs.sort()
    row = (pairs & _ROW_MASK).view(np.int64)
    pairs >>= _ROW_BITS
    return row, pairs.view(np.int64)


def plain_column(batch: Batch, name: str, step: str) -> npt.NDArray[Any]:
    """Return a column that must be there and have no nulls."""
    try:
        values = batch[name]
    except KeyError as error:
        raise OperatorError(str(error.args[0]), step) from None
    if isinstance(values, np.ma.MaskedArray):
        row = int(np.flatnonzero(np.ma.getmaskarray(values).reshape(len(batch), -1).any(axis=1))[0])
        raise OperatorError(
            f"column {name!r} is null; expected a value in each row. Filter such rows out before the step",
            step,
            int(batch.partition[row]),
            int(batch.sn[row]),
        )
    return values


def key_array(batch: Batch, name: str, step: str) -> npt.NDArray[Any]:
    """Return a key column in a form whose equal values have equal bytes."""
    values = plain_column(batch, name, step)
    check_key_type(batch.column(name).type, name, step)
    if values.dtype.kind in "mM":
        return values.view(np.int64)
    if values.dtype.kind != "f":
        return values
    # -0.0 equals 0.0 and NaN has many forms: each gets one.
    with np.errstate(invalid="ignore"):
        canonical: npt.NDArray[Any] = values + values.dtype.type(0)
    canonical[np.isnan(canonical)] = np.nan
    return canonical


def check_key_type(kind: Any, name: str, step: str) -> None:
    """Raise if `key_array` cannot make keys of a column of this Arrow type."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if is_number or pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        return
    raise PlanError(
        f"step {step!r}: the key column {name!r} is {kind}; expected integers, booleans, floats, dates, timestamps or "
        "durations. Make one of them of it before the exchange, or use a flux.KeyedOperator"
    )


def unknown_parameters(step: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise if a parameter of `apply` is none that the operator has: it is probably misspelt."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise PlanError(f"step {step!r}: unknown parameters {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
