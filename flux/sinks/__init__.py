"""Where the output of a dataflow goes.

A sink runs in the egress process: `open` once, `write` for each batch, `close` at the end. Rows come in
(sn, sub) order when `order` is "sn", and as they come when it is "any". With each batch comes the range of
sequence numbers it speaks for, so that a sink on disk can note how far it is and resume behind that.

`Parquet` and `Jsonl` hold every row exactly once, also when the egress is killed and started again. `Collect` is
an exception: its rows are held by the program that started the run, so that killing the egress loses nothing. The
run takes them over from the egress and writes them here.
"""

from .callback import Callback
from .collect import Collect
from .jsonl import Jsonl
from .parquet import Parquet
from .sink import Null, Sink

__all__ = ["Callback", "Collect", "Jsonl", "Null", "Parquet", "Sink"]
