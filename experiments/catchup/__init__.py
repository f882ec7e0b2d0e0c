"""What rebuilding large state costs: the longest time without output while copies are on their way."""
