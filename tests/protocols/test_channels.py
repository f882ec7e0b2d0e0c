"""Sets of channels as blocks: what is left when some are taken out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flux.protocols.channels import Blocks, grouped, producers_of, without
from flux.protocols.messages import Block

partitions = st.lists(st.integers(0, 4), unique=True, min_size=1).map(tuple)
# Blocks of one lane never overlap: a channel is in it once.
disjoint = st.lists(st.builds(Block, producers=partitions, consumers=partitions), max_size=3).map(
    lambda blocks: without_overlap(tuple(blocks))
)


def without_overlap(blocks: Blocks) -> Blocks:
    kept: Blocks = ()
    for block in blocks:
        kept += without((block,), kept)
    return kept


def listed(blocks: Blocks) -> list[tuple[int, int]]:
    return sorted((p, c) for block in blocks for p in block.producers for c in block.consumers)


@given(disjoint, disjoint)
def test_what_is_left_is_what_was_there_without_what_is_taken(channels: Blocks, taken: Blocks) -> None:
    left = without(channels, taken)
    assert listed(left) == sorted(set(listed(channels)) - set(listed(taken)))
    assert all(block.producers and block.consumers for block in left), "no block is empty"


def test_taking_one_channel_out_of_a_square_leaves_two_blocks() -> None:
    square = (Block(producers=(0, 1), consumers=(0, 1)),)
    left = without(square, (Block(producers=(0,), consumers=(0,)),))
    assert left == (Block(producers=(1,), consumers=(0, 1)), Block(producers=(0,), consumers=(1,)))


def test_every_producer_with_a_channel_is_one() -> None:
    blocks = (Block(producers=(0, 2), consumers=(1,)), Block(producers=(2, 3), consumers=(0,)))
    assert producers_of(blocks) == {0, 2, 3}
    assert producers_of(()) == frozenset()


def test_groups_keep_the_order_of_their_first_member() -> None:
    assert grouped([3, 1, 4, 5], lambda n: n % 2) == {1: (3, 1, 5), 0: (4,)}
