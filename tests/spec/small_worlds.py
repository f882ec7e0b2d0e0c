"""The small worlds that are explored exhaustively."""

from __future__ import annotations

from dataclasses import replace

from flux.protocols.messages import Move
from flux.spec.dataflow import Scenario, declustered

ROOMY, TIGHT = 10, 1  # Rows per pool: one that never fills here, one that always does.
ONE_BATCH, TWO_BATCHES = ((1, 2),), ((1,), (2,))
NOTHING_BUT_THE_END = ((),)  # The shortest stream there is.

CHAIN = ((("site-1", "site-2"),), (("site-2", "site-3"),))
APART = ((("site-1", "site-2"),), (("site-3", "site-4"),))
ALONE = ((("site-1",),),)
ALONE_TWICE = ((("site-1",),), (("site-1",),))
NEVER = 0  # Copies rebuilt at once: take-over alone, as in section 3.4.2.

# One producer pair and one consumer pair, on the same two sites.
PAIRS_TIGHT = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=TWO_BATCHES, bound_rows=TIGHT)
PAIRS_ONE_BATCH = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=ONE_BATCH, bound_rows=ROOMY)
# The same on three sites, so that one of them has a producer and a consumer.
THREE_SITES = Scenario(sites=3, copies=CHAIN, batches=ONE_BATCH, bound_rows=ROOMY, at_once=NEVER)
# Producers and consumers on four sites, as in fig. 3.12.
FOUR_SITES = Scenario(sites=4, copies=APART, batches=ONE_BATCH, bound_rows=TIGHT, at_once=NEVER)
# Two partitions on each side: every site has primaries and secondaries, and every consumer merges.
ALL_TO_ALL = Scenario(sites=2, copies=declustered(2, [2, 2]), batches=TWO_BATCHES, bound_rows=TIGHT)
# A single stage, and every combination of two crashes.
ONE_STAGE = Scenario(sites=2, copies=declustered(2, [1]), batches=TWO_BATCHES, bound_rows=TIGHT, crashes=2)
# Two producer partitions, so that consumers merge; when a site crashes, one joins the lane of the other by take-over.
JOINS_A_FULL_LANE = Scenario(sites=2, copies=declustered(2, [2, 1]), batches=TWO_BATCHES, bound_rows=TIGHT)
MERGE = Scenario(sites=2, copies=declustered(2, [2, 1]), batches=ONE_BATCH, bound_rows=ROOMY)
MERGE_TWO_BATCHES = Scenario(sites=2, copies=declustered(2, [2, 1]), batches=TWO_BATCHES, bound_rows=ROOMY, crashes=0)
# One copy of everything: a crash loses partitions, and nothing wrong is seen before.
SINGLE = Scenario(sites=2, copies=declustered(2, [1, 2], degree=1), batches=TWO_BATCHES, bound_rows=TIGHT)

# Catch-up. A pair and a spare site: every point at which a copy may be lost, and every order of its rebuilding.
SPARE = Scenario(sites=3, copies=declustered(2, [1]), batches=TWO_BATCHES, bound_rows=TIGHT)
SPARE_NOTHING = Scenario(sites=3, copies=declustered(2, [1]), batches=NOTHING_BUT_THE_END, bound_rows=ROOMY)
# A move with one copy of a partition; both sites may crash at any time.
MOVE = Scenario(
    sites=2,
    copies=ALONE,
    batches=ONE_BATCH,
    bound_rows=TIGHT,
    moves=(Move(stage=1, partition=0, slot=0, to="site-2"),),
)
# The producer or the consumer of an exchange moves.
MOVE_OF_A_PRODUCER = Scenario(
    sites=2,
    copies=ALONE_TWICE,
    batches=NOTHING_BUT_THE_END,
    bound_rows=TIGHT,
    crashes=0,
    moves=(Move(stage=1, partition=0, slot=0, to="site-2"),),
)
MOVE_TO_ITS_CONSUMER = replace(MOVE_OF_A_PRODUCER, copies=((("site-1",),), (("site-2",),)))
MOVE_OF_A_CONSUMER = Scenario(
    sites=2,
    copies=ALONE_TWICE,
    batches=NOTHING_BUT_THE_END,
    bound_rows=TIGHT,
    crashes=0,
    moves=(Move(stage=2, partition=0, slot=0, to="site-2"),),
)
# A copy that moves to a site with another partition of its stage: two cohorts that meet.
TWO_COHORTS = Scenario(
    sites=2,
    copies=((("site-1",), ("site-2",)),),
    batches=ONE_BATCH,
    bound_rows=TIGHT,
    crashes=0,
    moves=(Move(stage=1, partition=0, slot=0, to="site-2"),),
)

# A move by a third copy, to a site without one.
MOVE_BY_A_THIRD_COPY = Scenario(
    sites=3,
    copies=declustered(2, [1]),
    batches=NOTHING_BUT_THE_END,
    bound_rows=TIGHT,
    crashes=0,
    moves=(Move(stage=1, partition=0, slot=0, to="site-3"),),
)
# Two crashes, so that the donor or the standby may die as well.
SPARE_TWO_CRASHES = Scenario(
    sites=3, copies=declustered(2, [1]), batches=NOTHING_BUT_THE_END, bound_rows=TIGHT, crashes=2
)
# Away and back, in any order and at any time: not explored to its end, random walks go there.
MOVE_AND_BACK = Scenario(
    sites=2,
    copies=ALONE,
    batches=TWO_BATCHES,
    bound_rows=TIGHT,
    crashes=0,
    moves=(
        Move(stage=1, partition=0, slot=0, to="site-2"),
        Move(stage=1, partition=0, slot=0, to="site-1"),
        Move(stage=1, partition=0, slot=0, to="site-2"),
    ),
)
