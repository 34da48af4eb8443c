# SPDX-License-Identifier: Apache-2.0
"""PUSH and CONFIRM: shape, limits, confirmation, redelivery, delivery attempts."""

from __future__ import annotations

from collections.abc import Callable

from bmq.wire.constants import EventType
from bmq.wire.control import Subscription
from bmq.wire.event import HEADER_SIZE, pack_event_header
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import confirm_event, subscription

__all__ = ["GROUP"]

GROUP = Cases(5, "Delivery", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


# ---- 5.1 the shape of a delivery


@GROUP.case("5.1.1", "13.2")
async def _shape(bench: Bench) -> None:
    """A delivery has the qId, the sId and the GUID.

    Sends: a PUT with qId 3, a subscription with sId 11.
    Expects: a PUSH with qId 3, the option with 11, no flags, and the GUID.
    """
    peer = await bench.client()
    await peer.open(bench.uri(), 3)
    await peer.configure(3, subscription(11))
    guid = peer.post(b"x", 3)
    push = (await peer.push()).push
    check((push.queue_id, push.sub_ids, push.flags, push.guid), (3, (11,), 0, guid), "qId, sIds, flags, GUID")


@GROUP.case("5.1.2", "8.4")
async def _new_id(bench: Bench) -> None:
    """A new sId counts from the answer on.

    Sends: configureStream with another sId, and a PUT.
    Expects: a PUSH with the new sId.
    """
    peer, _ = await bench.consumer(subscription(1))
    await peer.configure(0, subscription(77))
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (77,), "sIds")


@GROUP.case("5.1.3", "8.3")
async def _answer_first(bench: Bench) -> None:
    """The answer to configureStream comes before its messages.

    Sends: a PUT, and later configureStream.
    Expects: configureStreamResponse, then the PUSH.
    """
    peer, _ = await bench.queue()
    peer.post(b"x")
    await peer.ack()
    before = len(peer.kinds)
    await peer.configure(0, subscription(1))
    await peer.push()
    check(peer.kinds[before:], [EventType.CONTROL, EventType.PUSH], "events")


@GROUP.case("5.1.4", "13.10")
async def _order(bench: Bench) -> None:
    """Messages keep the order of one producer.

    Sends: 100 PUT.
    Expects: 100 deliveries in the same order.
    """
    peer, _ = await bench.consumer(subscription(1))
    for number in range(100):
        peer.post(b"%d" % number)
    check(await peer.payloads(100), [b"%d" % number for number in range(100)], "payloads")


@GROUP.case("5.1.5", "8.1")
async def _no_subscription(bench: Bench) -> None:
    """A queue without subscriptions delivers nothing.

    Sends: openQueue and a PUT without configureStream.
    Expects: no PUSH.
    """
    peer, _ = await bench.queue()
    peer.post(b"x")
    await peer.ack()
    await peer.no_push()


@GROUP.case("5.1.6", "13.9", _O)
async def _producer(bench: Bench) -> None:
    """A producer receives nothing.

    Sends: configureStream on a queue opened for writing, and a PUT.
    Expects: success, and no PUSH.
    """
    peer, _ = await bench.queue(read=False)
    await peer.configure(0, subscription(1))
    peer.post(b"x")
    await peer.ack()
    await peer.no_push()


@GROUP.case("5.1.7", "8.5")
async def _suspended(bench: Bench) -> None:
    """A suspended consumer receives nothing.

    Sends: configureStream without subscriptions, as an SDK does on an unhealthy host, and a PUT.
    Expects: an ACK, no PUSH until the next configureStream.
    """
    peer, _ = await bench.consumer(subscription(1))
    await peer.configure(0)
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")
    await peer.no_push()
    await peer.configure(0, subscription(2))
    check((await peer.push()).push.sub_ids, (2,), "sIds")


# ---- 5.2 limits


async def _limit(bench: Bench, limit: Subscription, sizes: tuple[int, ...], delivered: int) -> None:
    peer, _ = await bench.consumer(limit)
    for size in sizes:
        peer.post(bytes(size))
    if delivered:
        got = [len(each) for each in await peer.payloads(delivered)]
        check(got, list(sizes[:delivered]), "sizes")
    await peer.no_push()


