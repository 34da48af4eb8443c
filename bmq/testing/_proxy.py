# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy with the faults of a network: cut, stall, delay, split, corrupt, throttle."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from random import Random
from types import TracebackType
from typing import Any, cast

from bmq import _checks
from bmq._loop import running_loop
from bmq.client.address import parse_addresses
from bmq.errors import StateError, UsageError
from bmq.testing._pipe import Conditions, Direction, Endpoint, Pipe

__all__ = ["Direction", "FaultProxy", "PathFaults", "ProxiedConnection", "Side"]

_CONNECT_TIMEOUT = 10.0
_BACKLOG = 1024
# Bytes a second: a byte in a quarter of an hour.
_SLOWEST = 0.001
_POSIX = os.name == "posix"


def _linger(posix: bool) -> bytes:
    """SO_LINGER on, for 0 seconds: closing sends RST instead of FIN. Windows has two shorts."""
    return struct.pack("ii" if posix else "hh", 1, 0)


class Side(Enum):
    """Which end of a connection."""

    CLIENT = "client"
    BROKER = "broker"


class PathFaults(ABC):
    """The faults for one connection, or for all connections at once.

    ``direction`` None means both directions. No call waits: a call takes effect for every byte that has not
    left the proxy yet. Settings stay until changed or until :meth:`heal`.
    """

    @abstractmethod
    def _conditions(self, direction: Direction | None) -> Iterable[Conditions]: ...

    @abstractmethod
    def _each(self, action: Callable[[ProxiedConnection], None]) -> None:
        """Apply a change to each open connection, or without one to the next connection."""

    def stall(self, direction: Direction | None = None) -> None:
        """Stop all bytes without a loss: senders notice once buffers of about 1 MiB are full."""
        self._set(direction, stalled=True)

    def resume(self, direction: Direction | None = None) -> None:
        """Let bytes pass again after :meth:`stall`."""
        self._set(direction, stalled=False)

    def swallow(self, direction: Direction | None = None) -> None:
        """Read bytes and drop them, the end of the stream included, like a broken middlebox."""
        self._set(direction, swallowing=True)

    def delay(self, seconds: float, direction: Direction | None = None, *, jitter: float = 0.0) -> None:
        """Delay bytes by ``seconds`` plus up to ``jitter`` seconds, in order."""
        self._set(
            direction, delay=_checks.seconds("seconds", seconds), jitter=_checks.seconds("jitter", jitter)
        )

    def split(self, size: int | tuple[int, int] | None = 1, direction: Direction | None = None) -> None:
        """Send in pieces of ``size`` bytes, or of a random size within bounds; None undoes the split."""
        self._set(direction, split=None if size is None else _sizes(size))

    def throttle(self, bytes_per_second: float | None, direction: Direction | None = None) -> None:
        """Limit the throughput of each direction; None removes the limit."""
        if bytes_per_second is not None:
            bytes_per_second = _checks.number(
                "bytes_per_second", bytes_per_second, _SLOWEST, otherwise=" or None (stall() stops all),"
            )
        self._set(direction, rate=bytes_per_second)

    def heal(self) -> None:
        """Undo every setting, in both directions. Swallowed and cut bytes stay lost."""
        self._set(None, stalled=False, swallowing=False, delay=0.0, jitter=0.0, split=None, rate=None)

    def corrupt(
        self,
        direction: Direction,
        *,
        offset: int = 0,
        xor: int | bytes | None = None,
        replace: bytes | None = None,
    ) -> None:
        """Change bytes once.

        Args:
            direction: of the bytes.
            offset: number of bytes that pass unharmed before.
            xor: flip these bits, of one byte or of several; by default all bits of one byte.
            replace: replacement for the real bytes, instead of ``xor``.

        Without an open connection, the change applies to the next connection.
        """
        if xor is not None and replace is not None:
            raise UsageError("give either xor or replace")
        _direction(direction)
        offset = _checks.integer("offset", offset)
        if replace is not None:
            replace = _checks.octets("replace", replace)
        if xor is not None and not isinstance(xor, bytes):
            xor = _checks.integer("xor", xor, 0, 255)
        changes: list[Callable[[int], int]]
        if replace is not None:
            changes = [_replacer(value) for value in replace]
        else:
            masks = bytes([0xFF if xor is None else xor]) if not isinstance(xor, bytes) else xor
            changes = [_flipper(mask) for mask in masks]
        self._each(lambda connection: _pipe(connection, direction).edit(offset, changes))

    def when(
        self,
        direction: Direction,
        action: Callable[[ProxiedConnection], None],
        *,
        nbytes: int | None = None,
        events: int | None = None,
    ) -> None:
        """Call ``action`` with a connection after the given number of further bytes, or whole events.

        The next byte leaves only after the action. Without an open connection, the next connection counts.

        Raises:
            UsageError: not exactly one of ``nbytes`` and ``events`` is given, or an argument has another
                type.
        """
        _direction(direction)
        _checks.function("action", action, 1)
        if (nbytes is None) is (events is None):
            raise UsageError("give a number of bytes, nbytes=..., or a number of events, events=...")
        nbytes = _checks.optional(_checks.integer, "nbytes", nbytes)
        events = _checks.optional(_checks.integer, "events", events)

        def arm(connection: ProxiedConnection) -> None:
            pipe = _pipe(connection, direction)
            pipe.arm(lambda: action(connection), nbytes=nbytes, events=events)

        self._each(arm)

    def cut_after(
        self,
        direction: Direction,
        *,
        nbytes: int | None = None,
        events: int | None = None,
        side: Side | None = None,
        reset: bool = False,
    ) -> None:
        """Cut a connection after the given number of further bytes, or whole events.

        Raises:
            UsageError: as :meth:`when`.
        """
        _cutting(side, reset)
        self.when(
            direction, lambda connection: connection.cut(side, reset=reset), nbytes=nbytes, events=events
        )

    def _set(self, direction: Direction | None, **values: object) -> None:
        if direction is not None:
            _direction(direction)
        for conditions in self._conditions(direction):
            conditions.set(**values)


