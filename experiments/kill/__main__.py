"""`python -m experiments.kill exact|gap`."""

from .run import main

if __name__ == "__main__":
    main()
