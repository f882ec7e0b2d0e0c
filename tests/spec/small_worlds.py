"""The small worlds that are explored exhaustively."""

from __future__ import annotations

from flux.spec.dataflow import Scenario, declustered

ROOMY, TIGHT = 10, 1  # Rows per pool: one that never fills here, one that always does.
ONE_BATCH, TWO_BATCHES = ((1, 2),), ((1,), (2,))

CHAIN = ((("site-1", "site-2"),), (("site-2", "site-3"),))
APART = ((("site-1", "site-2"),), (("site-3", "site-4"),))

# One producer pair and one consumer pair, on the same two sites.
PAIRS = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=TWO_BATCHES, bound_rows=ROOMY)
PAIRS_TIGHT = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=TWO_BATCHES, bound_rows=TIGHT)
PAIRS_ONE_BATCH = Scenario(sites=2, copies=declustered(2, [1, 1]), batches=ONE_BATCH, bound_rows=ROOMY)
# The same on three sites, so that one of them has a producer and a consumer.
THREE_SITES = Scenario(sites=3, copies=CHAIN, batches=ONE_BATCH, bound_rows=ROOMY)
THREE_SITES_TIGHT = Scenario(sites=3, copies=CHAIN, batches=TWO_BATCHES, bound_rows=TIGHT)
# Producers and consumers on four sites, as in fig. 3.12.
FOUR_SITES = Scenario(sites=4, copies=APART, batches=ONE_BATCH, bound_rows=ROOMY)
# Two partitions on each side: every site has primaries and secondaries, and every consumer merges.
ALL_TO_ALL = Scenario(sites=2, copies=declustered(2, [2, 2]), batches=TWO_BATCHES, bound_rows=TIGHT)
# A single stage, and every combination of two crashes.
ONE_STAGE = Scenario(sites=2, copies=declustered(2, [1]), batches=TWO_BATCHES, bound_rows=TIGHT, crashes=2)
# Two producer partitions, so that consumers merge.
MERGE = Scenario(sites=2, copies=declustered(2, [2, 1]), batches=ONE_BATCH, bound_rows=ROOMY)
MERGE_TWO_BATCHES = Scenario(sites=2, copies=declustered(2, [2, 1]), batches=TWO_BATCHES, bound_rows=ROOMY, crashes=0)
# One copy of everything: a crash loses partitions, and nothing wrong is seen before.
SINGLE = Scenario(sites=2, copies=declustered(2, [1, 2], degree=1), batches=TWO_BATCHES, bound_rows=TIGHT)
