# SPDX-License-Identifier: Apache-2.0
"""The bench of a case: new connections, and unused names of queues."""

from __future__ import annotations

import asyncio
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from bmq import _world
from bmq.errors import StatusCategory, UsageError
from bmq.wire.control import Codec, Subscription
from conformance.case import Untested, fail
from conformance.peer import Peer

__all__ = ["BASIC", "KINDS", "Address", "Bench", "Domains"]

#: The kinds of domains without which a broker cannot be judged: one for each mode.
BASIC: Final = ("priority", "fanout", "broadcast")

#: The kinds of domains, each with the name of the usual domain and its settings.
KINDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "priority": ("bmq.test.mem.priority", "priority mode, in memory, generous quotas"),
        "fanout": ("bmq.test.mem.fanout", "fanout mode, applications foo, bar and baz"),
        "broadcast": ("bmq.test.mem.broadcast", "broadcast mode"),
        "small": ("bmq.test.small.priority", "priority mode, a quota of 10 messages and 4,096 bytes a queue"),
        "ttl": ("bmq.test.ttl.priority", "priority mode, messageTtl 2"),
        "attempts": ("bmq.test.rda.priority", "priority mode, maxDeliveryAttempts 3"),
        "app-fanout": (
            "bmq.test.appsub.fanout",
            "fanout mode, application subscriptions: foo `x == 1`, bar `x == 2`",
        ),
        "app-priority": ("bmq.test.appsub.priority", "priority mode, application subscription `x > 0`"),
        "durable": ("bmq.test.persistent.priority", "priority mode, file-backed storage"),
        "window": ("bmq.test.window.priority", "priority mode, deduplicationTimeMs 1000"),
        "quota": (
            "bmq.test.quota.priority",
            "priority mode, a quota of 20 messages and 8,192 bytes for the domain, messageTtl 10",
        ),
        "few": ("bmq.test.few.priority", "priority mode, maxProducers 1, maxConsumers 1"),
        "few-queues": ("bmq.test.fewqueues.priority", "priority mode, maxQueues 2"),
    }
)


@dataclass(frozen=True, slots=True)
class Domains:
    """The names of the broker's domains, by kind.

    Attributes:
        names: names other than the usual ones, by kind.
    """

    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for kind in self.names:
            if kind not in KINDS:
                raise UsageError(
                    f"a kind of domain was expected, not {kind!r}: use one of {', '.join(KINDS)}"
                )

    def name(self, kind: str) -> str:
        """The name of the domain of a kind."""
        return self.names.get(kind, KINDS[kind][0])


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker listens.

    Attributes:
        host: host name or address.
        port: port.
        ssl: context for TLS, or None.
    """

    host: str
    port: int
    ssl: ssl_module.SSLContext | None = None

    @classmethod
    def parse(cls, uri: str, ssl: ssl_module.SSLContext | None = None) -> Address:
        """Read ``tcp://host:port``.

        Raises:
            UsageError: the text has another form.
        """
        try:
            parts = urlsplit(uri)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
            parts = urlsplit("")
        if parts.scheme != "tcp" or not host or parts.path not in ("", "/") or parts.query:
            raise UsageError(f"the address of a broker was expected, not {uri!r}: use tcp://HOST:PORT")
        return cls(host, port or 30114, ssl)


Opener = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Bench:
    """The bench of one case.

    Args:
        opener: opens a connection.
        domains: the names of the domains.
        user: user, a colon and the password for the mechanism BASIC, or None.
        locks: locks that all cases of a run share, by name.

    Attributes:
        domains: the names of the domains.
        peers: the connections of the case, in order.
        codec: encoding of the control messages that new connections send.
    """

    def __init__(
        self,
        opener: Opener,
        domains: Domains,
        user: bytes | None = None,
        locks: dict[str, asyncio.Lock] | None = None,
    ) -> None:
        self.domains = domains
        self.peers: list[Peer] = []
        self.codec = Codec.JSON
        self._opener = opener
        self._user = user
        self._locks = {} if locks is None else locks

    @property
    def user(self) -> bytes:
        """User and password for the mechanism BASIC.

        Raises:
            Untested: the suite was started without a user.
        """
        if self._user is None:
            raise Untested("no user of the broker: give --user NAME, and the password in BMQ_PASSWORD")
        return self._user

    def alone(self, name: str) -> asyncio.Lock:
        """A lock for cases that must not use the same domain at the same time."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def dial(self) -> Peer:
        """Return a new connection without any traffic.

        Raises:
            OSError: the broker does not accept connections.
        """
        peer = Peer(len(self.peers) + 1, *await self._opener())
        peer.codec = self.codec
        self.peers.append(peer)
        return peer

    async def client(self, **identity: Any) -> Peer:
        """Return a connection that has negotiated."""
        peer = await self.dial()
        response = await peer.negotiate(**identity)
        if response.result.category is not StatusCategory.E_SUCCESS:
            raise fail("a successful negotiation", response.result)
        return peer

    def uri(self, kind: str = "priority", app: str = "", name: str = "") -> str:
        """Return the URI of a new queue, or of the queue of a name."""
        uri = f"bmq://{self.domains.name(kind)}/conform-{name or _world.token_hex(8)}"
        return f"{uri}?id={app}" if app else uri

    async def queue(self, kind: str = "priority", **how: Any) -> tuple[Peer, str]:
        """Return a client that has a new queue open as qId 0, and the URI of the queue."""
        peer, uri = await self.client(), self.uri(kind)
        await peer.open(uri, **how)
        return peer, uri

    async def consumer(self, *subscriptions: Subscription, kind: str = "priority") -> tuple[Peer, str]:
        """Return a client that reads and writes a new queue as qId 0, with subscriptions, and the URI."""
        peer, uri = await self.queue(kind)
        await peer.configure(0, *subscriptions)
        return peer, uri

    async def reader(self, uri: str, *subscriptions: Subscription) -> Peer:
        """Return a new client that reads a queue as qId 0, with subscriptions."""
        peer = await self.client()
        await peer.open(uri, write=False)
        await peer.configure(0, *subscriptions)
        return peer

    def end(self) -> None:
        """Close all connections."""
        for peer in self.peers:
            peer.drop()
