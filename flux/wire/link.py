"""Link: the frames between this process and one peer, over one connection after another.

A link decides nothing. Sockets are non-blocking and read and written until they would block, because
the loop that serves them is busy with an operator for milliseconds at a time: what the kernel has
buffered by then is taken in one go. The queue is not bounded here: a machine's pool bounds what it sends.

A connection may break while both processes live. Frames are numbered by counting them; each end counts those
that it has received whole, and tells the other now and then. A frame is kept until the peer has told that it
has it. When another connection stands (`resume`), both ends say how far they have come, and each repeats what
the other lacks: callers see one stream of frames, nothing lost, repeated or reordered.

Who receives may find that a frame makes no sense, and `refuse` it: the connection is given up, and over the next one it
comes again. Much that is to be sent at once is made frame by frame when its turn comes (`send_batch_later`).

Some frames are *bulk*: the chunks of a partition's state. They go between other frames, one after each, in an order of
their own, and never are more than `_BULK_BYTES` of them on their way: what is sent behind them waits for no more.

What is kept is the memory that was sent, not a copy. It is bounded by what the kernel holds for both ends, what
is begun (`_SEND_BYTES`), what goes out before the reader has its turn (twice `_TURN_BYTES`), what has come and was
not told (`_TELL_BYTES` or `_TELL_FRAMES`), and a frame at the end of each: 60 MiB and a few frames. At full load,
with frames of 3.7 MB, 64 MB were the most. Telling costs time, because the sender is woken to hear it: every mebibyte,
2 % of a link's throughput, and 5 % where there is more work than cores; every eight, half of that.

Frames of the link's own, which callers never see, are not counted:

    {"kind": "resume", "n": frames received so far}     the first on a connection, from both ends
    {"kind": "got", "n": frames received so far}        at least every `_TELL_BYTES` or `_TELL_FRAMES`
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

from . import frames
from .batches import Batches
from .sockets import BLOCKED, Reader, until_ready, write_all

_BUFFER_BYTES = 4 << 20  # Kernel buffers asked for: about two frames of 32 Ki rows.
_SEND_PARTS_MAX = 64  # Parts of one sendmsg call.
_SEND_BYTES = 8 << 20  # No more parts behind this many bytes: what is to be told goes between them.
_TURN_BYTES = 16 << 20  # To a peer that takes them at once; then the reader may hear what it tells.
_TELL_BYTES = 1 << 20
_TELL_FRAMES = 64
_BULK_BYTES = 4 << 20  # Begun, and not told as received.
_BULK_WAITING_MAX = 2  # Frames that one should have ready; more only take memory.
_RESUME_S = 5.0
_NO_FILES_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_FILES_LEFT_PAUSE_S = 0.1
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
    """Non-blocking, with large kernel buffers (the system may grant less), and no frame waits for the next one."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


