"""How late rows are with `max_latency_ms`, and what that costs."""
