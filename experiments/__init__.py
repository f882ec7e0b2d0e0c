"""Experiments: what Flux claims, measured."""
