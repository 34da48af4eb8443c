# SPDX-License-Identifier: Apache-2.0
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false
"""The simulated network: hosts, their connections, and the faults of connections.

A connection behaves like TCP. Written bytes leave the transport's buffer while the peer's window has room,
cross the network in ordered segments, wait in the peer's window, and are read in the peer's next turn. A
paused process therefore stops its peers gradually, a killed process loses only the bytes in its own buffer,
and bytes for a closed socket are answered with a reset. Blocked segments are not lost: they arrive when the
path is open again, unless the sender has given up.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

from bmq import _checks
from bmq.errors import UsageError
from bmq.testing._sim_loop import Engine, SimEvent, SimLoop
from bmq.testing._transport import SocketlessTransport

__all__ = ["PORT", "Host", "SimConnection", "SimTransport", "SimulatedNetwork", "pair"]

#: Bytes that asyncio reads from a socket at once.
_READ: Final = 256 * 1024
#: Seconds after which TCP gives up: a connection attempt, and unacknowledged bytes.
_CONNECT_PATIENCE: Final = 127.0
_SEND_PATIENCE: Final = 924.0
_LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_LATENCY: Final = 20e-6
_ANY: Final = ("", "0.0.0.0", "::")
_HERE: Final = ("localhost", "::1")
#: The port of brokers.
PORT: Final = 30114
#: Segments of one write, at most.
_MOST_SEGMENTS: Final = 40


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class SimulatedNetwork:
    """The network of a simulation, and its faults.

    The host of a process has the process's name. All faults last until ended.
    """

    def __init__(self, engine: Engine, random: Random) -> None:
        self._engine = engine
        # Decides latencies and sizes of segments.
        self._random = random
        self._latency = 50e-6, 500e-6
        self._rate = math.inf
        self._segment: tuple[int, int] | None = None
        self._window = 256 * 1024
        self._hosts: dict[str, Host] = {}
        self._connections: dict[SimConnection, None] = {}
        self._addresses: dict[str, Host] = {}
        self._cut_off: dict[tuple[Host, Host], None] = {}
        # What waits for another state of the paths.
        self._waiting: dict[_Pipe | _Attempt, None] = {}
        self._count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def connections(self) -> list[SimConnection]:
        """The open connections, the oldest first.

        Each has the methods ``cut()``, ``reset()``, ``half_close(towards_client=...)`` and
        ``stall(seconds, towards_client=...)``.
        """
        return list(self._connections)

    def set(
        self,
        *,
        latency: tuple[float, float] = (50e-6, 500e-6),
        rate: float = math.inf,
        segment: tuple[int, int] | None = None,
        window: int = 256 * 1024,
    ) -> None:
        """Set the conditions of all future segments; omitted conditions return to their defaults.

        Args:
            latency: minimum and maximum time of a segment on the network, in seconds.
            rate: bytes a second of each connection.
            segment: minimum and maximum size of a segment, in bytes; None for the size of the write.
            window: bytes of a connection under way or unread; small for a slow reader.
        """
        low, high = (_checks.seconds("latency", each) for each in pair("latency", latency))
        sizes = None
        if segment is not None:
            sizes = sorted(_checks.integer("segment", each, 1) for each in pair("segment", segment))
        endless = type(rate) is float and rate == math.inf
        self._window = _checks.integer("window", window, 1)
        self._rate = math.inf if endless else _checks.number("rate", rate, 1.0, unit="bytes a second")
        self._latency = min(low, high), max(low, high)
        self._segment = None if sizes is None else (sizes[0], sizes[1])
        for connection in self.connections:
            for end in (connection.client, connection.server):
                end.writable()  # the window may be larger than before

    def partition(self, one: str, other: str, *, both: bool = True) -> None:
        """Block the path between two hosts: bytes wait, and connections are not even refused.

        Args:
            one: a host.
            other: another host.
            both: whether in both directions, or only from ``one`` to ``other``.
        """
        both = _checks.boolean("both", both)
        near, far = self._known(one), self._known(other)
        self._cut_off[near, far] = None
        if both:
            self._cut_off[far, near] = None

    def heal(self) -> None:
        """End all faults: partitions, stalls, refusals, and the conditions of :meth:`set`.

        Connections with lost bytes stay broken, until an end notices.
        """
        self.set()
        for host in self._hosts.values():
            host.refusing.clear()
        for connection in self.connections:
            for end in (connection.client, connection.server):
                if end.out.stalled_until > self._engine.now:
                    end.out.stall(0.0)
        self._cut_off.clear()
        self._changed()

    def mend(self, one: str, other: str) -> None:
        """Take a partition between two hosts back."""
        near, far = self._known(one), self._known(other)
        self._cut_off.pop((near, far), None)
        self._cut_off.pop((far, near), None)
        self._changed()

    def refuse(self, host: str, port: int = PORT, *, refuse: bool = True) -> None:
        """Refuse connections to a port, or accept them again; open connections stay open."""
        found = self._known(host)
        port = _checks.integer("port", port, 1, 65535)
        if _checks.boolean("refuse", refuse):
            found.refusing[port] = None
        else:
            found.refusing.pop(port, None)

    def _known(self, name: str) -> Host:
        found = self._find(_checks.text("host", name))
        if found is None:
            raise UsageError(f"no host has the name {name!r}; the hosts are: {', '.join(self._hosts)}")
        return found

    # hosts

    def _host(self, name: str) -> Host:
        """Return a host, created if necessary."""
        found = self._hosts.get(name)
        if found is None:
            number = len(self._hosts) + 1
            found = self._hosts[name] = Host(self, name, f"10.0.{number // 256}.{number % 256}")
            self._addresses[found.address] = found
        return found

    def _find(self, address: str) -> Host | None:
        """Return the host with a name or an address."""
        return self._hosts.get(address) or self._addresses.get(address)

    # paths

    def _is_open(self, one: Host, other: Host) -> bool:
        """Whether the path from one host to another is open."""
        return one is other or (one.up and other.up and (one, other) not in self._cut_off)

    def _wait(self, sender: _Pipe | _Attempt) -> None:
        """Have a sender try again when the state of the paths changes."""
        self._waiting[sender] = None

    def _changed(self) -> None:
        """Wake everything that waits for a path."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            each.arm()

    def _delay(self, one: Host, other: Host) -> float:
        """Draw how long a segment takes."""
        if one is other:
            return _LOOPBACK_LATENCY
        return self._random.uniform(*self._latency)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut data into segments."""
        if self._segment is None:
            yield data
            return
        low, high = self._segment
        place = 0
        for _ in range(_MOST_SEGMENTS):
            size = self._random.randint(low, high)
            if place + size >= len(data):
                break
            yield data[place : place + size]
            place += size
        yield data[place:]

    def _clear(self) -> None:
        """Forget all connections."""
        self._waiting.clear()
        self._connections.clear()
        for host in self._hosts.values():
            host.transports.clear()
            host.listeners.clear()

    # the record

    def _note(self, kind: int, number: int, data: bytes) -> None:
        """Add arrived bytes to the digest."""
        self._hash.update(struct.pack("<dBI", self._engine.now, kind, number))
        self._hash.update(data)


class Host:
    """A machine with a name, an address, ports, and processes.

    Attributes:
        network: the network.
        name: name of the host.
        address: IP address.
        up: whether the host takes part in the network.
        booting: whether connections wait until a process listens for the first time.
        refusing: ports with refused connections.
        listeners: the servers by port.
        transports: the host's ends of connections.
    """

    def __init__(self, network: SimulatedNetwork, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.up = True
        self.booting = False
        self.refusing: dict[int, None] = {}
        self.listeners: dict[int, SimServer] = {}
        self.transports: dict[SimTransport, None] = {}
        self._next_port = 40000

    def free_port(self) -> int:
        """Return a free port."""
        self._next_port += 1
        return self._next_port

    def release(self, loop: SimLoop, *, sent: bool = True) -> None:
        """Close the sockets of an ended process, like a kernel, see :meth:`SimTransport.release`."""
        for port, server in list(self.listeners.items()):
            if server._loop is loop:
                del self.listeners[port]
        for transport in list(self.transports):
            if transport._loop is loop:
                if self.up:
                    transport.release(sent=sent)
                else:
                    transport.vanish()

    def resolve(self, name: object) -> str:
        """Return the address of a host.

        Raises:
            OSError: the name is unknown.
        """
        text = name.decode() if isinstance(name, bytes) else name
        if (
            text is None
            or text in _ANY
            or text in _HERE
            or (isinstance(text, str) and text.startswith("127."))
        ):
            return _LOOPBACK
        found = self.network._find(text) if isinstance(text, str) else None
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host of the simulation has the name {text!r}")
        return found.address

    def listen(self, loop: SimLoop, factory: Callable[[], Any], host: object, port: object) -> SimServer:
        """Listen on a process's host.

        Raises:
            OSError: the address is not the host's, or the port is taken.
        """
        address = str(host or "")
        if address not in _ANY:
            address = self.resolve(address)
            if address not in (_LOOPBACK, self.address):
                raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of the host {self.name}")
        number = int(str(port or 0)) or self.free_port()
        if number in self.listeners:
            raise OSError(errno.EADDRINUSE, f"port {number} of the host {self.name} is in use")
        server = self.listeners[number] = SimServer(loop, factory, address, number)
        if self.booting:
            self.booting = False
            self.network._changed()
        return server

    async def connect(
        self, loop: SimLoop, factory: Callable[[], Any], host: object, port: object
    ) -> tuple[Any, Any]:
        """Connect to a server of the simulation.

        Raises:
            OSError: no server listens, or the host does not answer.
        """
        attempt = _Attempt(loop, self.resolve(host), int(str(port)))
        try:
            transport = await attempt.waiter
        except asyncio.CancelledError:
            if attempt._transport is not None and not attempt.waiter.cancelled():
                attempt._transport.release()
            raise
        transport._context = copy_context()
        protocol = factory()
        transport.begin(protocol)
        ready = loop.create_future()
        transport._call(_set_ready, ready)
        try:
            await ready
        except BaseException:
            transport.close()
            raise
        return transport, protocol


class _Pipe:
    """One direction of a connection."""

    def __init__(
        self, connection: SimConnection, source: SimTransport, target: SimTransport, kind: int
    ) -> None:
        self._connection = connection
        self._source = source
        self._target = target
        self._kind = kind
        self._network = connection.network
        self._flight: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self._free = 0.0
        self._event: SimEvent | None = None
        self._patience: SimEvent | None = None
        self.unread = 0
        self.stalled_until = 0.0
        self.broken = False

    @property
    def room(self) -> int:
        """How many bytes the peer's window takes."""
        return self._network._window - self.unread

    def send(self, data: bytes | None) -> None:
        """Send bytes, or the end of the stream."""
        network, engine = self._network, self._network._engine
        now = engine.now + engine.elapsed
        if data is None:
            self._flight.append((max(self._last, now + self._delay()), None))
        else:
            self.unread += len(data)
            for piece in network._pieces(data):
                self._free = max(self._free, now) + len(piece) / network._rate
                self._last = max(self._last, self._free + self._delay())
                self._flight.append((self._last, piece))
        self._last = self._flight[-1][0]
        self.arm()

    def _delay(self) -> float:
        return self._network._delay(self._source.host, self._target.host)

    def arm(self) -> None:
        """Have the first segment arrive in time."""
        if self._event is None and self._flight:
            due = max(self._flight[0][0], self.stalled_until)
            if due == math.inf:
                self._wait()
            else:
                self._event = self._network._engine.at(due, self._arrive)

    def stall(self, until: float) -> None:
        """Block the direction until a time."""
        self.stalled_until = until
        if self._event is not None:
            self._event.cancel()
            self._event = None
        self.arm()

    def _wait(self) -> None:
        self._network._wait(self)
        if self._patience is None:
            engine = self._network._engine
            self._patience = engine.at(engine.now + _SEND_PATIENCE, self._give_up)

    def _give_up(self) -> None:
        self._patience = None
        self._source.fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _arrive(self) -> None:
        self._event = None
        network = self._network
        if not network._is_open(self._source.host, self._target.host):
            self._wait()
            return
        if network._engine.now < self.stalled_until:
            self.arm()
            return
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        _, data = self._flight.popleft()
        if data is None and self._target.gone:
            return
        if self.broken or self._target.gone:
            self._flight.clear()
            if not self._source.gone:
                delay = network._delay(self._target.host, self._source.host)
                network._engine.at(network._engine.now + delay, self._source.fail, _reset())
            return
        network._note(self._kind, self._connection.number, data or b"")
        self._target.arrived(data)
        self.arm()

    def drop(self) -> None:
        """Lose all segments under way."""
        self._flight.clear()
        self._network._waiting.pop(self, None)
        for each in (self._event, self._patience):
            if each is not None:
                each.cancel()
        self._event = self._patience = None


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class SimConnection:
    """A connection between two processes, with its possible faults.

    Attributes:
        number: serial number.
        network: the network.
        client: the connecting end.
        server: the accepting end.
    """

    def __init__(self, network: SimulatedNetwork, client: SimTransport, server: SimTransport) -> None:
        network._count += 1
        self.number = network._count
        self.network = network
        self.client = client
        self.server = server
        client.connection = server.connection = self
        client.peer, server.peer = server, client
        client.out = _Pipe(self, client, server, 1)
        server.out = _Pipe(self, server, client, 2)
        network._connections[self] = None

    def __str__(self) -> str:
        return f"#{self.number} {self.client.host.name} > {self.server.host.name}"

    def reset(self) -> None:
        """Reset both ends; segments under way are lost."""
        for end in (self.client, self.server):
            end.out.drop()
            end.out.broken = True
            end.fail(_reset())

    def cut(self) -> None:
        """End the stream at both ends; segments under way are lost."""
        for end in (self.client, self.server):
            end.out.drop()
            end.out.broken = True
        for end in (self.client, self.server):
            end.arrived(None)

    def half_close(self, *, towards_client: bool) -> None:
        """End one direction: its segments under way are lost, and the opposite direction continues."""
        source, target = (self.server, self.client) if towards_client else (self.client, self.server)
        source.out.drop()
        source.out.broken = True
        target.arrived(None)

    def stall(self, seconds: float, *, towards_client: bool) -> None:
        """Block one direction for a time, or with infinity for ever."""
        pipe = self.server.out if towards_client else self.client.out
        pipe.stall(self.network._engine.now + seconds)

    def ended(self, end: SimTransport) -> None:
        """Note the end of one end."""
        end.host.transports.pop(end, None)
        if self.client.gone and self.server.gone:
            self.network._connections.pop(self, None)


