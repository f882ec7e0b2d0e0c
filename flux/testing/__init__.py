"""Tests of a user's operators and dataflows against what the protocol assumes and does. They need hypothesis.

Names are loaded lazily: the processes that `subprocess_run` starts for each check import this package and need none of
these names. They would spend most of their time importing hypothesis.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fault_report import Fault
    from .flow_simulation import Simulated, SimulationFailed, simulate
    from .operator_check import Checked, check_operator

__all__ = ["Checked", "Fault", "Simulated", "SimulationFailed", "check_operator", "simulate"]

_MODULES = {
    **dict.fromkeys(("Checked", "check_operator"), ".operator_check"),
    **dict.fromkeys(("Simulated", "SimulationFailed", "simulate"), ".flow_simulation"),
    "Fault": ".fault_report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)
