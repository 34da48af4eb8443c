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
    types = {"char": PropertyType.CHAR, "short": PropertyType.SHORT, "int32": PropertyType.INT32}
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
