# SPDX-License-Identifier: Apache-2.0
"""A real broker's half of recorded conversations drives the client core; the core sends the client's half."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bmq.errors import AckStatus, AuthenticationError, NegotiationError, OpenQueueError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.handshake import Credentials
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionCore, SubscriptionOptions
from bmq.wire.confirm import decode_confirms
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import ConfigureStream, ControlMessage, MessageKind, OpenQueue
from bmq.wire.control_event import decode_event
from bmq.wire.event import read_event
from bmq.wire.put import decode_puts
from bmq.wire.uri import QueueUri
from tests.protocol.bench import READ, WRITE, Bench
from tests.transcripts import Recorded, recorded

PRIORITY = "bmq://bmq.test.mem.priority/json-session"
FANOUT = "bmq://bmq.test.mem.fanout/json-session"


class Replay:
    """Walks through a recording: replays the broker's events, and expects the client's events."""

    def __init__(self, recording: str, connection: int = 1) -> None:
        self.bench = Bench()
        self._events = [e for e in recorded(recording=recording) if e.connection == connection]
        self._read = 0

    def broker_says(self) -> None:
        """Feed the broker's output up to the client's next input."""
        while self._events and self._events[0].direction == "b2c":
            self.bench.send(self._events.pop(0).data)

    def client_said(self, kind: EventType) -> Recorded:
        event = self._events.pop(0)
        assert (event.direction, event.type) == ("c2b", kind), str(event)
        return event

    def request(self) -> ControlMessage:
        """Compare the next request with the recording; then feed the broker's answer."""
        wanted = decode_event(read_event(self.client_said(EventType.CONTROL).data), MessageKind.CONTROL)
        assert self.bench.broker.requests.popleft() == wanted
        self.broker_says()
        return wanted

    def skip(self, *kinds: EventType) -> None:
        """Skip an event of an incorrect client, and its answer."""
        for kind in kinds:
            self.client_said(kind)
            while self._events[0].direction == "b2c":
                self._events.pop(0)

    def open(self, uri: str, flags: Any, subscriptions: list[tuple[str, int, int, int]]) -> QueueCore:
        """Open a queue with (expression, messages, bytes, priority) each."""
        bench = self.bench
        times = bench.now, bench.now + 60
        wanted = self.subscriptions(subscriptions)
        queue = bench.core.open_queue(QueueUri.parse(uri), flags, uri, uri, *times, subscriptions=wanted)
        bench.pump()
        self.request()
        if subscriptions:
            self.request()
        assert bench.completed[uri] == [None]
        return queue

    @staticmethod
    def subscriptions(wanted: list[tuple[str, int, int, int]]) -> list[SubscriptionCore]:
        return [
            SubscriptionCore(text, SubscriptionOptions(messages, size, priority), (text, priority))
            for text, messages, size, priority in wanted
        ]

    def post(self, queue: QueueCore, count: int) -> None:
        """Post the recorded messages, byte by byte."""
        wanted = b"".join(self.client_said(EventType.PUT).data[8:] for _ in range(count))
        for message in decode_puts(wanted, 0):
            if message.flags & PutFlags.ACK_REQUESTED:
                fields = message.flags, message.schema_id, message.compression
                self.bench.core.post(queue, message.guid, message.data, message.guid, self.bench.now, *fields)
        assert b"".join(event[8:] for event in self.bench.core.data_to_send(self.bench.now)) in wanted
        self.broker_says()

    def confirm(self, queues: dict[int, QueueCore], count: int) -> None:
        wanted = []
        for _ in range(count):
            event = read_event(self.client_said(EventType.CONFIRM).data)
            wanted.extend(decode_confirms(event.data, event.body))
        for confirm in wanted:
            self.bench.core.confirm(queues[confirm.sub_queue_id], confirm.guid)
        self.bench.pump()
        assert self.bench.broker.confirms[-len(wanted) :] == wanted
        self.broker_says()


def connect(replay: Replay, credentials: Credentials | None = None) -> None:
    bench = replay.bench
    bench.open_channel(credentials)
    if credentials is not None:
        wanted = decode_event(
            read_event(replay.client_said(EventType.AUTHENTICATION).data), MessageKind.AUTHENTICATION
        )
        said = bench.broker.credentials[0]
        assert (said.mechanism, said.data or b"") == (wanted.mechanism, wanted.data or b"")  # type: ignore[union-attr]
        replay.broker_says()
        if bench.failures:
            return
    replay.client_said(EventType.CONTROL)
    assert bench.broker.identity is not None
    replay.broker_says()


