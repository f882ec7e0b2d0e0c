"""The figures of thesis chapter 4 on a simulated cluster of 32 sites."""
