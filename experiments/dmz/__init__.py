"""The dataflow of Thesis 2.2: sessions of packets between hosts, and statistics of the last ones."""

from .dataflow import (
    APPLICATIONS,
    HISTORY,
    OUTPUT,
    PACKETS,
    PAYLOAD_BYTES,
    SLIDE,
    Row,
    flow,
    loop,
    packets,
    plain_loop,
    plain_table,
    to_rows,
)
from .sessions import Sessions

__all__ = [
    "APPLICATIONS",
    "HISTORY",
    "OUTPUT",
    "PACKETS",
    "PAYLOAD_BYTES",
    "SLIDE",
    "Row",
    "Sessions",
    "flow",
    "loop",
    "packets",
    "plain_loop",
    "plain_table",
    "to_rows",
]
