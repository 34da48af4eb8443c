# SPDX-License-Identifier: Apache-2.0
"""The small parts of the client core: deadlines, requests, the outbox, renewal."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.protocol.client.handshake import Renewal
from bmq.protocol.client.outbox import OutputBuffer
from bmq.protocol.client.redelivery import Confirmations
from bmq.protocol.client.requests import PendingRequests, RequestKind
from bmq.protocol.deadlines import Deadlines
from bmq.protocol.framing import Framer
from bmq.wire.constants import EventType
from bmq.wire.control import Disconnect
from bmq.wire.event import Event
from bmq.wire.put import Outgoing, decode_puts, encode_put
from tests.protocol.bench import connected, guid


def events_of(data: list[bytes]) -> Iterator[Event]:
    events, error = Framer(1 << 30).feed(b"".join(data))
    assert error is None
    yield from events


# deadlines


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 1000))))
def test_deadlines_agree_with_a_dictionary(steps: list[tuple[int, int | None]]) -> None:
    deadlines, model = Deadlines[int](), dict[int, int]()
    for key, when in steps:
        if when is None:
            deadlines.discard(key)
            model.pop(key, None)
        else:
            deadlines.set(key, when)
            model[key] = when
        assert deadlines.first == min(model.values(), default=None)
        assert len(deadlines) == len(model)
    due = deadlines.due(500)
    assert set(due) == {key for key, when in model.items() if when <= 500}
    assert [model[key] for key in due] == sorted(model[key] for key in due)
    assert not any(key in deadlines for key in due)


def test_deadlines_take_memory_for_live_requests_only() -> None:
    def full_of(live: int) -> Deadlines[int]:
        deadlines = Deadlines[int]()
        for key in range(100_000):
            deadlines.set(key, 60.0 + random.random())
            deadlines.discard(key - live)
        assert len(deadlines) == live
        return deadlines

    tracemalloc.start()
    try:
        kept = full_of(10)
        assert tracemalloc.get_traced_memory()[0] < 50_000
        assert kept.first is not None
    finally:
        tracemalloc.stop()


# requests


def test_requests_count_up_and_resolve_once() -> None:
    requests = PendingRequests(OutputBuffer(Confirmations(enabled=True)))
    first, second = (requests.send(RequestKind.OPEN, Disconnect(), "q", 10.0) for _ in range(2))
    assert (first.r_id, second.r_id) == (1, 2)
    assert requests.resolve(2) is second
    assert requests.resolve(2) is None
    assert requests.resolve(None) is None
    assert requests.deadlines.first == 10.0


def test_late_responses_resolve_up_to_a_limit() -> None:
    requests = PendingRequests(OutputBuffer(Confirmations(enabled=True)))
    sent = [requests.send(RequestKind.CONFIGURE, Disconnect(), "q", 1.0) for _ in range(1500)]
    assert requests.expire(0.9) == []
    assert requests.expire(1.0) == sent
    assert requests.expire(2.0) == []
    assert len(requests) == 1000
    assert requests.resolve(1) is None
    assert requests.resolve(1500) is sent[-1]


def test_a_request_can_be_waited_for_again() -> None:
    requests = PendingRequests(OutputBuffer(Confirmations(enabled=True)))
    request = requests.send(RequestKind.OPEN, Disconnect(), "q", 1.0)
    requests.expire(1.0)
    requests.extend(request, 5.0)
    assert requests.deadlines.first == 5.0
    assert requests.expire(5.0) == [request]
    requests.resolve(request.r_id)
    requests.extend(request, 9.0)  # answered: there is nothing to wait for
    assert requests.deadlines.first is None


# the outbox


def outgoing(number: int, data: bytes | None = None) -> Outgoing:
    return guid(number), b"%d" % number if data is None else data, 1, 0, 0


def test_posts_gather_into_events_of_a_megabyte() -> None:
    outbox = OutputBuffer(Confirmations(enabled=True), max_put_event=1000)
    messages = [outgoing(n, b"x" * 300) for n in range(10)]
    messages.append(outgoing(99, b"y" * 5000))
    for message in messages:
        outbox.put(0, message)
    assert outbox
    events = list(events_of(outbox.take()))
    assert [len(event.data) <= 1000 for event in events] == [True] * (len(events) - 1) + [False]
    assert b"".join(event.data[8:] for event in events) == b"".join(encode_put(0, *m) for m in messages)
    assert [put.guid for event in events for put in decode_puts(event.data, event.body)][-1] == guid(99)
    assert not outbox


def test_posts_of_several_queues_share_events_in_the_order_of_posting() -> None:
    outbox = OutputBuffer(Confirmations(enabled=True), max_put_event=500)
    posted = [(number // 3 % 4, outgoing(number)) for number in range(100)]
    for queue_id, message in posted:
        outbox.put(queue_id, message)
    events = list(events_of(outbox.take()))
    puts = [put for event in events for put in decode_puts(event.data, event.body)]
    assert [(put.queue_id, put.guid, put.data) for put in puts] == [(q, m[0], m[1]) for q, m in posted]
    assert len(events) < 15


@pytest.mark.parametrize("size", [1, 2047, 2048, 8191, 8192, 50_000, 3_000_000])
@pytest.mark.statement("3.18")
def test_payloads_of_any_size_travel_as_they_are(size: int) -> None:
    outbox = OutputBuffer(Confirmations(enabled=True))
    messages = [outgoing(number, bytes([number]) * max(1, size - number % 4)) for number in range(1, 8)]
    outbox.put_many(0, list(messages))
    taken = b""
    while data := outbox.take(limit=100_000):
        taken += b"".join(data)
    puts = [put for event in events_of([taken]) for put in decode_puts(event.data, event.body)]
    assert [(put.guid, put.data) for put in puts] == [(m[0], m[1]) for m in messages]


def test_large_payloads_are_not_copied() -> None:
    outbox = OutputBuffer(Confirmations(enabled=True))
    payload = bytes(100_000)
    outbox.put(0, outgoing(1, payload))
    assert any(piece is payload for piece in outbox.take())


def test_an_event_leaves_behind_everything_that_was_added_before() -> None:
    confirms = Confirmations(enabled=True)
    outbox = OutputBuffer(confirms)
    outbox.put(0, outgoing(1))
    confirms.add(connected().open("bmq://d/q"), [guid(2)])
    outbox.event(b"\x00\x00\x00\x08\x4b\x02\x00\x00")
    outbox.put(0, outgoing(1))
    kinds = [EventType(event.type) for event in events_of(outbox.take())]
    assert kinds.index(EventType.HEARTBEAT_REQ) == 2
    assert set(kinds[:2]) == {EventType.PUT, EventType.CONFIRM}
    assert kinds[3:] == [EventType.PUT]


def test_a_limit_takes_no_more_than_needed_and_the_rest_keeps_its_order() -> None:
    outbox = OutputBuffer(Confirmations(enabled=True), max_put_event=100)
    for number in range(50):
        outbox.put(0, outgoing(number))
    taken: list[bytes] = []
    while data := outbox.take(limit=150):
        assert sum(map(len, data[:-1])) < 150
        taken += data
    numbers = [int(put.data) for event in events_of(taken) for put in decode_puts(event.data, event.body)]
    assert numbers == list(range(50))


def test_many_posts_at_once_are_divided() -> None:
    outbox = OutputBuffer(Confirmations(enabled=True), max_put_event=1000)
    messages = [outgoing(number) for number in range(200)]
    outbox.put_many(0, list(messages))
    data = outbox.take()
    assert all(len(event) <= 1000 for event in data)
    assert b"".join(event[8:] for event in data) == b"".join(encode_put(0, *message) for message in messages)


# renewal


@pytest.mark.parametrize(
    ("lifetime", "due"), [(600.0, 540.0), (20.0, 15.0), (10.0, 5.0), (4.0, 2.0), (0.0, 0.0)]
)
def test_credentials_are_renewed_in_good_time(lifetime: float, due: float) -> None:
    renewal = Renewal()
    renewal.authenticated(lifetime, 1000.0)
    assert renewal.due == pytest.approx(1000.0 + due)
    assert renewal.ends == 1000.0 + lifetime
    assert renewal.take_due(1000.0 + due)
    assert not renewal.take_due(1000.0 + due)
    assert renewal.take_end(1000.0 + lifetime)
    assert not renewal.take_end(1000.0 + lifetime)
