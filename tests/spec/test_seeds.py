"""Seeds of worlds that once failed, each for a bug of its own in the machines. A found seed stays here."""

from __future__ import annotations

import pytest

from flux.spec.walk import walk

SEEDS = {
    10467: "a pool full of rows whose partition had left blocked the copies that stayed",
    20487: "a copy that left and came back found its old rows in the buffer beside the ones it brought",
    21429: "the same, with the operator at work while the copy left",
    31120: "a frame of which nothing counted any more was taken for one of which everything counts",
    1261: "an attach of an earlier membership arrived after the site had come back",
    1529: "a site that came back did not acknowledge, because it had before it left",
    620: "a lane was merged into itself by way of an earlier merge",
    294: "a standby was given up and built again on the same site, which still had the first",
}


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_a_world_that_once_failed_holds(seed: int) -> None:
    assert walk(seed).violation is None, SEEDS[seed]
