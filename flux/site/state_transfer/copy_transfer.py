"""Copy transfer: a site sends the state of a partition to another site, and receives others' copies.

The state, the position and the output of a copy are of one instant (rule 16). The snapshot is sent in chunks as the
link has room for them, between the rows of lanes. A large copy that has arrived is read in a thread. Then the machine
gets its `State`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import trio

from ...exchange.channel_mask import ChannelMask
from ...plan import Plan
from ...protocols.messages import Block, CopyFailed, Standby, State
from ...system import threads
from ...types.errors import FluxError, StateError
from ...wire import frames
from ...wire.link import Link
from ...wire.membership import FromMachine, membership_frame
from ...wire.reports import StateSent
from ...wire.state_types import StateTypes
from ...wire.transfer import Arrival, StateChunk, StateOwner, chunk_frame
from ..digests import Digests
from ..lost_threads import library_waited_for
from ..shell import Shell
from ..steps import Steps
from .partition_copy import CopyReceiver, copy_values, read_copy
from .snapshot import Snapshot, SnapshotLost, Snapshotter

_READ_INLINE_BYTES = 1 << 20
_GIVE_UP_AGAIN_S = 1.0
_VIEW_AWAITED_S = 0.005


class _OfALaterView(Exception):
    """A copy was sent in a view that this site has not seen yet, and the code of its state may be in that one."""

    def __init__(self, view: int) -> None:
        super().__init__(f"it is of view {view}")
        self.view = view


class CopyTransfer:
    """The transfers of one site; `segments` and `digests` are by stage. `follow` takes up the editions of the view."""

    def __init__(
        self,
        shell: Shell,
        segments: Mapping[int, Steps],
        digests: Mapping[int, Digests],
        follow: Callable[[], None],
    ) -> None:
        self._shell = shell
        self._segments = segments
        self._digests = digests
        self._follow = follow
        self._snapshotters = {stage: Snapshotter() for stage in shell.plan.stages}
        self._can_fork: dict[int, bool] = {}
        self._receiver = CopyReceiver()
        self._edges = [shell.plan.outputs(stage) for stage in range(shell.plan.sink_stages.stop)]

    def standby(self, version: int, donor: str | None = None) -> Standby | None:
        """Return the copy `version` that the view wants built, from this donor if given; None if it wants none."""
        view = self._shell.node.view
        standby = view.standby if view is not None else ()
        return next((s for s in standby if s.version == version and donor in (None, s.donor)), None)

    def place_of(self, stage: int, partition: int) -> str:
        """Return the place of a copy on this site, for errors."""
        return f"stage {stage}, partition {partition}, on {self._shell.name}"

    def send(self, to: str, message: State) -> None:
        """Begin to send a copy, as it is between two steps of the operator."""
        link = self._shell.peers.link_to(to)
        if link.closed:
            return
        began = time.monotonic()
        standby = self.standby(message.version)
        assert standby is not None, f"no site wants copy {message.version}"
        partition = standby.partition
        own = {
            edge: _channels_of(self._shell.plan, partition, edge) for edge in self._shell.plan.outputs(message.stage)
        }
        steps, digest = self._segments[message.stage].hosted, self._digests[message.stage].to_transfer(partition)
        owner = StateOwner(self.place_of(message.stage, partition), tuple(step.step.name for step in steps))
        consumed_rows = self._shell.meter.row_total(message.stage, partition)
        values = partial(copy_values, message, partition, own, steps, digest, consumed_rows)
        for step in steps:
            step.init_trans(partition)
        snapshot = self._snapshotters[message.stage].take(values, owner, self.may_fork(message.stage))
        for step in steps:
            step.end_trans(partition)
        sent = StateSent(
            version=message.version,
            stage=message.stage,
            partition=partition,
            to=to,
            size_bytes=0,
            snapshot_s=time.monotonic() - began,
            send_s=0.0,
        )
        self._shell.nursery.start_soon(self._send_chunks, snapshot, link, sent, began)

    def may_fork(self, stage: int) -> bool:
        """Return whether a fork can read the states of a stage: they are in memory, and it would wait for no thread."""
        if stage not in self._can_fork:
            steps = self._segments[stage].hosted
            self._can_fork[stage] = all(step.state_in_memory for step in steps)
            for step in steps:
                library = library_waited_for((step.step.factory, step.step.parameters))
                if library is not None:
                    self._can_fork[stage] = False
                    self._shell.log(
                        f"the state of {step.step.name} is read while rows wait: the step uses {library}, and a fork "
                        "lacks its threads"
                    )
        return self._can_fork[stage]

    async def _send_chunks(self, snapshot: Snapshot, link: Link, sent: StateSent, began: float) -> None:
        """Send a snapshot as the link has room for it; if the other site has died meanwhile, it is dropped."""
        try:
            size_bytes = 0
            while await link.bulk_room() and (chunk := await snapshot.read()) is not None:
                with self._shell.meter.moving():
                    header = chunk_frame(StateChunk(version=sent.version, last=False))
                    link.send(header, pa.py_buffer(chunk), bulk=True)
                size_bytes += len(chunk)
            self._shell.report(replace(sent, size_bytes=size_bytes, send_s=time.monotonic() - began))
            link.send(chunk_frame(StateChunk(version=sent.version, last=True)), bulk=True)
        except SnapshotLost as lost:
            self._snapshotters[sent.stage].note_lost(lost)
            self._shell.log(f"the transfer to {sent.to} begins again: {lost}", logging.WARNING)
            link.send(chunk_frame(StateChunk(version=sent.version, last=True, failed=True)), bulk=True)
        except FluxError as error:
            self._shell.fail(error)
        finally:
            snapshot.close()

    def take_chunk(self, link: Link, chunk: StateChunk, body: Any) -> None:
        """Take the next chunk of a copy; with the last, the copy is read."""
        if self.standby(chunk.version, link.peer) is None:
            self._receiver.forget(link.peer, chunk.version)  # A later view does not want it any more.
            return
        if chunk.failed:
            self._receiver.forget(link.peer, chunk.version)
            self._shell.nursery.start_soon(self._give_up, link.peer, chunk.version)
            return
        try:
            arrival = self._receiver.take(link.peer, chunk.version, body)
        except frames.BadFrame as error:
            self._receiver.forget(link.peer, chunk.version)
            self._refuse(link, error)
            return
        if chunk.last:
            self._receiver.forget(link.peer, chunk.version)
            self._shell.nursery.start_soon(self._read, link, arrival)

    async def _give_up(self, donor: str, version: int) -> None:
        """Have the controller give up a copy, and so begin another, until a view says that it has."""
        while self.standby(version, donor) is not None:
            failed = CopyFailed(node=self._shell.name, version=version)
            self._shell.peers.controller.send(membership_frame(FromMachine(message=failed)))
            await trio.sleep(_GIVE_UP_AGAIN_S)  # The controller may have been killed before it read that.

    def forget_chunks(self, peer: str) -> None:
        """Drop what has arrived of transfers from `peer`."""
        self._receiver.forget_all(peer)

    def _types_of(self, message: State) -> dict[tuple[int, int], StateTypes]:
        """Return the types of the states in a copy: of its stage, in the edition of its position."""
        view, stage = self._shell.node.view, message.stage
        if stage not in self._segments:
            return {}  # It is refused for that.
        if view is None or message.view > view.number:
            raise _OfALaterView(message.view)
        number = view.edition_of_state(stage, message.position)
        return {(stage, place): each.words_in(number) for place, each in enumerate(self._segments[stage].editions)}

    async def _read(self, link: Link, arrival: Arrival) -> None:
        """Read a copy that has arrived whole, in a thread if it is large, and give the machine its `State`."""
        try:
            message = await self._readable(arrival, link)
            if message is None:
                return
            if message.sender != link.peer:
                raise frames.BadFrame(f"expected the state of a partition of {link.peer}, got {message!r:.200}")
        except frames.BadFrame as error:
            self._refuse(link, error)
            return
        except StateError as error:
            # The operator caused it, and would on any other site.
            self._shell.fail(error)
            return
        if not link.closed:
            self._shell.enqueue(message)

    async def _readable(self, arrival: Arrival, link: Link) -> State | None:
        """Read a copy once the view in which it was sent is here, which has the code of its state.

        None if the donor has died meanwhile.
        """
        while not link.closed:
            self._follow()
            try:
                if arrival.size_bytes >= _READ_INLINE_BYTES:
                    return await threads.call_in_thread(self._read_watched, arrival, link.peer)
                with self._shell.meter.moving():
                    return self._read_watched(arrival, link.peer)
            except _OfALaterView as later:
                while self._shell.node.number < later.view and not link.closed:
                    await trio.sleep(_VIEW_AWAITED_S)
        return None

    def _read_watched(self, arrival: Arrival, donor: str) -> State:
        with self._shell.watch.calling("the state of a copy", f"it is decoded, from {donor}"):
            return read_copy(arrival, self._edges, self._types_of)

    def _refuse(self, link: Link, error: frames.BadFrame) -> None:
        """Give up a link: a copy cannot be read, and its chunks are not repeated. Another pair of sites must do it."""
        self._shell.log(
            f"closed the connection to {link.peer}, which sent state that cannot be read: {error}", logging.WARNING
        )
        self._shell.peers.give_up(link)


def _channels_of(plan: Plan, partition: int, edge: int) -> ChannelMask:
    """Return everything that `partition` sends on `edge`."""
    ends = plan.edges[edge]
    consumers = tuple(range(plan.partitions(ends.consumer)))
    block = Block(producers=(partition,), consumers=consumers)
    return ChannelMask((block,), plan.partitions(ends.producer), len(consumers))