class Link:
    """Frames to and from one peer; frames sent while no connection stands wait for one.

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
        self.connected = False  # Whether a connection stands or has stood.
        self._sock: socket.socket | None = None
        self._reader: Reader | None = None
        self._newest: socket.socket | None = None  # Of several connections that want to go on, the last one may.
        self._unwritable: socket.socket | None = None
        self._wake = trio.Event()  # The writer has something to do.
        self._stands = trio.Event()  # A connection stands, or the link is closed.
        self._waiting: deque[_Frame | Later] = deque()
        self._bulk: deque[_Frame] = deque()
        self._again: deque[_Frame] = deque()  # To be repeated over this connection, before all others.
        self._bulk_bytes = 0  # Of what is kept.
        self._bulk_moved = trio.Event()  # There may be room for more of it.
        self._parts: deque[memoryview] = deque()  # What is being written: whole frames, but for what has gone out.
        self._parts_bytes = 0
        self._kept: deque[_Frame] = deque()  # Begun or written, and not told as received.
        self._told = 0  # Frames that the peer has told to have.
        self._got = 0  # Frames received.
        self._untold_frames = 0
        self._untold_bytes = 0
        self._read_last = False  # Whether the frame that was received last can still be refused.
        self._schemas_before = 0
        self._later = 0  # Of what waits, how much is still to be made.
        self._schemas_out: dict[bytes, int] = {}
        self._batches = Batches()
        if sock is not None:
            self.connect(sock)

    @property
    def broken(self) -> bool:
        """Whether no connection stands, and the link is not closed: it may be resumed."""
        return self._sock is None and not self.closed

    @property
    def stands(self) -> bool:
        """Whether there is a connection."""
        return self._sock is not None

    @property
    def silent_s(self) -> float:
        """For how long nothing has come, while a connection stands; a long frame on a slow one comes in pieces."""
        return 0.0 if self._reader is None else trio.current_time() - self._reader.heard_at

    @property
    def kept_bytes(self) -> int:
        """What is written or being written, and kept because the peer may not have it."""
        return sum(len(part) for frame in self._kept for part in frame.parts)

    # Connections.

    def connect(self, sock: socket.socket) -> None:
        """The first connection of a link that is never resumed: what waited may go."""
        assert not self.connected, f"a second connection to {self.peer}"
        self._use(sock, Reader(sock))

    async def resume(self, sock: socket.socket) -> None:
        """Go on over a new connection where the last one broke, or begin. Both ends of it must do this.

        The last connection ends, if it did not yet. `OSError` says that the new one broke too or was overtaken by
        a newer one; `BadFrame`, that the peer is not at the other end of this link, so that going on is impossible.
        """
        if self.closed:
            sock.close()
            raise LinkClosed(f"the link to {self.peer} was closed; it cannot go on over a new connection")
        self._break()
        self._newest = sock
        reader = Reader(sock)
        try:
            with trio.move_on_after(_RESUME_S) as patience:
                await write_all(sock, frames.encode({"kind": "resume", "n": self._got}))
                header, _, _ = await reader.read_frame(frames.STRANGER_MAX_BYTES, 0)
            if patience.cancelled_caught:
                raise TimeoutError(f"{self.peer} did not say within {_RESUME_S:g} s how far it has come")
            if self._newest is not sock:
                raise ConnectionAbortedError(f"a newer connection to {self.peer} took the place of this one")
            if header["kind"] != "resume":
                raise frames.BadFrame(
                    f"expected that {self.peer} resumes its link, got {frames.format_value(header['kind'])}"
                )
            self._forget(header.get("n"))
        except BaseException:
            _shut(sock)
            raise
        self._again.extendleft(reversed(self._kept))
        self._kept.clear()
        self._bulk_bytes = 0
        self._use(sock, reader)

    async def resumed(self) -> bool:
        """Wait until a connection stands; False if the link is closed instead."""
        while self._sock is None and not self.closed:
            await self._stands.wait()
        return not self.closed

    def drop(self) -> None:
        """Give the connection up; the link may be resumed."""
        if not self.closed:
            self._break()

    def refuse(self) -> None:
        """The frame that was received last makes no sense: give the connection up; over the next one it comes again.

        To be called before the next frame is awaited: then it has not been told that this one is here.
        """
        if self._read_last:
            self._read_last = False
            self._got -= 1
            self._batches.unlearn(self._schemas_before)
        self.drop()

    def close(self) -> None:
        """Close the link for good, and let the other end know if that is possible at once. Everything kept is freed."""
        if self.closed:
            return
        self.closed = True
        if self._sock is not None and not self._parts:
            with contextlib.suppress(OSError):
                self._sock.sendmsg([_CLOSED])
        self._break()
        self._newest = None
        self._waiting.clear()
        self._later = 0
        self._bulk.clear()
        self._again.clear()
        self._kept.clear()
        self._bulk_moved.set()
        self._wake.set()
        self._stands.set()

    def _use(self, sock: socket.socket, reader: Reader) -> None:
        self._sock, self._reader = sock, reader
        self.connected = True
        self._untold_frames = self._untold_bytes = 0
        self._wake.set()
        self._stands.set()

    def _break(self) -> None:
        """No connection stands any more; whoever waits for it ends."""
        self._parts.clear()
        self._parts_bytes = 0
        if self._sock is not None:
            sock, self._sock, self._reader = self._sock, None, None
            self._stands = trio.Event()
            _shut(sock)

    # Frames out.

    def send(self, header: dict[str, Any], body: FrameBody = None, bulk: bool = False) -> None:
        """Queue one frame; it never blocks. What is `bulk` lets other frames pass, and keeps its own order."""
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
        """Wait until it is worth queueing the next bulk frame; False if the link is closed."""
        while len(self._bulk) >= _BULK_WAITING_MAX and not self.closed:
            await self._bulk_moved.wait()
        return not self.closed

    def send_batch(self, header: dict[str, Any], batch: pa.RecordBatch | None, encoded: FrameBody = None) -> None:
        """Queue a frame whose body is a record batch; its schema travels once per link."""
        if self._later:  # Schemas are numbered in the order in which frames go, and those before may have new ones.
            self.send_batch_later(lambda: (header, batch, encoded))
        elif not self.closed:
            self._waiting.append(self._batch_frame(header, batch, encoded))
            self._wake.set()

    def send_batch_later(self, make: Later) -> None:
        """As `send_batch`, and what is sent is made when its turn comes: much of it takes no memory before."""
        if not self.closed:
            self._later += 1
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
                    # The reader still takes what has come, finds the end behind it and breaks the connection.
                    self._unwritable = sock
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
                    continue
            self._wake = trio.Event()
            await self._wake.wait()

    def _write_some(self, sock: socket.socket) -> bool:
        """Send until nothing is left, the socket would block, or it is others' turn; whether nothing is left."""
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
            if self._later:
                break
        return False

    def _begin_some(self) -> None:
        """Begin as many of the next frames as are worth one call; what is to be told goes before them."""
        if self._untold_bytes >= _TELL_BYTES or self._untold_frames >= _TELL_FRAMES:
            self._untold_frames = self._untold_bytes = 0
            self._begin((memoryview(frames.encode({"kind": "got", "n": self._got})),))
        while self._parts_bytes < _SEND_BYTES and len(self._parts) < _SEND_PARTS_MAX:
            if self._again:
                self._begin_next(self._again)
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
            if self._later:
                break  # To make frames takes time: what is begun goes first, and others have their turn.

    def _begin_next(self, queue: deque[_Frame] | deque[_Frame | Later]) -> None:
        frame = queue.popleft()
        if not isinstance(frame, _Frame):
            self._later -= 1
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
        """Return when everything queued has gone out, or the link is closed."""
        while (self._again or self._waiting or self._bulk or self._parts) and not self.closed:
            await trio.sleep(0.001)

    # Frames in.

    async def receive(self) -> tuple[dict[str, Any], FrameBody] | None:
        """The next frame; None when none can come on this connection, because it broke or the link is closed."""
        self._read_last = False
        self._tell_if_due()
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
                self._forget(header.get("n"))
            elif kind == "closed":
                self.close()
            else:
                self._got += 1
                self._untold_frames += 1
                self._untold_bytes += size
                self._read_last, self._schemas_before = True, self._batches.known
                return header, body
        return None

    def decode_batch(self, header: dict[str, Any], body: FrameBody) -> pa.RecordBatch | None:
        """The record batch of a frame sent with `send_batch`, in the frame's own memory. In the order received."""
        if "of" not in header:
            return None
        if "schema" in header:
            self._batches.learn(header["of"], header["schema"])
        return self._batches.read(header["of"], body)

    def _tell_if_due(self) -> None:
        """Tell what has come and was taken. This task does it: the writer's turn may be long in coming."""
        if self._untold_bytes < _TELL_BYTES and self._untold_frames < _TELL_FRAMES:
            return
        if self._sock is None or self._sock is self._unwritable:
            return
        with contextlib.suppress(OSError):
            if self._write_some(self._sock):
                return
        self._wake.set()  # There is more, or it would block, or it has failed: the writer knows what to do.

    def _forget(self, n: Any) -> None:
        """The peer has told that it has `n` frames."""
        last = self._told + len(self._kept)
        if type(n) is not int or not self._told <= n <= last:
            raise frames.BadFrame(
                f"{self.peer} acknowledges {frames.format_value(n)} frames; it was sent {last:,}, and has acknowledged "
                f"{self._told:,} before. It is not the process that this link was made with"
            )
        for _ in range(n - self._told):
            self._bulk_bytes -= self._kept.popleft().bulk_bytes
        self._told = n
        if self._bulk:
            self._wake.set()  # It may have waited for this.


def _frame(header: dict[str, Any], body: FrameBody) -> _Frame:
    size = 0 if body is None else body.size
    head = memoryview(frames.encode(header, size))
    return _Frame((head, memoryview(body).cast("B")) if size else (head,))


def _shut(sock: socket.socket) -> None:
    trio.lowlevel.notify_closing(sock)
    sock.close()


async def accept_loop(listener: socket.socket, on_accept: Callable[[socket.socket], None]) -> None:
    """Hand every new connection to `on_accept`."""
    listener.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(listener)
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
