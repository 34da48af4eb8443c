# SPDX-License-Identifier: Apache-2.0
"""Connecting and reconnecting.

A round tries every address, and every IP address of each name, within a single ``connect_timeout``. The
kernel of a hung broker still accepts connections: waiting for the end of each try would spend the whole time
on the hung broker. Each address has a head start of two seconds before the next address starts concurrently.
The first negotiated connection wins, and the rest are closed.

Addresses are ordered by their last failure. Addresses without a failure come first, in the given order. A
lost connection counts as a failure: after a loss the next address is tried at once, and a silent node
comes last.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import itertools
import socket
import ssl as ssl_module
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from bmq._logging import Log
from bmq.engine.address import Address
from bmq.engine.attempt import Attempt, Security
from bmq.engine.channel import Channel
from bmq.engine.connection import Connection
from bmq.engine.options import CredentialsSource, SessionOptions, Trace
from bmq.engine.race import race
from bmq.engine.tracing import Tracing
from bmq.engine.violations import Violations
from bmq.errors import ConnectionFailed, Error, SessionClosed, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import Reconnecting, SessionEvent
from bmq.protocol.client.greeting import Greeting
from bmq.protocol.client.handshake import Credentials

__all__ = ["Dialer"]

logger = Log("bmq.client", later=True)

# After this many losses in this many seconds the delays keep growing. Otherwise a broker accepting and
# closing connections would be tried a hundred times a second.
_BURST = 20
_BURST_SECONDS = 10.0
_OVER = (SessionState.CLOSING, SessionState.CLOSED)
# Head start of an address in seconds before the next address is tried concurrently. With many addresses or
# little time, the head start is shorter: all addresses start in time.
_HEAD_START = 2.0
# Maximum number of remembered failures of IP addresses; a name may resolve to new addresses every day.
_MOST_FAILURES = 1000


class Dialer:
    """Establishes a session's connection, the first time and after each loss.

    Args:
        connection: connection to establish.
        options: delays and timeouts.
        publish: passes an event to the application.
        not_connected_yet: called after a failed attempt of the first connect, if further attempts follow.
        addresses: addresses of the broker.
        credentials: client's credentials, or a function returning credentials.
        ssl: TLS context for all addresses; if None, only ``tcps://`` uses TLS, with the defaults.
        server_hostname: name in the broker's certificate, if different from the address.

    Attributes:
        target: addresses as text.
        reconnects: number of restored connections.
        last_failure: error of the last attempt, or None.
        tracing: setting of the wire trace.
    """

    def __init__(
        self,
        connection: Connection,
        options: SessionOptions,
        publish: Callable[[SessionEvent], None],
        not_connected_yet: Callable[[Exception], None],
        addresses: list[Address],
        credentials: CredentialsSource | None,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
    ) -> None:
        self._connection = connection
        self._options = options
        self._publish = publish
        self._not_connected_yet = not_connected_yet
        self._addresses = addresses
        self.target = ", ".join(map(str, addresses))
        self._credentials = credentials
        self._security = Security(ssl, server_hostname)
        self.tracing = Tracing(options.trace, self.trace)
        # The connected address; None without a connection.
        self._current: tuple[Address, str] | None = None
        # Sequence number of the last failure of each address and IP address.
        self._failed: dict[Hashable, int] = {}
        self._failures = itertools.count(1)
        self._racing: dict[asyncio.Task[None], None] = {}
        self._task: asyncio.Task[Any] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._delays: Iterator[float] | None = None
        self._attempt = 0
        self._losses: deque[float] = deque(maxlen=_BURST)
        self._violations = Violations(self.target)
        self._up_at = 0.0
        self.reconnects = 0
        self.last_failure: Error | None = None

    @property
    def address(self) -> Address:
        """The connected address, or the next address to try."""
        return self._current[0] if self._current is not None else self._in_order()[0]

    def trace(self) -> None:
        """Follow a changed setting of the wire trace."""
        self._connection.trace(self.tracing, self.address.text)

    async def first_connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionFailed: as for :meth:`bmq.Session.start`.
            SessionClosed: the session was closed meanwhile.
        """
        self._task = asyncio.ensure_future(self._first_connect())
        try:
            await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._connection.core.over and not (caller and caller.cancelling()):
                raise SessionClosed("the session was closed while it was connecting") from None
            raise
        finally:
            self._task = None
        self._reconnect_if_lost()

    def channel_lost(self) -> None:
        """Reconnect after the loss of a connection, unless the session is ending."""
        if self._current is not None:
            self._put_last(*self._current)
            self._current = None
        if self._task is None:
            self._reconnect_if_lost()

    def stop(self) -> None:
        """Stop connecting: the session ends, and the core is informed in the same turn."""
        for task in (self._task, self._renewal, *self._racing):
            if task is not None:
                task.cancel()

    def renew_credentials(self) -> None:
        """Renew the credentials on the live connection."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.ensure_future(self._renew())

    # credentials

    async def _renew(self) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                credentials = await self._get_credentials()
        except (TimeoutError, Error) as error:
            reason = str(error) or "the credentials callable took too long"
            logger.warning(
                "the authentication could not be renewed, for lack of credentials: %s",
                reason,
                extra={"broker": self.address.text},
            )
            credentials = None
        connection.core.reauthenticate(credentials, connection.loop.time())
        connection.transmit_soon()

    async def _get_credentials(self) -> Credentials | None:
        source = self._credentials
        if source is None or isinstance(source, Credentials):
            return source
        try:
            try:
                credentials = source()
            except asyncio.CancelledError as error:
                # This task was not cancelled: the callable awaited a cancelled future or task.
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
                    await asyncio.sleep(self._violations.pause(delay))
                    try:
                        await self._try_all()
                        return
                    except ConnectionFailed as error:
                        if not options.is_retryable(error):
                            raise
                        self._note_failure(error)
                        self._not_connected_yet(error)
        except TimeoutError:
            raise ConnectionFailed(
                f"could not connect to {self.target} within {options.reconnect_timeout} s{self._last}"
            ) from self.last_failure
        raise ConnectionFailed(
            f"could not connect to {self.target}: no more attempts{self._last}"
        ) from self.last_failure

    def _note_failure(self, error: ConnectionFailed) -> None:
        """Record the error of an attempt, as the cause of errors for callers waiting for a connection.

        Raises:
            ConnectionFailed: too many consecutive connections ended because of the peer's data.
        """
        self.last_failure = error
        self._connection.core.note_trouble(error, self._connection.loop.time())
        self._violations.note(error)

    def _forget_failure(self) -> None:
        self.last_failure = None

    @property
    def _last(self) -> str:
        """Return the last part of a sentence about attempts."""
        return f"; the last attempt ended with: {self.last_failure}" if self.last_failure is not None else ""

    # reconnecting

    def _reconnect_if_lost(self) -> None:
        connection = self._connection
        state = connection.core.state
        if state is not SessionState.RECONNECTING and state is not SessionState.DRAINING_LOST:
            return
        if not self._options.reconnect:
            core = connection.core
            core.give_up(
                f"the connection was lost: {core.lost_because}", connection.loop.time(), core.trouble
            )
            connection.transmit_soon()
        else:
            self._task = asyncio.ensure_future(self._reconnect())
            self._task.add_done_callback(self._reconnected)

    async def _reconnect(self) -> tuple[str, BaseException | None]:
        """Try until an attempt succeeds; return "", or the reason for giving up."""
        options = self._options
        trouble = self._connection.core.trouble
        self._forget_failure()
        try:
            async with asyncio.timeout(options.reconnect_timeout):
                await self._attempts()
        except TimeoutError:
            reason = f"not reconnected to {self.target} within {options.reconnect_timeout} s{self._last}"
            return reason, trouble if self.last_failure is None else self.last_failure
        except Error as error:
            return str(error), error
        except Exception as error:
            reason = f"reconnecting failed with {type(error).__name__}"
            logger.exception("%s", reason, extra={"broker": self.address.text})
            return reason, error
        return "", None

    def _reconnected(self, task: asyncio.Task[tuple[str, BaseException | None]]) -> None:
        # In a callback: a task cancelled before the first step never runs its coroutine.
        self._task = None
        if self._connection.core.state in _OVER:
            return
        cause: BaseException | None = None
        if task.cancelled() or task.exception():
            # Not cancelled by close(), which calls stop(): no task would try again.
            reason = "the task that reconnects was cancelled"
        else:
            reason, cause = task.result()
        if reason:
            self._connection.core.give_up(reason, self._connection.loop.time(), cause)
            self._connection.transmit()
        else:
            # The connection may have been lost again immediately.
            self._reconnect_if_lost()

    async def _attempts(self) -> None:
        connection = self._connection
        now = connection.loop.time()
        flapping = len(self._losses) == _BURST and now - self._losses[0] < _BURST_SECONDS
        self._losses.append(now)
        self._violations.lasted(now - self._up_at)
        self._violations.note(connection.core.trouble)
        if self._delays is None or not flapping:
            self._delays, self._attempt = self._options.reconnect_delays(), 0
        for each in self._delays:
            self._attempt += 1
            delay = self._violations.pause(each)
            self._publish(Reconnecting(self._attempt, delay, self.address.text))
            await asyncio.sleep(delay)
            try:
                await self._try_all()
            except ConnectionFailed as error:
                if not self._options.is_retryable(error):
                    raise
                self._note_failure(error)
                logger.info(
                    "attempt %d to reconnect failed: %s",
                    self._attempt,
                    error,
                    extra={"broker": self.address.text, "attempt": self._attempt},
                )
            else:
                self.reconnects += 1
                return
        raise ConnectionFailed(
            f"could not reconnect to {self.target}: no more attempts{self._last}"
        ) from self.last_failure

    # one attempt

    async def _try_all(self) -> None:
        """Try all addresses within ``connect_timeout``, and use the first negotiated connection."""
        addresses, timeout = self._in_order(), self._options.connect_timeout
        deadline = self._connection.loop.time() + timeout
        begun: list[Address] = []
        runners = [partial(self._try_address, address, deadline, begun) for address in addresses]
        await race(runners, _head_start(timeout, len(addresses)), self._racing)
        if self._current is not None:
            # Addresses whose head start has ended without success.
            for address in begun[: begun.index(self._current[0])]:
                self._put_last(address)

    async def _try_address(self, address: Address, deadline: float, begun: list[Address]) -> None:
        """Try the IP addresses of a host."""
        begun.append(address)
        connection = self._connection
        timeout = max(0.0, deadline - connection.loop.time())
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    hosts = await self._resolve(address)
            except TimeoutError:
                raise ConnectionFailed(f"{address.host} was not resolved within {timeout:.2g} s") from None
            hosts.sort(key=lambda host: self._failed.get((address, host), 0))
            runners = [partial(self._try, address, host, deadline) for host in hosts]
            left = deadline - connection.loop.time()
            await race(runners, _head_start(left, len(hosts)), self._racing)
        except ConnectionFailed:
            self._put_last(address)
            raise

    async def _try(self, address: Address, host: str, deadline: float) -> None:
        """Try one IP address."""
        attempt = Attempt(
            self._connection, self._adopt, self._options, self._security, self.tracing, address, host
        )
        try:
            await attempt.run(self._get_credentials, deadline)
        except ConnectionFailed:
            self._put_last(address, host)
            raise

    def _adopt(self, attempt: Attempt, channel: Channel, greeting: Greeting) -> bool:
        if self._current is not None:
            return False
        self._current = attempt.address, attempt.host
        self._up_at = self._connection.loop.time()
        try:
            self._connection.adopt(channel, greeting)
        except Error:
            self._current = None
            raise
        if self.tracing.trace is not Trace.OFF and not channel.traced:
            self.trace()  # the trace may have been switched on since the beginning of the attempt
        return True

    def _in_order(self) -> list[Address]:
        """Return the addresses, the latest failure last."""
        return sorted(self._addresses, key=lambda address: self._failed.get(address, 0))

    def _put_last(self, address: Address, host: str | None = None) -> None:
        if len(self._failed) > _MOST_FAILURES:
            self._failed.clear()
        self._failed[address] = next(self._failures)
        if host is not None:
            self._failed[address, host] = next(self._failures)

    async def _resolve(self, address: Address) -> list[str]:
        try:
            ipaddress.ip_address(address.host)
        except ValueError:
            pass
        else:
            return [address.host]  # getaddrinfo() would wait for a free thread
        # For a text, Python would first import the codec of international names, which takes a millisecond.
        host = address.host.encode() if address.host.isascii() else address.host
        try:
            found = await self._connection.loop.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailed(f"could not resolve {address.host}: {reason}") from error
        hosts = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not hosts:
            raise ConnectionFailed(f"{address.host} has no address")
        return hosts


def _head_start(timeout: float, count: int) -> float:
    return max(0.0, min(_HEAD_START, timeout / (count + 1)))
