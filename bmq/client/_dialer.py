# SPDX-License-Identifier: Apache-2.0
"""Connecting and reconnecting."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import logging
import socket
import ssl as ssl_module
from collections import deque
from collections.abc import Callable, Iterator

from bmq.client._address import Address
from bmq.client._connection import Channel, Connection
from bmq.client._reporting import Reporter
from bmq.client.options import CredentialsSource, SessionOptions
from bmq.errors import ConnectionFailed, Error, SessionClosed, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import Connected, Reconnected, Reconnecting, SessionEvent
from bmq.protocol.client.handshake import Credentials

__all__ = ["Dialer"]

logger = logging.getLogger("bmq.client")

# After this many losses in this many seconds the delays go on growing instead of starting again: otherwise a
# broker that accepts connections and closes them would be tried a hundred times a second.
_BURST = 20
_BURST_SECONDS = 10.0


class Dialer:
    """Brings a session's connection up, the first time and after every loss.

    Args:
        connection: the connection to bring up.
        options: delays and timeouts.
        publish: hands an event to the application.
        reporter: writes to the log what is not an event.
        addresses: where brokers listen.
        credentials: the client's credentials, or a callable that returns them.
        ssl: the context for TLS, which all addresses then use; None for the defaults, and ``tcps://`` only.
        server_hostname: the name in the broker's certificate, if it is not that of the address.

    Attributes:
        reconnects: how often the connection was restored.
        last_failure: why the last attempt failed, or None.
    """

    def __init__(
        self,
        connection: Connection,
        options: SessionOptions,
        publish: Callable[[SessionEvent], None],
        reporter: Reporter,
        addresses: list[Address],
        credentials: CredentialsSource | None,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
    ) -> None:
        self._connection = connection
        self._options = options
        self._publish = publish
        self._reporter = reporter
        self._addresses = addresses
        self._credentials = credentials
        self._ssl = ssl
        self._server_hostname = server_hostname
        self._next_address = 0
        self._task: asyncio.Task[None] | asyncio.Task[str] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._handshake: asyncio.Future[None] | None = None
        self._delays: Iterator[float] | None = None
        self._attempt = 0
        self._losses: deque[float] = deque(maxlen=_BURST)
        self._stopped = False
        self.reconnects = 0
        self.last_failure: Error | None = None

    @property
    def target(self) -> str:
        """The addresses, for people."""
        return ", ".join(map(str, self._addresses))

    @property
    def address(self) -> Address:
        """The address that is connected, or is tried next."""
        return self._addresses[self._next_address % len(self._addresses)]

    async def first_connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionFailed: as :meth:`bmq.Session.start` says.
            SessionClosed: the session was closed meanwhile.
        """
        self._task = asyncio.ensure_future(self._first_connect())
        try:
            await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopped and not (caller and caller.cancelling()):
                raise SessionClosed("the session was closed while it was connecting") from None
            raise
        finally:
            self._task = None
        self._reconnect_if_lost()

    def channel_lost(self) -> None:
        """The connection is gone: reconnect unless the session does not want to."""
        if self._handshake is not None and not self._handshake.done():
            hint = "" if self._uses_tls(self.address) else "; if it expects TLS, the address is tcps://"
            self._handshake.set_exception(
                self._connection.failure
                or ConnectionFailed(f"the broker closed the connection during the handshake{hint}")
            )
        if self._task is None:
            self._reconnect_if_lost()

    def note(self, event: SessionEvent) -> None:
        """Take a session event: one that says the session is connected ends the handshake."""
        waits = self._handshake is not None and not self._handshake.done()
        if waits and isinstance(event, Connected | Reconnected):
            assert self._handshake is not None
            self._handshake.set_result(None)

    def stop(self) -> None:
        """Stop connecting and reconnecting, for good."""
        self._stopped = True
        for task in (self._task, self._renewal):
            if task is not None:
                task.cancel()

    def renew_credentials(self) -> None:
        """Authenticate again on the live connection."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._renew())

    # credentials

    async def _renew(self) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                credentials = await self._get_credentials()
        except (TimeoutError, Error) as error:
            reason = str(error) or "they took too long"
            logger.warning(
                "no credentials to renew the authentication with: %s",
                reason,
                extra={"broker": str(self.address)},
            )
            credentials = None
        connection.core.reauthenticate(credentials, connection.now())
        connection.transmit_soon()

    async def _get_credentials(self) -> Credentials | None:
        source = self._credentials
        if source is None or isinstance(source, Credentials):
            return source
        try:
            try:
                credentials = source()
            except asyncio.CancelledError as error:
                # This task was not cancelled: the callable asked something that was for its result().
                raise ConnectionFailed("the credentials callable failed with CancelledError") from error
            if inspect.isawaitable(credentials):
                credentials = await credentials
        except ConnectionFailed:
            raise
        except Exception as error:
            raise ConnectionFailed(f"the credentials callable failed with {type(error).__name__}") from error
        if not isinstance(credentials, Credentials):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"the credentials callable returned {type(credentials).__name__}, not bmq.Credentials"
            )
        return credentials

    # connecting for the first time

    async def _first_connect(self) -> None:
        options = self._options
        if not options.retry_first_connect:
            await self._try_all()
            return
        try:
            async with asyncio.timeout(options.reconnect_timeout):
                for delay in options.reconnect_delays():
                    await asyncio.sleep(delay)
                    try:
                        await self._try_all()
                        return
                    except ConnectionFailed as error:
                        if not options.is_retryable(error):
                            raise
                        self.last_failure = error
                        self._reporter.not_connected_yet(error)
        except TimeoutError:
            raise ConnectionFailed(
                f"could not connect to {self.target} within {options.reconnect_timeout} s"
            ) from None
        raise ConnectionFailed(f"could not connect to {self.target}: no more attempts")

    # reconnecting

    def _reconnect_if_lost(self) -> None:
        connection = self._connection
        if connection.core.state is not SessionState.RECONNECTING or self._stopped:
            return
        if not self._options.reconnect:
            connection.core.give_up("the connection was lost", connection.now())
            connection.transmit_soon()
        else:
            self._task = asyncio.ensure_future(self._reconnect())
            self._task.add_done_callback(self._reconnected)

    async def _reconnect(self) -> str:
        """Try until it works; return "", or why no more attempts are made."""
        options = self._options
        self.last_failure = None
        try:
            async with asyncio.timeout(options.reconnect_timeout):
                await self._attempts()
        except TimeoutError:
            return f"not reconnected to {self.target} within {options.reconnect_timeout} s"
        except Error as error:
            return str(error)
        except Exception as error:
            reason = f"reconnecting failed with {type(error).__name__}"
            logger.exception("%s", reason, extra={"broker": str(self.address)})
            return reason
        return ""

    def _reconnected(self, task: asyncio.Task[str]) -> None:
        # In a callback, because a task that is cancelled before its first step runs nothing of its coroutine.
        self._task = None
        if self._stopped:
            return
        if task.cancelled() or task.exception():
            # Not by close(), which calls stop(): somebody cancels all tasks. Nobody would try again.
            reason = "the task that reconnects was cancelled"
        else:
            reason = task.result()
        if reason:
            self._connection.core.give_up(reason, self._connection.now())
            self._connection.transmit()
        else:
            # The connection may have been lost again as soon as it was restored.
            self._reconnect_if_lost()

    async def _attempts(self) -> None:
        connection = self._connection
        now = connection.now()
        flapping = len(self._losses) == _BURST and now - self._losses[0] < _BURST_SECONDS
        self._losses.append(now)
        if self._delays is None or not flapping:
            self._delays, self._attempt = self._options.reconnect_delays(), 0
        for delay in self._delays:
            self._attempt += 1
            self._publish(Reconnecting(self._attempt, delay, str(self.address)))
            await asyncio.sleep(delay)
            try:
                await self._try_all()
            except ConnectionFailed as error:
                if not self._options.is_retryable(error):
                    raise
                self.last_failure = error
                logger.info(
                    "attempt %d to reconnect failed: %s",
                    self._attempt,
                    error,
                    extra={"broker": str(self.address), "attempt": self._attempt},
                )
            else:
                self.reconnects += 1
                return
        raise ConnectionFailed(f"could not reconnect to {self.target}: no more attempts")

    # one attempt

    async def _try_all(self) -> None:
        """Try every address once: first the last that worked, or the one after the last that failed."""
        failures: list[str] = []
        for _ in self._addresses:
            try:
                await self._try_address(self.address)
                return
            except ConnectionFailed as error:
                if len(self._addresses) == 1 or not error.retryable:
                    raise
                failures.append(str(error))
                self._next_address += 1
        raise ConnectionFailed("; ".join(failures))

    async def _try_address(self, address: Address) -> None:
        """Try the IP addresses of a host one after the other.

        They share ``connect_timeout``; time that one leaves unused is for the others.
        """
        connection = self._connection
        timeout = self._options.connect_timeout
        deadline = connection.now() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                hosts = await self._resolve(address)
        except TimeoutError:
            raise ConnectionFailed(f"{address.host} was not resolved within {timeout:.2g} s") from None
        for left in range(len(hosts), 0, -1):
            share = (deadline - connection.now()) / left
            try:
                await self._try(address, hosts[-left], share)
                return
            except ConnectionFailed as error:
                if left == 1 or not error.retryable:
                    raise
                logger.info("%s; trying the next address of that name", error, extra={"broker": str(address)})

    async def _resolve(self, address: Address) -> list[str]:
        try:
            ipaddress.ip_address(address.host)
        except ValueError:
            pass
        else:
            return [address.host]  # getaddrinfo() would wait for a free thread
        try:
            found = await self._connection.loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise ConnectionFailed(f"could not resolve {address.host}: {error.strerror or error}") from error
        hosts = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not hosts:
            raise ConnectionFailed(f"{address.host} has no address")
        return hosts

    async def _try(self, address: Address, host: str, timeout: float) -> None:
        connection = self._connection
        handshake = self._handshake = connection.loop.create_future()
        connection.failure = None
        channel: Channel | None = None
        where = str(address) if host == address.host else f"{address} ({host})"
        try:
            async with asyncio.timeout(timeout):
                credentials = await self._get_credentials()
                channel = await self._open(address, host)
                connection.attach(channel)
                connection.core.channel_opened(credentials, connection.now())
                connection.transmit()
                channel.start()
                await handshake
        except BaseException as error:
            if channel is not None:
                connection.drop(channel)
            if isinstance(error, ConnectionFailed):
                raise type(error)(f"{where}: {error}") from error
            if isinstance(error, TimeoutError):
                raise ConnectionFailed(f"{where} did not answer within {timeout:.2g} s") from None
            if isinstance(error, OSError):
                reason = error.strerror or str(error) or type(error).__name__
                if self._uses_tls(address) and channel is None and _ends_a_tls_handshake(error):
                    reason += "; is this its port for TLS?"
                raise ConnectionFailed(f"could not connect to {where}: {reason}") from error
            raise
        finally:
            self._handshake = None

    def _uses_tls(self, address: Address) -> bool:
        return address.tls or self._ssl is not None

    async def _open(self, address: Address, host: str) -> Channel:
        connection = self._connection
        ssl = self._ssl
        if ssl is None and address.tls:
            ssl = ssl_module.create_default_context()
        _, channel = await connection.loop.create_connection(
            lambda: Channel(connection, self._options.liveness),
            host,
            address.port,
            ssl=ssl,
            server_hostname=(self._server_hostname or address.host) if ssl is not None else None,
        )
        return channel


def _ends_a_tls_handshake(error: OSError) -> bool:
    """Whether an attempt may have failed with this error because the peer does not speak TLS."""
    if isinstance(error, ssl_module.SSLError):
        return not isinstance(error, ssl_module.SSLCertVerificationError)
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
