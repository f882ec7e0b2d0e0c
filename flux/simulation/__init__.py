"""Whole processes in simulation: production code on a simulated network, disk and clock, decided by one seed."""
