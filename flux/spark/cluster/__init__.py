"""Sites that run as tasks on Spark's executors."""
