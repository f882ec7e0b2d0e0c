"""`python -m experiments.catchup`."""

from .run import main

if __name__ == "__main__":
    main()