GROUP.rows(_limit, [
    ("5.2.1", "8.20", _M, "Delivery stops at the limit of messages", "20 PUT with maxUnconfirmedMessages 10", "10 deliveries", subscription(1, messages=10), (1,) * 20,
     10),
    ("5.2.4", "8.20", _M, "Delivery stops at the limit of bytes", "PUT of 60, 60 and 1 bytes with maxUnconfirmedBytes 100", "two deliveries", subscription(1, size=100),
     (60, 60, 1), 2),
    ("5.2.5", "8.20", _M, "A message may exceed the limit of bytes", "a PUT of 1,000 bytes with maxUnconfirmedBytes 10", "the delivery", subscription(1, size=10),
     (1000,), 1),
    ("5.2.6", "8.21", _M, "A limit of 0 delivers nothing", "a PUT with maxUnconfirmedMessages 0", "no PUSH", subscription(1, messages=0), (1,), 0),
])  # fmt: skip


@GROUP.case("5.2.2", "8.24", _O)
async def _resume(bench: Bench) -> None:
    """Delivery resumes below 80 percent of the limit.

    Sends: CONFIRM of one message, then of another, with a limit of 10.
    Expects: no delivery after the first, two after the second.
    """
    peer, _ = await bench.consumer(subscription(1, messages=10))
    for number in range(20):
        peer.post(b"%d" % number)
    got = await peer.pushes(10)
    peer.confirm(got[0].push.guid)
    await peer.no_push()
    peer.confirm(got[1].push.guid)
    check(await peer.payloads(2), [b"10", b"11"], "payloads")
    await peer.no_push()


@GROUP.case("5.2.3", "8.20")
async def _one(bench: Bench) -> None:
    """A limit of 1 delivers one message at a time.

    Sends: 3 PUT with maxUnconfirmedMessages 1, and a CONFIRM for each delivery.
    Expects: each message after the confirmation of the previous one.
    """
    peer, _ = await bench.consumer(subscription(1, messages=1))
    for number in range(3):
        peer.post(b"%d" % number)
    for number in range(3):
        got = await peer.push()
        check(got.payload, b"%d" % number, "payload")
        await peer.no_push()
        peer.confirm(got.push.guid)


@GROUP.case("5.2.7", "8.23")
async def _higher(bench: Bench) -> None:
    """A higher limit resumes delivery.

    Sends: 3 PUT with a limit of 1, then configureStream with a limit of 10.
    Expects: the other two messages.
    """
    peer, _ = await bench.consumer(subscription(1, messages=1))
    for number in range(3):
        peer.post(b"%d" % number)
    await peer.push()
    await peer.configure(0, subscription(1, messages=10))
    check(await peer.payloads(2), [b"1", b"2"], "payloads")


@GROUP.case("5.2.8", "8.23")
async def _lower(bench: Bench) -> None:
    """A lower limit counts the unconfirmed messages.

    Sends: 3 PUT with a limit of 3, then a limit of 2 and a PUT.
    Expects: no PUSH while 3 messages are unconfirmed.
    """
    peer, _ = await bench.consumer(subscription(1, messages=3))
    for number in range(3):
        peer.post(b"%d" % number)
    await peer.pushes(3)
    await peer.configure(0, subscription(1, messages=2))
    peer.post(b"3")
    await peer.no_push()


@GROUP.case("5.2.9", "8.22")
async def _each(bench: Bench) -> None:
    """Limits belong to each subscription.

    Sends: two subscriptions with a limit of 1 each, two PUT for each.
    Expects: one delivery for each subscription.
    """
    peer, _ = await bench.consumer(
        subscription(1, "x == 1", messages=1), subscription(2, "x == 2", messages=1)
    )
    for x in (1, 1, 2, 2):
        peer.post(b"%d" % x, properties={"x": x})
    check(sorted(await peer.payloads(2)), [b"1", b"2"], "payloads")
    await peer.no_push()


# ---- 5.3 confirmations


async def _gone(bench: Bench, count: int) -> None:
    peer, uri = await bench.consumer(subscription(1))
    for _ in range(count):
        peer.post(b"x")
    peer.confirm(*[each.push.guid for each in await peer.pushes(count)])
    await peer.barrier()
    other = await bench.client()
    await other.open(uri, write=False)
    await peer.close(uri)
    await other.configure(0, subscription(1))
    await other.no_push()


GROUP.rows(_gone, [
    ("5.3.1", "14.1", _M, "A confirmed message is gone", "a CONFIRM, then closeQueue", "no delivery", 1),
    ("5.3.2", "14.8", _M, "One event confirms many messages", "a CONFIRM event of 20 messages", "no delivery", 20),
], sends="{}; a consumer in another session")  # fmt: skip


