"""`python -m flux.spec.replay SEED`: walk the world of a seed again; print the shortest story of its failure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .walk import shrink, story, walk


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if the world of the seed fails."""
    parser = argparse.ArgumentParser(prog="python -m flux.spec.replay", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--scale", type=int, default=1, help="of the stream: 20 for a world of `check --deep`")
    parser.add_argument("--changes", action="store_true", help="the code of stages changes meanwhile")
    parser.add_argument("--full", action="store_true", help="print the whole run, not a shrunk one")
    options = parser.parse_args(arguments)
    walked = walk(options.seed, scale=options.scale, changes=options.changes)
    print(walked)
    if walked.violation is None and not options.full:
        return 0
    choices = walked.choices if options.full else shrink(walked.scenario, walked.choices)
    print(story(walked.scenario, choices))
    return int(walked.violation is not None)


if __name__ == "__main__":
    raise SystemExit(main())
