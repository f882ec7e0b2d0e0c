"""Every protocol endpoint as a state machine: no I/O, no clock, no randomness."""

if __name__ != "flux.protocols":
    raise ImportError("import this package as flux.protocols")
