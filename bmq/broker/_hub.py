# SPDX-License-Identifier: Apache-2.0
"""The parts of an embedded broker behind :class:`~bmq.broker._server.Broker`, and the connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from ssl import SSLContext
from typing import cast

from bmq import _checks, _world
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.broker._backend import Backend
from bmq.broker._bounds import Bounds
from bmq.broker._connection import BrokerConnection
from bmq.broker._domain import DomainSource
from bmq.broker._faults import Faults
from bmq.broker._posted import Posts
from bmq.broker._schedule import Schedule
from bmq.broker.clock import Clock
from bmq.protocol.broker.session import BrokerSession
from bmq.protocol.broker.settings import Action, BrokerSettings
from bmq.wire.guid import GuidGenerator, client_id_from
from bmq.wire.printable import printable

__all__ = ["Hub"]

_log = Log("bmq.broker")

#: Seconds for which a stopping broker waits until clients have read all sent data.
_PATIENCE = 1.0


class Hub:
    """Owner of a broker's node, schedule, faults and connections; the :class:`Host` of the connections.

    Attributes:
        source: the source of domains.
        node: domains, queues and clients; replaced when a broker forgets its messages.
        schedule: the broker's later work.
        connections: the connections with a session.
        posts: the recent posts; None if the broker does not keep posts.
        faults: deliberate faults.
        settings: the settings of sessions.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        source: DomainSource,
        *,
        clock: Clock,
        history: int,
        bounds: Bounds,
        posts: Posts | None,
        ssl: SSLContext | None,
        authorize: Callable[[Action], bool] | None = None,
    ) -> None:
        self.source = source
        self.posts = posts
        self._history = history
        self._bounds = bounds
        self.node = self._new_node()
        self.schedule = Schedule(clock, self.node)
        self.connections: dict[BrokerConnection, None] = {}
        self.faults = Faults(self.node, self.connections, posts, self.schedule)
        self.settings = replace(
            settings, admit=self.faults.admit, authorize=None if authorize is None else self._authorizes
        )
        self._authorize = authorize
        # Unfinished connections: establishing TLS takes a while.
        self._arriving: dict[BrokerConnection, None] = {}
        self._crowded = False
        self._ssl = ssl
        self._all_gone = asyncio.Event()
        self._refusals = LogLimit(_log)
        self._sessions = 0
        self._guids = GuidGenerator(client_id_from(_world.hostname(), _world.time_ns(), _world.pid(), 0))

    # ---- the node

    def _new_node(self) -> Backend:
        node = Backend(self.source, history_limit=self._history, bounds=self._bounds)
        node.postpone = lambda: self.schedule.soon(self._go_on)
        return node

    def renew(self) -> None:
        """Forget all messages: a new node takes the place of the old one."""
        self.node = self.schedule.node = self._new_node()
        self.faults.attach_to(self.node)

    def _go_on(self) -> None:
        self.node.go_on(self.schedule.clock())
        self.schedule.update()

    def deliver(self) -> None:
        """Deliver all deliverable messages."""
        self.node.deliver(self.schedule.clock())
        self.schedule.update()

    def admin(self, command: str) -> str:
        """Carry out an admin command and return the answer."""
        text = self.node.admin(command, self.schedule.clock())
        self.schedule.update()
        return text

    # ---- connections

    async def welcome(self, sock: socket.socket) -> None:
        """Make a connection from an accepted socket."""
        if len(self.connections) + len(self._arriving) >= self._bounds.connections:
            if not self._crowded:
                self._crowded = True
                _log.warning(
                    "%d connections are open, the limit of this broker: further connections are closed at "
                    "once",
                    self._bounds.connections,
                )
            sock.close()
            return
        self._crowded = False
        connection = BrokerConnection(self)
        self._arriving[connection] = None
        timeout = self.settings.handshake_timeout if self._ssl is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._ssl, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            _log.info("a connection failed before it was established: %s", printable(error))
        except asyncio.CancelledError:
            # Begun and dropped in one turn of the event loop: uvloop closes the socket without a callback.
            if connection in self.connections:
                connection.connection_lost(None)
            raise
        finally:
            self._arriving.pop(connection, None)

    def accept(self) -> BrokerConnection:
        """Make a connection accepted by the event loop."""
        return BrokerConnection(self)

    async def disconnect(self, *, graceful: bool) -> None:
        """End all connections; stored messages stay.

        Args:
            graceful: whether unconfirmed messages return without counting as a failed delivery.
        """
        self._all_gone = asyncio.Event()
        for connection in list(self.connections):
            if connection.session is not None:
                connection.session.shut_down(self.schedule.clock())
            if graceful:
                connection.close()
            else:
                connection.cut()
        if self.connections:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._all_gone.wait()
            except TimeoutError:
                # A client without reads would keep the connection open for ever.
                for connection in list(self.connections):
                    connection.cut()
                await self._all_gone.wait()

    def dismiss(self) -> None:
        """Drop the connections left by a cancelled :meth:`disconnect`, and become ready for a new start."""
        for connection in list(self.connections):
            connection.drop()
        self.node.recover()

    @property
    def answer_delay(self) -> float:
        """Seconds until a client's first message is answered."""
        return self.faults.negotiation_delay

    def begin(self, connection: BrokerConnection) -> BrokerSession:
        """Make the session of a new connection."""
        self._sessions += 1
        self._arriving.pop(connection, None)
        self.connections[connection] = None
        return BrokerSession(
            self.settings,
            self.node,
            connection.output,
            session_id=self._sessions,
            peer=connection.peer,
            now=self.schedule.clock(),
            guids=self._guids,
        )

    def begun(self, connection: BrokerConnection) -> None:
        """Apply the faults to a connection with a session."""
        self.faults.apply_to(connection)

    def end(self, connection: BrokerConnection) -> None:
        """Note the end of a connection."""
        self.connections.pop(connection, None)
        self.schedule.note_deadline(connection, None)
        if not self.connections:
            self._all_gone.set()

    def _authorizes(self, action: Action) -> bool:
        """Return whether a client may perform an action. Without a clear yes, the answer is no."""
        assert self._authorize is not None
        try:
            answer = cast("object", self._authorize(action))
        except Exception as error:
            self._refusals.log(
                logging.ERROR,
                "failed",
                "authorize failed with %s; refused: %s",
                printable(f"{type(error).__name__}: {error}"),
                printable(action),
            )
            return False
        if not isinstance(answer, bool):
            self._refusals.error(
                "answer",
                "authorize must return True or False, and returned %s; refused: %s",
                _checks.shown(answer),
                printable(action),
            )
        return answer is True

    def note_refusal(self, peer: str) -> None:
        """Log wrong credentials: the first line of each host at once, then a line a minute with a count."""
        host = peer.rpartition(":")[0]
        self._refusals.warning(host, "%s sent wrong credentials", peer)

    def abandon(self, forget: float) -> None:
        """Drop all state except stored messages, as the end of a process does.

        Args:
            forget: seconds; messages from this last period were not stored yet, and are lost.
        """
        now = self.schedule.clock()
        self.node.stopping = True
        for connection in list(self.connections):
            connection.transport = None
            if connection.session is not None:
                connection.session.shut_down(now)
                connection.session.channel_down(now)
            connection.output.discard()
        self.connections.clear()
        self._arriving.clear()
        self.schedule.abandon()
        self._all_gone = asyncio.Event()
        if forget > 0:
            for queue in self.node.queues.values():
                for message in [each for each in queue.store if each.arrival >= now - forget]:
                    queue.drop(message)
        self.node.recover()
