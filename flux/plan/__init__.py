"""From the logical dataflow to segments, partition pairs and their placement on sites."""

from .plan import Availability, Plan, Segment

__all__ = ["Availability", "Plan", "Segment"]
