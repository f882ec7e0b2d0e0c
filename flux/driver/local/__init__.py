"""A run on this machine: the processes, forked from the user's program, and the program's end of it."""
