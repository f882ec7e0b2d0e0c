"""Mutants of the code around the machines, and of the operators of the library, and what notices them."""
