"""A broker on a socket that answers everything at once, except what a test tells it to hold or to refuse."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

from bmq.errors import AckStatus
from bmq.wire.control import ConfigureStream, StatusCategory
from tests.protocol.bench import ScriptedBroker, guid

__all__ = ["Connection", "Peer", "eventually"]


async def eventually(condition: Callable[[], Any], timeout: float = 5.0) -> Any:
    """Wait until something is true, looking at every turn of the loop; return it."""
    async with asyncio.timeout(timeout):
        while not (value := condition()):  # noqa: ASYNC110 - anything can be waited for
            await asyncio.sleep(0.001)
    return value


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.script = ScriptedBroker()
        self.transport: asyncio.Transport | None = None
        self.welcomed = False
        self.admitted = 0
        self.s_ids: dict[int, int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.peer.connections.append(self)
        if self.peer.greeting is not None:
            self.transport.write(self.peer.greeting)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self.peer.greeting is None:
            self.script.take([data])
            self.react()

    def send(self, *data: bytes) -> None:
        """Send events."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(data))

    def react(self) -> None:
        """Answer what is not held."""
        peer, script = self.peer, self.script
        if self.admitted < len(script.credentials) and "authenticationRequest" not in peer.hold:
            self.admitted += 1
            category = (
                StatusCategory.E_REFUSED
                if "authenticationRequest" in peer.refuse
                else StatusCategory.E_SUCCESS
            )
            self.send(script.admit(category=category, lifetime_ms=peer.lifetime_ms))
        if script.identity is not None and not self.welcomed and "clientIdentity" not in peer.hold:
            self.welcomed = True
            category = (
                StatusCategory.E_NOT_SUPPORTED
                if "clientIdentity" in peer.refuse
                else StatusCategory.E_SUCCESS
            )
            self.send(script.welcome(category=category, **peer.welcome))
        for request in list(script.requests):
            name = type(request.body).__name__
            if name in peer.hold:
                continue
            script.requests.remove(request)
            if name in peer.refuse:
                self.send(script.refuse(request, message=peer.refusal))
                continue
            if isinstance(request.body, ConfigureStream):
                for subscription in request.body.stream_parameters.subscriptions:
                    self.s_ids[request.body.q_id] = subscription.s_id
            self.send(script.accept(request, **(peer.open_options if name == "OpenQueue" else {})))
        if script.puts and "PUT" not in peer.hold:
            puts, script.puts = script.puts, []
            peer.posted.extend(int(put.data) if put.data.isdigit() else put.data for put in puts)
            self.send(script.ack(puts, peer.status))

    def push(self, *numbers: int, q_id: int = 0, size: int = 0) -> None:
        """Deliver messages to a queue's newest subscription."""
        payloads = [(guid(number), b"%d" % number + b" " * size) for number in numbers]
        self.send(self.script.push(q_id, payloads, (self.s_ids[q_id],)))


class Peer:
    """The server.

    Attributes:
        hold: the names of what is not answered: "clientIdentity", "OpenQueue", "PUT", ...
        refuse: the names of what is answered with a failure.
        refusal: what the failure of a request says.
        greeting: what is sent to whoever connects, instead of being a broker.
        welcome: how negotiation is answered, see :meth:`ScriptedBroker.welcome`.
        open_options: how openQueue is answered, see :meth:`ScriptedBroker.accept`.
        status: how posts are acknowledged.
        lifetime_ms: of credentials.
        posted: what was posted and acknowledged.
        connections: all there were.
    """

    def __init__(self, ssl: ssl_module.SSLContext | None = None) -> None:
        self.hold: set[str] = set()
        self.refuse: set[str] = set()
        self.refusal = "not here"
        self.greeting: bytes | None = None
        self.welcome: dict[str, Any] = {}
        self.open_options: dict[str, Any] = {}
        self.status = AckStatus.SUCCESS
        self.lifetime_ms: int | None = None
        self.posted: list[Any] = []
        self.connections: list[Connection] = []
        self.port = 0
        self._ssl = ssl
        self._server: asyncio.Server | None = None

    @property
    def uri(self) -> str:
        """Its address."""
        return f"{'tcps' if self._ssl else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def connection(self) -> Connection:
        """The newest connection."""
        return self.connections[-1]

    @property
    def log(self) -> list[str]:
        """What arrived on the newest connection, by name."""
        return self.connection.script.log

    def answer(self, *names: str) -> None:
        """Hold these no more, and answer what was held."""
        self.hold -= set(names)
        for connection in self.connections:
            if connection.transport is not None:
                connection.react()

    def cut(self) -> None:
        """Break every connection."""
        for connection in self.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def start(self) -> None:
        """Listen, on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, ssl=self._ssl
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more, and break every connection."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None
            await eventually(lambda: all(c.transport is None for c in self.connections))

    async def __aenter__(self) -> Peer:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()
