"""The ordered merge: the bodies of several lanes for one range become one body, in (sn, sub, producer) order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.subseq import Subseqs, padded, to_arrow, words_of
from ..types.infer import concat, unify
from ..types.normalize import describe_columns
from .rows import PRODUCER, SN, SUB, Rows, gather


class SchemaConflict(Exception):
    """Lanes of one edge have different columns. Only undeclared output can: each site infers it from its first rows."""


def merge(parts: Iterable[Rows], edges: Sequence[int] = ()) -> Rows:
    """Return one body for those of several lanes for the same range, in (sn, sub, producer) order.

    If the lanes belong to several edges, `edges` has the edge of each, and the order is (sn, sub, edge, producer).
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    punctuations = {mark.sn: mark for part in parts for mark in part.punctuations}  # The same in each lane.
    in_order = tuple(punctuations[sn] for sn in sorted(punctuations))
    edges = [edge for edge, part in zip(edges, parts, strict=True) if part.wide is not None] if edges else ()
    filled = [part for part in parts if part.wide is not None]
    if len(filled) <= 1:
        return Rows(filled[0].wide if filled else None, in_order)
    batches = _with_equal_words(filled)
    schema = batches[0].schema
    for batch in batches:
        both = unify(schema, batch.schema)
        if both is None:
            first, other = (
                describe_columns(rows.schema.remove_metadata()) for rows in (filled[0].user, Rows(batch).user)
            )
            raise SchemaConflict(f"the output has the columns {first} from one site and {other} from another")
        schema = both
    whole = Rows(concat(batches), in_order)
    sn = whole.hidden(SN)
    if (sn[1:] > sn[:-1]).all():  # So it is when all are from one lane.
        return whole
    order = np.argsort(sn, kind="stable")
    in_sn_order = sn[order]
    if (in_sn_order[1:] == in_sn_order[:-1]).any():
        ties = [whole.hidden(PRODUCER), *reversed(words_of(whole.hidden(SUB))), sn]
        if len(set(edges)) > 1:
            ties.insert(1, np.repeat(edges, list(map(len, filled))))
        order = np.lexsort(tuple(ties))
    assert whole.wide is not None
    return Rows(gather(whole.wide, order), in_order)


def settle(rows: Rows) -> Rows:
    """Return the rows in (sn, sub, producer) order; the tie-break for rows that agree in all three is their content.

    Rows that one punctuation caused in several partitions have the same sn and sub. So have rows of two branches that
    stem from one row. A stage emits its output for them in the order in which it processed them. If it processes
    rows in the order of arrival, that order differs between its copies, and a merge must not depend on it.
    """
    if rows.wide is None:
        return rows
    sn, sub, producer = (rows.hidden(name) for name in (SN, SUB, PRODUCER))
    if (sn[1:] > sn[:-1]).all():
        return rows
    keys = (producer, *reversed(words_of(sub)), sn)
    order = np.lexsort(keys)
    alike = np.ones(len(sn) - 1, np.bool_)
    for key in keys:
        alike &= key[order[1:]] == key[order[:-1]]
    tied = order[np.flatnonzero(np.append(alike, False) | np.append(False, alike))]
    if len(tied):
        rank = np.zeros(len(sn), np.int64)
        rank[tied] = _ranks(rows.user.take(pa.array(tied)))
        order = np.lexsort((rank, *keys))
    return Rows(gather(rows.wide, order), rows.punctuations)


def _ranks(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the rank of each row by its content."""
    try:
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.schema.names]).to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # Arrow does not order lists and structs.
        texts = [repr(row) for row in rows.to_pylist()]
        order = np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _with_equal_words(parts: Sequence[Rows]) -> list[pa.RecordBatch]:
    """Return the batches of the parts with the same number of words in `sub`; added words are zero."""
    batches: list[Any] = [part.wide for part in parts]
    subs = [part.hidden(SUB) for part in parts]
    counts = [len(words_of(sub)) for sub in subs]
    if len(set(counts)) == 1:
        return batches
    return [
        _with_sub(batch, padded(sub, batch.num_rows, max(counts))) if count < max(counts) else batch
        for batch, sub, count in zip(batches, subs, counts, strict=True)
    ]


def _with_sub(batch: pa.RecordBatch, sub: Subseqs) -> pa.RecordBatch:
    """Return the batch with another `sub` as its last column, where `Rows.of` puts it."""
    place = batch.schema.get_field_index(SUB)
    batch = batch if place < 0 else batch.remove_column(place)
    return batch.append_column(SUB, to_arrow(sub))
