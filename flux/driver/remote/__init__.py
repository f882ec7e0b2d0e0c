"""Runs whose processes are started by hand or by a supervisor, on several machines, over TCP."""
