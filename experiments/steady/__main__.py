"""`python -m experiments.steady`."""

from .run import main

if __name__ == "__main__":
    main()
