"""The sources of a dataflow: where its tuples come from.

A source is used in two processes. `bind`, `start` and `stop` are called in the user's program. `batches` is iterated in
the ingress process, under trio; it is asked for the next batch only when there is room, so back-pressure needs nothing
from the source. A source has no sequence numbers: the ingress assigns them in the order the batches arrive.

Every batch of a source is decoded to plain types (`flux.types.normalize`) as it enters.

`Table` is for data the program already holds, `Generator` for data that a function makes. `Files` reads files and what
is appended to them, `Lines` what a server sends. Streams from Spark are in `flux.spark`.
"""

from .files import Files
from .generator import Generator
from .lines import Lines
from .source import Source, SourceBatch, SourceContext
from .table import Table

__all__ = ["Files", "Generator", "Lines", "Source", "SourceBatch", "SourceContext", "Table"]
