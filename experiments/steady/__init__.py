"""Steady: full load for as long as one likes, and nobody is taken for dead, and memory does not grow."""
