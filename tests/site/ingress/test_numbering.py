"""Numbers that a journal has lost: given again to the same rows, or the run ends; never given to others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flux.site.ingress.numbering import Numbering
from flux.site.ingress.source_input import SourceInput
from flux.sources import Source, SourceBatch, SourceContext
from flux.types.errors import FluxError


class Given(Source):
    schema = pa.schema({"n": pa.int64()})

    def __init__(self, replays: bool | None = True, clock_ms: int | None = None) -> None:
        self.replays = replays
        self.clock_ms = clock_ms

    async def batches(self, context: SourceContext, after: Any = None) -> AsyncIterator[SourceBatch]:
        yield SourceBatch(pa.record_batch({"n": [1]}), offset=1)


def numbering(*sources: Source, depends_on_time: bool = False, sheds: bool = False) -> tuple[Numbering, SourceInput]:
    inputs = [SourceInput(number, source, Path(), is_again=True) for number, source in enumerate(sources)]
    return Numbering(inputs, depends_on_time, sheds), inputs[0]


def check(numbered_upto: int, given_upto: int, *sources: Source, **settings: bool) -> None:
    """Number the next rows of the first source, when nodes have seen numbers up to `given_upto`."""
    made, source_input = numbering(*sources, **settings)
    made.offer(numbered_upto, given_upto)
    made.check(numbered_upto, made.why_not_again(source_input))


def test_rows_of_one_source_that_replays_get_the_numbers_that_were_lost() -> None:
    check(3, 7, Given())


@pytest.mark.parametrize(
    ("sources", "settings", "why"),
    [
        ((Given(), Given()), {}, "it depends on chance which of the sources was read first"),
        ((Given(replays=False),), {}, "the source Given does not replay"),
        ((Given(replays=None),), {}, "the source Given does not replay"),
        ((Given(),), {"depends_on_time": True}, "watermarks or clock readings were among them"),
        ((Given(clock_ms=50),), {}, "watermarks or clock readings were among them"),
        ((Given(),), {"sheds": True}, "some rows were shed"),
    ],
)
def test_numbers_that_could_be_given_to_other_rows_end_the_run(
    sources: tuple[Source, ...], settings: dict[str, bool], why: str
) -> None:
    said = rf"has the numbers up to 3, and other processes have seen numbers up to 7\. .*because {why}.*run the flow"
    with pytest.raises(FluxError, match=said):
        check(3, 7, *sources, **settings)
    check(7, 7, *sources, **settings)  # Nothing was lost, or all of it was given again.