@GROUP.case("5.3.3", "14.10", _O)
async def _other_session(bench: Bench) -> None:
    """Another session may confirm a message.

    Sends: a CONFIRM from a session that did not receive the message.
    Expects: no second delivery after the first session has closed its queue.
    """
    one, uri = await bench.consumer(subscription(1, priority=2))
    two = await bench.reader(uri, subscription(1, priority=1))
    guid = one.post(b"x")
    await one.push()
    two.confirm(guid)
    await two.barrier()
    await one.close(uri)
    await two.no_push()


_GONE = "no second delivery"
_AGAIN = "the message again in the other session"


async def _confirm(bench: Bench, event: Callable[[bytes], bytes], reaction: str) -> None:
    peer, uri = await bench.consumer(subscription(1))
    guid = peer.post(b"x")
    await peer.push()
    peer.send(event(guid))
    await peer.barrier()
    other = await bench.client()
    await other.open(uri)
    await peer.close(uri)
    await other.configure(0, subscription(1))
    other.post(b"last")
    got = await other.payloads(1)
    check(got, [b"last"] if reaction == _GONE else [b"x"], "next delivery")


GROUP.reactions(_confirm, [
    ("5.3.4", "14.5", _M, "A confirmation of an unknown GUID is ignored", "a CONFIRM of another GUID", _AGAIN, lambda g: confirm_event((0, b"\x41" * 16, 0))),
    ("5.3.5", "14.5", _M, "A confirmation with an unknown qId is ignored", "a CONFIRM with qId 77", _AGAIN, lambda g: confirm_event((77, g, 0))),
    ("5.3.6", "14.5", _M, "A confirmation with an unknown subQueueId is ignored", "a CONFIRM with subQueueId 5", _AGAIN, lambda g: confirm_event((0, g, 5))),
    ("5.3.7", "14.5", _M, "A confirmation with the sId is ignored", "a CONFIRM with the sId of the PUSH as subQueueId", _AGAIN, lambda g: confirm_event((0, g, 1))),
    ("5.3.8", "14.5", _M, "A GUID of zeros is ignored", "a CONFIRM of zeros", _AGAIN, lambda g: confirm_event((0, bytes(16), 0))),
    ("5.3.9", "14.6", _M, "A CONFIRM event without messages is ignored", "a CONFIRM event with a header alone", _AGAIN, lambda g: confirm_event()),
    ("5.3.10", "14.6", _M, "A CONFIRM event without a header is ignored", "an empty CONFIRM event", _AGAIN, lambda g: pack_event_header(HEADER_SIZE, EventType.CONFIRM)),
    ("5.3.11", "14.7", _O, "A ConfirmHeader of 0 words is ignored", "a CONFIRM event with headerWords 0", _AGAIN,
     lambda g: confirm_event((0, g, 0), header=b"\x06\0\0\0")),
    ("5.3.12", "14.7", _O, "A ConfirmMessage of 0 words is ignored", "a CONFIRM event with perMessageWords 0", _AGAIN,
     lambda g: confirm_event((0, g, 0), header=b"\x10\0\0\0")),
    ("5.3.13", "1.7", _M, "Reserved bytes are skipped", "a CONFIRM event with other reserved bytes", _GONE,
     lambda g: confirm_event((0, g, 0), header=b"\x16\xff\xff\xff")),
    ("5.3.14", "1.8", _M, "A longer header is skipped", "a CONFIRM event with headerWords 2", _GONE, lambda g: confirm_event((0, g, 0), header=b"\x26\0\0\0\0\0\0\0")),
    ("5.3.15", "14.5", _M, "The same message may be confirmed twice", "a CONFIRM event with the GUID twice", _GONE, lambda g: confirm_event((0, g, 0), (0, g, 0))),
    ("5.3.16", "14.5", _M, "A good confirmation follows an ignored one", "a CONFIRM event with an unknown GUID first", _GONE,
     lambda g: confirm_event((0, b"\x41" * 16, 0), (0, g, 0))),
    ("5.3.17", "14.6", _M, "A truncated confirmation is ignored", "a CONFIRM event of 16 bytes", _AGAIN,
     lambda g: pack_event_header(HEADER_SIZE + 16, EventType.CONFIRM) + b"\x16\0\0\0" + bytes(4) + g[:8]),
], sends="{}; then a consumer in another session")  # fmt: skip


# ---- 5.4 redelivery


