"""The operators people expect, vectorised and pooled."""

from flux.operators.join import Join
from flux.operators.sessions import Sessions
from flux.operators.windows import CountWindow

__all__ = ["CountWindow", "Join", "Sessions"]
