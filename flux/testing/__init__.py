"""Testing one's own operators and dataflows against what the protocol assumes and does. It needs hypothesis."""

from .checking import Checked, check_operator
from .simulating import Simulated, SimulationFailed, simulate
from .telling import Fault

__all__ = ["Checked", "Fault", "Simulated", "SimulationFailed", "check_operator", "simulate"]
