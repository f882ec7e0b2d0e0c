"""From the logical dataflow to segments, partition pairs and their placement on sites."""

from ..exchange.routes import By, Route
from .plan import Availability, Edge, Plan, Segment
from .policy import OnError, OnOverload, Policy

__all__ = ["Availability", "By", "Edge", "OnError", "OnOverload", "Plan", "Policy", "Route", "Segment"]
