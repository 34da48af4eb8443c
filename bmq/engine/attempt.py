# SPDX-License-Identifier: Apache-2.0
"""An attempt to connect: TCP, TLS, credentials and negotiation with one IP address."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from bmq._loop import create_connection
from bmq.engine.address import Address
from bmq.engine.channel import Channel
from bmq.engine.connection import Connection
from bmq.engine.options import SessionOptions
from bmq.engine.tracing import Tracing
from bmq.errors import ConnectionFailed, Error
from bmq.protocol.client.greeting import Greeting
from bmq.protocol.client.handshake import Credentials

__all__ = ["Attempt", "Security"]


@dataclass(frozen=True, slots=True)
class Security:
    """TLS settings of connection attempts.

    Attributes:
        ssl: TLS context for all addresses; if None, only ``tcps://`` uses TLS, with the defaults.
        server_hostname: name in the broker's certificate, if different from the address.
    """

    ssl: ssl_module.SSLContext | None
    server_hostname: str | None

    def used_by(self, address: Address) -> bool:
        """Whether connections to an address use TLS."""
        return address.tls or self.ssl is not None


class Attempt:
    """A connection during the handshake; receives the channel's data until the end of the handshake.

    Args:
        connection: connection of the session.
        adopt: called with the negotiated channel; returns False if another attempt was faster.
        options: options of the session.
        security: TLS settings.
        tracing: setting of the wire trace.
        address: address of the broker.
        host: IP address of the broker.

    Attributes:
        address: address of the broker.
        host: IP address of the broker.
    """

    def __init__(
        self,
        connection: Connection,
        adopt: Callable[[Attempt, Channel, Greeting], bool],
        options: SessionOptions,
        security: Security,
        tracing: Tracing,
        address: Address,
        host: str,
    ) -> None:
        self._connection = connection
        self._adopt = adopt
        self._options = options
        self._security = security
        self._tracing = tracing
        self.address = address
        self.host = host
        self._greeting = connection.core.greet()
        self._done: asyncio.Future[None] = connection.loop.create_future()
        # True once the handshake has succeeded or failed.
        self._over = False

    def __str__(self) -> str:
        address, host = self.address, self.host
        return address.text if host == address.host else f"{address} ({host})"

    async def run(self, credentials: Callable[[], Awaitable[Credentials | None]], deadline: float) -> None:
        """Connect, negotiate, and hand the channel over.

        Args:
            credentials: returns the client's credentials.
            deadline: time of the timeout, by the loop's clock.

        Raises:
            ConnectionFailed: no broker answered, in time or at all, or the broker refused.

        Cancelling the call closes the connection.
        """
        timeout = max(0.0, deadline - self._connection.loop.time())
        channel: Channel | None = None
        try:
            async with asyncio.timeout_at(deadline):
                known = await credentials()
                channel = await self._open()
                channel.write([self._greeting.begin(known)])
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

    @property
    def _uses_tls(self) -> bool:
        return self._security.used_by(self.address)

    async def _open(self) -> Channel:
        ssl, address = self._security.ssl, self.address
        if ssl is None and address.tls:
            ssl = ssl_module.create_default_context()
        _, channel = await create_connection(
            lambda: Channel(self, self._options.liveness, self._tracing.tracer(self.address.text)),
            self.host,
            address.port,
            ssl=ssl,
            server_hostname=(self._security.server_hostname or address.host) if ssl is not None else None,
        )
        return cast("Channel", channel)

    # the channel (see Receiver)

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes."""
        if self._over:
            return  # the attempt failed, or another was faster: the channel is about to be closed
        greeting = self._greeting
        answer = greeting.receive(bytes(data))
        if answer:
            channel.write([answer])
        self._over = greeting.done or greeting.error is not None
        if greeting.error is not None:
            self._fail(greeting.error)
        elif greeting.done:
            try:
                first = self._adopt(self, channel, greeting)
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
