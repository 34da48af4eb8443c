# SPDX-License-Identifier: Apache-2.0
"""The start of one connection to a broker: TCP or TLS, then the handshake."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from bmq._loop import create_connection
from bmq.client.address import Address, BrokerAccess
from bmq.client.channel import Channel
from bmq.errors import ConnectionFailed, Error
from bmq.protocol.client.handshake import Handshake

if TYPE_CHECKING:
    from bmq.client.trace import Tracer

__all__ = ["Negotiation"]


class Negotiation:
    """A connection during the handshake: receives the data until the end of the handshake.

    Args:
        access: credentials, and the context for TLS.
        address: address of the broker.
        host: name or IP address to connect to.
        handshake: the handshake.
        adopt: called with the negotiated channel, in the same turn; returns False if another connection was
            faster, and may raise an error of bmq.
        liveness: tolerated silence in seconds; None for the system's defaults.
        tracer: logs all bytes; None for no trace.
    """

    def __init__(
        self,
        access: BrokerAccess,
        address: Address,
        host: str,
        handshake: Handshake,
        adopt: Callable[[Channel, Handshake], bool],
        *,
        liveness: float | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._access = access
        self._address = address
        self._host = host
        self._handshake = handshake
        self._adopt = adopt
        self._liveness = liveness
        self._tracer = tracer
        self._uses_tls = address.tls or access.ssl is not None
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        # True once the handshake has succeeded or failed.
        self._over = False

    def __str__(self) -> str:
        address, host = self._address, self._host
        return address.text if host == address.host else f"{address} ({host})"

    async def run(self, deadline: float) -> None:
        """Connect, negotiate, and hand the channel over.

        Args:
            deadline: time of the timeout, by the loop's clock.

        Raises:
            ConnectionFailed: no broker answered, in time or at all, or the broker refused.

        Cancelling the call closes the connection.
        """
        timeout = max(0.0, deadline - self._loop.time())
        channel: Channel | None = None
        try:
            async with asyncio.timeout_at(deadline):
                credentials = await self._access.get_credentials()
                channel = await self._open()
                channel.write([self._handshake.begin(credentials)])
                channel.start()
                await self._done
        except BaseException as error:
            self._over = True
            self._done.cancel()
            if channel is not None:
                channel.abort()
            if isinstance(error, ConnectionFailed):
                raise type(error)(f"{self}: {error}") from error
            if isinstance(error, TimeoutError):
                raise ConnectionFailed(f"{self} did not answer within {timeout:.2g} s") from None
            if isinstance(error, OSError):
                reason = error.strerror or str(error) or type(error).__name__
                if self._uses_tls and channel is None and _ends_a_tls_handshake(error):
                    reason += "; is this the broker's port for TLS?"
                raise ConnectionFailed(f"could not connect to {self}: {reason}") from error
            raise

    async def _open(self) -> Channel:
        ssl = self._access.ssl
        if ssl is None and self._address.tls:
            ssl = ssl_module.create_default_context()
        _, channel = await create_connection(
            lambda: Channel(self, self._liveness, self._tracer),
            self._host,
            self._address.port,
            ssl=ssl,
            server_hostname=(self._access.server_hostname or self._address.host) if ssl is not None else None,
        )
        return cast("Channel", channel)

    # the channel (see Receiver)

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes."""
        if self._over:
            return  # the attempt failed, or another was faster: the channel is about to be closed
        handshake = self._handshake
        answer = handshake.receive(bytes(data))
        if answer:
            channel.write([answer])
        self._over = handshake.done or handshake.error is not None
        if handshake.error is not None:
            self._fail(handshake.error)
        elif handshake.done:
            try:
                first = self._adopt(channel, handshake)
            except Error as error:
                self._fail(error)
            else:
                if first and not self._done.done():
                    self._done.set_result(None)

    def _fail(self, error: Error) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """Handle the loss of the channel."""
        if not self._over:
            self._over = True
            hint = "" if self._uses_tls else "; if the broker expects TLS, use a tcps:// address"
            why = f": {str(error) or type(error).__name__}" if error is not None else ""
            self._fail(ConnectionFailed(f"the broker closed the connection during the handshake{why}{hint}"))

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """Ignore the state of the transport's buffer: a handshake is short."""


def _ends_a_tls_handshake(error: OSError) -> bool:
    """Whether an attempt may have failed with this error because the peer does not use TLS."""
    if isinstance(error, ssl_module.SSLError):
        return not isinstance(error, ssl_module.SSLCertVerificationError)
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
