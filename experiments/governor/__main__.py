"""`python -m experiments.governor`."""

from .run import main

if __name__ == "__main__":
    main()
