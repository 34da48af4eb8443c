# SPDX-License-Identifier: Apache-2.0
"""The embedded broker: a TCP server around a :class:`~bmq.broker._node.BrokerNode`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, cast

from bmq import _checks, _world
from bmq._live import live
from bmq._logging import Log
from bmq._loop import running_loop
from bmq.broker._connection import BrokerConnection
from bmq.broker._domain import DomainSource, check_subscriptions
from bmq.broker._faults import Faults
from bmq.broker._listener import Listener
from bmq.broker._node import Bounds, BrokerNode
from bmq.broker._scheduler import Scheduler
from bmq.broker._session import BrokerSession
from bmq.broker._settings import Action, Authentication, BrokerSettings
from bmq.broker._views import PostedMessage, QueuesView, listed
from bmq.broker.clock import Clock
from bmq.broker.domain_config import DomainConfig, Redirect, builtin_domains, parse_domain
from bmq.errors import StateError
from bmq.wire.guid import GuidGenerator, client_id_from
from bmq.wire.printable import printable
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri

__all__ = ["Broker"]

_log = Log("bmq.broker")

_LAST_PORT = 65535
_PATHS: Any = (str, os.PathLike)
#: Seconds for which a stopping broker waits until clients have read all sent data.
_PATIENCE = 1.0


@live
class Broker:
    """An embedded broker, for development and tests; production needs a real BlazingMQ cluster.

    ::

        async with bmq.broker.Broker() as broker:
            async with bmq.connect(broker.uri) as session:
                ...

    The broker speaks a real broker's protocol to clients in any language, over TCP, and keeps all data in
    memory. Making an object starts nothing; the broker belongs to the event loop of its start.

    Args:
        host: the listening address; by default reachable from this machine only.
        port: the port; 0 selects a free port, see ``port`` and ``uri``.
        domains: more domains: :class:`~bmq.broker.DomainConfig` objects; or a mapping of names to these or
            to the contents of domain files, as dictionaries.
        config_dir: a configuration directory like a real broker's, with ``domains/<name>.json``.
        builtin: whether the built-in test domains exist; by default only without ``config_dir``.
        ssl: for TLS.
        auth: user names and passwords, or :class:`~bmq.broker.Authentication`. Without ``auth``, every client
            is accepted.
        authorize: a function that returns whether a client may perform an :class:`~bmq.broker.Action`:
            connect, open a queue for reading or writing, or execute an admin command. A refused client
            receives the status ``E_REFUSED``. A function that raises, or returns something other than True or
            False, refuses the action; the log has the reason. The function must not block: the broker runs in
            the same event loop.
        clock: the source of time; a :class:`~bmq.broker.ManualClock` stands still until moved.
        heartbeat_interval_ms: milliseconds between probes of silent clients.
        max_missed_heartbeats: unanswered probes that end a client's connection; 0 turns probing off.
        deduplication_history: GUIDs of deleted messages that each queue remembers, at most.
        high_water: bytes that may wait for one client before the client gets no more messages.
        handshake_timeout: seconds for a client's negotiation.
        bounds: limits for clients, instead of the defaults of :class:`~bmq.broker.Bounds`.
        posts_kept: number of recent posts kept for :meth:`posted` and :meth:`assert_posted`.

    Attributes:
        host: the listening address.
        clock: the source of time.
        faults: deliberate faults.

    Raises:
        UsageError: ``port`` is not 0 to 65535, ``auth`` is an empty mapping, a limit is less than 1, or a
            domain file's content is wrong.
        FileNotFoundError: ``config_dir`` has no directory ``domains``.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        domains: Mapping[str, DomainConfig | dict[str, Any]] | Iterable[DomainConfig] = (),
        config_dir: str | os.PathLike[str] | None = None,
        builtin: bool | None = None,
        ssl: SSLContext | None = None,
        auth: Authentication | Mapping[str, str] | None = None,
        authorize: Callable[[Action], bool] | None = None,
        clock: Clock | None = None,
        heartbeat_interval_ms: int = 3000,
        max_missed_heartbeats: int = 0,
        deduplication_history: int = 1_000_000,
        high_water: int = 16 * 1024 * 1024,
        handshake_timeout: float = 10.0,
        bounds: Bounds | None = None,
        posts_kept: int = 0,
    ) -> None:
        port = _checks.integer("port", port, 0, _LAST_PORT)
        host = _checks.text("host", host, empty=False)
        builtin = _checks.optional(_checks.boolean, "builtin", builtin)
        directory = None
        if config_dir is not None:
            path = os.fspath(_checks.instance("config_dir", config_dir, _PATHS, "a path"))
            directory = Path(_checks.text("config_dir", path, empty=False))
            if not (directory / "domains").is_dir():
                raise FileNotFoundError(f"{directory} has no directory 'domains'")
        _checks.optional(_checks.instance, "ssl", ssl, SSLContext, "an ssl.SSLContext")
        _checks.optional(_checks.function, "authorize", authorize, 1, plain=True)
        _checks.optional(_checks.function, "clock", clock, 0, plain=True)
        configured: dict[str, DomainConfig | Redirect] = {}
        if builtin if builtin is not None else config_dir is None:
            configured.update(builtin_domains())
        configured.update(_named(domains))
        self._settings = BrokerSettings(
            process_name="bmq broker",
            pid=_world.pid(),
            heartbeat_interval_ms=_checks.integer(
                "heartbeat_interval_ms", heartbeat_interval_ms, 1, _checks.INT32_MAX
            ),
            max_missed_heartbeats=_checks.integer(
                "max_missed_heartbeats", max_missed_heartbeats, 0, _checks.INT32_MAX
            ),
            high_water=_checks.integer("high_water", high_water, 1),
            handshake_timeout=_checks.seconds("handshake_timeout", handshake_timeout, positive=True),
            authentication=auth if isinstance(auth, Authentication) else Authentication(users=auth),
            authorize=authorize,
        )
        self.clock: Clock = _world.current().monotonic if clock is None else clock
        self.host = host
        self._ssl = ssl
        self._port = port
        self._listener = Listener(self._welcome)
        # Takes the place of the listener in a simulation, which has no sockets.
        self._simulated: asyncio.Server | None = None
        self._connections: dict[BrokerConnection, None] = {}
        # Unfinished connections: establishing TLS takes a while.
        self._arriving: dict[BrokerConnection, None] = {}
        self._sessions = 0
        self._guids = GuidGenerator(client_id_from(_world.hostname(), _world.time_ns(), _world.pid(), 0))
        self.faults = Faults(self._connections)
        posts_kept = _checks.integer("posts_kept", posts_kept, 0, sys.maxsize)
        self._node = BrokerNode(
            DomainSource(configured, directory),
            history_limit=_checks.integer("deduplication_history", deduplication_history),
            bounds=_checks.optional(_checks.choice, "bounds", bounds, Bounds),
            posts=deque(maxlen=posts_kept) if posts_kept else None,
            faults=self.faults,
        )
        self._scheduler = Scheduler(self.clock, self._node)
        self._node.postpone = lambda: self._scheduler.soon(self._go_on)

    def add_domain(self, config: DomainConfig) -> None:
        """Add or change a domain: later posts and opens follow the new configuration.

        Raises:
            InvalidDomain: an application subscription does not compile, or the domain is in use and its
                mode or kind of storage would change.
        """
        check_subscriptions(_checks.choice("config", config, DomainConfig))
        loaded = self._node.domains.get(config.name)
        if loaded is not None:
            self._node.configure(loaded, config)
            self._deliver()
        self._node.source.configured[config.name] = config

    def admin(self, command: str) -> str:
        """Carry out an admin command, such as ``DOMAINS DOMAIN bmq.test.mem.priority INFOS``; see HELP."""
        text = self._node.admin(_checks.text("command", command), self._scheduler.clock())
        self._scheduler.update()
        return text

    @property
    def queues(self) -> QueuesView:
        """The contents of the queues, by URI."""
        return QueuesView(self._node)

    # ---- for tests

    def posted(self, uri: str) -> list[PostedMessage]:
        """Return the accepted posts to a queue, oldest first, confirmed messages included.

        Raises:
            StateError: the broker keeps no posts: ``Broker(posts_kept=...)``.
            InvalidURI: the URI is not legal.
        """
        posts = self._node.posts
        if posts is None:
            raise StateError(
                "the broker keeps no posts: start it with Broker(posts_kept=1000), as the fixture "
                "bmq_broker does"
            )
        name = QueueUri.parse(uri).canonical
        return [each for each in posts if each.queue_uri == name]

    def assert_posted(
        self,
        uri: str,
        *,
        count: int | None = None,
        payload: bytes | None = None,
        properties: Mapping[str, PropertyInput] | None = None,
    ) -> list[PostedMessage]:
        """Fail unless matching messages were posted to a queue; the failure shows all posts.

        Args:
            uri: the queue's URI.
            count: number of messages; None for at least one.
            payload: the payload; None for any.
            properties: required properties; further properties are allowed.

        Returns:
            The messages, oldest first.

        Raises:
            AssertionError: no message matches, or another number of messages.
            StateError: the broker keeps no posts.
            InvalidURI: the URI is not legal.
        """
        count = _checks.optional(_checks.integer, "count", count)
        payload = _checks.optional(_checks.octets, "payload", payload)
        properties = {} if properties is None else _checks.mapping("properties", properties)
        posted = self.posted(uri)
        found = [each for each in posted if each.has(payload, properties)]
        if len(found) == count or (count is None and found):
            return found
        wanted = f"{count} messages" if count is not None else "a message"
        if payload is not None:
            wanted += f" {payload!r}"
        if properties:
            wanted += f" with {_checks.shown(dict(properties))}"
        others = ", ".join(dict.fromkeys(each.queue_uri for each in self._node.posts or ())) or "none"
        raise AssertionError(
            f"expected {wanted} in {uri}, found {len(found)} of {len(posted)} posted "
            f"messages:\n{listed(posted)}\n(queues with posts: {others})"
        )

    async def drained(self, uri: str, timeout: float = 10.0) -> None:
        """Wait until every message of a queue has been confirmed, by all of its applications.

        Args:
            uri: the queue's URI.
            timeout: seconds to wait.

        Raises:
            AssertionError: messages are left, or the queue does not exist; the text says which.
            InvalidURI: the URI is not legal.

        Cancelling the call changes nothing.
        """
        name = QueueUri.parse(uri).canonical
        timeout = _checks.seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                while name not in self._node.queues or len(self.queues[name]):
                    await self._scheduler.change()
        except TimeoutError:
            left = self.queues.get(name)
            if left is None:
                known = ", ".join(self.queues) or "none"
                raise AssertionError(
                    f"the broker has no queue {name} after {timeout:g} s; its queues: {known}"
                ) from None
            raise AssertionError(
                f"{name} has {len(left)} messages left after {timeout:g} s, {left.unconfirmed} of them "
                f"delivered and unconfirmed:\n{listed(left.messages)}"
            ) from None

    # ---- life

    @property
    def running(self) -> bool:
        """Whether clients can connect."""
        return self._scheduler.working

    @property
    def port(self) -> int:
        """The listening port.

        Raises:
            StateError: the port is 0, and the broker was never started.
        """
        if not self._port:
            raise StateError("the broker has no port before it is started: await broker.start()")
        return self._port

    @property
    def uri(self) -> str:
        """The address for clients, such as ``tcp://127.0.0.1:30114``; with TLS ``tcps://...``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tcps' if self._ssl is not None else 'tcp'}://{host}:{self.port}"

    async def start(self) -> None:
        """Begin to listen. After :meth:`stop`, the broker listens on the same port again.

        The call waits only for the look-up of ``host``. Cancelling the call leaves the broker stopped.

        Raises:
            StateError: the broker is running.
            OSError: the address cannot be used.
        """
        if self.running:
            raise StateError("the broker is running")
        self._scheduler.begin(running_loop())
        try:
            await self._listen()
        except BaseException:
            self._scheduler.end()
            raise
        if self._port:
            _log.info("listening on %s", self.uri)

    async def _listen(self) -> None:
        if _world.current().simulated:
            server = await asyncio.get_running_loop().create_server(self._accept, self.host, self._port)
            self._simulated, self._port = server, server.sockets[0].getsockname()[1]
        else:
            await self._listener.start(self.host, self._port)
            self._port = self._listener.port

    async def stop(self, *, graceful: bool = True) -> None:
        """Disconnect all clients and stop listening. Stored messages stay for a later :meth:`start`.

        The next start delivers all of these messages anew, oldest first, with all delivery attempts, as after
        the restart of a real broker with file-backed domains.

        Clients that do not read their data are cut after a second. Cancelling the call cuts them at once, and
        leaves the broker stopped.

        Args:
            graceful: whether unconfirmed messages return without counting as a failed delivery; otherwise
                connections are cut as by a crash.
        """
        graceful = _checks.boolean("graceful", graceful)
        if not self.running:
            return
        self._node.stopping = True
        self._scheduler.end()
        try:
            if self._simulated is not None:
                self._simulated.close()
            await self._listener.stop()
            await self._disconnect(graceful=graceful)
        finally:
            # A cancelled call leaves connections.
            for connection in list(self._connections):
                connection.drop()
            self._node.recover()
        _log.info("stopped")

    async def restart(self, *, keep: bool = True, graceful: bool = True) -> None:
        """Stop and start again, on the same port. Cancelling the call leaves the broker stopped.

        Args:
            keep: whether messages survive, as in file-backed domains of a real broker; otherwise messages are
                lost, as in in-memory domains.
            graceful: see :meth:`stop`.
        """
        keep = _checks.boolean("keep", keep)
        await self.stop(graceful=graceful)
        if not keep:
            self._node.forget_all()
        await self.start()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- the node

    def _go_on(self) -> None:
        self._node.go_on(self._scheduler.clock())
        self._scheduler.update()

    def _deliver(self) -> None:
        """Deliver all deliverable messages."""
        self._node.deliver(self._scheduler.clock())
        self._scheduler.update()

    # ---- connections

    async def _welcome(self, sock: socket.socket) -> None:
        """Make a connection from an accepted socket."""
        most = self._node.bounds.connections
        if len(self._connections) + len(self._arriving) >= most:
            self._node.refusals.warning(
                "connections",
                "%d connections are open, the limit of this broker: further connections are closed at once",
                most,
            )
            sock.close()
            return
        connection = BrokerConnection(self)
        self._arriving[connection] = None
        timeout = self._settings.handshake_timeout if self._ssl is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._ssl, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            _log.info("a connection failed before it was established: %s", printable(error))
        except asyncio.CancelledError:
            # Begun and dropped in one turn of the event loop: uvloop closes the socket without a callback.
            if connection in self._connections:
                connection.connection_lost(None)
            raise
        finally:
            self._arriving.pop(connection, None)

    def _accept(self) -> BrokerConnection:
        """Make the broker's side of a connection."""
        return BrokerConnection(self)

    async def _disconnect(self, *, graceful: bool) -> None:
        """End all connections; stored messages stay.

        Args:
            graceful: whether unconfirmed messages return without counting as a failed delivery.
        """
        for connection in list(self._connections):
            if connection.session is not None:
                connection.session.shut_down(self._scheduler.clock())
            if graceful:
                connection.close()
            else:
                connection.cut()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._all_gone()
        except TimeoutError:
            # A client without reads would keep the connection open for ever.
            for connection in list(self._connections):
                connection.cut()
            await self._all_gone()

    async def _all_gone(self) -> None:
        while self._connections:
            await self._scheduler.change()

    def _begin(self, connection: BrokerConnection) -> BrokerSession:
        """Make the session of a new connection."""
        self._sessions += 1
        self._arriving.pop(connection, None)
        self._connections[connection] = None
        return BrokerSession(
            self._settings,
            self._node,
            connection.output,
            session_id=self._sessions,
            peer=connection.peer,
            now=self._scheduler.clock(),
            guids=self._guids,
        )

    def _end(self, connection: BrokerConnection) -> None:
        """Note the end of a connection."""
        self._connections.pop(connection, None)
        self._scheduler.timeouts.discard(connection)

    def _abandon(self, forget: float) -> None:
        """Drop all state except stored messages, as the end of a process does.

        Args:
            forget: seconds; messages from this last period were not stored yet, and are lost.
        """
        now = self._scheduler.clock()
        self._node.stopping = True
        self._scheduler.abandon()
        for connection in list(self._connections):
            connection.transport = None
            if connection.session is not None:
                connection.session.shut_down(now)
            connection.drop()
        self._arriving.clear()
        if forget > 0:
            for queue in self._node.queues.values():
                for message in [each for each in queue.store if each.arrival >= now - forget]:
                    queue.drop(message)
        self._node.recover()


def _named(
    domains: Mapping[str, DomainConfig | dict[str, Any]] | Iterable[DomainConfig],
) -> dict[str, DomainConfig | Redirect]:
    if not isinstance(domains, Mapping):
        listed: list[DomainConfig] = _checks.items("domains", domains, "DomainConfig")
        return {_checks.choice("a domain", domain, DomainConfig).name: domain for domain in listed}
    given = cast("Mapping[str, DomainConfig | dict[str, Any]]", domains)
    found: dict[str, DomainConfig | Redirect] = {}
    for name, value in given.items():
        name = _checks.text("the name of a domain", name, empty=False)
        found[name] = value if isinstance(value, DomainConfig) else parse_domain(name, value)
    return found
