"""`python -m experiments.bench`: speed beside a plain loop, and cost by number of partitions."""

from .run import main

if __name__ == "__main__":
    main()
