"""Testing one's own operators and dataflows against what the protocol assumes and does. It needs hypothesis.

Names are looked up when they are asked for: the processes that `elsewhere` starts for each check import this package,
need none of it, and would spend most of their lives on importing hypothesis.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checking import Checked, check_operator
    from .simulating import Simulated, SimulationFailed, simulate
    from .telling import Fault

__all__ = ["Checked", "Fault", "Simulated", "SimulationFailed", "check_operator", "simulate"]

_MODULES = {
    **dict.fromkeys(("Checked", "check_operator"), ".checking"),
    **dict.fromkeys(("Simulated", "SimulationFailed", "simulate"), ".simulating"),
    "Fault": ".telling",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
