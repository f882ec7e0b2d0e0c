"""Ready-made operators, vectorised and pooled."""

from .count_window import CountWindow
from .distinct import Distinct
from .group_by import GroupBy
from .join import Join
from .session_window import SessionWindow
from .sessions import Sessions
from .time_window import TimeWindow
from .top_k import TopK

__all__ = ["CountWindow", "Distinct", "GroupBy", "Join", "SessionWindow", "Sessions", "TimeWindow", "TopK"]
