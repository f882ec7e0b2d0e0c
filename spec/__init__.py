"""What the machines of protocols/ must obey: a simulated world, its faults, and invariants."""

if __name__ != "flux.spec":
    raise ImportError("import this package as flux.spec")
