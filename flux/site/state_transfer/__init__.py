"""How the state of a partition moves from one site to another."""
