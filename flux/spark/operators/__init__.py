"""Spark's stateful operators, run unchanged by Flux."""
