# SPDX-License-Identifier: Apache-2.0
"""A blocking client in a hundred lines: the protocol core of bmq over a plain socket.

    python examples/sans_io_client.py [--broker tcp://localhost:30114] [--queue URI] [--count 3]

``ClientCore`` knows the protocol and does no I/O. This client passes the time and received bytes to the core,
sends the returned bytes, and handles the reported events.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar, cast
from urllib.parse import urlsplit

from bmq.errors import AckStatus, ConnectionFailed
from bmq.protocol.client import ClientCore, QueueCore, SubscriptionCore, SubscriptionOptions
from bmq.protocol.client.events import Acked, CloseChannel, Completed, Connected, Pushed
from bmq.protocol.client.ports import NULL_OWNER
from bmq.wire.control import ClientIdentity, ClientType, GuidInfo, QueueFlags
from bmq.wire.guid import GuidGenerator, client_id_from
from bmq.wire.push import PushMessage
from bmq.wire.uri import QueueUri

T = TypeVar("T")


class BlockingClient:
    """One session. Every call returns when the work is done, or raises the reason for a failure."""

    def __init__(self, broker: str, timeout: float = 10.0) -> None:
        where = urlsplit(broker)
        self._socket = socket.create_connection((where.hostname, where.port or 30114), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout = timeout
        self._guids = GuidGenerator(client_id_from(socket.gethostname(), time.time_ns(), os.getpid(), 1))
        self._connected = Future[None]()
        self._messages: deque[tuple[QueueCore, bytes, bytes]] = deque()
        self._core = ClientCore(
            ClientIdentity(
                protocol_version=1,
                client_type=ClientType.E_TCPCLIENT,
                process_name="sans_io_client",
                features="PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX",
                guid_info=GuidInfo(client_id=self._guids.client_id_text),
            )
        )
        self._connect()
        self._wait_for(self._connected)

    def _connect(self) -> None:
        """Negotiate; afterwards the core handles the connection."""
        handshake = self._core.handshake()
        self._socket.sendall(handshake.begin(None))
        while not handshake.done:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._socket.sendall(handshake.receive(data))
            if handshake.error is not None:
                raise handshake.error
        self._core.channel_opened(handshake, time.monotonic())

    def open(self, uri: str, expressions: Sequence[str] = ("",)) -> QueueCore:
        """Open a queue for reading and writing, with a subscription for each expression."""
        opened, now = Future[None](), time.monotonic()
        options = SubscriptionOptions(max_unconfirmed_messages=100, max_unconfirmed_bytes=1 << 24, priority=0)
        queue = self._core.open_queue(
            QueueUri.parse(uri),
            QueueFlags.READ | QueueFlags.WRITE,
            NULL_OWNER,
            opened,
            now,
            now + self._timeout,
            subscriptions=[SubscriptionCore(text, options, NULL_OWNER) for text in expressions],
        )
        self._wait_for(opened)
        return queue

    def post(self, queue: QueueCore, payload: bytes) -> AckStatus:
        """Post a message; return the status of the acknowledgement."""
        posted = Future[AckStatus]()
        guid = self._guids.next(time.monotonic_ns())
        self._core.post(queue, guid, payload, posted, time.monotonic())
        return self._wait_for(posted)

    def receive(self) -> tuple[QueueCore, bytes, bytes]:
        """Return queue, GUID and data of the next message."""
        while not self._messages:
            self._turn()
        return self._messages.popleft()

    def confirm(self, queue: QueueCore, guid: bytes) -> None:
        """Confirm a message; the confirmation leaves with the next bytes."""
        self._core.confirm(queue, guid)

    def close(self) -> None:
        """Disconnect, and close the socket."""
        stopped, now = Future[None](), time.monotonic()
        self._core.stop(stopped, now, now + self._timeout)
        self._wait_for(stopped)
        self._socket.close()

    def _wait_for(self, future: Future[T]) -> T:
        while not future.done():
            self._turn()
        return future.result()

    def _turn(self) -> None:
        """Send pending bytes, receive until the next deadline, handle the events."""
        core = self._core
        if data := b"".join(core.data_to_send(time.monotonic())):
            self._socket.sendall(data)
        if self._look():
            return
        deadline = core.next_deadline()
        self._socket.settimeout(
            self._timeout if deadline is None else max(0.001, deadline - time.monotonic())
        )
        try:
            data = self._socket.recv(65536)
            if data:
                core.receive(data, time.monotonic())
            else:
                core.channel_closed("the broker closed the connection", time.monotonic())
                core.give_up("the broker closed the connection", time.monotonic())
        except TimeoutError:
            core.tick(time.monotonic())
        self._look()

    def _look(self) -> bool:
        """Handle the events; return whether any event was reported."""
        events = self._core.events()
        for event in events:
            if isinstance(event, Connected):
                self._connected.set_result(None)
            elif isinstance(event, Completed):
                if event.token is not None and event.error is None:
                    event.token.set_result(None)
                elif event.token is not None and event.error is not None:
                    event.token.set_exception(event.error)
            elif isinstance(event, Acked):
                for posted, _, _, status, _ in event.outcomes:
                    cast("Future[AckStatus]", posted).set_result(status)
            elif isinstance(event, Pushed):
                for queue, _, pushes in event.deliveries:
                    self._messages.extend(
                        (queue, push.guid, push.data) for push in map(PushMessage._make, pushes)
                    )
            elif isinstance(event, CloseChannel) and event.error:
                raise ConnectionFailed(str(event.error))
        return bool(events)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", default=os.environ.get("BMQ_BROKER_URI", "tcp://localhost:30114"))
    parser.add_argument("--queue", default="bmq://bmq.test.mem.priority/sans-io")
    parser.add_argument("--count", type=int, default=3)
    options = parser.parse_args()
    client = BlockingClient(options.broker)
    queue = client.open(options.queue)
    for number in range(options.count):
        print("posted:", client.post(queue, f"message {number}".encode()).name)
    for _ in range(options.count):
        of, guid, data = client.receive()
        print("received:", data.decode())
        client.confirm(of, guid)
    client.close()


if __name__ == "__main__":
    main()
