"""What a SIGKILL costs: exactness of the output, and the longest time without any."""
