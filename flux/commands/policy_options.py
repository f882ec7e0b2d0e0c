"""The command-line options for the policy of a run: rejected rows, overload, code that is stuck, and balance."""

from __future__ import annotations

import argparse

from ..plan import Policy
from ..plan.policy import BALANCE_DEFAULT, BALANCE_NAMES, SLOW_CHOICES, STUCK_AFTER_S


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser."""
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a row for which an operator raises stops the run (the default), or is skipped and counted",
    )
    parser.add_argument(
        "--on-overload",
        choices=("wait", "shed"),
        default="wait",
        help="when rows arrive too fast, the source waits (the default), or rows are dropped and counted",
    )
    parser.add_argument(
        "--max-latency-ms",
        type=float,
        metavar="MS",
        help="let in only as many rows as are emitted within this time (default: as many as there is room for)",
    )
    parser.add_argument(
        "--stuck-after-s",
        type=float,
        default=STUCK_AFTER_S,
        metavar="SECONDS",
        help=f"report code of an operator that has not returned after this time (default {STUCK_AFTER_S:g})",
    )
    parser.add_argument(
        "--balance",
        choices=BALANCE_NAMES,
        default=BALANCE_DEFAULT,
        help=f"the policy that moves partitions off sites with too much to do (default {BALANCE_DEFAULT})",
    )
    parser.add_argument(
        "--slow",
        choices=SLOW_CHOICES,
        default="wait",
        help="when no more rows can be kept for a slow site, the source waits for it (the default), or its copies are "
        "given up if others are not slow; needs --balance",
    )


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the chosen policy; `PlanError` if it is invalid."""
    return Policy(
        on_error=options.on_error,
        on_overload=options.on_overload,
        max_latency_ms=options.max_latency_ms,
        stuck_after_s=options.stuck_after_s,
        balance=options.balance,
        slow=options.slow,
    )
