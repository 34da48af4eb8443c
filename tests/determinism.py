# SPDX-License-Identifier: Apache-2.0
"""One conversation of client cores with a broker's node, in memory: prints a digest of every byte.

Each process has its own hash seed and its own addresses. The digest must be the same in all of them.
"""

from __future__ import annotations

import hashlib
import random

from bmq.protocol.client.core import ClientCore, CoreOptions
from bmq.protocol.client.events import CloseChannel, Pushed
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.control import ClientIdentity, ClientType, QueueFlags
from bmq.wire.push import GUID
from bmq.wire.uri import QueueUri
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient
from tests.fakes.broker import guid

_CLIENTS = 5
_QUEUES = 6
_APPS = ("foo", "bar", "baz")
# More than a reader may hold: confirmations make room.
_POSTS = 30


class _Client:
    """A client core on a connection to a node."""

    def __init__(self, broker: Core, number: int, heard: hashlib._Hash) -> None:
        self.core = ClientCore(ClientIdentity(client_type=ClientType.E_TCPCLIENT), CoreOptions())
        self.broker = broker
        self.number = number
        self._heard = heard
        self.peer: CoreClient | None = None
        self.queues: list[QueueCore] = []
        self._owners: dict[QueueCore, None] = {}

    def connect(self) -> None:
        self.peer = self.broker.connect()
        handshake = self.core.handshake()
        sent = handshake.begin(None)
        while not handshake.done:
            self.peer.send(sent)
            came = b"".join(self.peer.output.pieces())
            self._heard.update(b"%d>%s<%s" % (self.number, sent, came))
            sent = handshake.receive(came)
            assert handshake.error is None
        self.core.channel_opened(handshake, self.broker.now)

    def lose(self) -> None:
        assert self.peer is not None
        self.peer.crash()
        self.peer = None
        self.core.channel_closed("cut", self.broker.now)
        self._take()

    def open(self, uri: str, flags: QueueFlags) -> None:
        limits = SubscriptionOptions(50, 1 << 20, 0)
        reads = bool(flags & QueueFlags.READ)
        now = self.broker.now
        self.queues.append(
            self.core.open_queue(
                QueueUri.parse(uri),
                flags,
                uri,
                uri,
                now,
                now + 60,
                subscriptions=[SubscriptionCore("", limits, uri)] if reads else [],
            )
        )

    def pump(self) -> bool:
        """Move bytes both ways once; return whether there were any."""
        moved = self._take()
        if self.peer is None:
            return moved
        sent = b"".join(self.core.data_to_send(self.broker.now))
        came = b"".join(self.peer.output.pieces())
        self._heard.update(b"%d>%s<%s" % (self.number, sent, came))
        if sent:
            self.peer.send(sent)
        if came:
            self.core.receive(came, self.broker.now)
        return self._take() or bool(sent or came) or moved

    def _take(self) -> bool:
        events = self.core.events()
        for event in events:
            self._heard.update(type(event).__name__.encode())
            assert not (isinstance(event, CloseChannel) and event.error), event
            if isinstance(event, Pushed):
                for queue, _, messages in event.deliveries:
                    self.core.confirm_many(queue, [message[GUID] for message in messages])
        return bool(events)


def conversation() -> str:
    """Open, post, deliver, confirm, lose every connection, restore; return the digest of all bytes."""
    heard = hashlib.sha256()
    broker = Core()
    clients = [_Client(broker, number, heard) for number in range(_CLIENTS)]

    def settle() -> None:
        for _ in range(1000):
            if not sum(client.pump() for client in clients):  # every one, each time
                return
            broker.advance(0.001)
        raise AssertionError("the conversation does not end")

    for client in clients:
        client.connect()
    settle()
    for client in clients:
        for number in range(_QUEUES):
            client.open(f"{PRIORITY}{number}", QueueFlags.READ)
            client.open(f"{PRIORITY}{number}", QueueFlags.WRITE)
        client.open(FANOUT, QueueFlags.WRITE)
        for app in _APPS:
            client.open(f"{FANOUT}?id={app}", QueueFlags.READ)
    settle()
    posted = 0
    for round_ in range(4):
        for client in clients:
            for queue in client.queues:
                for _ in range(_POSTS if queue.flags & QueueFlags.WRITE else 0):
                    posted += 1
                    client.core.post(queue, guid(posted), b"%099d" % posted, posted, broker.now)
            if round_ == 2:
                client.lose()
        if round_ == 2:
            for client in clients:
                client.connect()
        settle()
        broker.advance(2)
        for client in clients:
            client.core.tick(broker.now)
        settle()
    return heard.hexdigest()


def _scatter() -> list[bytes]:
    """Have new objects lie at random addresses: behind holes of every size among objects that stay."""
    chance = random.SystemRandom()
    objects = [bytes(chance.randrange(1, 470)) for _ in range(40_000)]
    return [each for each in objects if chance.random() < 0.5]


if __name__ == "__main__":
    _kept = _scatter()
    print(conversation())
