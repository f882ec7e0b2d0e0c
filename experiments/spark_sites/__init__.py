"""Sites on Spark's executors, and exactly once from Spark through Flux to Spark, while everything is killed."""
