# SPDX-License-Identifier: Apache-2.0
"""Traces through a queue, span by span; on an embedded broker, or on the broker of BMQ_BROKER_URI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

import bmq
from bmq.client.typed import TypedConsumer, TypedGroup
from bmq.otel import BinaryCodec, TextCodec
from bmq.wire.message import split_application_data
from tests.fakes.client import dial, subscription
from tests.integration.steps import TIMEOUT, Connect, NewUri
from tests.otel.conftest import Service
from tests.sweeps import sweep
from tests.waiting import eventually

MakeService = Callable[..., Service]
FANOUT = "bmq.test.mem.fanout"
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


@pytest.fixture
def both(service: MakeService) -> Service:
    """A service that posts and receives."""
    return service()


@pytest.fixture
async def queue(both: Service, bmq_connect: Connect, bmq_queue_uri: str) -> bmq.Queue:
    """The queue of the service."""
    session = await bmq_connect(interceptors=[both.telemetry])
    return await session.open_queue(bmq_queue_uri, read=True, write=True)


Open = Callable[..., Awaitable[bmq.Queue]]


@pytest.fixture
def opened(bmq_connect: Connect) -> Open:
    """Open a queue in a session of a service, or of none."""

    async def opened(service: Service | None, uri: str, **access: Any) -> bmq.Queue:
        interceptors = [service.telemetry] if service else []
        return await (await bmq_connect(interceptors=interceptors)).open_queue(uri, **access)

    return opened


def broker_of(session: bmq.Session) -> dict[str, str | int]:
    """The broker's address in the attributes of the conventions."""
    host, _, port = session.address.removeprefix("tcp://").rpartition(":")
    return {"server.address": host, "server.port": int(port)}


async def test_a_trace_continues_through_a_queue_to_another_service(
    service: MakeService, bmq_connect: Connect, opened: Open, bmq_new_queue_uri: NewUri
) -> None:
    shop, billing, mail = service("shop"), service("billing"), service("mail")
    orders, letters = bmq_new_queue_uri(), bmq_new_queue_uri()

    posting = await opened(shop, orders, write=True)
    with shop.span("POST /orders") as request:
        ack = await posting.post(b"order")

    session = await bmq_connect(interceptors=[billing.telemetry])
    incoming = await session.open_queue(orders, read=True)
    outgoing = await session.open_queue(letters, write=True)
    done = asyncio.Event()

    async def bill(message: bmq.Message) -> None:
        with billing.span("charge the card"):
            await outgoing.post(b"letter")
        done.set()

    working = asyncio.ensure_future(bmq.consume(incoming, bill))
    await asyncio.wait_for(done.wait(), TIMEOUT)
    working.cancel()
    await asyncio.wait([working])

    reading = await opened(mail, letters, read=True)
    letter = await reading.receive(timeout=TIMEOUT)
    with mail.span("print"):
        pass
    letter.confirm()
    with mail.span("something else"):
        pass

    root, post = shop.spans()[::-1][0], shop.one("post")
    assert [span.name for span in shop.spans()] == [f"post {orders}", "POST /orders"]
    assert (post.kind, parent(post), post.links) == (SpanKind.PRODUCER, id_of(root), ())
    assert post.status.status_code is StatusCode.UNSET
    assert about(post) == broker_of(session) | {
        "messaging.system": "blazingmq",
        "messaging.operation.name": "post",
        "messaging.operation.type": "send",
        "messaging.destination.name": orders,
        "messaging.message.id": ack.guid,
        "messaging.message.body.size": 5,
    }

    receive, process, confirm = (billing.one(each) for each in ("receive", "process", "confirm"))
    names = [span.name for span in billing.spans()]
    assert names == [
        *(f"receive {orders}", f"post {letters}", "charge the card"),
        *(f"process {orders}", f"confirm {orders}"),
    ]
    assert (receive.kind, process.kind, confirm.kind) == (
        *(SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CLIENT),
    )
    assert parent(receive) == id_of(post)
    assert parent(process) == parent(confirm) == id_of(receive)
    assert linked(receive) == linked(process) == linked(confirm) == [id_of(post)]
    assert parent(billing.one("charge")) == id_of(process)
    assert parent(billing.one("post")) == id_of(billing.one("charge"))
    assert about(process) == broker_of(session) | {
        "messaging.system": "blazingmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": orders,
        "messaging.message.id": ack.guid,
        "messaging.message.body.size": 5,
        "code.function.name": "bill",
        "messaging.blazingmq.handler.attempt": 1,
    }
    assert about(receive)["messaging.operation.type"] == "receive"
    assert about(confirm)["messaging.operation.type"] == "settle"
    # From the arrival until the application took the message, and until the confirmation.
    assert confirm.start_time == receive.start_time <= receive.end_time <= process.start_time
    assert confirm.end_time >= process.end_time

    # Without a handler, work before the confirmation belongs to the message too.
    assert parent(mail.one("receive")) == id_of(billing.one("post"))
    assert parent(mail.one("print")) == id_of(mail.one("receive"))
    assert parent(mail.one("something")) is None

    others = [span for each in (shop, billing, mail) for span in each.spans()]
    assert {trace_of(span) for span in others if span.name != "something else"} == {trace_of(request)}


