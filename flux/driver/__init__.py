"""The driver of a run: the state of its processes, and the report made of it."""
