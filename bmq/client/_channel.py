"""One TCP (or TLS) connection."""

from __future__ import annotations

import asyncio
import logging
import socket
import weakref
from typing import Protocol, cast

__all__ = ["Channel", "Receiver"]

logger = logging.getLogger("bmq.client")

# Up to this much may wait in the transport; the rest stays in the core, where it is not copied.
_HIGH_WATER = 1024 * 1024
_LOW_WATER = 256 * 1024
# How long the peer may take to let a connection be closed.
_LINGER = 1.0


class Receiver(Protocol):
    """What a channel reports to."""

    def channel_data(self, channel: Channel, data: bytes) -> None:
        """Bytes arrived."""
        ...

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone; reported once."""
        ...

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """The transport's buffer is full, or has room again."""
        ...


class Channel(asyncio.Protocol):
    """Moves bytes between a transport and its receiver; knows nothing of the protocol.

    It does not keep its receiver alive: the event loop keeps the channel, and a session that nobody holds any
    more must be noticed, not kept.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = weakref.ref(receiver)
        self._transport: asyncio.Transport | None = None
        self._reading = True
        # What comes before somebody has taken the channel over.
        self._early: list[bytes] | None = []
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._linger: asyncio.TimerHandle | None = None
        self._gathers = False
        self.bytes_sent = 0
        self.bytes_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        # Only uvloop's writelines() is used, which does not copy. asyncio's joins the pieces before 3.12; in
        # some releases since then it never pauses the protocol and fails once the connection is lost.
        self._gathers = type(transport).__module__.startswith("uvloop")
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            try:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError:
                pass  # the peer has left already, which the loop is about to say

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.bytes_received += len(data)
        if self._early is not None:
            self._early.append(data)
            return
        receiver = self._receiver()
        if receiver is not None:
            receiver.channel_data(self, data)

    def eof_received(self) -> bool:
        """Called by the event loop; the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        if not self._gone.done():
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

    def start(self) -> None:
        """The receiver is ready: it gets what came so far, and whatever comes from now on."""
        early, self._early = self._early, None
        receiver = self._receiver()
        if early and receiver is not None:
            receiver.channel_data(self, b"".join(early))
        if self._transport is None and receiver is not None:
            receiver.channel_lost(self, None)  # it was gone before

    @property
    def write_buffer_size(self) -> int:
        """How many bytes wait to be taken by the operating system."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, pieces: list[bytes]) -> None:
        """Send whole events, which may come in pieces, in one write; nothing more once it is closing."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            if self._gathers:
                self.bytes_sent += sum(map(len, pieces))
                transport.writelines(pieces)
            else:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self.bytes_sent += len(data)
                transport.write(data)
        except Exception:
            # A mistake of the event loop costs a connection, not the session.
            logger.exception("writing failed; the connection is closed")
            transport.abort()

    def set_reading(self, reading: bool) -> None:
        """Pause or resume reading."""
        if self._transport is not None and reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Close once everything written is sent; a peer that does not take it is not waited for long."""
        if self._transport is not None:
            self._transport.close()
            if self._linger is None:
                self._linger = self._loop.call_later(_LINGER, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, after :meth:`close` or :meth:`abort`: a second at most."""
        await asyncio.shield(self._gone)
