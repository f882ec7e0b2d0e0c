"""Load balance on real processes with virtual processors: the tables and figures of thesis chapter 5."""
