"""`python -m experiments.spark_sites executor|exactly-once`."""

from .run import main

if __name__ == "__main__":
    main()
