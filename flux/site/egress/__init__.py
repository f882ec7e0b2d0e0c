"""The egress process: it writes rows to the sinks and acknowledges what is durable there."""