def test_a_recorded_session_is_replayed() -> None:
    replay = Replay("json-session")
    bench = replay.bench
    connect(replay)
    assert bench.state is SessionState.STARTED
    assert bench.core.new_properties

    priority = replay.open(
        PRIORITY,
        READ | WRITE,
        [
            ("CustomerId == 1000", 100, 1 << 20, 10),
            ('CustomerId == 2000 && DestinationId == "ABC"', 100, 1 << 20, 5),
            ("", 10, 1 << 20, 1),
        ],
    )
    assert priority.deduplication_time == 300
    replay.post(priority, 1)
    replay.post(priority, 4)
    assert list(bench.outcomes.values()) == [[AckStatus.SUCCESS]] * 4
    assert [owner for owner, _ in bench.received] == [
        ("CustomerId == 1000", 10),
        ('CustomerId == 2000 && DestinationId == "ABC"', 5),
        ("", 1),
        ("", 1),
        ("", 1),
    ]
    replay.confirm({0: priority}, 5)

    changed = Replay.subscriptions([("exists(CustomerId)", 1000, 33_554_432, 0)])
    bench.core.configure_queue(priority, changed, "reconfigure", bench.now + 60)
    bench.pump()
    replay.request()
    assert bench.completed["reconfigure"] == [None]
    replay.post(priority, 1)
    assert bench.received[-1][0] == ("exists(CustomerId)", 0)
    replay.confirm({0: priority}, 1)

    everything = [("", 1000, 33_554_432, 0)]
    writer = replay.open(FANOUT, WRITE, [])
    foo = replay.open(f"{FANOUT}?id=foo", READ, everything)
    bar = replay.open(f"{FANOUT}?id=bar", READ, everything)
    before = len(bench.received)
    replay.post(writer, 1)
    # A PUSH with the ids of both applications is a message for each.
    (_, first), (_, second) = bench.received[before:]
    assert first.guid == second.guid
    assert first.data == b"fan out"
    replay.confirm({1: foo, 2: bar}, 2)

    replay.skip(EventType.HEARTBEAT_REQ)

    lost = bench.begin_open("bmq://no.such.domain/q", READ)
    wanted = decode_event(read_event(replay.client_said(EventType.CONTROL).data), MessageKind.CONTROL)
    said = bench.broker.requests.popleft()
    assert isinstance(wanted.body, OpenQueue)
    parameters = msgspec.structs.replace(wanted.body.handle_parameters, q_id=lost.q_id)
    assert said == ControlMessage(r_id=wanted.r_id, body=OpenQueue(handle_parameters=parameters))
    replay.broker_says()
    (error,) = bench.completed["bmq://no.such.domain/q"]
    assert isinstance(error, OpenQueueError)
    assert "doesn't exist" in error.broker_message
    # The recorder then configured a queue, and posted to an unopened queue.
    replay.skip(EventType.CONTROL, EventType.PUT)
    bench.begin_open("bmq://no.such.domain/uses-the-number-of-that-request")
    bench.refuse()

    for queue in (priority, foo, bar, writer):
        bench.close(queue, token=queue)
        if queue.readable:
            assert isinstance(replay.request().body, ConfigureStream)
        replay.request()
        assert bench.completed[queue] == [None]
    bench.core.stop("stop", bench.now, bench.now + 5)
    bench.pump()
    replay.request()
    assert bench.completed["stop"] == [None]
    assert bench.state is SessionState.CLOSED
    assert bench.failures == [None]


GOOD, BAD = Credentials.basic("user", "secret"), Credentials.basic("user", "wrong")


@pytest.mark.parametrize(
    ("connection", "credentials", "refusal"),
    [
        (2, BAD, "code -11"),
        (3, Credentials("NOPE"), "code -2"),
        (4, Credentials.anonymous(), None),
        (5, None, None),
        (8, GOOD, "unsupported version of libbmq"),
    ],
)
def test_recorded_beginnings_are_replayed(
    connection: int, credentials: Credentials | None, refusal: str | None
) -> None:
    replay = Replay("json-authentication", connection)
    connect(replay, credentials)
    if refusal is None:
        assert replay.bench.state is SessionState.STARTED
    else:
        (error,) = replay.bench.failures
        assert isinstance(error, NegotiationError if connection == 8 else AuthenticationError)
        assert refusal in str(error)
        assert "wrong" not in str(error)
