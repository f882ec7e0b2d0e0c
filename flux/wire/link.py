"""Link: the frames between this process and one peer, over one connection after another.

A link decides nothing. Sockets are non-blocking and read and written until they would block, because
the loop that serves them is busy with an operator for milliseconds at a time: what the kernel has
buffered by then is read at once. The queue is not bounded here: a machine's pool bounds what it sends.

A connection may break while both processes live. Frames are numbered by counting them. Each end counts those that it
has received whole, and acknowledges them now and then. A frame is kept until the peer has acknowledged it. On a new
connection (`resume`) both ends send how many frames they have received, and each replays what the other lacks. Callers
see one stream of frames: nothing lost, repeated or reordered.

A receiver may `refuse` a frame with invalid content: the connection is dropped, and the next one replays the frame.
Frames that are many at once can be made one by one when their turn comes (`send_batch_later`).

Some frames are *bulk*: the chunks of a partition's state. They go between other frames, one after each, in an order of
their own. At most `_BULK_BYTES` of them are in flight: frames sent after them wait for no more.

What is kept is the memory that was sent, not a copy. It is bounded by what the kernel holds for both ends, what is
begun (`_SEND_BYTES`), what goes out before the reader has its turn (twice `_TURN_BYTES`), what is received and not
acknowledged (`_ACK_BYTES` or `_ACK_FRAMES`), and a frame at the end of each: 60 MiB and a few frames. At full load,
with frames of 3.7 MB, 64 MB were the most. An acknowledgement costs time, because it wakes the sender: every mebibyte,
2 % of a link's throughput, and 5 % where there is more work than cores; every eight, half of that.

Frames of the link's own, which callers never see, are not counted:

    {"kind": "resume", "n": frames received until now}  the first on a connection, from both ends
    {"kind": "got", "n": frames received until now}     at least every `_ACK_BYTES` or `_ACK_FRAMES`
    {"kind": "closed"}                                  closed for good; without it, a connection has only broken
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import trio

from ..system import network
from . import frames
from .batches import Batches
from .sockets import BLOCKED, Reader, until_ready, write_all

_BUFFER_BYTES = 4 << 20  # Kernel buffers asked for: about two frames of 32 Ki rows.
_SEND_PARTS_MAX = 64  # Parts of one sendmsg call.
_SEND_BYTES = 8 << 20  # No more parts after this many bytes: acknowledgements go between them.
_TURN_BYTES = 16 << 20  # To a peer that takes them at once; then the reader may read its acknowledgements.
_ACK_BYTES = 1 << 20
_ACK_FRAMES = 64
_BULK_BYTES = 4 << 20  # Begun, and not acknowledged.
_BULK_WAITING_FRAMES_MAX = 2  # Frames to have ready; more only take memory.
_RESUME_TIMEOUT_S = 5.0
_NO_FILES_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_FILES_LEFT_PAUSE_S = 0.1
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES_LOST_MAX = 5, 2, 3  # Of a silent connection to another machine.
_OWN_KINDS = ("resume", "got", "closed")
_CLOSED = memoryview(frames.encode({"kind": "closed"}))

FrameBody: TypeAlias = Any  # A pa.Buffer, or None for a frame without one.


class _Frame(NamedTuple):
    parts: tuple[memoryview, ...]
    bulk_bytes: int = 0


# A frame that is made when it is begun: its header, batch and encoded batch.
Later: TypeAlias = Callable[[], tuple[dict[str, Any], pa.RecordBatch | None, FrameBody]]


class LinkClosed(Exception):
    """The link was closed for good, and cannot be resumed."""


def tune(sock: socket.socket) -> None:
    """Make a socket non-blocking, with large kernel buffers (the system may grant less) and without Nagle's delay.

    The system probes a silent connection: a peer whose machine has vanished is noticed though nothing is sent to it.
    """
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES_LOST_MAX)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


class Link:
    """Frames to and from one peer; frames sent while there is no connection wait for one.

    `write` runs as a task for as long as the link lives. One task receives::

        while not link.closed:
            while (frame := await link.receive()) is not None:
                ...
            if not link.closed:      # Broken: the end that dials makes a connection and resumes; the other waits.
                await link.resume(await dial_again())       # or: await link.resumed()
    """

    def __init__(self, peer: str, sock: socket.socket | None = None) -> None:
        self.peer = peer
        self.closed = False  # For good, by either end.
        self.connected = False  # Whether there is or was a connection.
        self._sock: socket.socket | None = None
        self._reader: Reader | None = None
        self._newest: socket.socket | None = None  # Of several connections that resume at once, the last one wins.
        self._unwritable: socket.socket | None = None
        self._wake = trio.Event()  # The writer has something to do.
        self._stands = trio.Event()  # There is a connection, or the link is closed.
        self._waiting: deque[_Frame | Later] = deque()
        self._bulk: deque[_Frame] = deque()
        self._replay: deque[_Frame] = deque()  # To be replayed over this connection, before all others.
        self._bulk_bytes = 0  # Of what is kept.
        self._bulk_moved = trio.Event()  # There may be room for more bulk frames.
        self._parts: deque[memoryview] = deque()  # Being written: whole frames, but for what has gone out.
        self._parts_bytes = 0
        self._kept: deque[_Frame] = deque()  # Begun or written, and not acknowledged.
        self._acked = 0  # Frames that the peer has acknowledged.
        self._got = 0  # Frames received.
        self._unacked_frames = 0  # Received, and not acknowledged to the peer.
        self._unacked_bytes = 0
        self._can_refuse = False  # Whether the frame that was received last can still be refused.
        self._schemas_before = 0
        self._unmade = 0  # Of the frames that wait, those still to be made.
        self._schemas_out: dict[bytes, int] = {}
        self._batches = Batches()
        if sock is not None:
            self.connect(sock)

    @property
    def broken(self) -> bool:
        """Whether there is no connection, and the link is not closed: it may be resumed."""
        return self._sock is None and not self.closed

    @property
    def stands(self) -> bool:
        """Whether there is a connection."""
        return self._sock is not None

    @property
    def silent_s(self) -> float:
        """For how long the connection has delivered nothing, not even a part of a frame; 0 without a connection."""
        return 0.0 if self._reader is None else trio.current_time() - self._reader.received_at

    @property
    def kept_bytes(self) -> int:
        """The bytes written or being written, and kept because the peer has not acknowledged them."""
        return sum(len(part) for frame in self._kept for part in frame.parts)

    # Connections.

    def connect(self, sock: socket.socket) -> None:
        """Use the first connection of a link that is never resumed, and send what waited for it."""
        assert not self.connected, f"a second connection to {self.peer}"
        self._use(sock, Reader(sock))

    async def resume(self, sock: socket.socket) -> None:
        """Go on over a new connection where the last one broke, or begin. Both ends of it must do this.

        The last connection ends, if it did not yet. `OSError`: the new one broke too, or a newer one replaced it.
        `BadFrame`: the process at its other end is not the peer of this link, which cannot go on.
        """
        if self.closed:
            sock.close()
            raise LinkClosed(f"the link to {self.peer} was closed; it cannot go on over a new connection")
        self._break()
        self._newest = sock
        reader = Reader(sock)
        try:
            with trio.move_on_after(_RESUME_TIMEOUT_S) as deadline:
                await write_all(sock, frames.encode({"kind": "resume", "n": self._got}))
                header, _, _ = await reader.read_frame(frames.STRANGER_MAX_BYTES, 0)
            if deadline.cancelled_caught:
                raise TimeoutError(f"no resume frame from {self.peer} within {_RESUME_TIMEOUT_S:g} s")
            if self._newest is not sock:
                raise ConnectionAbortedError(f"a newer connection to {self.peer} took the place of this one")
            if header["kind"] != "resume":
                raise frames.BadFrame(
                    f"expected a resume frame from {self.peer}, got {frames.format_value(header['kind'])}"
                )
            self._take_ack(header.get("n"))
        except BaseException:
            _shut(sock)
            raise
        self._replay.extendleft(reversed(self._kept))
        self._kept.clear()
        self._bulk_bytes = 0
        self._use(sock, reader)

    async def resumed(self) -> bool:
        """Wait until there is a connection; return False if the link is closed instead."""
        while self._sock is None and not self.closed:
            await self._stands.wait()
        return not self.closed

    def drop(self) -> None:
        """Drop the connection; the link may be resumed."""
        if not self.closed:
            self._break()

    def refuse(self) -> None:
        """Reject the frame that was received last: drop the connection; the next one replays the frame.

        To be called before the next frame is awaited: until then this one is not acknowledged.
        """
        if self._can_refuse:
            self._can_refuse = False
            self._got -= 1
            self._batches.truncate_schemas(self._schemas_before)
        self.drop()

    def close(self) -> None:
        """Close the link for good, free everything kept, and notify the other end if that is possible at once."""
        if self.closed:
            return
        self.closed = True
        if self._sock is not None and not self._parts:
            with contextlib.suppress(OSError):
                self._sock.sendmsg([_CLOSED])
        self._break()
        self._newest = None
        self._waiting.clear()
        self._unmade = 0
        self._bulk.clear()
        self._replay.clear()
        self._kept.clear()
        self._bulk_moved.set()
        self._wake.set()
        self._stands.set()

    def _use(self, sock: socket.socket, reader: Reader) -> None:
        self._sock, self._reader = sock, reader
        self.connected = True
        self._unacked_frames = self._unacked_bytes = 0
        self._wake.set()
        self._stands.set()

    def _break(self) -> None:
        """Close the connection; tasks that wait for it end."""
        self._parts.clear()
        self._parts_bytes = 0
        if self._sock is not None:
            sock, self._sock, self._reader = self._sock, None, None
            self._stands = trio.Event()
            _shut(sock)

    # Frames out.

    def send(self, header: dict[str, Any], body: FrameBody = None, bulk: bool = False) -> None:
        """Queue one frame; it never blocks. Other frames overtake `bulk` frames, which keep their own order."""
        assert header["kind"] not in _OWN_KINDS, f"a frame of kind {header['kind']!r} is the link's own"
        if self.closed:
            return
        frame = _frame(header, body)
        if bulk:
            self._bulk.append(frame._replace(bulk_bytes=sum(map(len, frame.parts))))
        else:
            self._waiting.append(frame)
        self._wake.set()

    async def bulk_room(self) -> bool:
        """Wait until it is worth queueing the next bulk frame; return False if the link is closed."""
        while len(self._bulk) >= _BULK_WAITING_FRAMES_MAX and not self.closed:
            await self._bulk_moved.wait()
        return not self.closed

    def send_batch(self, header: dict[str, Any], batch: pa.RecordBatch | None, encoded: FrameBody = None) -> None:
        """Queue a frame whose body is a record batch; its schema travels once per link."""
        if self._unmade:  # Schemas are numbered in the order of frames, and earlier frames may have new ones.
            self.send_batch_later(lambda: (header, batch, encoded))
        elif not self.closed:
            self._waiting.append(self._batch_frame(header, batch, encoded))
            self._wake.set()

    def send_batch_later(self, make: Later) -> None:
        """Queue a frame as `send_batch` does, to be made when its turn comes: until then it takes no memory."""
        if not self.closed:
            self._unmade += 1
            self._waiting.append(make)
            self._wake.set()

    def _batch_frame(self, header: dict[str, Any], batch: pa.RecordBatch | None, encoded: FrameBody) -> _Frame:
        if batch is None:
            return _frame(header, None)
        # By its bytes: to Arrow, schemas that differ in metadata alone are equal.
        schema = batch.schema.serialize().to_pybytes()
        number = self._schemas_out.get(schema)
        if number is None:
            number = self._schemas_out[schema] = len(self._schemas_out)
            header = {**header, "schema": schema}
        return _frame({**header, "of": number}, encoded if encoded is not None else batch.serialize())

    async def write(self) -> None:
        """Send what is queued, for as long as the link lives."""
        while not self.closed:
            sock = self._sock
            if sock is not None and sock is not self._unwritable:
                try:
                    try:
                        finished = self._write_some(sock)
                    except BLOCKED as blocked:
                        await until_ready(sock, blocked, reading=False)
                        continue
                    if not finished:
                        await trio.lowlevel.checkpoint()
                        continue
                except OSError:
                    # The reader still takes what has arrived, then finds the end and breaks the connection.
                    self._unwritable = sock
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
                    continue
            self._wake = trio.Event()
            await self._wake.wait()

    def _write_some(self, sock: socket.socket) -> bool:
        """Send until nothing is left, the socket would block, or the turn is over; return whether nothing is left."""
        parts, turn_bytes = self._parts, 0
        while turn_bytes < _TURN_BYTES:
            if self._parts_bytes < _SEND_BYTES:
                self._begin_some()
            if not parts:
                return True
            sent = sock.sendmsg(parts)
            turn_bytes += sent
            self._parts_bytes -= sent
            while parts and sent >= len(parts[0]):
                sent -= len(parts.popleft())
            if sent:
                parts[0] = parts[0][sent:]
            if self._unmade:
                break
        return False

    def _begin_some(self) -> None:
        """Begin as many of the next frames as are worth one call; an acknowledgement that is due goes first."""
        if self._unacked_bytes >= _ACK_BYTES or self._unacked_frames >= _ACK_FRAMES:
            self._unacked_frames = self._unacked_bytes = 0
            self._begin((memoryview(frames.encode({"kind": "got", "n": self._got})),))
        while self._parts_bytes < _SEND_BYTES and len(self._parts) < _SEND_PARTS_MAX:
            if self._replay:
                self._begin_next(self._replay)
                continue
            has_bulk = bool(self._bulk) and self._bulk_bytes < _BULK_BYTES
            if not self._waiting and not has_bulk:
                break
            if self._waiting:
                self._begin_next(self._waiting)
            if has_bulk:
                self._begin_next(self._bulk)
                self._bulk_moved.set()
                self._bulk_moved = trio.Event()
            if self._unmade:
                break  # Making frames takes time: what is begun goes first, and other tasks have their turn.

    def _begin_next(self, queue: deque[_Frame] | deque[_Frame | Later]) -> None:
        frame = queue.popleft()
        if not isinstance(frame, _Frame):
            self._unmade -= 1
            frame = self._batch_frame(*frame())
        self._kept.append(frame)
        self._bulk_bytes += frame.bulk_bytes
        self._begin(frame.parts)

    def _begin(self, parts: tuple[memoryview, ...]) -> None:
        for part in parts:
            self._parts.append(part)
            self._parts_bytes += len(part)

    def flush(self) -> None:
        """Send what is queued, as far as the system takes it at once."""
        if self._sock is not None and not self.closed:
            with contextlib.suppress(OSError):
                if self._write_some(self._sock):
                    return
            self._wake.set()

    async def drain(self) -> None:
        """Wait until everything queued has gone out, or the link is closed."""
        while (self._replay or self._waiting or self._bulk or self._parts) and not self.closed:
            await trio.sleep(0.001)

    # Frames in.

    async def receive(self) -> tuple[dict[str, Any], FrameBody] | None:
        """Return the next frame; None if this connection broke or the link is closed."""
        self._can_refuse = False
        self._send_ack_if_due()
        while self._reader is not None:
            reader = self._reader
            try:
                header, body, size = await reader.read_frame()
            except OSError:
                if self._reader is reader:
                    self._break()
                return None
            except (trio.Cancelled, frames.BadFrame):
                if self._reader is reader and reader.within_a_frame:
                    self._break()  # Where the next frame begins is unknown.
                raise
            kind = header["kind"]
            if kind == "got":
                self._take_ack(header.get("n"))
            elif kind == "closed":
                self.close()
            else:
                self._got += 1
                self._unacked_frames += 1
                self._unacked_bytes += size
                self._can_refuse, self._schemas_before = True, self._batches.schema_count
                return header, body
        return None

    def decode_batch(self, header: dict[str, Any], body: FrameBody) -> pa.RecordBatch | None:
        """Return the record batch of a frame sent with `send_batch`, in the frame's memory. Call it in their order."""
        if "of" not in header:
            return None
        if "schema" in header:
            self._batches.add_schema(header["of"], header["schema"])
        return self._batches.read(header["of"], body)

    def _send_ack_if_due(self) -> None:
        """Acknowledge the frames that the caller took. This task does it: the writer may have to wait for its turn."""
        if self._unacked_bytes < _ACK_BYTES and self._unacked_frames < _ACK_FRAMES:
            return
        if self._sock is None or self._sock is self._unwritable:
            return
        with contextlib.suppress(OSError):
            if self._write_some(self._sock):
                return
        self._wake.set()  # There is more, or it would block, or it has failed: the writer handles each.

    def _take_ack(self, n: Any) -> None:
        """Free the frames up to `n`, which the peer has acknowledged."""
        last = self._acked + len(self._kept)
        if type(n) is not int or not self._acked <= n <= last:
            raise frames.BadFrame(
                f"{self.peer} acknowledges {frames.format_value(n)} frames; it was sent {last:,}, and has acknowledged "
                f"{self._acked:,} before. It is not the process that this link began with"
            )
        for _ in range(n - self._acked):
            self._bulk_bytes -= self._kept.popleft().bulk_bytes
        self._acked = n
        if self._bulk:
            self._wake.set()  # Bulk frames may have waited for this.


def _frame(header: dict[str, Any], body: FrameBody) -> _Frame:
    size = 0 if body is None else body.size
    head = memoryview(frames.encode(header, size))
    return _Frame((head, memoryview(body).cast("B")) if size else (head,))


def _shut(sock: socket.socket) -> None:
    network.notify_closing(sock)
    sock.close()


async def accept_loop(listener: socket.socket, on_accept: Callable[[socket.socket], None]) -> None:
    """Hand every new connection to `on_accept`."""
    listener.setblocking(False)
    while True:
        await network.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue
        except OSError as error:
            if error.errno not in _NO_FILES_LEFT:
                raise
            await trio.sleep(_NO_FILES_LEFT_PAUSE_S)  # The connection waits in the backlog.
            continue
        tune(sock)
        on_accept(sock)
