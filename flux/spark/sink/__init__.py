"""Spark as a sink: output that stays on disk until Spark has committed it."""
