# SPDX-License-Identifier: Apache-2.0
"""The broker behind the sessions, without sockets: a node with clients and admin commands."""

from __future__ import annotations

from bmq.broker._admin import run_command
from bmq.broker._bounds import Bounds
from bmq.broker._connected_client import ConnectedClient
from bmq.broker._domain import DomainSource
from bmq.broker._node import Node
from bmq.protocol.broker.backend import ClientPort
from bmq.protocol.broker.output import BrokerOutput

__all__ = ["Backend"]


class Backend(Node):
    """A broker: domains, queues, and connected clients.

    Args:
        source: the source of domains.
        history_limit: maximum number of remembered GUIDs of deleted messages, for each queue.
        bounds: limits for clients.

    Attributes:
        clients: the negotiated sessions.
    """

    def __init__(
        self, source: DomainSource, *, history_limit: int = 1_000_000, bounds: Bounds | None = None
    ) -> None:
        super().__init__(source, history_limit=history_limit, bounds=bounds)
        self.clients: list[ConnectedClient] = []

    def connect(self, output: BrokerOutput, *, new_properties: bool, description: str) -> ConnectedClient:
        """Make the broker's side of a negotiated session."""
        client = ConnectedClient(self, output, new_properties=new_properties, description=description)
        client.place = len(self.clients)
        self.clients.append(client)
        return client

    def disconnect(self, client: ClientPort, now: float, *, lost: bool) -> None:
        """Close all open queues of a client; see :meth:`ConnectedClient.drop`."""
        if not isinstance(client, ConnectedClient) or client.place is None:
            return
        # The last client takes the place: a search among thousands of leaving clients would take long.
        last = self.clients.pop()
        if last is not client:
            self.clients[client.place] = last
            last.place = client.place
        client.place = None
        client.drop(now, lost=lost)

    def admin(self, command: str, now: float) -> str:
        """Carry out an admin command and return the answer."""
        text = run_command(self, command, now, clients=len(self.clients))
        self.deliver(now)
        return text
