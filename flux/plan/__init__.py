"""From the logical dataflow to segments, partition pairs and their placement on sites."""

from .plan import Availability, Plan, Segment
from .policy import OnError, OnOverload, Policy

__all__ = ["Availability", "OnError", "OnOverload", "Plan", "Policy", "Segment"]
