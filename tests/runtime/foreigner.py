"""Foreigner: says to a node, in the place of a peer, what no process of this release says."""

from __future__ import annotations

from typing import Any

from flux.exchange.lane_frames import message_frame
from flux.protocols.messages import Ack, PeerMessage, Stopped
from flux.wire import frames

from .relay import Relay
from .waiting import wait_until

_NO_EDGE = 99  # No dataflow of the tests has so many.


class Foreigner:
    """Speaks through the relay `relay`, to who answers or, `back`, to who dials; to be there before it is started."""

    def __init__(self, relay: Relay, back: bool) -> None:
        self._back = back
        self._header: dict[str, Any] | None = None
        relay.spoil = _as_it_is if back else self._replace
        relay.spoil_back = self._replace if back else _as_it_is

    def speak(self, sender: str, view: int) -> None:
        """Say something, as `sender` in a view, of an exchange that there is not; return when that is said.

        It takes the place of a ping: frames are counted, and one more would not be listened to.
        """
        # Of which kind decides who could take it: who produces for an exchange, as who dials here, or who consumes.
        if self._back:
            message: PeerMessage = Ack(sender=sender, view=view, edge=_NO_EDGE, position=1)
        else:
            message = Stopped(sender=sender, view=view, edge=_NO_EDGE, lane_id=1)
        self.say(message)

    def say(self, message: PeerMessage) -> None:
        """Say this, in its sender's name; return when it is said."""
        self._header = message_frame(message)
        wait_until(lambda: self._header is None, f"{message.sender} does not ping")

    def _replace(self, header: dict[str, Any], frame: bytes) -> bytes:
        if self._header is None or header["kind"] != "ping":
            return frame
        said, self._header = self._header, None
        return frames.encode(said)


def _as_it_is(header: dict[str, Any], frame: bytes) -> bytes:
    return frame
