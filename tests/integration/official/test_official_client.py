# SPDX-License-Identifier: Apache-2.0
"""Typical use of the official client (the C++ core, in BER) with the embedded broker."""

from __future__ import annotations

from collections.abc import Callable

import blazingmq
import pytest
from blazingmq import AckStatus, PropertyType, QueueOptions, session_events

from tests.integration.official.conftest import Client, StillBroker

Connect = Callable[..., Client]
NewUri = Callable[[str], str]

PRIORITY, FANOUT, BROADCAST = "bmq.test.mem.priority", "bmq.test.mem.fanout", "bmq.test.mem.broadcast"


def test_every_type_of_property_is_exchanged(connect: Connect, new_uri: NewUri) -> None:
    uri, client = new_uri(PRIORITY), connect()
    client.session.open_queue(uri, read=True, write=True)
    properties = {
        "bool": True,
        "char": b"A",
        "short": -3,
        "int32": 2**31 - 1,
        "int64": -(2**63),
        "string": "text",
        "binary": b"\0\xff",
        "empty": "",
    }
    types = {
        "char": PropertyType.CHAR,
        "short": PropertyType.SHORT,
        "int32": PropertyType.INT32,
    }
    for _ in range(3):
        client.post(uri, b"payload", properties=properties, property_type_overrides=types)
    assert client.statuses(3) == [AckStatus.SUCCESS] * 3
    for message in client.take(3):
        assert message.data == b"payload"
        assert message.properties == properties
        assert message.property_types["short"] is PropertyType.SHORT
        assert message.property_types["string"] is PropertyType.STRING


def test_two_producers_with_other_properties_do_not_mix(connect: Connect, new_uri: NewUri) -> None:
    """The client remembers property names by a number that each producer counts separately."""
    uri, one, two, reader = new_uri(PRIORITY), connect(), connect(), connect()
    for producer in (one, two):
        producer.session.open_queue(uri, write=True)
    reader.session.open_queue(uri, read=True)
    for number in range(10):
        one.post(uri, b"1", properties={"a": number, "b": "x"})
        two.post(uri, b"2", properties={"c": b"y", "d": number, "e": True})
    seen = [message.properties for message in reader.take(20)]
    assert sorted(tuple(p) for p in seen) == [("a", "b")] * 10 + [("c", "d", "e")] * 10
    assert sorted(p.get("a", p.get("d")) for p in seen) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("size", [10, 1023, 1024, 100_000])
def test_compressed_messages_are_exchanged(connect: Connect, new_uri: NewUri, size: int) -> None:
    uri = new_uri(PRIORITY)
    client = connect(message_compression_algorithm=blazingmq.CompressionAlgorithmType.ZLIB)
    client.session.open_queue(uri, read=True, write=True)
    client.post(uri, b"a" * size)
    client.post(uri, b"a" * size, properties={"n": size})
    assert client.payloads(2) == [b"a" * size] * 2


def test_two_thousand_messages_arrive_in_order(
    broker: StillBroker, connect: Connect, new_uri: NewUri
) -> None:
    uri, client = new_uri(PRIORITY), connect()
    client.session.open_queue(uri, read=True, write=True)
    payloads = [b"%d" % number for number in range(2000)]
    client.post(uri, *payloads)
    assert client.statuses(2000) == [AckStatus.SUCCESS] * 2000
    assert client.payloads(2000) == payloads
    client.session.close_queue(uri)
    assert broker.stored(uri) == 0


def test_each_application_receives_every_message(
    broker: StillBroker, connect: Connect, new_uri: NewUri
) -> None:
    uri, producer = new_uri(FANOUT), connect()
    producer.session.open_queue(uri, write=True)
    readers = {app: connect() for app in ("foo", "bar", "baz")}
    for app, reader in readers.items():
        reader.session.open_queue(f"{uri}?id={app}", read=True)
    producer.post(uri, b"0", b"1", b"2")
    for app, reader in readers.items():
        messages = reader.take(3)
        assert [message.data for message in messages] == [b"0", b"1", b"2"]
        assert {message.queue_uri for message in messages} == {f"{uri}?id={app}"}
    for app, reader in readers.items():
        reader.session.close_queue(f"{uri}?id={app}")
    assert broker.stored(uri) == 0


def test_each_consumer_receives_broadcast_messages(connect: Connect, new_uri: NewUri) -> None:
    uri, producer, readers = new_uri(BROADCAST), connect(), [connect(), connect()]
    for reader in readers:
        reader.session.open_queue(uri, read=True)
    producer.session.open_queue(uri, write=True)
    producer.post(uri, b"0", b"1")
    assert producer.statuses(2) == [AckStatus.SUCCESS] * 2
    for reader in readers:
        assert reader.payloads(2) == [b"0", b"1"]
    late = connect()
    late.session.open_queue(uri, read=True)
    assert late.is_quiet()


def test_priorities_and_taking_turns(connect: Connect, new_uri: NewUri) -> None:
    uri, producer, low, high = new_uri(PRIORITY), connect(), connect(), connect()
    low.session.open_queue(uri, read=True, options=QueueOptions(consumer_priority=1))
    high.session.open_queue(uri, read=True, options=QueueOptions(consumer_priority=2))
    producer.session.open_queue(uri, write=True)
    producer.post(uri, *[b"%d" % n for n in range(4)])
    assert high.payloads(4) == [b"0", b"1", b"2", b"3"]
    high.session.configure_queue(uri, QueueOptions(consumer_priority=1))
    producer.post(uri, *[b"%d" % n for n in range(4)])
    assert sorted(high.payloads(2) + low.payloads(2)) == [b"0", b"1", b"2", b"3"]


