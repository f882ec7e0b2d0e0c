"""What the operators of the library cost: each beside the plainest good computation of the same in pandas or numpy.

An operator is driven through its host, as a site drives it: batches of 64 Ki rows of 32 partitions, watermarks among
them as the ingress sets them if it goes by time, its output made. The plain computation gets all rows at once, as numpy
columns, and need not keep anything for later. Both are on one core and by turns in one process; what is compared is CPU
time, and the figure to quote is the ratio of the medians: 0.5 means that the operator does half as many rows a second.
Results are compared too.

    python -m experiments.bench.operators [--rows N] [--repeats N] [--only NAME] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from flux.exchange.sides import SIDE
from flux.hosting import host
from flux.model.batch import Batch
from flux.model.event_time import EventTime
from flux.model.operator import OperatorStep, output_of
from flux.model.punctuation import Punctuation
from flux.operators import Distinct, GroupBy, Join, TimeWindow, TopK
from flux.operators.join_spec import JoinSpec
from flux.plan.plan import INPUT
from flux.site.ingress.watermarks import TimePlaces, Watermarks, number_watermarks
from flux.types.hashing import partition_of

PARTITIONS = 32
BATCH_ROWS = 65_536
WINDOW_MS = 10_000
WATERMARK_EVERY_MS = 1_000
Columns = dict[str, npt.NDArray[Any]]
Piece = tuple[Batch | None, list[Punctuation]]  # Rows, and the punctuations among them.


@dataclass(frozen=True)
class Case:
    """An operator, the columns it is given, and the same computed plainly: rows as a sorted numpy array."""

    name: str
    operator: Any
    key: str
    parameters: dict[str, Any]
    columns: Callable[[int], Columns]
    plain: Callable[[Columns], Any]
    # Which columns of the output, in which order, are those of the plain result.
    told: tuple[str, ...]
    # Whether watermarks stand among the rows, or only the end of the stream behind them.
    by_time: bool = True


def columns_of(rows: int, keys: int, *, text: bool = False, scattered: bool = False) -> Columns:
    """Rows that happened over two minutes, each up to a second later than it should be.

    Keys count up from 0; if they are to be scattered, they are any numbers of 64 bits.
    """
    rng = np.random.default_rng(7)
    key: npt.NDArray[Any] = rng.integers(0, keys, rows)
    if scattered:
        key = np.random.default_rng(8).integers(0, 2**63, keys)[key]
    if text:
        key = np.array([f"symbol-{i:06}" for i in range(keys)], dtype=object)[key]
    ts = np.arange(rows) * 120_000 // rows + rng.integers(0, 1_000, rows)
    return {"k": key, "ts": ts, "x": rng.standard_normal(rows), "n": rng.integers(-1_000, 1_000, rows)}


def windows_by_pandas(c: Columns) -> Any:
    frame = pd.DataFrame({"w": c["ts"] // WINDOW_MS, "k": c["k"], "x": c["x"], "n": c["n"]})
    told = frame.groupby(["w", "k"]).agg(s=("x", "sum"), c=("x", "count"), m=("n", "max"))
    return told.reset_index()


def windows_by_numpy(c: Columns) -> Any:
    w, keys = c["ts"] // WINDOW_MS, int(c["k"].max()) + 1
    found, group = np.unique(w * keys + c["k"], return_inverse=True)
    most = np.full(len(found), np.iinfo(np.int64).min)
    np.maximum.at(most, group, c["n"])
    sums, counts = np.bincount(group, c["x"], len(found)), np.bincount(group, minlength=len(found))
    return pd.DataFrame({"w": found // keys, "k": found % keys, "s": sums, "c": counts, "m": most})


def sliding_by_pandas(c: Columns) -> Any:
    """By panes, which are then put into each of the four windows that they are in."""
    frame = pd.DataFrame({"w": c["ts"] // (WINDOW_MS // 4), "k": c["k"], "x": c["x"], "n": c["n"]})
    panes = frame.groupby(["w", "k"]).agg(s=("x", "sum"), c=("x", "count"), m=("n", "max")).reset_index()
    spread = pd.concat([panes.assign(w=panes.w - back) for back in range(4)])
    return spread.groupby(["w", "k"]).agg(s=("s", "sum"), c=("c", "sum"), m=("m", "max")).reset_index()


def quantiles_by_pandas(c: Columns) -> Any:
    frame = pd.DataFrame({"w": c["ts"] // WINDOW_MS, "k": c["k"], "x": c["x"]})
    return frame.groupby(["w", "k"])["x"].quantile(0.9).reset_index()


def running_by_pandas(c: Columns) -> Any:
    grouped = pd.DataFrame({"k": c["k"], "x": c["x"]}).groupby("k")["x"]
    return pd.DataFrame({"k": c["k"], "s": grouped.cumsum(), "c": grouped.cumcount() + 1})


def totals_by_pandas(c: Columns) -> Any:
    frame = pd.DataFrame({"k": c["k"], "x": c["x"], "n": c["n"]})
    return frame.groupby("k").agg(s=("x", "sum"), c=("x", "count"), m=("n", "max")).reset_index()


def first_by_numpy(c: Columns) -> Any:
    """The five greatest of each key and window: by key and value, and the first five of each run."""
    order = np.lexsort((-c["x"], c["k"], c["ts"] // WINDOW_MS))
    w, k = (c["ts"] // WINDOW_MS)[order], c["k"][order]
    begins = np.flatnonzero(np.r_[True, (w[1:] != w[:-1]) | (k[1:] != k[:-1])])
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(np.r_[begins, len(order)]))
    chosen = order[rank < 5]
    return pd.DataFrame({"w": c["ts"][chosen] // WINDOW_MS, "k": c["k"][chosen], "x": c["x"][chosen]})


def both_sides(rows: int, keys: int) -> Columns:
    """Rows of two streams by turns, as a stage that joins them gets them: widened, and marked with their side."""
    c = columns_of(rows, keys)
    wide = {f"{side}.{name}": c[name] for side in (0, 1) for name in ("k", "ts", "xn"[side])}
    return {SIDE: (np.arange(rows) % 2).astype(np.int8), "k": c["k"], "ts": c["ts"]} | wide


def pairs_by_pandas(c: Columns) -> Any:
    left = pd.DataFrame({"k": c["k"], "ts": c["ts"], "x": c["0.x"]})[c[SIDE] == 0]
    right = pd.DataFrame({"k": c["k"], "ts": c["ts"], "n": c["1.n"]})[c[SIDE] == 1]
    pairs = left.merge(right, on="k", suffixes=("", "_right"))
    return pairs[(pairs.ts - pairs.ts_right).abs() <= WINDOW_MS]


def distinct_by_pandas(c: Columns) -> Any:
    frame = pd.DataFrame({"k": c["k"], "ts": c["ts"], "x": c["x"], "n": c["n"]})
    return frame.drop_duplicates("k")


AGGREGATES = {"s": ("sum", "x"), "c": ("count", "x"), "m": ("max", "n")}
TIMED: dict[str, Any] = {"time": "ts", "size_ms": WINDOW_MS}
WINDOW = TIMED | {"aggregates": AGGREGATES}
SIDES = tuple(pa.schema({"k": "int64", "ts": "int64"} | last) for last in ({"x": "float64"}, {"n": "int64"}))
JOINED = replace(JoinSpec.of(*SIDES, on="k", within={"ts": WINDOW_MS}, suffix="_right"), is_event_time=True)
TOLD = ("window_start", "k", "s", "c", "m")
CASES = (
    Case("tumbling, 1,000 keys", TimeWindow, "k", WINDOW, lambda n: columns_of(n, 1_000), windows_by_pandas, TOLD),
    Case("tumbling, 100,000 keys", TimeWindow, "k", WINDOW, lambda n: columns_of(n, 100_000), windows_by_pandas, TOLD),
    Case("the same beside numpy", TimeWindow, "k", WINDOW, lambda n: columns_of(n, 100_000), windows_by_numpy, TOLD),
    Case(
        "tumbling, scattered keys",
        TimeWindow,
        "k",
        WINDOW,
        lambda n: columns_of(n, 100_000, scattered=True),
        windows_by_pandas,
        TOLD,
    ),
    Case("tumbling, text", TimeWindow, "k", WINDOW, lambda n: columns_of(n, 1_000, text=True), windows_by_pandas, TOLD),
    Case(
        "sliding, 4 panes",
        TimeWindow,
        "k",
        WINDOW | {"slide_ms": WINDOW_MS // 4},
        lambda n: columns_of(n, 1_000),
        sliding_by_pandas,
        TOLD,
    ),
    Case(
        "quantile",
        TimeWindow,
        "k",
        TIMED | {"aggregates": {"q": ("quantile", "x", 0.9)}},
        lambda n: columns_of(n, 1_000),
        quantiles_by_pandas,
        ("window_start", "k", "q"),
    ),
    Case(
        "group by, each row",
        GroupBy,
        "k",
        {"aggregates": {"s": ("sum", "x"), "c": "count"}},
        lambda n: columns_of(n, 10_000),
        running_by_pandas,
        ("k", "s", "c"),
        by_time=False,
    ),
    Case(
        "group by, at the end",
        GroupBy,
        "k",
        {"aggregates": AGGREGATES, "emit": "watermarks"},
        lambda n: columns_of(n, 10_000),
        totals_by_pandas,
        ("k", "s", "c", "m"),
        by_time=False,
    ),
    Case(
        "top 5 by window",
        TopK,
        "k",
        TIMED | {"k": 5, "by": "x"},
        lambda n: columns_of(n, 1_000),
        first_by_numpy,
        ("window_start", "k", "x"),
    ),
    Case(
        "join, within 10 s",
        Join,
        "k",
        {"joined": JOINED},
        lambda n: both_sides(n, n // 10),
        pairs_by_pandas,
        ("k", "ts", "x", "ts_right", "n"),
    ),
    Case(
        "distinct",
        Distinct,
        "k",
        {},
        lambda n: columns_of(n, n // 10),
        distinct_by_pandas,
        ("k", "ts", "x", "n"),
        by_time=False,
    ),
    Case(
        "distinct, scattered keys",
        Distinct,
        "k",
        {},
        lambda n: columns_of(n, n // 10, scattered=True),
        distinct_by_pandas,
        ("k", "ts", "x", "n"),
        by_time=False,
    ),
)


@dataclass(frozen=True)
class Input:
    """The columns as a site gets them: batches with partitions and numbers, and the watermarks among them."""

    step: OperatorStep
    pieces: list[Piece]

    @classmethod
    def of(cls, case: Case, columns: Columns) -> Input:
        rows = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
        output = output_of(case.operator, case.parameters, (case.key,), rows.schema)
        step = OperatorStep(case.operator, case.parameters, case.name, (case.key,), PARTITIONS, 0, output)
        time_of_rows = EventTime(column="ts", lateness_ms=1_000, every_ms=WATERMARK_EVERY_MS)
        watermarks = Watermarks({0: TimePlaces(time_of_rows, (INPUT,))}, {})
        pieces: list[Piece] = []
        after = 0
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS)
            partition = partition_of([part.column(case.key)], PARTITIONS)
            unnumbered = Batch(part, np.arange(after + 1, after + 1 + part.num_rows), None, partition)
            punctuations = watermarks.advance(0, {INPUT: unnumbered}, after) if case.by_time else ()
            batch = unnumbered.numbered(number_watermarks(after, part.num_rows, punctuations))
            pieces.append((batch, [Punctuation(number, "watermark", value) for number, value in punctuations]))
            after += part.num_rows + len(punctuations)
        return cls(step, [*pieces, (None, [Punctuation(after + 1, "end")])])

    def run(self) -> list[pa.RecordBatch]:
        hosted = host(self.step)
        hosted.open(range(PARTITIONS))
        found = (hosted.work(*piece) for piece in self.pieces)
        return [out.arrow for out in found if out is not None]


def check(case: Case, ours: list[pa.RecordBatch], theirs: Any) -> None:
    """Raise unless both have told the same."""
    table = pa.Table.from_batches(ours).to_pandas()
    if case.operator is TopK:
        table["window_start"] = table.ts // WINDOW_MS
    elif "window_start" in table:
        table["window_start"] //= WINDOW_MS // (4 if "slide_ms" in case.parameters else 1)
    found = table[list(case.told)]
    expected = pd.DataFrame({name: theirs[column] for name, column in zip(case.told, theirs.columns, strict=True)})
    order = list(case.told)
    left, right = (each.sort_values(order).reset_index(drop=True) for each in (found, expected))
    pd.testing.assert_frame_equal(left, right, check_dtype=False, rtol=1e-9)


def cpu_s(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = function()
    return time.process_time() - began, result


def measure(case: Case, rows: int, repeats: int) -> dict[str, Any]:
    columns = case.columns(rows)
    given = Input.of(case, columns)
    check(case, given.run(), case.plain(columns))
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(cpu_s(given.run)[0])
        theirs.append(cpu_s(lambda: case.plain(columns))[0])
    ours_s, theirs_s = statistics.median(ours), statistics.median(theirs)
    return {
        "case": case.name,
        "rows": rows,
        "marks": sum(len(punctuations) for _, punctuations in given.pieces),
        "flux_ns_per_row": ours_s / rows * 1e9,
        "plain_ns_per_row": theirs_s / rows * 1e9,
        "ratio": theirs_s / ours_s,
        "ratios": [b / a for a, b in zip(ours, theirs, strict=True)],
    }


def asked(description: str | None, rows: int, repeats: int) -> argparse.Namespace:
    """What the command line says, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    arguments = asked(__doc__, rows=1_000_000, repeats=5)
    results = []
    for case in CASES:
        if arguments.only not in case.name:
            continue
        result = measure(case, arguments.rows, arguments.repeats)
        results.append(result)
        if not arguments.json:
            cost = f"{result['flux_ns_per_row']:7.0f} ns a row, plain {result['plain_ns_per_row']:5.0f}"
            print(f"{result['case']:<24} {cost}: {result['ratio']:.2f} times its rate", flush=True)
    if arguments.json:
        print(json.dumps({"batch_rows": BATCH_ROWS, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
