# SPDX-License-Identifier: Apache-2.0
"""The blocking official client, with an embedded broker in a separate thread."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import blazingmq
import pytest

from bmq.broker import ManualClock
from bmq.testing import BackgroundBroker

TIMEOUT = 20.0
QUIET = 0.3


class StillBroker(BackgroundBroker):
    """A broker on a thread, with a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(clock=self.clock)

    def advance(self, seconds: float) -> None:
        """Let time pass for the broker."""
        self.call(lambda _: self.clock.advance(seconds))

    def stored(self, uri: str) -> int:
        """How many messages a queue stores."""
        return self.call(lambda broker: len(broker.queues[uri]))


class Client:
    """An official session, with waits for received messages."""

    def __init__(self, uri: str, **options: Any) -> None:
        self.messages: queue.Queue[blazingmq.Message] = queue.Queue()
        self.acks: queue.Queue[blazingmq.Ack] = queue.Queue()
        self.events: queue.Queue[Any] = queue.Queue()
        self.auto_confirm = True
        self.session = blazingmq.Session(
            self.events.put,
            on_message=self._received,
            **({"broker": uri, "timeout": TIMEOUT, "num_processing_threads": 1} | options),
        )

    def _received(self, message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        if self.auto_confirm:
            handle.confirm()
        self.messages.put(message)

    def post(self, uri: str, *payloads: bytes, **options: Any) -> None:
        for payload in payloads:
            self.session.post(uri, payload, on_ack=self.acks.put, **options)

    def statuses(self, count: int) -> list[blazingmq.AckStatus]:
        return [self.acks.get(timeout=TIMEOUT).status for _ in range(count)]

    def take(self, count: int) -> list[blazingmq.Message]:
        return [self.messages.get(timeout=TIMEOUT) for _ in range(count)]

    def payloads(self, count: int) -> list[bytes]:
        return [message.data for message in self.take(count)]

    def is_quiet(self) -> bool:
        try:
            self.messages.get(timeout=QUIET)
        except queue.Empty:
            return True
        return False

    def event(self, kind: type) -> Any:
        """Wait for a session event of a kind; others are dropped."""
        while True:
            event = self.events.get(timeout=TIMEOUT)
            if isinstance(event, kind):
                return event


@pytest.fixture(autouse=True)
def _without_a_named_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client prefers the address in this variable to its argument."""
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)


@pytest.fixture
def broker() -> Iterator[StillBroker]:
    with StillBroker() as broker:
        yield broker


@pytest.fixture
def connect(broker: StillBroker) -> Iterator[Callable[..., Client]]:
    """Makes official sessions, stopped at the end."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        client = Client(broker.uri, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.session.stop()


@pytest.fixture
def new_uri() -> Callable[[str], str]:
    """Makes a URI of a queue that nobody has used in a domain."""
    return lambda domain: f"bmq://{domain}/{uuid.uuid4().hex}"
