"""The operators people expect, vectorised and pooled."""

from flux.operators.sessions import Sessions
from flux.operators.time_window import TimeWindow
from flux.operators.windows import CountWindow

__all__ = ["CountWindow", "Sessions", "TimeWindow"]
