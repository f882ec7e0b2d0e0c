"""Operators of other engines and plain classes, run unchanged by Flux."""
