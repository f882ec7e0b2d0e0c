"""How fast Flux is beside a plain Python loop, and what pairs and partitions cost."""
