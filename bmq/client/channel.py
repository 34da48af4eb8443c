# SPDX-License-Identifier: Apache-2.0
"""Moves bytes between a transport and a receiver: one TCP or TLS connection."""

from __future__ import annotations

import array
import asyncio
import math
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from bmq._logging import Log
from bmq._loop import change_protocol, of_uvloop
from bmq._turn import wait_done

try:
    from fcntl import ioctl as _ioctl
    from termios import TIOCOUTQ as _UNSENT
except ImportError:  # a system without the modules, or without the query
    _can_ask = False
else:
    _can_ask = True

if TYPE_CHECKING:
    from bmq.client.trace import Tracer

__all__ = ["Channel", "Receiver"]

logger = Log("bmq.client", later=True)

# Maximum number of bytes in the transport; the rest stays in the core, without a copy.
_HIGH_WATER = 1024 * 1024
_LOW_WATER = 256 * 1024
# Seconds for which closing waits for the peer to accept written bytes.
_LINGER = 1.0
# Probes without an answer after which a connection is lost.
_PROBES = 3
# Unacknowledged bytes end a connection after this multiple of the tolerated silence. A broker sending, but
# not reading for a while, is slow and not dead; the kernel cannot distinguish the two.
_PATIENCE = 2


def _keep_receive_buffers() -> None:
    """Free a block of 4 MiB once.

    asyncio receives into a new block of 256 KiB each time. The C library (glibc) maps and unmaps a block of
    this size at every read, with three system calls, until the process has freed a larger block. Without this
    function, the speed of a session would depend on the allocations of other modules: an awaited post took
    1.8 times as long.

    The library also returns free memory to the system, from twice the size of this block on. Payloads of
    1 MiB, handled and freed, would be new memory to the process each time: with a block of 1 MiB, receiving
    them took 1.4 times the CPU time.
    """
    block = bytes(4 * 1024 * 1024)
    del block


_keep_receive_buffers()


class Receiver(Protocol):
    """The receiver of a channel's reports."""

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes; a memoryview only after :meth:`Channel.fill`."""
        ...

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """Handle the loss of the connection. Called once."""
        ...

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """Handle a full or recovered transport buffer."""
        ...


class Channel(asyncio.Protocol):
    """Moves bytes between a transport and a receiver, without knowledge of the protocol.

    The channel holds the receiver weakly. The event loop holds the channel, and would otherwise keep alive a
    session dropped by the program without closing.

    Args:
        receiver: receiver of the bytes.
        liveness: tolerated silence in seconds, also for the operating system's probes; None for the system's
            defaults.
        tracer: logs all sent and received bytes; None for no trace.

    Attributes:
        tracer: logs the bytes from now on; None for no trace.
        filling: whether received bytes are written into the receiver's memory, see :meth:`fill`.
    """

    def __init__(
        self, receiver: Receiver, liveness: float | None = None, tracer: Tracer | None = None
    ) -> None:
        self._receiver = weakref.ref(receiver)
        self._liveness = liveness
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._resting = False
        # Bytes received before start().
        self._early: list[bytes] | None = []
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._linger: asyncio.TimerHandle | None = None
        self._of_uvloop = False
        self.tracer = tracer
        self.filling = False
        self.bytes_sent = 0
        self.bytes_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        self._of_uvloop = of_uvloop(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            try:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                pass  # already closed by the peer, as the loop reports next
            _probe(raw, self._liveness)

    def data_received(self, data: bytes | memoryview) -> None:
        """Called by the event loop, or with a part of the receiver's memory."""
        self.bytes_received += len(data)
        if self.tracer is not None:
            self.tracer.received(bytes(data))
        if self._early is not None:
            self._early.append(bytes(data))
            return
        receiver = self._receiver()
        if receiver is not None:
            receiver.channel_data(self, data)

    def fill(self, space: Callable[[], memoryview] | None) -> None:
        """Receive the next bytes into the memory of the receiver, without a copy by the event loop.

        Args:
            space: called before each read, returns the memory; None to receive new objects again. Must not
                keep the receiver alive.
        """
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self.filling = space is not None
            protocol = self if space is None else _Filler(self, space)
            change_protocol(transport, protocol, reading=self._reading and not self._resting)

    def eof_received(self) -> bool:
        """Called by the event loop; the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, on Windows twice for some connections reset by the peer."""
        if self._gone.done():
            return
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        self._gone.set_result(None)
        receiver = self._receiver()
        if receiver is not None:
            receiver.channel_lost(self, exc)

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._writable(False)

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._writable(True)

    def _writable(self, writable: bool) -> None:
        receiver = self._receiver()
        if receiver is not None:
            receiver.channel_writable(self, writable)

    def hand_over(self, receiver: Receiver) -> None:
        """Report to another receiver from now on."""
        self._receiver = weakref.ref(receiver)

    def start(self) -> None:
        """Pass all bytes received so far to the receiver, and all further bytes."""
        early, self._early = self._early, None
        receiver = self._receiver()
        if early and receiver is not None:
            receiver.channel_data(self, b"".join(early))
        if self._transport is None and receiver is not None:
            receiver.channel_lost(self, None)  # the connection was lost before

    def fileno(self) -> int:
        """The file descriptor; -1 after closing."""
        raw = self._transport.get_extra_info("socket") if self._transport else None
        return -1 if raw is None else int(raw.fileno())

    @property
    def write_buffer_size(self) -> int:
        """Number of bytes waiting for the operating system."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    @property
    def backlog(self) -> int:
        """Number of written bytes not acknowledged by the peer's kernel, if known to the system."""
        raw = self._transport.get_extra_info("socket") if self._transport else None
        return self.write_buffer_size + (0 if raw is None else _unacknowledged(raw))

    def write(self, pieces: list[bytes]) -> int:
        """Send whole events, each in one or more pieces, with a single write; drop all events when closing.

        Returns:
            Number of bytes, sent or dropped.
        """
        size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        transport = self._transport
        if transport is None or transport.is_closing():
            return size
        self.bytes_sent += size
        if self.tracer is not None:
            self.tracer.sent(b"".join(pieces))
        try:
            if self._of_uvloop:
                transport.writelines(pieces)
            else:
                transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except Exception:
            # A bug in the event loop ends this connection, not the session.
            logger.exception("writing failed; the connection is closed")
            transport.abort()
        return size

    def set_reading(self, reading: bool) -> None:
        """Pause or resume reading."""
        if self._transport is not None and reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
            # A broker may stop reading from a non-reading client. The kernel would treat the closed window as
            # a lost connection.
            raw = self._transport.get_extra_info("socket")
            if raw is not None and self._liveness is not None:
                _limit_unacknowledged(raw, self._liveness if reading else None)

    def rest(self) -> None:
        """Read no further bytes in this turn of the event loop."""
        transport = self._transport
        reads_on = self._of_uvloop and self._reading and not self._resting
        if reads_on and transport is not None and not transport.is_closing():
            self._resting = True
            transport.pause_reading()
            self._loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after all written bytes are sent, or after a second if the peer accepts no bytes."""
        if self._transport is not None:
            self._transport.close()
            if self._linger is None:
                self._linger = self._loop.call_later(_LINGER, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait up to a second for the end of the connection, after :meth:`close` or :meth:`abort`."""
        await wait_done(self._gone)


