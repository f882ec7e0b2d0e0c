"""A run on this machine: processes forked from the user's program, and the driver in it."""
