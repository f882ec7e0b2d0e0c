"""The sinks of a dataflow: where its output goes.

A sink runs in the egress process: `open` once, `write` for each batch, `close` at the end. Rows are in (sn, sub) order
when `order` is "sn", and as they arrive when it is "any". Each batch has the range of sequence numbers it covers, so
that a sink on disk can note its position and resume after it.

`Parquet` and `Jsonl` hold every row exactly once, also when the egress is killed and restarted. `Collect` is an
exception: the program that started the run holds its rows, so that killing the egress loses nothing. The run takes
them from the egress and calls `write` in that program.
"""

from .callback import Callback
from .collect import Collect
from .jsonl import Jsonl
from .parquet import Parquet
from .sink import Null, Sink

__all__ = ["Callback", "Collect", "Jsonl", "Null", "Parquet", "Sink"]
