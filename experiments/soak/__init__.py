"""Soak: random faults for as long as one likes, on a stream whose output is checked as it comes."""