@GROUP.case("5.4.1", "13.12")
async def _again(bench: Bench) -> None:
    """Unconfirmed messages of a closed queue are delivered again.

    Sends: closeQueue with 5 unconfirmed messages; a consumer in another session.
    Expects: the 5 messages, in order, with the flag OUT_OF_ORDER.
    """
    peer, uri = await bench.consumer(subscription(1))
    for number in range(5):
        peer.post(b"%d" % number)
    await peer.pushes(5)
    other = await bench.client()
    await other.open(uri, write=False)
    await peer.close(uri)
    await other.configure(0, subscription(1))
    got = [(each.payload, each.again) for each in await other.pushes(5)]
    check(got, [(b"%d" % number, True) for number in range(5)], "deliveries")


@GROUP.case("5.4.2", "13.12")
async def _lost(bench: Bench) -> None:
    """Unconfirmed messages of a lost connection are delivered at once.

    Sends: the end of a connection with an unconfirmed message; another consumer is connected.
    Expects: the message in the other session.
    """
    peer, uri = await bench.consumer(subscription(1, priority=2))
    other = await bench.reader(uri, subscription(1, priority=1))
    peer.post(b"x")
    await peer.push()
    peer.drop()
    check((await other.push()).payload, b"x", "payload")


@GROUP.case("5.4.3", "14.1")
async def _gaps(bench: Bench) -> None:
    """Confirmed messages are not delivered again.

    Sends: the end of a connection with the first and the third of 4 messages confirmed.
    Expects: the second and the fourth message in the other session.
    """
    peer, uri = await bench.consumer(subscription(1, priority=2))
    other = await bench.reader(uri, subscription(1, priority=1))
    for number in range(4):
        peer.post(b"%d" % number)
    got = await peer.pushes(4)
    peer.confirm(got[0].push.guid, got[2].push.guid)
    await peer.barrier()
    await other.wait(0.1)
    peer.drop()
    check(await other.payloads(2), [b"1", b"3"], "payloads")
    await other.no_push()


@GROUP.case("5.4.4", "13.16", _O)
async def _deconfigured(bench: Bench) -> None:
    """Delivered messages stay with a consumer that is deconfigured.

    Sends: configureStream without subscriptions with an unconfirmed message; another consumer is connected.
    Expects: no PUSH in the other session before closeQueue.
    """
    peer, uri = await bench.consumer(subscription(1, priority=2))
    other = await bench.reader(uri, subscription(1, priority=1))
    peer.post(b"x")
    await peer.push()
    await peer.configure(0)
    await other.no_push()
    await peer.close(uri)
    check((await other.push()).payload, b"x", "payload")


@GROUP.case("5.4.5", "13.15", _O, domains=("attempts",))
async def _attempts(bench: Bench) -> None:
    """A message of three lost connections is dropped.

    Sends: three consumers that lose their connections, in a domain with maxDeliveryAttempts 3.
    Expects: three deliveries, then only new messages.
    """
    producer, uri = await bench.queue("attempts", read=False)
    producer.post(b"poison")
    await producer.ack()
    for _ in range(3):
        peer = await bench.reader(uri, subscription(1))
        check((await peer.push()).payload, b"poison", "payload")
        peer.drop()
        await producer.barrier()
    last = await bench.client()
    await last.open(uri)
    await last.configure(0, subscription(1))
    last.post(b"next")
    check(await last.payloads(1), [b"next"], "payloads")


@GROUP.case("5.4.6", "13.15", _O, domains=("attempts",))
async def _graceful(bench: Bench) -> None:
    """Closed queues do not count as attempts.

    Sends: five times open, receive and close, in a domain with maxDeliveryAttempts 3.
    Expects: five deliveries.
    """
    producer, uri = await bench.queue("attempts", read=False)
    producer.post(b"x")
    await producer.ack()
    peer = await bench.client()
    for _ in range(5):
        await peer.open(uri, write=False)
        await peer.configure(0, subscription(1))
        check(await peer.payloads(1), [b"x"], "payloads")
        await peer.close(uri, write=False)


@GROUP.case("5.4.7", "13.7", _S)
async def _first(bench: Bench) -> None:
    """A first delivery has no flag.

    Sends: a PUT with a waiting consumer.
    Expects: a PUSH without OUT_OF_ORDER.
    """
    peer, _ = await bench.consumer(subscription(1))
    peer.post(b"x")
    if (await peer.push()).again:
        raise fail("no flag OUT_OF_ORDER", "the flag")
