"""The ingress process: it numbers the rows of the sources and feeds the first stage."""
