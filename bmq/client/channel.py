"""One TCP (or TLS) connection."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

__all__ = ["Channel", "Receiver"]


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
    """Moves bytes between a transport and its receiver; knows nothing of the protocol."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self.bytes_sent = 0
        self.bytes_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self.bytes_received += len(data)
        self._receiver.channel_data(self, data)

    def eof_received(self) -> bool:
        """Called by the event loop; the transport closes itself."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._receiver.channel_lost(self, exc)

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._receiver.channel_writable(self, False)

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._receiver.channel_writable(self, True)

    @property
    def open(self) -> bool:
        """Whether there still is a connection."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def write_buffer_size(self) -> int:
        """How many bytes wait to be taken by the operating system."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def write(self, events: list[bytes]) -> None:
        """Send whole events, in one write."""
        if self._transport is not None:
            data = events[0] if len(events) == 1 else b"".join(events)
            self.bytes_sent += len(data)
            self._transport.write(data)

    def set_reading(self, reading: bool) -> None:
        """Pause or resume reading."""
        if self._transport is not None and reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Close once everything written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