def _direction(value: object) -> None:
    _checks.instance("direction", value, Direction, "one of bmq.testing.Direction")


def _cutting(side: object, reset: object) -> None:
    if side is not None:
        _checks.instance("side", side, Side, "one of bmq.testing.Side")
    _checks.boolean("reset", reset)


def _sizes(size: object) -> tuple[int, int]:
    """Return the least and the greatest size of pieces."""
    given: Any = size
    if isinstance(given, tuple):
        bounds = cast("tuple[object, ...]", given)
        if len(bounds) != 2:
            raise UsageError(f"size must be a number of bytes or two bounds, not {_checks.shown(size)}")
        low, high = (_checks.integer("a bound of size", each, 1) for each in bounds)
        if low > high:
            raise UsageError(f"size must begin with the lower bound, and {low} is above {high}")
        return low, high
    exact = _checks.integer("size", size, 1)
    return exact, exact


def _flipper(mask: int) -> Callable[[int], int]:
    return lambda byte: byte ^ mask


def _replacer(value: int) -> Callable[[int], int]:
    return lambda _: value


class ProxiedConnection(PathFaults):
    """A connection through the proxy, with all methods of :class:`PathFaults`.

    Attributes:
        number: 1 for the proxy's first connection.
        to_broker: the direction from the client to the broker, with ``forwarded`` bytes and ``events``.
        to_client: the opposite direction.
        closed: set at the end of the connection.
    """

    def __init__(
        self,
        proxy: FaultProxy,
        number: int,
        client: Endpoint,
        conditions: Mapping[Direction, Conditions],
        tasks: dict[asyncio.Task[None], None],
        forget: Callable[[ProxiedConnection], None],
    ) -> None:
        self._proxy = proxy
        self._forget = forget
        self._client = client
        self._broker: Endpoint | None = None
        self.number = number
        self.to_broker, self.to_client = (
            Pipe(
                direction,
                conditions[direction].copy(),
                Random(f"{proxy.seed}/{number}/{direction.value}"),
            )
            for direction in Direction
        )
        self.closed = asyncio.Event()
        self._tasks: dict[Direction, asyncio.Task[None]] = {}
        self._whole = True
        #: Runs until the end of the connection, with closed sockets.
        self._task = asyncio.get_running_loop().create_task(self._run())
        tasks[self._task] = None
        self._task.add_done_callback(tasks.pop)

    def cut(self, side: Side | None = None, *, reset: bool = False) -> None:
        """End the connection, for both sides at once or noticed by one side only.

        Args:
            side: None for both. If one side is cut, the other side keeps its connection until it closes the
                connection or :meth:`cut` is called again: no bytes arrive, and sent bytes are lost.
            reset: with a TCP reset instead of an orderly end.
        """
        _cutting(side, reset)
        self._whole = False
        if side is None or self._broker is None:
            for endpoint in (self._client, self._broker):
                _drop(endpoint, reset=reset)
            self._task.cancel()
            self._over()
            return
        gone = Direction.TO_BROKER if side is Side.CLIENT else Direction.TO_CLIENT
        left = Direction.TO_CLIENT if side is Side.CLIENT else Direction.TO_BROKER
        _pipe(self, gone).stopped = True
        self._tasks[gone].cancel()
        _pipe(self, left).sink_gone = True
        _drop(self._client if side is Side.CLIENT else self._broker, reset=reset)

    def _conditions(self, direction: Direction | None) -> Iterable[Conditions]:
        return [_pipe(self, each).conditions for each in Direction if direction in (None, each)]

    def _each(self, action: Callable[[ProxiedConnection], None]) -> None:
        action(self)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._proxy.address
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                _, broker = await loop.create_connection(Endpoint, host, port)
            self._broker = broker
            _no_delay(broker)
            self._tasks = {
                Direction.TO_BROKER: loop.create_task(self.to_broker.run(self._client, broker)),
                Direction.TO_CLIENT: loop.create_task(self.to_client.run(broker, self._client)),
            }
            # An orderly end of one direction leaves the opposite direction open; a loss ends both.
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        except OSError:
            pass  # without a broker, the client's connection ends
        finally:
            for task in self._tasks.values():
                task.cancel()
            for endpoint in (self._client, self._broker):
                _drop(endpoint, reset=False)
            self._over()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _over(self) -> None:
        self._forget(self)
        self.closed.set()

    async def wait(self) -> None:
        """Wait for the end, with closed sockets; unbounded."""
        await asyncio.wait([self._task])

    def __repr__(self) -> str:
        state = "closed" if self.closed.is_set() else "open" if self._whole else "cut on one side"
        up, down = self.to_broker, self.to_client
        return (
            f"<ProxiedConnection {self.number}, {state}: {up.forwarded} bytes in {up.events} events to the "
            f"broker, {down.forwarded} in {down.events} to the client>"
        )


