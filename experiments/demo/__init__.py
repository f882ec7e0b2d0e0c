"""Flux at work: a Spark stream through two stateful operators on four sites, one of them killed."""