async def test_messages_with_values_have_the_same_spans(both: Service, queue: bmq.Queue) -> None:
    typed = queue.typed(int)

    async def take(source: TypedConsumer[int] | TypedGroup[int]) -> None:
        await typed.post(7, properties={"customer": 7})
        async with await source.receive(TIMEOUT) as message:
            assert message.value == 7

    async with typed.subscribe() as consumer:
        await take(consumer)
        await typed.post(8, properties={"customer": 7})
        (await consumer.receive_many(timeout=TIMEOUT)).confirm()
    async with typed.group("customer", buckets=1) as group:
        await take(group)
    assert [parent(each) for each in both.named("confirm")] == [id_of(each) for each in both.named("receive")]
    assert len(both.named("confirm")) == 3
    assert not trace.get_current_span().get_span_context().is_valid


async def test_batches_have_one_span_with_links(
    service: MakeService, opened: Open, bmq_queue_uri: str
) -> None:
    one, two, reading = service("one"), service("two"), service("reading")
    for each, count in ((one, 40), (two, 1), (None, 1)):
        await (await opened(each, bmq_queue_uri, write=True)).post_many([b"x"] * count)
    queue = await opened(reading, bmq_queue_uri, read=True, default_subscription=True)
    await eventually(lambda: queue.stats().received == 42)  # to take all messages at once
    with reading.span("import"):
        batch = await queue.receive_many(100, timeout=TIMEOUT)
        assert len(batch) == 42
        for message in list(batch)[:40]:
            message.confirm()
        assert reading.named("confirm") == []
        batch.confirm()

    (post,) = one.spans()
    assert about(post)["messaging.batch.message_count"] == 40
    assert "messaging.message.id" not in about(post)
    receive, confirm = reading.one("receive"), reading.one("confirm")
    assert parent(receive) == id_of(reading.one("import"))
    assert about(receive)["messaging.batch.message_count"] == 42
    links = {link.context.span_id: dict(link.attributes or {}) for link in receive.links}
    assert links == {
        id_of(post): {"messaging.batch.message_count": 40},
        id_of(two.one("post")): {"messaging.message.id": batch[40].guid},
    }
    assert linked(confirm) == linked(receive)
    assert parent(confirm) == id_of(receive)


async def test_a_message_taken_inside_a_span_belongs_to_the_span(both: Service, queue: bmq.Queue) -> None:
    await queue.post(b"x")
    with both.span("GET /next"):
        message = await queue.receive(timeout=TIMEOUT)
        with both.span("inner"):
            message.confirm()
            await queue.post(b"y")
        assert trace.get_current_span().get_span_context().span_id == id_of(both.one("receive"))
    assert parent(both.one("receive")) == id_of(both.one("GET"))
    assert linked(both.one("receive")) == [id_of(both.named("post")[0])]
    assert parent(both.named("post")[1]) == id_of(both.one("inner"))


async def test_each_message_of_a_loop_has_a_trace_of_its_own(
    service: MakeService, opened: Open, both: Service, queue: bmq.Queue, bmq_new_queue_uri: NewUri
) -> None:
    other, first = service(), bmq_new_queue_uri()
    posting, reading = await opened(other, first, write=True), await opened(both, first, read=True)
    for _ in range(3):
        await posting.post(b"x")
    for number in range(3):
        message = await anext(aiter(reading))
        await queue.post(message.data)
        if number != 1:  # a message stays unconfirmed: the next message is not inside its span
            message.confirm()
    posts, receives = other.named("post"), both.named("receive")
    assert [parent(span) for span in receives] == [id_of(span) for span in posts]
    assert [trace_of(span) for span in both.named("post")] == [trace_of(span) for span in posts]
    assert len({trace_of(span) for span in posts}) == 3
    assert [parent(span) for span in both.named("confirm")] == [id_of(receives[0]), id_of(receives[2])]


