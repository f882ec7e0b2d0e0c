"""What operators are made of: batches, sequence numbers, event time, punctuations and timers."""