def _pipe(connection: ProxiedConnection, direction: Direction) -> Pipe:
    """Return one direction of a connection."""
    return connection.to_broker if direction is Direction.TO_BROKER else connection.to_client


def _no_delay(endpoint: Endpoint) -> None:
    if endpoint.transport is not None:
        sock = endpoint.transport.get_extra_info("socket")
        with suppress(OSError):  # macOS: already closed by the peer, as the loop reports next
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _drop(endpoint: Endpoint | None, *, reset: bool) -> None:
    if endpoint is None or endpoint.transport is None:
        return
    if reset and not endpoint.transport.is_closing():
        sock = endpoint.transport.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _linger(_POSIX))
    endpoint.abort()


class FaultProxy(PathFaults):
    """A TCP proxy in front of a broker, embedded or real, that injects faults.

    ::

        async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
            ...
            proxy.cut()                     # the session reconnects through the proxy

    Calls on the proxy itself apply to every open connection, and settings also to later connections.
    The proxy belongs to the event loop of its start.

    Args:
        target: the broker, ``tcp://host:port``. TLS passes through untouched.
        host: the listening address.
        port: the port; 0 selects a free port.
        seed: the seed of random delays and sizes. The same seed makes the same faults.

    Attributes:
        connections: the open connections, oldest first.
        accepted: number of connections so far.
        address: host and port of the broker.
        host: the listening address.
        seed: the seed of random delays and sizes.
    """

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0, seed: int = 0) -> None:
        self.seed = _checks.integer("seed", seed, -_checks.INT64_MAX)
        self.host = _checks.text("host", host, empty=False)
        self.retarget(target)
        self._wanted_port = _checks.integer("port", port, 0, 65535)
        self._port = 0
        self._server: asyncio.Server | None = None
        #: Holds the port, without listening, while connections are refused.
        self._reserved: socket.socket | None = None
        self._numbers = itertools.count(1)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._postponed: list[Callable[[ProxiedConnection], None]] = []
        self._news: dict[asyncio.Future[None], None] = {}
        self._past = dict.fromkeys(Direction, 0)
        self._settings = {direction: Conditions() for direction in Direction}
        self.connections: list[ProxiedConnection] = []
        self.accepted = 0

    # ---- life

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            StateError: the proxy has been started.
            OSError: the address cannot be used.

        Cancelling the call closes the listening sockets; the proxy can be started again.
        """
        if self._port:
            raise StateError("a proxy can be started only once")
        self._reserved = _reserve(self.host, self._wanted_port)
        self._port = self._reserved.getsockname()[1]
        try:
            await self.accept()
        except BaseException:
            self._stop_listening()
            self._port = 0
            raise

    async def close(self) -> None:
        """Cut every connection and listen no more. Idempotent, and never waits for a peer."""
        self._stop_listening()
        for connection in self.connections[:]:
            connection.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # One turn of the event loop closes the aborted transports.
        await asyncio.sleep(0)

    async def __aenter__(self) -> FaultProxy:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # ---- state

    @property
    def port(self) -> int:
        """The listening port."""
        if not self._port:
            raise StateError(
                "the proxy has no port before it is started: async with FaultProxy(...) as proxy"
            )
        return self._port

    @property
    def uri(self) -> str:
        """The address for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    @property
    def bytes_to_broker(self) -> int:
        """Bytes from clients to the broker, on all connections so far."""
        return self._total(Direction.TO_BROKER)

    @property
    def bytes_to_client(self) -> int:
        """Bytes from the broker to clients, on all connections so far."""
        return self._total(Direction.TO_CLIENT)

    def _total(self, direction: Direction) -> int:
        return self._past[direction] + sum(_pipe(each, direction).forwarded for each in self.connections)

    def retarget(self, target: str) -> None:
        """Connect new connections to another broker."""
        first = parse_addresses(target)[0]
        self._scheme = "tcps" if first.tls else "tcp"
        self.address = (first.host, first.port)

    # ---- connections

    def cut(self, side: Side | None = None, *, reset: bool = False) -> None:
        """Cut every open connection; see :meth:`ProxiedConnection.cut`."""
        _cutting(side, reset)
        for connection in self.connections[:]:
            connection.cut(side, reset=reset)

    def refuse(self) -> None:
        """Refuse new connections, like a host without a broker. Open connections continue."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reserved = _reserve(self.host, self.port)

    async def accept(self) -> None:
        """Accept new connections again after :meth:`refuse`.

        A cancelled call either changes nothing, or accepts connections.
        """
        if self._reserved is None:
            return
        # In two steps: a server cancelled while starting must not be lost.
        server = await running_loop().create_server(
            lambda: Endpoint(self._begin), sock=self._reserved, backlog=_BACKLOG, start_serving=False
        )
        self._server, self._reserved = server, None
        await server.start_serving()

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def wait_accepted(self, count: int) -> None:
        """Wait for the given number of connections; unbounded."""
        count = _checks.integer("count", count)
        while self.accepted < count:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._news[news] = None
            try:
                await news
            finally:
                self._news.pop(news, None)

    def _begin(self, client: Endpoint) -> None:
        _no_delay(client)
        number = next(self._numbers)
        connection = ProxiedConnection(self, number, client, self._settings, self._tasks, self._forget)
        self.connections.append(connection)
        postponed, self._postponed = self._postponed, []
        for action in postponed:
            action(connection)
        self.accepted += 1
        for news in self._news:
            if not news.done():
                news.set_result(None)

    def _forget(self, connection: ProxiedConnection) -> None:
        """Note the end of a connection."""
        if connection in self.connections:
            self.connections.remove(connection)
            for direction in Direction:
                self._past[direction] += _pipe(connection, direction).forwarded

    def _conditions(self, direction: Direction | None) -> Iterable[Conditions]:
        for each in Direction:
            if direction in (None, each):
                yield self._settings[each]
        for connection in self.connections:
            yield from (_pipe(connection, each).conditions for each in Direction if direction in (None, each))

    def _each(self, action: Callable[[ProxiedConnection], None]) -> None:
        for connection in self.connections:
            action(connection)
        if not self.connections:
            self._postponed.append(action)

    def __repr__(self) -> str:
        host, port = self.address
        return f"<FaultProxy on port {self._port} to {host}:{port}, {len(self.connections)} connections>"


def _reserve(host: str, port: int) -> socket.socket:
    """Take a port without listening, so that clients are refused."""
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if _POSIX:  # on Windows the option would let other programs take the port
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setblocking(False)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved
