"""Adapters: operators of other engines and plain classes, run unchanged by Flux."""
