"""State transfer: how the state of a partition gets from one site to another."""