async def test_attach_false_leaves_contexts_unchanged(
    service: MakeService, opened: Open, bmq_queue_uri: str
) -> None:
    both = service(attach=False)
    queue = await opened(both, bmq_queue_uri, read=True, write=True)
    await queue.post(b"x")
    message = await queue.receive(timeout=TIMEOUT)
    assert not trace.get_current_span().get_span_context().is_valid
    message.confirm()
    assert parent(both.one("receive")) == id_of(both.one("post"))
    assert parent(both.one("confirm")) == id_of(both.one("receive"))


async def test_failing_attempts_have_spans_with_the_error(both: Service, queue: bmq.Queue) -> None:
    await queue.post(b"x")

    def ship(message: bmq.Message) -> None:  # in a thread
        with both.span("inside"):
            pass
        if len(both.named("inside")) == 1:
            raise OSError("no ship")

    working = asyncio.ensure_future(bmq.consume(queue, ship, retry=bmq.Backoff(every=0.01)))
    await eventually(lambda: both.named("confirm"))
    working.cancel()
    await asyncio.wait([working])
    failed, passed = both.named("process")
    assert [about(span)["messaging.blazingmq.handler.attempt"] for span in (failed, passed)] == [1, 2]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "OSError: no ship"
    assert about(failed)["error.type"] == "OSError"
    assert [event.name for event in failed.events] == ["exception"]
    assert passed.status.status_code is StatusCode.UNSET
    assert "error.type" not in about(passed)
    assert [parent(span) for span in both.named("inside")] == [id_of(failed), id_of(passed)]
    errors = [each.attributes.get("error.type") for each in both.points("messaging.process.duration")]
    assert sorted(errors, key=str) == [None, "OSError"]


async def test_a_post_that_is_refused(both: Service, opened: Open, bmq_new_queue_uri: NewUri) -> None:
    queue = await opened(both, bmq_new_queue_uri("bmq.test.small.priority"), write=True)
    report = await queue.post_many([b"x"] * 13)  # room for eleven messages
    assert report.acknowledged == 11
    with pytest.raises(bmq.InvalidPayload):
        await queue.post(b"")
    assert [(span.status.status_code, about(span)["error.type"]) for span in both.named("post")] == [
        (StatusCode.ERROR, "LIMIT_MESSAGES"),
        (StatusCode.ERROR, "InvalidPayload"),
    ]
    sent = both.points("messaging.client.sent.messages")
    counts = {point.attributes.get("error.type"): point.value for point in sent}
    assert counts == {None: 11, "LIMIT_MESSAGES": 2}


