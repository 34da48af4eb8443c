# SPDX-License-Identifier: Apache-2.0
"""One attempt to connect: TCP, TLS, credentials and negotiation with one IP address."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bmq.engine.address import Address
from bmq.engine.channel import Channel
from bmq.engine.connection import Connection
from bmq.engine.options import SessionOptions, Trace
from bmq.errors import ConnectionFailed, Error
from bmq.protocol.client.greeting import Greeting
from bmq.protocol.client.handshake import Credentials

if TYPE_CHECKING:
    from bmq.engine.trace import Tracer

__all__ = ["Attempt", "Security"]


@dataclass(frozen=True, slots=True)
class Security:
    """Whether and how attempts use TLS.

    Attributes:
        ssl: the context for TLS, which all addresses then use; None for the defaults, and ``tcps://`` only.
        server_hostname: the name in the broker's certificate, if it is not that of the address.
    """

    ssl: ssl_module.SSLContext | None
    server_hostname: str | None

    def used_by(self, address: Address) -> bool:
        """Whether connections to an address use TLS."""
        return address.tls or self.ssl is not None


class Attempt:
    """A connection on its way up; the receiver of its channel until the session's connection takes over.

    Args:
        connection: the session's connection.
        adopt: gets the channel once it is negotiated; returns False if another attempt was first.
        options: of the session.
        security: whether and how it uses TLS.
        address: where to connect to.
        host: the IP address of it.

    Attributes:
        address: where it connects to.
        host: the IP address of it.
    """

    def __init__(
        self,
        connection: Connection,
        adopt: Callable[[Attempt, Channel, Greeting], bool],
        options: SessionOptions,
        security: Security,
        address: Address,
        host: str,
    ) -> None:
        self._connection = connection
        self._adopt = adopt
        self._options = options
        self._security = security
        self.address = address
        self.host = host
        self._greeting = connection.core.greet()
        self._done: asyncio.Future[None] = connection.loop.create_future()
        # The conversation has ended, in one way or the other.
        self._over = False

    def __str__(self) -> str:
        address, host = self.address, self.host
        return str(address) if host == address.host else f"{address} ({host})"

    async def run(self, credentials: Callable[[], Awaitable[Credentials | None]], deadline: float) -> None:
        """Connect and negotiate, and hand the channel over.

        Args:
            credentials: asks for the client's credentials.
            deadline: when it fails, in the loop's time.

        Raises:
            ConnectionFailed: there is no broker, it does not answer in time, or it refused.

        Cancelling it closes the connection.
        """
        timeout = max(0.0, deadline - self._connection.now())
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
                    reason += "; is this its port for TLS?"
                raise ConnectionFailed(f"could not connect to {self}: {reason}") from error
            raise

    @property
    def _uses_tls(self) -> bool:
        return self._security.used_by(self.address)

    async def _open(self) -> Channel:
        ssl, address = self._security.ssl, self.address
        if ssl is None and address.tls:
            ssl = ssl_module.create_default_context()
        _, channel = await self._connection.loop.create_connection(
            lambda: Channel(self, self._options.liveness, self._tracer()),
            self.host,
            address.port,
            ssl=ssl,
            server_hostname=(self._security.server_hostname or address.host) if ssl is not None else None,
        )
        return channel

    def _tracer(self) -> Tracer | None:
        if self._options.trace is Trace.OFF:
            return None
        from bmq.engine.trace import Tracer

        return Tracer(str(self.address), payloads=self._options.trace is Trace.PAYLOADS)

    # the channel (see Receiver)

    def channel_data(self, channel: Channel, data: bytes) -> None:
        """Bytes arrived."""
        if self._over:
            return  # it has failed, or another attempt was first: the channel is about to be closed
        greeting = self._greeting
        answer = greeting.receive(data)
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
        """The channel is gone."""
        if not self._over:
            self._over = True
            hint = "" if self._uses_tls else "; if it expects TLS, the address is tcps://"
            why = f": {str(error) or type(error).__name__}" if error is not None else ""
            self._fail(ConnectionFailed(f"the broker closed the connection during the handshake{why}{hint}"))

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """The transport's buffer is full, or has room again: a handshake is short."""


def _ends_a_tls_handshake(error: OSError) -> bool:
    """Whether an attempt may have failed with this error because the peer does not speak TLS."""
    if isinstance(error, ssl_module.SSLError):
        return not isinstance(error, ssl_module.SSLCertVerificationError)
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
