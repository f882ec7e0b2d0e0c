"""The egress process: it hands rows to the sinks and acknowledges what is durable there."""
