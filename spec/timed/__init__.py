"""A simulated cluster on which time passes: the production machines, with processors and links of known speed."""

from .cluster_outcome import ClusterOutcome, ClusterSample
from .cluster_setting import ClusterSetting, SlowSpell, rotate, slow_down
from .counted_rows import CountedRows, RowDraw, draw_by_shares, draw_sorted
from .timed_cluster import TimedCluster

__all__ = [
    "ClusterOutcome",
    "ClusterSample",
    "ClusterSetting",
    "CountedRows",
    "RowDraw",
    "SlowSpell",
    "TimedCluster",
    "draw_by_shares",
    "draw_sorted",
    "rotate",
    "slow_down",
]
