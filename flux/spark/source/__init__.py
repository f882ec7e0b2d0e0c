"""Spark as a source: streaming DataFrames, staged at the ingress and numbered once."""
