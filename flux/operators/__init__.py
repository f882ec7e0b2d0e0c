"""Ready-made operators, vectorised and pooled."""

from ..types.deprecated import renamed_attributes
from .count_window import CountWindow
from .distinct import Distinct
from .group_by import GroupBy
from .join import Join
from .lookup import Lookup
from .outer_join import OuterJoin
from .session_window import SessionWindow
from .time_window import TimeWindow
from .top_k import TopK

__all__ = ["CountWindow", "Distinct", "GroupBy", "Join", "Lookup", "OuterJoin", "SessionWindow", "TimeWindow", "TopK"]

# `Sessions` is the example of thesis 2.2. The wheel has only flux/, so a link puts that file into it for one release.
__getattr__ = renamed_attributes(
    __name__, {"Sessions": "flux.operators._packet_sessions.Sessions"}, public="experiments.dmz"
)