def test_delivery_stops_at_the_limit_of_unconfirmed_messages(connect: Connect, new_uri: NewUri) -> None:
    uri, client, other = new_uri(PRIORITY), connect(), connect()
    client.auto_confirm = False
    client.session.open_queue(uri, read=True, write=True, options=QueueOptions(max_unconfirmed_messages=2))
    client.post(uri, *[b"%d" % n for n in range(5)])
    assert client.payloads(2) == [b"0", b"1"]
    assert client.is_quiet()
    client.session.close_queue(uri)
    other.session.open_queue(uri, read=True)
    assert other.payloads(5) == [b"0", b"1", b"2", b"3", b"4"]


def test_redelivery_to_the_next_consumer(broker: StillBroker, connect: Connect, new_uri: NewUri) -> None:
    """Three attempts, and graceful closes do not count."""
    uri, producer = new_uri("bmq.test.rda.priority"), connect()
    producer.session.open_queue(uri, write=True)
    producer.post(uri, b"m")
    assert producer.statuses(1) == [AckStatus.SUCCESS]
    for _ in range(5):
        reader = connect()
        reader.auto_confirm = False
        reader.session.open_queue(uri, read=True)
        assert reader.payloads(1) == [b"m"]
        reader.session.close_queue(uri)
    assert broker.stored(uri) == 1


def test_a_full_queue_refuses_posts(connect: Connect, new_uri: NewUri) -> None:
    uri, client = new_uri("bmq.test.small.priority"), connect()
    client.session.open_queue(uri, write=True)
    client.post(uri, *[b"%d" % n for n in range(14)])
    assert client.statuses(14) == [AckStatus.SUCCESS] * 11 + [AckStatus.LIMIT_MESSAGES] * 3


def test_messages_expire(broker: StillBroker, connect: Connect, new_uri: NewUri) -> None:
    uri, client = new_uri("bmq.test.ttl.priority"), connect()
    client.session.open_queue(uri, write=True)
    client.post(uri, b"old")
    assert client.statuses(1) == [AckStatus.SUCCESS]
    broker.advance(4)
    reader = connect()
    reader.session.open_queue(uri, read=True)
    client.post(uri, b"new")
    assert reader.payloads(1) == [b"new"]


def test_application_subscriptions_filter_messages(connect: Connect, new_uri: NewUri) -> None:
    uri, producer = new_uri("bmq.test.appsub.fanout"), connect()
    producer.session.open_queue(uri, write=True)
    readers = {app: connect() for app in ("foo", "bar", "baz")}
    for app, reader in readers.items():
        reader.session.open_queue(f"{uri}?id={app}", read=True)
    for x in (1, 2, 3):
        producer.post(uri, b"%d" % x, properties={"x": x}, property_type_overrides={"x": PropertyType.INT32})
    assert producer.statuses(3) == [AckStatus.SUCCESS] * 3
    assert readers["baz"].payloads(3) == [b"1", b"2", b"3"]
    assert readers["foo"].payloads(1) == [b"1"]
    assert readers["bar"].payloads(1) == [b"2"]


def test_a_queue_that_suspends_on_bad_host_health(connect: Connect, new_uri: NewUri) -> None:
    monitor = blazingmq.BasicHealthMonitor()
    uri, client = new_uri(PRIORITY), connect(host_health_monitor=monitor)
    client.session.open_queue(
        uri, read=True, write=True, options=QueueOptions(suspends_on_bad_host_health=True)
    )
    client.post(uri, b"before")
    assert client.payloads(1) == [b"before"]
    monitor.set_unhealthy()
    client.event(session_events.QueueSuspended)
    other = connect()
    other.session.open_queue(uri, write=True)
    other.post(uri, b"meanwhile")
    assert other.statuses(1) == [AckStatus.SUCCESS]
    assert client.is_quiet()
    monitor.set_healthy()
    client.event(session_events.QueueResumed)
    assert client.payloads(1) == [b"meanwhile"]


@pytest.mark.parametrize("graceful", [True, False])
def test_reconnecting_after_a_restart(
    broker: StillBroker, connect: Connect, new_uri: NewUri, graceful: bool
) -> None:
    """Queues are reopened, posts made meanwhile arrive, unconfirmed messages come again."""
    uri, client = new_uri(PRIORITY), connect()
    client.auto_confirm = False
    client.session.open_queue(uri, read=True, write=True)
    client.post(uri, b"before")
    assert client.statuses(1) == [AckStatus.SUCCESS]
    (first,) = client.take(1)
    broker.call(lambda it: it.stop(graceful=graceful))
    client.event(session_events.ConnectionLost)
    client.post(uri, b"while lost")
    broker.call(lambda it: it.start())
    client.event(session_events.StateRestored)
    again = client.take(2)
    assert [message.data for message in again] == [b"before", b"while lost"]
    assert again[0].guid == first.guid
    assert client.statuses(1) == [AckStatus.SUCCESS]


def test_client_without_credentials_is_refused(broker: StillBroker) -> None:
    broker.call(lambda it: it.faults.refuse_negotiation())
    with pytest.raises(blazingmq.Error):
        Client(broker.uri, timeout=blazingmq.Timeouts(connect_timeout=0.5))