_NOTHING = memoryview(b"")


class _Filler(asyncio.BufferedProtocol):
    """The protocol of a channel while received bytes are written into the receiver's memory.

    A channel cannot always be this protocol: for each read, the event loop would call twice, and small events
    would be copied once more.
    """

    def __init__(self, channel: Channel, space: Callable[[], memoryview]) -> None:
        self._channel = channel
        self._space = space
        self._view = _NOTHING

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop before a read."""
        self._view = self._space()
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop after a read."""
        view, self._view = self._view, _NOTHING  # uvloop keeps this object longer than the memory is needed
        self._channel.data_received(view[:nbytes])

    def eof_received(self) -> bool:
        """Called by the event loop."""
        return self._channel.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._channel.connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._channel.resume_writing()


def _probe(raw: socket.socket, liveness: float | None) -> None:
    """Enable the kernel's probes of an idle connection.

    The session's heartbeats detect a silent broker. These options detect a dead path while the event loop is
    blocked, and close sockets abandoned by the session. On a platform without the options, heartbeats still
    detect the same failures. Each option is set separately, because platforms differ.

    Args:
        raw: the socket.
        liveness: tolerated silence in seconds; None for the system's defaults.
    """
    _set_option(raw, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    if liveness is None:
        return
    part = max(1, min(32767, math.ceil(liveness / _PROBES)))
    # macOS calls the first option TCP_KEEPALIVE.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    _set_option(raw, socket.IPPROTO_TCP, idle, part)
    _set_option(raw, socket.IPPROTO_TCP, "TCP_KEEPINTVL", part)
    _set_option(raw, socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES)
    _limit_unacknowledged(raw, liveness)


def _limit_unacknowledged(raw: socket.socket, liveness: float | None) -> None:
    """Limit the time for which written bytes may stay unacknowledged.

    Args:
        raw: the socket.
        liveness: tolerated silence in seconds; None for the system's limit.
    """
    milliseconds = 0 if liveness is None else max(1, min(2**31 - 1, int(_PATIENCE * liveness * 1000)))
    _set_option(raw, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", milliseconds)


def _unacknowledged(raw: socket.socket) -> int:
    """Return the number of written bytes not acknowledged by the peer's kernel; 0 if unknown."""
    if not _can_ask:
        return 0
    count = array.array("i", [0])
    try:
        _ioctl(raw.fileno(), _UNSENT, count)  # pyright: ignore[reportPossiblyUnboundVariable]
    except OSError:
        return 0  # the socket is closed
    return count[0]


def _set_option(raw: socket.socket, level: int, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if option is not None:
        try:
            raw.setsockopt(level, option, value)
        except OSError:
            pass  # already closed by the peer, or this system refuses the value
