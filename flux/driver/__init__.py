"""The program's side of a run: what it knows of the processes, and the report it makes of that."""
