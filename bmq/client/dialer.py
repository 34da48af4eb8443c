# SPDX-License-Identifier: Apache-2.0
"""Connecting and reconnecting.

A round tries every address, and every IP address of each name, within a single ``connect_timeout``. The
kernel of a hung broker still accepts connections: waiting for the end of each try would spend the whole time
on the hung broker. Each address has a head start of two seconds before the next address starts concurrently.
The first negotiated connection wins, and the rest are closed.

Addresses are ordered by their last failure. Addresses without a failure come first, in the given order. A
lost connection counts as a failure: after a loss the next address is tried at once, and a silent node
comes last.

After a cut the client reconnects at once: the cause is usually gone. After a violation of the protocol the
broker usually sends the same bytes again, because the broker delivers unconfirmed messages again, and each
lost connection counts as a delivery attempt of every message in flight. The pauses grow, and
:data:`MOST_VIOLATIONS` in a row end the session with the error.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import socket
from collections import deque
from collections.abc import Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bmq._logging import Log
from bmq.client.address import Address, BrokerAccess, race, violation_in
from bmq.client.channel import Channel
from bmq.client.negotiation import Negotiation
from bmq.client.options import Trace
from bmq.errors import ConnectionFailed, Error, SessionClosed
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import Reconnecting
from bmq.protocol.client.handshake import Handshake
from bmq.protocol.deadlines import backoff

if TYPE_CHECKING:
    from bmq.client.connection import Connection
    from bmq.client.trace import Tracer

__all__ = ["MOST_VIOLATIONS", "USEFUL_SECONDS", "Dialer"]

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
#: Maximum number of consecutive connections ended by a violation of the protocol.
MOST_VIOLATIONS = 10
#: A connection of at least this many seconds ends the row of violations.
USEFUL_SECONDS = 60.0
# Pause in seconds after the second violation, and the longest; the delay of the options is added.
_VIOLATION_PAUSE = 0.5
_LONGEST_VIOLATION_PAUSE = 30.0


class Dialer:
    """Establishes a session's connection, the first time and after each loss.

    Args:
        connection: connection to establish.
        broker: addresses of the broker, and credentials.

    Attributes:
        target: addresses as text.
        reconnects: number of restored connections.
        last_failure: error of the last attempt, or None.
        violations: number of consecutive connections ended by the peer's violations of the protocol.
    """

    def __init__(self, connection: Connection, broker: BrokerAccess) -> None:
        self._connection = connection
        self._options = options = connection.options
        self.broker = broker
        self.target = ", ".join(map(str, broker.addresses))
        # Content of the wire trace, and the number of events still to be logged; None for no limit.
        self._trace = options.trace
        self._trace_left: int | None = None
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
        self.violations = 0
        self._up_at = 0.0
        self.reconnects = 0
        self.last_failure: Error | None = None

    @property
    def address(self) -> Address:
        """The connected address, or the next address to try."""
        return self._current[0] if self._current is not None else self._in_order()[0]

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

    # the wire trace

    def set_trace(self, trace: Trace, count: int | None) -> None:
        """Trace this connection and all later ones, for a number of events if ``count`` is not None."""
        self._trace, self._trace_left = trace, count
        self._apply_trace()

    def _apply_trace(self) -> None:
        """Follow a changed setting in the middle of a conversation."""
        channel = self._connection.channel
        if self._current is not None and channel is not None:
            channel.tracer = self._tracer(self.address, self._connection.core.unfinished)

    def _tracer(self, address: Address, received: bytes = b"") -> Tracer | None:
        """Return the tracer of a connection that has received part of an event; None without a trace."""
        if self._trace is Trace.OFF:
            return None
        from bmq.client.trace import Tracer  # few programs need the module

        payloads = self._trace is Trace.PAYLOADS
        return Tracer(address.text, payloads=payloads, allowed=self._count_traced, received=received)

    def _count_traced(self) -> bool:
        """Return whether one more event is to be logged."""
        if self._trace_left is None:
            return self._trace is not Trace.OFF
        if not self._trace_left:
            return False
        self._trace_left -= 1
        if not self._trace_left:
            self._trace = Trace.OFF
            self._apply_trace()
        return True

    # credentials

    async def _renew(self) -> None:
        connection = self._connection
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                credentials = await self.broker.get_credentials()
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

    # rounds of attempts

    async def _first_connect(self) -> None:
        if self._options.retry_first_connect:
            await self._rounds("connect", self._options.reconnect_delays())
        else:
            await self._try_all()

    async def _rounds(self, what: str, delays: Iterator[float]) -> None:
        """Try all addresses after each delay, until the first success.

        Raises:
            ConnectionFailed: no time or no delay is left, or an error forbids further attempts.
        """
        options = self._options
        trouble = self._connection.core.trouble
        first = what == "connect"
        try:
            async with asyncio.timeout(options.reconnect_timeout):
                for each in delays:
                    self._attempt += 1
                    delay = self.pause(each)
                    if not first:
                        self._connection.publish(Reconnecting(self._attempt, delay, self.address.text))
                    await asyncio.sleep(delay)
                    try:
                        await self._try_all()
                        return
                    except ConnectionFailed as error:
                        if not options.is_retryable(error):
                            raise
                        self._note_failure(error)
                        if first:
                            self._connection.reporter.not_connected_yet(error)
                        else:
                            logger.info(
                                "attempt %d to reconnect failed: %s",
                                self._attempt,
                                error,
                                extra={"broker": self.address.text, "attempt": self._attempt},
                            )
            end = ": no more attempts"
        except TimeoutError:
            end = f" within {options.reconnect_timeout} s"
        last = self.last_failure
        raise ConnectionFailed(
            f"could not {what} to {self.target}{end}"
            + (f"; the last attempt ended with: {last}" if last is not None else "")
        ) from last or trouble

    def _note_failure(self, error: ConnectionFailed) -> None:
        """Record the error of an attempt, as the cause of errors for callers waiting for a connection.

        Raises:
            ConnectionFailed: too many consecutive connections ended because of the peer's data.
        """
        self.last_failure = error
        self._connection.core.note_trouble(error, self._connection.loop.time())
        self.note_violation(error)

    def note_violation(self, error: BaseException | None) -> None:
        """Count the end of a connection or an attempt, if the peer violated the protocol.

        Raises:
            ConnectionFailed: too many violations.
        """
        violation = violation_in(error)
        if violation is None:
            return
        self.violations += 1
        if self.violations >= MOST_VIOLATIONS:
            raise ConnectionFailed(
                f"{self.target}: {self.violations} connections in a row ended because of invalid data from "
                f"the broker; the last error: {violation}"
            ) from violation

    def pause(self, delay: float) -> float:
        """Return the pause before the next attempt, given the ``delay`` without violations."""
        if self.violations < 2:
            return delay
        return delay + backoff(self.violations - 1, _VIOLATION_PAUSE, _LONGEST_VIOLATION_PAUSE)

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

    async def _reconnect(self) -> None:
        now = self._connection.loop.time()
        flapping = len(self._losses) == _BURST and now - self._losses[0] < _BURST_SECONDS
        self._losses.append(now)
        if now - self._up_at >= USEFUL_SECONDS:
            self.violations = 0
        self.note_violation(self._connection.core.trouble)
        if self._delays is None or not flapping:
            self._delays, self._attempt = self._options.reconnect_delays(), 0
        self.last_failure = None
        await self._rounds("reconnect", self._delays)
        self.reconnects += 1

    def _reconnected(self, task: asyncio.Task[None]) -> None:
        # In a callback: a task cancelled before the first step never runs its coroutine.
        self._task = None
        cause = None if task.cancelled() else task.exception()
        if self._connection.core.state in _OVER:
            return
        if task.cancelled():
            # Not cancelled by close(), which calls stop(): no task would try again.
            reason = "the task that reconnects was cancelled"
        elif cause is None:
            self._reconnect_if_lost()  # the connection may have been lost again immediately
            return
        elif isinstance(cause, Error):
            reason = str(cause)
        else:
            reason = f"reconnecting failed with {type(cause).__name__}"
            logger.error(
                "reconnecting failed with %s",
                type(cause).__name__,
                exc_info=cause,
                extra={"broker": self.address.text},
            )
        self._connection.core.give_up(reason, self._connection.loop.time(), cause)
        self._connection.transmit()

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
        negotiation = Negotiation(
            self.broker,
            address,
            host,
            self._connection.core.handshake(),
            partial(self.adopt, address, host),
            liveness=self._options.liveness,
            tracer=self._tracer(address),
        )
        try:
            await negotiation.run(deadline)
        except ConnectionFailed:
            self._put_last(address, host)
            raise

    def adopt(self, address: Address, host: str, channel: Channel, handshake: Handshake) -> bool:
        """Use a negotiated channel; return False if another attempt was faster."""
        if self._current is not None:
            return False
        self._current = address, host
        self._up_at = self._connection.loop.time()
        try:
            self._connection.adopt(channel, handshake)
        except Error:
            self._current = None
            raise
        if self._trace is not Trace.OFF and channel.tracer is None:
            self._apply_trace()  # the trace may have been switched on since the beginning of the attempt
        return True

    def _in_order(self) -> list[Address]:
        """Return the addresses, the latest failure last."""
        return sorted(self.broker.addresses, key=lambda address: self._failed.get(address, 0))

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
