"""`python -m experiments.latency`."""

from .run import main

if __name__ == "__main__":
    main()
