"""The experiments that `flux experiment NAME` runs."""

from __future__ import annotations

from experiments.balance import growth, half_speed, hogs, lost_site, rotating, two_slow
from experiments.cluster import findings
from experiments.experiment import Experiment

_BALANCE = (half_speed, hogs, lost_site, rotating, growth, two_slow)
_ALL = [*(module.EXPERIMENT for module in _BALANCE), *findings.EXPERIMENTS]
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}
