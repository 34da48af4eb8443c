# SPDX-License-Identifier: Apache-2.0
"""Traces through a queue, span by span; on an embedded broker, or on the broker of BMQ_BROKER_URI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


def broker_of(session: bmq.Session) -> dict[str, str | int]:
    """The broker's address in the attributes of the conventions."""
    host, _, port = session.address.removeprefix("tcp://").rpartition(":")
    return {"server.address": host, "server.port": int(port)}


async def test_a_trace_continues_through_a_queue_to_another_service(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    shop, billing, mail = service("shop"), service("billing"), service("mail")
    orders, letters = bmq_new_queue_uri(), bmq_new_queue_uri()

    posting = await (await bmq_connect(interceptors=[shop.telemetry])).open_queue(orders, write=True)
    with shop.tracer.start_as_current_span("POST /orders") as request:
        ack = await posting.post(b"order")

    session = await bmq_connect(interceptors=[billing.telemetry])
    incoming = await session.open_queue(orders, read=True)
    outgoing = await session.open_queue(letters, write=True)
    done = asyncio.Event()

    async def bill(message: bmq.Message) -> None:
        with billing.tracer.start_as_current_span("charge the card"):
            await outgoing.post(b"letter")
        done.set()

    working = asyncio.ensure_future(bmq.consume(incoming, bill))
    await asyncio.wait_for(done.wait(), TIMEOUT)
    working.cancel()
    await asyncio.wait([working])

    reading = await (await bmq_connect(interceptors=[mail.telemetry])).open_queue(letters, read=True)
    letter = await reading.receive(timeout=TIMEOUT)
    with mail.tracer.start_as_current_span("print"):
        pass
    letter.confirm()
    with mail.tracer.start_as_current_span("something else"):
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


async def test_messages_with_values_have_the_same_spans(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    mail = service("mail")
    session = await bmq_connect(interceptors=[mail.telemetry])
    queue = (await session.open_queue(bmq_queue_uri, read=True, write=True)).typed(int)

    async def take(source: TypedConsumer[int] | TypedGroup[int]) -> None:
        await queue.post(7, properties={"customer": 7})
        async with await source.receive(TIMEOUT) as message:
            assert message.value == 7

    async with queue.subscribe() as consumer:
        await take(consumer)
        await queue.post(8, properties={"customer": 7})
        (await consumer.receive_many(timeout=TIMEOUT)).confirm()
    async with queue.group("customer", buckets=1) as group:
        await take(group)
    assert [parent(each) for each in mail.named("confirm")] == [id_of(each) for each in mail.named("receive")]
    assert len(mail.named("confirm")) == 3
    with mail.tracer.start_as_current_span("something else"):
        pass
    assert parent(mail.one("something")) is None


async def test_batches_have_one_span_with_links(
    service: MakeService, bmq_session: bmq.Session, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    one, two, reading = service("one"), service("two"), service("reading")
    for each, count in ((one, 40), (two, 1)):
        queue = await (await bmq_connect(interceptors=[each.telemetry])).open_queue(bmq_queue_uri, write=True)
        await queue.post_many([b"x"] * count)
    plain = await bmq_session.open_queue(bmq_queue_uri, write=True)
    await plain.post(b"from elsewhere")
    session = await bmq_connect(interceptors=[reading.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, default_subscription=True)
    await eventually(lambda: queue.stats().received == 42)  # to take all messages at once
    with reading.tracer.start_as_current_span("import"):
        batch = await queue.receive_many(100, timeout=TIMEOUT)
        assert len(batch) == 42
        for message in list(batch)[:40]:
            message.confirm()
        assert reading.named("confirm") == []
        batch.confirm()

    (post,) = one.spans()
    assert about(post)["messaging.batch.message_count"] == 40
    assert "messaging.message.id" not in about(post)
    root = reading.one("import")
    receive, confirm = reading.one("receive"), reading.one("confirm")
    assert parent(receive) == id_of(root)
    assert about(receive)["messaging.batch.message_count"] == 42
    links = {link.context.span_id: dict(link.attributes or {}) for link in receive.links}
    assert links == {
        id_of(post): {"messaging.batch.message_count": 40},
        id_of(two.one("post")): {"messaging.message.id": batch[40].guid},
    }
    assert linked(confirm) == linked(receive)
    assert parent(confirm) == id_of(receive)


async def test_a_message_taken_inside_a_span_belongs_to_the_span(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service()
    queue = await (await bmq_connect(interceptors=[both.telemetry])).open_queue(
        bmq_queue_uri, read=True, write=True
    )
    await queue.post(b"x")
    with both.tracer.start_as_current_span("GET /next"):
        message = await queue.receive(timeout=TIMEOUT)
        with both.tracer.start_as_current_span("inner"):
            message.confirm()
            await queue.post(b"y")
        assert trace.get_current_span().get_span_context().span_id == id_of(both.one("receive"))
    assert parent(both.one("receive")) == id_of(both.one("GET"))
    assert linked(both.one("receive")) == [id_of(both.named("post")[0])]
    assert parent(both.named("post")[1]) == id_of(both.one("inner"))


async def test_each_message_of_a_loop_has_a_trace_of_its_own(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    shop, other = service(), service()
    uri, next_uri = bmq_new_queue_uri(), bmq_new_queue_uri()
    queue = await (await bmq_connect(interceptors=[shop.telemetry])).open_queue(uri, write=True)
    for _ in range(3):
        await queue.post(b"x")
    session = await bmq_connect(interceptors=[other.telemetry])
    reading, writing = (
        await session.open_queue(uri, read=True),
        await session.open_queue(next_uri, write=True),
    )
    taken = 0
    async for message in reading:
        await writing.post(message.data)
        taken += 1
        if taken != 2:  # a message stays unconfirmed: the next message is not inside its span
            message.confirm()
        if taken == 3:
            break
    posts = shop.named("post")
    assert [parent(span) for span in other.named("receive")] == [id_of(span) for span in posts]
    assert [trace_of(span) for span in other.named("post")] == [trace_of(span) for span in posts]
    assert len({trace_of(span) for span in posts}) == 3
    assert [parent(span) for span in other.named("confirm")] == [
        id_of(span) for index, span in enumerate(other.named("receive")) if index != 1
    ]


async def test_attach_false_leaves_contexts_unchanged(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service(attach=False)
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x")
    message = await queue.receive(timeout=TIMEOUT)
    assert not trace.get_current_span().get_span_context().is_valid
    message.confirm()
    assert parent(both.one("receive")) == id_of(both.one("post"))
    assert parent(both.one("confirm")) == id_of(both.one("receive"))


async def test_failing_attempts_have_spans_with_the_error(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x")
    attempts = asyncio.Queue[None]()

    def ship(message: bmq.Message) -> None:  # in a thread
        with both.tracer.start_as_current_span("inside"):
            loop.call_soon_threadsafe(attempts.put_nowait, None)
        if len(both.named("inside")) == 1:
            raise OSError("no ship")

    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(bmq.consume(queue, ship, retry=bmq.Backoff(every=0.01)))
    for _ in range(2):
        await asyncio.wait_for(attempts.get(), TIMEOUT)
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
    (point_failed,) = [
        point
        for point in both.points("messaging.process.duration")
        if point.attributes.get("error.type") == "OSError"
    ]
    assert point_failed.count == 1


async def test_a_post_that_is_refused(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_new_queue_uri("bmq.test.small.priority"), write=True)
    report = await queue.post_many([b"x"] * 13)  # room for eleven messages
    assert report.acknowledged == 11
    with pytest.raises(bmq.InvalidPayload):
        await queue.post(b"")
    refused, invalid = both.named("post")
    assert (refused.status.status_code, about(refused)["error.type"]) == (StatusCode.ERROR, "LIMIT_MESSAGES")
    assert (invalid.status.status_code, about(invalid)["error.type"]) == (StatusCode.ERROR, "InvalidPayload")
    sent = both.points("messaging.client.sent.messages")
    assert {point.attributes.get("error.type"): point.value for point in sent} == {
        None: 11,
        "LIMIT_MESSAGES": 2,
    }


async def test_operations_are_measured(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    both = service()
    uri = bmq_new_queue_uri(FANOUT)
    session = await bmq_connect(interceptors=[both.telemetry])
    reading = await session.open_queue(f"{uri}?id=foo", read=True)
    writing = await session.open_queue(uri, write=True)
    await writing.post_many([b"x"] * 3)
    for _ in range(3):
        (await reading.receive(timeout=TIMEOUT)).confirm()
    where = {"messaging.system": "blazingmq", "messaging.destination.name": uri}
    common = broker_of(session) | where
    (sent,) = both.points("messaging.client.sent.messages")
    assert sent.value == 3
    assert dict(sent.attributes) == common | {
        "messaging.operation.name": "post",
        "messaging.operation.type": "send",
    }
    (consumed,) = both.points("messaging.client.consumed.messages")
    assert consumed.value == 3
    assert dict(consumed.attributes) == common | {
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.consumer.group.name": "foo",
    }
    durations = both.points("messaging.client.operation.duration")
    counts = {point.attributes["messaging.operation.name"]: point.count for point in durations}
    assert counts == {"post": len(both.named("post")), "receive": 3, "confirm": 3}
    assert durations[0].explicit_bounds[:3] == (0.005, 0.01, 0.025)
    post = both.named("post")[0]
    (posting,) = [point for point in durations if point.attributes["messaging.operation.name"] == "post"]
    assert posting.sum == pytest.approx((post.end_time - post.start_time) / 1e9, abs=0.05)


async def test_unsampled_traces_are_not_exported_and_propagate_the_decision(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    off, on = service(sampler=ALWAYS_OFF), service()
    queue = await (await bmq_connect(interceptors=[off.telemetry])).open_queue(bmq_queue_uri, write=True)
    await queue.post(b"x")
    reading = await (await bmq_connect(interceptors=[on.telemetry])).open_queue(bmq_queue_uri, read=True)
    message = await reading.receive(timeout=TIMEOUT)
    flags = int(str(message.properties["traceparent"])[-2:], 16)
    assert not flags & TraceFlags.SAMPLED
    message.confirm()
    assert off.spans() == on.spans() == []


async def test_message_keeps_an_existing_context(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    await queue.post(b"x", properties={"traceparent": TRACEPARENT, "n": 1})
    message = await queue.receive(timeout=TIMEOUT)
    assert dict(message.properties) == {"traceparent": TRACEPARENT, "n": 1}
    assert linked(both.one("post")) == [SPAN]
    assert (trace_of(both.one("receive")), parent(both.one("receive"))) == (TRACE, SPAN)


async def test_message_without_room_has_no_trace_context(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    properties = {f"p{number}": number for number in range(255)}
    await queue.post(b"x", properties=properties)
    message = await queue.receive(timeout=TIMEOUT)
    assert dict(message.properties) == properties
    assert parent(both.one("receive")) is None


async def test_baggage_is_propagated(service: MakeService, bmq_connect: Connect, bmq_queue_uri: str) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
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


async def test_span_of_a_selected_message_names_the_expression(
    service: MakeService, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    both = service()
    session = await bmq_connect(interceptors=[both.telemetry])
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
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
    service: MakeService, bmq_session: bmq.Session, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    codecs = [TextCodec(), BinaryCodec(read_binary)]
    text, binary = service(codecs=codecs), service(codecs=[BinaryCodec(read_binary, write_binary)])
    plain = await bmq_session.open_queue(bmq_queue_uri, write=True)
    raw = TRACE.to_bytes(16, "big") + SPAN.to_bytes(8, "big") + b"\1"
    await plain.post(b"1", properties={"bmq.traceparent": raw})
    await plain.post(b"2", properties={"bmq.traceparent": b"of another tracer"})
    writing = await (await bmq_connect(interceptors=[binary.telemetry])).open_queue(bmq_queue_uri, write=True)
    await writing.post(b"3")
    reading = await (await bmq_connect(interceptors=[text.telemetry])).open_queue(bmq_queue_uri, read=True)
    messages = [await reading.receive(timeout=TIMEOUT) for _ in range(3)]
    assert [parent(span) for span in text.named("receive")] == [SPAN, None, id_of(binary.one("post"))]
    assert set(messages[2].properties) == {"bmq.traceparent"}


@pytest.mark.parametrize("new", [True, False], ids=["new encoding", "old encoding"])
async def test_client_without_tracing_passes_traces_on(
    service: MakeService, bmq_connect: Connect, bmq_new_queue_uri: NewUri, bmq_broker: Any, new: bool
) -> None:
    """The Java SDK writes either encoding, and passes properties on unchanged.

    ``new`` is the negotiated encoding; otherwise clients use the old encoding.
    """
    shop, billing = service(), service()
    first, second = bmq_new_queue_uri(), bmq_new_queue_uri()
    writing = await (await bmq_connect(interceptors=[shop.telemetry])).open_queue(first, write=True)
    session = await bmq_connect(interceptors=[billing.telemetry])
    reading = await session.open_queue(second, read=True)
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
    service: MakeService, bmq_broker: Any, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    shop, billing = service("shop"), service("billing")
    orders = bmq_new_queue_uri()
    letters = orders + ".letters"
    app = bmq.App(bmq_broker.uri, interceptors=[billing.telemetry])

    @app.consumer(orders)
    @app.publish_to(letters)
    async def bill(message: bmq.Message) -> bytes:
        return b"letter"

    posting = await (await bmq_connect(interceptors=[shop.telemetry])).open_queue(orders, write=True)
    reading = await (await bmq_connect()).open_queue(letters, read=True)
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
    with shop.tracer.start_as_current_span("change"):
        await consumer.configure("x == 2")
    await queue.close()
    await queue.close()
    await session.close()
    await session.close()
    spans = shop.operations()
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
    failed = [
        (span.name, about(span)["error.type"]) for span in shop.operations() if "error.type" in about(span)
    ]
    assert failed == [
        ("bmq.session.start", "ConnectionFailed"),
        ("bmq.queue.open", "OpenQueueError"),
        ("bmq.queue.open", "CancelledError"),
    ]


OTHER = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"


@pytest.mark.parametrize(
    ("properties", "continued"),
    [
        ({"bmq.traceparent": TRACEPARENT.encode()}, True),
        ({"bmq.traceparent": TRACEPARENT}, False),  # a STRING is somebody else's property
        ({"bmq.traceparent": b"\x00\xff" * 13}, False),
        ({"bmq.traceparent": b"00-" + b"0" * 5000}, False),
        ({"bmq.traceparent": OTHER, "traceparent": TRACEPARENT}, True),
    ],
    ids=["binary", "text", "noise", "long", "both: W3C's own property counts"],
)
async def test_context_of_the_official_clients_is_read_beside_the_text(
    service: MakeService,
    bmq_connect: Connect,
    bmq_new_queue_uri: NewUri,
    properties: dict[str, Any],
    continued: bool,
) -> None:
    uri, kitchen = bmq_new_queue_uri(), service("kitchen")
    producer, consumer = await bmq_connect(), await bmq_connect(interceptors=[kitchen.telemetry])
    queue = await producer.open_queue(uri, write=True)
    await queue.post(b"x", properties=properties)
    await (await consumer.open_queue(uri, read=True)).receive(timeout=TIMEOUT)
    assert (trace_of(kitchen.one("receive")) == TRACE) is continued
