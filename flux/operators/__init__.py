"""The operators people expect, vectorised and pooled."""

from flux.operators.distinct import Distinct
from flux.operators.group_by import GroupBy
from flux.operators.join import Join
from flux.operators.sessions import Sessions
from flux.operators.time_window import TimeWindow
from flux.operators.top_k import TopK
from flux.operators.windows import CountWindow

__all__ = ["CountWindow", "Distinct", "GroupBy", "Join", "Sessions", "TimeWindow", "TopK"]
