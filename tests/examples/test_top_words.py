"""Top words: ranks and counts are those of pandas, through a kill."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import flux
from experiments.examples import running, top_words
from flux.event_time import DEFAULT_EVERY_MS
from flux.testing import check_operator


def counted(lines: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """How often each word was said in each window, and how many words came too late, or without a time."""
    reached = (lines.ts // DEFAULT_EVERY_MS * DEFAULT_EVERY_MS).cummax().ffill().shift(fill_value=-(10**9))
    spoken = lines.assign(word=lines.text.str.lower().str.split(), window_start=lines.ts // 1_000 * 1_000)
    spoken["is_late"] = (spoken.window_start + 1_000 <= reached).fillna(True)
    spoken = spoken.explode("word").dropna(subset="word")
    in_time = spoken[~spoken.is_late].groupby(["window_start", "word"], as_index=False)
    return in_time.size().rename(columns={"size": "count"}), int(spoken.is_late.sum())


def adversarial() -> pa.Table:
    """Lines that are null or blank, without a time, or late; one word all the time, and others that are said once."""
    text = [(None, "  ", "to be", "to", f"word{n} To")[n % 5] for n in range(2_000)]
    ts = [None if n % 31 == 0 else n * 5 - 3_000 * (n % 37 == 0) - n % 13 for n in range(2_000)]
    return pa.table({"text": pa.array(text, pa.string()), "ts": pa.array(ts, pa.int64())})


@pytest.mark.parametrize("data", [top_words.lines(3_000, seed=7), adversarial()], ids=["random", "adversarial"])
def test_the_output_is_that_of_pandas_though_a_site_is_killed(data: pa.Table) -> None:
    counts, late = counted(data.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get))
    ranked = counts.sort_values(["window_start", "count"], ascending=[True, False])
    expected = ranked.groupby("window_start").head(top_words.K)
    report = running.run_with_kill(data, top_words.flow, kill_at=len(expected) // 2)
    assert [failure.site for failure in report.failures] == [running.VICTIM]
    assert report.late == late
    got = report.table.to_pandas()
    # Which of two words with one count is told is not laid down, so ranks are compared by counts ...
    assert got["window_start"].tolist() == expected["window_start"].tolist()
    assert got["count"].tolist() == expected["count"].tolist()
    assert got["rank"].tolist() == (expected.groupby("window_start").cumcount() + 1).tolist()
    # ... and words by their having these counts, each once in a window.
    told = got.merge(counts, on=["window_start", "word", "count"], validate="one_to_one")
    assert len(told) == len(got)


def test_a_word_is_a_row_and_an_empty_line_is_none() -> None:
    data = [{"text": "To be", "ts": 5}, {"text": "  ", "ts": 6}, {"text": "to", "ts": 7}]
    report = running.run(data, top_words.flow)
    assert [(row["word"], row["count"], row["rank"]) for row in report.table.to_pylist()] == [
        ("to", 2, 1),
        ("be", 1, 2),
    ]


def test_its_operators_keep_their_promises() -> None:
    word = st.fixed_dictionaries({"word": st.sampled_from(["to", "be", "or"]), "ts": st.integers(0, 40)})
    check_operator(
        flux.operators.TimeWindow,
        st.lists(word, max_size=10),
        key="word",
        parameters={"time": "ts", "size_ms": 10, "aggregates": {"count": "count"}},
        event_time="ts",
        examples=8,
    )
    count = st.fixed_dictionaries(
        {"word": st.sampled_from(["to", "be"]), "window_start": st.integers(0, 4).map(lambda n: n * 10)}
        | {"count": st.integers(1, 5)}
    )
    check_operator(
        flux.operators.TopK,
        st.lists(count, max_size=10),
        key="window_start",
        parameters={"k": top_words.K, "by": "count", "time": "window_start", "size_ms": 10},
        event_time="window_start",
        examples=8,
    )
