"""Where the tuples of a dataflow come from.

A source lives on both sides of a fork. `bind`, `start` and `stop` are called in the user's program;
`batches` is iterated in the ingress process, under trio, and is asked for the next batch only when there is
room for it, so back-pressure needs nothing from the source. A source knows nothing of sequence numbers: the
ingress gives them in the order the batches come.

Whatever a source yields is decoded to plain types (`flux.types.normalize`) as it enters.

`Table` is the source of data the program already holds, `Generator` of data that a function makes; `Files` reads
files and what is added to them, `Lines` what a server sends. Streams from Spark are in `flux.spark`.
"""

from .files import Files
from .generator import Generator
from .lines import Lines
from .source import Source, SourceBatch, SourceContext
from .table import Table

__all__ = ["Files", "Generator", "Lines", "Source", "SourceBatch", "SourceContext", "Table"]
