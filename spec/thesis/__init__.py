"""The thesis's own protocol as reference models, tuple at a time: chapter 3, figure by figure."""

from .explore import Explored, explore, explore_all, shortest, unfired
from .roles import show, tables
from .scenario import Scenario, one_to_one
from .sequences import Fault, Sequences, sequences
from .variants import LITERAL, WITHOUT
from .words import Copy, Violated

__all__ = [
    "LITERAL",
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
