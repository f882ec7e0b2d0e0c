"""Hooks of an operator's state that raise: they are found where the state is, or end the run where it comes."""

from __future__ import annotations

from typing import Any

import pytest

from flux.types.errors import StateError
from flux.wire.state_codec import decode, encode
from flux.wire.state_types import StateTypes

WHOSE = "step 'Visits'"


class Fussy:
    """Its hooks raise when they are told to."""

    output = None

    @staticmethod
    def encode_state(value: Any) -> Any:
        return {"places": value} if isinstance(value, range) and value.start > 0 else 1 // 0

    @staticmethod
    def decode_state(state: Any) -> Any:
        if state["places"].stop > 5:
            raise KeyError("stop")
        return state["places"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            range(0, 1),
            r"range\(0, 1\) of type range, at \[0\],.*encode_state raised ZeroDivisionError.*Fix encode_state",
        ),
        (
            range(1, 9),
            r"of type range.*decode_state, given .*, raised KeyError: 'stop'.*decode_state must take",
        ),
    ],
)
def test_hooks_that_raise_are_found_where_the_state_is(value: Any, says: str) -> None:
    with pytest.raises(StateError, match=says):
        encode([value], WHOSE, words=StateTypes.of(Fussy, WHOSE))


def test_a_hook_that_raises_only_elsewhere_is_no_bad_frame() -> None:
    def raising(state: Any) -> Any:
        raise KeyError(state)

    def same(value: Any) -> Any:
        return [value.start]

    packed = encode(range(1), WHOSE, words=StateTypes((), same, lambda state: range(1)))
    with pytest.raises(StateError, match=r"^step 'Visits': decode_state, given \[0\], raised KeyError"):
        decode(packed, words=StateTypes((), same, raising, WHOSE))
