"""The dataflow that a stream belongs to, for tests that build streams in one place and run them in another."""

from __future__ import annotations

import flux


def flow_of(stream: flux.Stream) -> flux.Dataflow:
    flow = flux.Dataflow(stream._flow.name)
    flow._logical = stream._flow
    return flow
