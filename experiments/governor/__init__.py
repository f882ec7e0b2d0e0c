"""Controllers of micro-batches beside each other, on jobs that take checkpoints."""