class SimTransport(SocketlessTransport):
    """One end of a connection, with the contract of asyncio's own transports."""

    connection: SimConnection
    peer: SimTransport
    out: _Pipe

    def __init__(self, loop: SimLoop, host: Host, names: dict[str, Any]) -> None:
        super().__init__(names, loop)
        self.host = host
        self.gone = False
        self.backlog = False
        self._eof = self._fin_sent = False
        self._begun = False
        self._conn_lost = 0
        self._buffer = bytearray()
        self._reading = False
        host.transports[self] = None

    def __repr__(self) -> str:
        return f"<simulated {self.connection} at {self.host.name}{' closing' if self._closing else ''}>"

    # beginning

    def begin(self, protocol: Any) -> None:
        """Give the transport to the protocol; called by the process in its turn."""
        self._protocol = protocol
        self._call(self._made)
        self._call(self._start_reading)
        if self.gone:
            self._call(self._call_connection_lost, _reset())

    def _made(self) -> None:
        self._begun = True
        self._protocol.connection_made(self)

    def _start_reading(self) -> None:
        self._reading = True
        self._look()

    # the kernel's side

    def arrived(self, data: bytes | None) -> None:
        """Receive bytes, or the end of the stream, from the network."""
        if self.gone:
            return
        if data is None:
            self._end_of_input = True
        else:
            self._inbox.append(data)
        self._look()

    def fail(self, error: OSError) -> None:
        """Lose the connection with all unread bytes."""
        if not self.gone and not self._conn_lost:
            self._inbox.clear()
            self._call(self._force_close, error)

    def release(self, *, sent: bool = True) -> None:
        """Close the socket: sent bytes still arrive, unless some input is unread.

        A connection never accepted by its process is reset.

        Args:
            sent: whether sent bytes may arrive; otherwise the connection is reset.
        """
        if self.gone:
            return
        self.gone = True
        reset = not sent or self.backlog or bool(self._inbox)
        self._inbox.clear()
        self._buffer.clear()
        if reset:
            self.out.drop()
            self.out.broken = True
            network = self.host.network
            delay = network._delay(self.host, self.peer.host)
            network._engine.at(
                network._engine.now + network._engine.elapsed + delay, self.peer.fail, _reset()
            )
        elif not self._fin_sent:
            self.out.send(None)
        self.connection.ended(self)

    def vanish(self) -> None:
        """Disappear without a sign: the machine has lost its power."""
        if not self.gone:
            self.gone = True
            self._inbox.clear()
            self._buffer.clear()
            self.out.drop()
            self.connection.ended(self)

    # reading

    def _read(self) -> None:
        self._scheduled = False
        if self._conn_lost or self._closing or self._paused:
            return
        if self._inbox:
            first = self._inbox.popleft()
            size, pieces = len(first), [first]
            while self._inbox and size + len(self._inbox[0]) <= _READ:
                pieces.append(self._inbox.popleft())
                size += len(pieces[-1])
            self.peer.out.unread -= size
            self.peer.writable()
            data = b"".join(pieces)
            try:
                self._feed(data)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._fatal_error(error, "Fatal error: protocol.data_received() call failed.")
                return
        elif self._end_of_input:
            self._reading = False
            try:
                keep_open = self._protocol.eof_received()
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._fatal_error(error, "Fatal error: protocol.eof_received() call failed.")
                return
            if not keep_open:
                self.close()
        self._look()

    # writing

    def write(self, data: Any) -> None:
        given: object = data
        if not isinstance(given, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._conn_lost:
            if self._conn_lost >= 5:
                asyncio.log.logger.warning("socket.send() raised exception.")  # type: ignore[attr-defined]
            self._conn_lost += 1
            return
        if self._buffer:
            self._buffer += data
        else:
            room = max(0, self.out.room)
            if room >= len(data):
                self.out.send(bytes(data))
                return
            if room:
                self.out.send(bytes(data[:room]))
            self._buffer += data[room:]
        self._maybe_pause_protocol()

    def writable(self) -> None:
        """Go on writing if the peer's window has room."""
        if self._buffer and not self.gone and self.out.room > 0:
            self._call(self._write_more)

    def _write_more(self) -> None:
        if self._conn_lost or self.gone:
            return
        room = self.out.room
        if self._buffer and room > 0:
            self.out.send(bytes(self._buffer[:room]))
            del self._buffer[:room]
        self._maybe_resume_protocol()
        if not self._buffer:
            if self._closing:
                self._call_connection_lost(None)
            elif self._eof:
                self._fin_sent = True
                self.out.send(None)

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write_eof(self) -> None:
        if self._closing or self._eof:
            return
        self._eof = True
        if not self._buffer and not self.gone:
            self._fin_sent = True
            self.out.send(None)

    # ending

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._conn_lost += 1
            self._call(self._call_connection_lost, None)

    def abort(self) -> None:
        self._force_close(None)

    def _fatal_error(self, error: BaseException, message: str = "Fatal error on transport") -> None:
        if not isinstance(error, OSError):
            self._loop.call_exception_handler(
                {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
            )
        self._force_close(error)

    def _force_close(self, error: BaseException | None) -> None:
        if self._conn_lost:
            return
        self._buffer.clear()
        self._closing = True
        self._conn_lost += 1
        self._call(self._call_connection_lost, error)

    def _call_connection_lost(self, error: BaseException | None) -> None:
        try:
            if self._begun:
                self._protocol.connection_lost(error)
        finally:
            self.release()
            if self._begun:
                self._protocol = None
            self._begun = False


class _Name:
    """Imitates a listening socket, which has only an address."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer(asyncio.AbstractServer):
    """A listening port of a host."""

    def __init__(self, loop: SimLoop, factory: Callable[[], Any], address: str, port: int) -> None:
        self._loop = loop
        self._factory = factory
        self._context: Context = copy_context()
        self._address = address
        self._port = port
        self._backlog: dict[SimTransport, None] = {}
        self._closed: asyncio.Future[None] | None = None

    def accepts(self, address: str) -> bool:
        """Whether the server listens on an address of its host."""
        return self._address in _ANY or self._address == address

    def accept(self, transport: SimTransport) -> None:
        """Take a connection, in a turn of the process."""
        transport.backlog = True
        self._backlog[transport] = None
        self._loop.call_soon(self._begin, transport, context=self._context)

    def _begin(self, transport: SimTransport) -> None:
        self._backlog.pop(transport, None)
        transport.backlog = False
        if not transport.gone:
            transport._context = self._context
            transport.begin(self._factory())

    @property
    def sockets(self) -> tuple[Any, ...]:
        """Imitations of the listening sockets, with addresses only."""
        return (_Name((self._address, self._port)),) if self.is_serving() else ()

    def is_serving(self) -> bool:
        return self._loop.host.listeners.get(self._port) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        self._closed = self._loop.create_future()
        try:
            await self._closed
        finally:
            self.close()

    def close(self) -> None:
        if self.is_serving():
            del self._loop.host.listeners[self._port]
        waiting, self._backlog = self._backlog, {}
        for each in waiting:
            each.release()
        if self._closed is not None and not self._closed.done():
            self._closed.cancel()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()
        await self.wait_closed()


class _Attempt:
    """A connection on its way: a segment to the server, and the answer."""

    def __init__(self, loop: SimLoop, address: str, port: int) -> None:
        self.loop = loop
        self.waiter: asyncio.Future[SimTransport] = loop.create_future()
        self._source = loop.host
        self._network = loop.host.network
        target = loop.host if address == _LOOPBACK else self._network._find(address)
        assert target is not None
        self._target = target
        self._address, self._port = address, port
        self._transport: SimTransport | None = None
        engine = self._network._engine
        self._patience = engine.at(engine.now + _CONNECT_PATIENCE, self._finish, _os_error(errno.ETIMEDOUT))
        self.arm()

    def arm(self) -> None:
        engine, network = self._network._engine, self._network
        engine.at(engine.now + engine.elapsed + network._delay(self._source, self._target), self._arrive)

    def _arrive(self) -> None:
        network, engine, target = self._network, self._network._engine, self._target
        if self.waiter.done() or self.loop.dead:
            return
        if not network._is_open(self._source, target) or not network._is_open(target, self._source):
            network._wait(self)
            return
        if target.booting:
            network._wait(self)
            return
        network._note(0, self._port, b"")
        server = target.listeners.get(self._port)
        answer: OSError | SimTransport
        if server is None or not server.accepts(self._address) or self._port in target.refusing:
            answer = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        else:
            answer = self._accepted(server)
        engine.at(engine.now + network._delay(target, self._source), self._finish, answer)

    def _accepted(self, server: SimServer) -> SimTransport:
        near = self._address if self._address == _LOOPBACK else self._source.address
        ours, theirs = (near, self._source.free_port()), (self._address, self._port)
        client = SimTransport(self.loop, self._source, {"peername": theirs, "sockname": ours})
        other = SimTransport(server._loop, self._target, {"peername": ours, "sockname": theirs})
        SimConnection(self._network, client, other)
        self._transport = client
        server.accept(other)
        return client

    def _finish(self, answer: OSError | SimTransport) -> None:
        self._patience.cancel()
        if self.waiter.done() or self.loop.dead:
            if self._transport is not None:
                self._transport.release()
        elif isinstance(answer, OSError):
            self.waiter.set_exception(answer)
        elif answer.gone:
            self.waiter.set_exception(_reset())
        else:
            self.waiter.set_result(answer)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def pair(name: str, value: object) -> list[Any]:
    pair: list[Any] = _checks.items(name, value, "a least and a greatest value")
    if len(pair) != 2:
        raise UsageError(
            f"{name} must be a minimum and a maximum, such as (1, 2), not {_checks.shown(value)}"
        )
    return pair