async def test_operations_are_measured(
    both: Service, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri(FANOUT)
    session = await bmq_connect(interceptors=[both.telemetry])
    reading = await session.open_queue(f"{uri}?id=foo", read=True)
    writing = await session.open_queue(uri, write=True)
    await writing.post_many([b"x"] * 3)
    for _ in range(3):
        (await reading.receive(timeout=TIMEOUT)).confirm()
    common = broker_of(session) | {"messaging.system": "blazingmq", "messaging.destination.name": uri}
    for metric, operation, kind, more in (
        ("sent", "post", "send", {}),
        ("consumed", "receive", "receive", {"messaging.consumer.group.name": "foo"}),
    ):
        (point,) = both.points(f"messaging.client.{metric}.messages")
        assert point.value == 3
        named = {"messaging.operation.name": operation, "messaging.operation.type": kind}
        assert dict(point.attributes) == common | named | more
    durations = {
        point.attributes["messaging.operation.name"]: point
        for point in both.points("messaging.client.operation.duration")
    }
    counts = {name: point.count for name, point in durations.items()}
    assert counts == {"post": len(both.named("post")), "receive": 3, "confirm": 3}
    assert durations["post"].explicit_bounds[:3] == (0.005, 0.01, 0.025)
    post = both.named("post")[0]
    assert durations["post"].sum == pytest.approx((post.end_time - post.start_time) / 1e9, abs=0.05)


async def test_unsampled_traces_are_not_exported_and_propagate_the_decision(
    service: MakeService, opened: Open, both: Service, queue: bmq.Queue
) -> None:
    off = service(sampler=ALWAYS_OFF)
    await (await opened(off, queue.uri, write=True)).post(b"x")
    message = await queue.receive(timeout=TIMEOUT)
    flags = int(str(message.properties["traceparent"])[-2:], 16)
    assert not flags & TraceFlags.SAMPLED
    message.confirm()
    assert off.spans() == both.spans() == []


async def test_message_keeps_an_existing_context(both: Service, queue: bmq.Queue) -> None:
    await queue.post(b"x", properties={"traceparent": TRACEPARENT, "n": 1})
    message = await queue.receive(timeout=TIMEOUT)
    assert dict(message.properties) == {"traceparent": TRACEPARENT, "n": 1}
    assert linked(both.one("post")) == [SPAN]
    assert (trace_of(both.one("receive")), parent(both.one("receive"))) == (TRACE, SPAN)


async def test_message_without_room_has_no_trace_context(both: Service, queue: bmq.Queue) -> None:
    properties = {f"p{number}": number for number in range(255)}
    await queue.post(b"x", properties=properties)
    message = await queue.receive(timeout=TIMEOUT)
    assert dict(message.properties) == properties
    assert parent(both.one("receive")) is None


async def test_baggage_is_propagated(queue: bmq.Queue) -> None:
    token = contexts.attach(baggage.set_baggage("tenant", "acme"))
    try:
        await queue.post(b"x")
    finally:
        contexts.detach(token)
    assert baggage.get_baggage("tenant") is None
    message = await queue.receive(timeout=TIMEOUT)
    assert baggage.get_baggage("tenant") == "acme"
    message.confirm()
    assert baggage.get_baggage("tenant") is None


async def test_span_of_a_selected_message_names_the_expression(both: Service, queue: bmq.Queue) -> None:
    async with queue.subscribe("n > 0") as consumer:
        await queue.post(b"x", properties={"n": 1})
        async with await consumer.receive(timeout=TIMEOUT):
            pass
    assert about(both.one("receive"))["messaging.destination.subscription.name"] == "n > 0"


def read_binary(data: bytes) -> SpanContext | None:
    if len(data) != 25:
        return None
    trace_id, span_id = int.from_bytes(data[:16], "big"), int.from_bytes(data[16:24], "big")
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(data[24]))


def write_binary(span: SpanContext) -> bytes:
    return span.trace_id.to_bytes(16, "big") + span.span_id.to_bytes(8, "big") + bytes([span.trace_flags])


async def test_another_encoding_can_be_plugged_in(
    service: MakeService, opened: Open, bmq_queue_uri: str
) -> None:
    text = service(codecs=[TextCodec(), BinaryCodec(read_binary)])
    binary = service(codecs=[BinaryCodec(read_binary, write_binary)])
    plain = await opened(None, bmq_queue_uri, write=True)
    raw = TRACE.to_bytes(16, "big") + SPAN.to_bytes(8, "big") + b"\1"
    await plain.post(b"1", properties={"bmq.traceparent": raw})
    await plain.post(b"2", properties={"bmq.traceparent": b"of another tracer"})
    await (await opened(binary, bmq_queue_uri, write=True)).post(b"3")
    reading = await opened(text, bmq_queue_uri, read=True)
    messages = [await reading.receive(timeout=TIMEOUT) for _ in range(3)]
    assert [parent(span) for span in text.named("receive")] == [SPAN, None, id_of(binary.one("post"))]
    assert set(messages[2].properties) == {"bmq.traceparent"}


@pytest.mark.parametrize("new", [True, False], ids=["new encoding", "old encoding"])
async def test_client_without_tracing_passes_traces_on(
    service: MakeService, opened: Open, bmq_new_queue_uri: NewUri, bmq_broker: Any, new: bool
) -> None:
    """Other SDKs write either encoding, and pass properties on unchanged."""
    shop, billing = service(), service()
    first, second = bmq_new_queue_uri(), bmq_new_queue_uri()
    writing, reading = await opened(shop, first, write=True), await opened(billing, second, read=True)
    features = "PROTOCOL_ENCODING:JSON" + (";MPS:MESSAGE_PROPERTIES_EX" if new else "")
    async with dial(bmq_broker.uri) as between:
        await between.negotiate(features=features)
        await between.open(first, 0, read=True)
        await between.configure(0, subscription(1))
        await between.open(second, 1, write=True)
        await writing.post(b"x", properties={"n": 7})
        [got] = await between.pushes(1)
        assert (got.push.schema_id != 0) is new
        properties, payload = split_application_data(
            got.push.data, has_properties=True, schema_id=got.push.schema_id, compression=0
        )
        between.put(payload, q_id=1, properties=dict(properties), new=new)
        message = await reading.receive(timeout=TIMEOUT)
        assert message.properties["n"] == 7
        message.confirm()
    assert parent(billing.one("receive")) == id_of(shop.one("post"))
    assert linked(billing.one("confirm")) == [id_of(shop.one("post"))]


