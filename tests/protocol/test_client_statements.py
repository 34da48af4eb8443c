# SPDX-License-Identifier: Apache-2.0
"""Statements of the protocol's description about clients, one by one: see docs/seeds.md."""

from __future__ import annotations

import pytest

from bmq.errors import AckStatus, ProtocolError
from bmq.wire.ack import encode_acks
from bmq.wire.constants import EventType
from bmq.wire.control import ConfigureStream, OpenQueue, QueueFlags
from bmq.wire.event import pack_event_header
from bmq.wire.put import encode_put
from tests.protocol.bench import READ, WRITE, Bench, connected, guid

URI = "bmq://bmq.test.mem.priority/q"


def requested(bench: Bench) -> list[OpenQueue]:
    return [each.body for each in bench.broker.requests if isinstance(each.body, OpenQueue)]


@pytest.mark.statement("4.18")
def test_several_requests_are_pending_and_each_answer_is_found_by_its_number() -> None:
    bench = connected()
    uris = [f"{URI}{n}" for n in range(5)]
    for uri in uris:
        bench.begin_open(uri, WRITE)
    requests = list(bench.broker.requests)
    assert len({each.r_id for each in requests}) == 5
    for number, request in reversed(list(enumerate(requests))):
        bench.send(bench.broker.accept(request))
        assert set(bench.completed) == set(uris[number:])
    bench.broker.requests.clear()


@pytest.mark.statement("4.19")
def test_queues_are_numbered_from_0_upwards() -> None:
    bench = connected()
    for number in range(5):
        bench.begin_open(f"{URI}{number}", WRITE)
    assert [each.handle_parameters.q_id for each in requested(bench)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("flags", [READ, WRITE, READ | WRITE])
@pytest.mark.statement("4.20")
def test_a_queue_is_opened_with_flags_and_counts_and_never_as_administrator(flags: QueueFlags) -> None:
    bench = connected()
    bench.begin_open(URI, flags)
    (request,) = requested(bench)
    parameters = request.handle_parameters
    assert parameters.uri == URI
    assert parameters.flags == int(flags)
    assert not parameters.flags & QueueFlags.ADMIN
    assert parameters.read_count == bool(flags & READ)
    assert parameters.write_count == bool(flags & WRITE)
    assert parameters.admin_count == 0


@pytest.mark.statement("4.21")
def test_a_stream_is_configured_with_its_application_and_with_each_subscription() -> None:
    bench = connected()
    queue = bench.begin_open("bmq://d/q?id=foo", READ, subscriptions=["x == 1", "x == 2"])
    bench.answer()
    body = bench.broker.requests[0].body
    assert isinstance(body, ConfigureStream)
    assert (body.q_id, body.stream_parameters.app_id) == (queue.q_id, "foo")
    one, two = body.stream_parameters.subscriptions
    assert (one.expression.text, two.expression.text) == ("x == 1", "x == 2")
    assert one.s_id != two.s_id
    for subscription in (one, two):
        (consumer,) = subscription.consumers
        assert consumer.max_unconfirmed_messages == 1000
        assert consumer.max_unconfirmed_bytes == 1 << 20
        assert consumer.consumer_priority_count == 1


@pytest.mark.statement("4.22")
def test_streams_are_configured_after_opening_on_request_and_before_closing() -> None:
    bench = connected()
    queue = bench.begin_open(URI, READ)
    assert bench.answer_all() == ["OpenQueue", "ConfigureStream"]
    bench.configure(queue, "x == 1")
    assert bench.answer_all() == ["ConfigureStream"]
    bench.close(queue)
    assert bench.answer_all() == ["ConfigureStream", "CloseQueue"]


@pytest.mark.statement("3.19")
def test_the_correlation_id_of_an_acknowledgement_does_not_matter() -> None:
    bench = connected()
    queue = bench.open(URI, WRITE)
    bench.post(queue, 1, 2)
    bench.send(encode_acks([(0, 0xABCDEF, guid(2), queue.q_id)]))
    assert bench.outcomes == {2: [AckStatus.SUCCESS]}


@pytest.mark.statement("3.14")
def test_an_event_in_fragments_ends_the_connection() -> None:
    bench = connected()
    header = bytearray(pack_event_header(8, EventType.HEARTBEAT_REQ))
    assert header[0] & 0x80 == 0
    header[0] |= 0x80
    bench.send(bytes(header))
    (error,) = bench.failures
    assert isinstance(error, ProtocolError)


@pytest.mark.statement("3.15")
def test_integers_are_big_endian() -> None:
    assert pack_event_header(0x01020304, EventType.PUT)[:4] == b"\x01\x02\x03\x04"
    assert encode_put(0x01020304, guid(1), b"x")[8:12] == b"\x01\x02\x03\x04"


@pytest.mark.statement("4.23")
def test_a_push_is_for_a_queue_that_is_open() -> None:
    bench = connected()
    queue, closed = bench.open(URI, READ), bench.open(f"{URI}2", READ)
    bench.close(closed)
    bench.answer_all()
    bench.send(bench.broker.push(closed.q_id, [(guid(1), b"1")], (1,)))
    bench.send(bench.broker.push(99, [(guid(2), b"2")], (1,)))
    assert bench.numbers_received == []
    assert bench.astray == 2
    bench.push(queue, 3)
    assert bench.numbers_received == [3]
    assert bench.failures == []
