"""The thesis's own protocols as reference models, tuple at a time: chapter 3 figure by figure, 4.4.2 and 5.1.3.2."""

from .explore import Explored, explore, explore_all, shortest, unfired
from .roles import show, tables
from .scenario import DATAFLOW_PAIRS, FLUX_LB, INDUCED_FAILURES, KINDS, PARTITION_PAIRS, Scenario, one_to_one
from .sequences import Fault, Sequences, sequences
from .variants import LITERAL, WITHOUT
from .words import Copy, Violated

__all__ = [
    "DATAFLOW_PAIRS",
    "FLUX_LB",
    "INDUCED_FAILURES",
    "KINDS",
    "LITERAL",
    "PARTITION_PAIRS",
    "WITHOUT",
    "Copy",
    "Explored",
    "Fault",
    "Scenario",
    "Sequences",
    "Violated",
    "explore",
    "explore_all",
    "one_to_one",
    "sequences",
    "shortest",
    "show",
    "tables",
    "unfired",
]