async def test_a_trace_continues_through_the_output_of_a_handler(
    service: MakeService, bmq_broker: Any, opened: Open, bmq_new_queue_uri: NewUri
) -> None:
    shop, billing = service("shop"), service("billing")
    orders = bmq_new_queue_uri()
    letters = orders + ".letters"
    app = bmq.App(bmq_broker.uri, interceptors=[billing.telemetry])

    @app.consumer(orders)
    @app.publish_to(letters)
    async def bill(message: bmq.Message) -> bytes:
        return b"letter"

    posting, reading = await opened(shop, orders, write=True), await opened(None, letters, read=True)
    async with app:
        await posting.post(b"order")
        letter = await reading.receive(timeout=TIMEOUT)
        letter.confirm()
    post, handled = billing.one("post"), billing.one("process")
    assert parent(post) == id_of(handled)
    assert {trace_of(each) for each in (shop.one("post"), handled, post)} == {trace_of(post)}
    assert f"{trace_of(post):032x}" in str(letter.properties["traceparent"])


FIRST, LAST = ["bmq.session.start", "bmq.queue.open"], ["bmq.queue.close", "bmq.session.stop"]


async def test_operations_on_session_and_queue_are_spans(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    shop, uri = service("shop"), bmq_new_queue_uri()
    session = await bmq_connect(interceptors=[shop.telemetry])
    queue = await session.open_queue(uri, read=True)
    consumer = await queue.subscribe("x == 1")
    with shop.span("change"):
        await consumer.configure("x == 2")
    await queue.close()
    await queue.close()
    await session.close()
    await session.close()
    spans = shop.spans(operations=True)
    names = [span.name for span in spans]
    assert names[:2] == FIRST
    assert names[-2:] == LAST
    assert set(names[2:-2]) == {"bmq.queue.configure"}
    for span in spans:
        assert span.kind is SpanKind.CLIENT
        assert span.status.status_code is StatusCode.UNSET
        queued = {"bmq.queue.uri": uri, "messaging.destination.name": uri} if ".queue." in span.name else {}
        assert about(span) == {"messaging.system": "blazingmq", **broker_of(session), **queued}
    (change,) = shop.named("change")
    assert id_of(change) in [parent(span) for span in spans if span.name == "bmq.queue.configure"]


async def test_failed_operations_have_the_error(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    shop = service("shop")
    with pytest.raises(bmq.ConnectionFailed):
        await bmq.connect("tcp://127.0.0.1:1", interceptors=[shop.telemetry])
    session = await bmq_connect(interceptors=[shop.telemetry])
    with pytest.raises(bmq.OpenQueueError):
        await session.open_queue("bmq://no.such.domain/q", write=True)
    opening = asyncio.ensure_future(session.open_queue(bmq_new_queue_uri(), write=True))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    spans = shop.spans(operations=True)
    assert [(span.name, about(span)["error.type"]) for span in spans if "error.type" in about(span)] == [
        ("bmq.session.start", "ConnectionFailed"),
        ("bmq.queue.open", "OpenQueueError"),
        ("bmq.queue.open", "CancelledError"),
    ]


OTHER = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"


@sweep(
    "properties, continued",
    [
        ({"bmq.traceparent": TRACEPARENT.encode()}, True),
        ({"bmq.traceparent": TRACEPARENT}, False),  # a STRING is somebody else's property
        ({"bmq.traceparent": b"\x00\xff" * 13}, False),
        ({"bmq.traceparent": b"00-" + b"0" * 5000}, False),
        ({"bmq.traceparent": OTHER, "traceparent": TRACEPARENT}, True),  # W3C's own property counts
    ],
)
async def test_context_of_the_official_clients_is_read_beside_the_text(
    both: Service, queue: bmq.Queue, opened: Open, properties: dict[str, Any], continued: bool
) -> None:
    await (await opened(None, queue.uri, write=True)).post(b"x", properties=properties)
    (await queue.receive(timeout=TIMEOUT)).confirm()
    assert (trace_of(both.named("receive")[-1]) == TRACE) is continued
