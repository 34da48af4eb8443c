# SPDX-License-Identifier: Apache-2.0
# pyright: reportIncompatibleMethodOverride=false
"""What transports without a socket have in common: bytes that wait for the protocol, and its pauses."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from asyncio.transports import _FlowControlMixin
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

__all__ = ["SocketlessTransport"]


class SocketlessTransport(_FlowControlMixin):
    """One end of a connection. The subclass moves the bytes, and calls :meth:`_look` after each change.

    Args:
        names: the extra information: "sockname" and "peername".
        loop: the event loop.
        protocol: the protocol; None if it is made later.
    """

    _loop: Any
    _protocol: Any
    _protocol_paused: bool
    _maybe_pause_protocol: Callable[[], None]
    _maybe_resume_protocol: Callable[[], None]

    def __init__(self, names: dict[str, Any], loop: asyncio.AbstractEventLoop, protocol: Any = None) -> None:
        super().__init__(names, loop)
        self._protocol = protocol
        # Callbacks belong to the program that made the connection, and not to the peer.
        self._context = copy_context()
        self._inbox: deque[bytes] = deque()
        self._end_of_input = False
        self._reading = True
        self._scheduled = self._paused = self._closing = False

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon(callback, *arguments, context=self._context)

    def _look(self) -> None:
        """Have the protocol read in its next turn, if there is something to read."""
        if (
            self._reading
            and not (self._scheduled or self._paused or self._closing)
            and (self._inbox or self._end_of_input)
        ):
            self._scheduled = True
            self._call(self._read)

    @abstractmethod
    def _read(self) -> None:
        """Give what has arrived to the protocol."""

    def _feed(self, data: bytes) -> None:
        """Give bytes to the protocol."""
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            asyncio.protocols._feed_data_to_buffered_proto(self._protocol, data)  # type: ignore[attr-defined]
        else:
            self._protocol.data_received(data)

    def is_reading(self) -> bool:
        return not (self._paused or self._closing)

    def pause_reading(self) -> None:
        if not self._closing:
            self._paused = True

    def resume_reading(self) -> None:
        if not self._closing and self._paused:
            self._paused = False
            self._look()

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol
