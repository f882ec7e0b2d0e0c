"""`python -m experiments.soak`."""

from experiments.soak.run import main

if __name__ == "__main__":
    main()
