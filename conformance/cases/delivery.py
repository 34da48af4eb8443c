# SPDX-License-Identifier: Apache-2.0
"""PUSH and CONFIRM: shape, limits, confirmation, redelivery, delivery attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bmq.wire.constants import EventType
from bmq.wire.control.messages import Subscription
from bmq.wire.event import HEADER_SIZE, pack_event_header
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check, fail
from conformance.peer import confirm_event, subscription

__all__ = ["GROUP"]

GROUP = Cases(5, "Delivery", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


# ---- 5.1 the shape of a delivery


@GROUP.case(
    "5.1.1",
    "A delivery has the qId, the sId and the GUID",
    sends="a PUT with qId 3, a subscription with sId 11",
    expects="a PUSH with qId 3, the option with 11, no flags, and the GUID",
    statement="13.2",
)
async def _shape(bench: Bench) -> None:
    peer = await bench.client()
    await peer.open(bench.uri(), 3)
    await peer.configure(3, subscription(11))
    guid = peer.post(b"x", 3)
    push = (await peer.push()).push
    check((push.queue_id, push.sub_ids, push.flags, push.guid), (3, (11,), 0, guid), "qId, sIds, flags, GUID")


@GROUP.case(
    "5.1.2",
    "A new sId counts from the answer on",
    sends="configureStream with another sId, and a PUT",
    expects="a PUSH with the new sId",
    statement="8.4",
)
async def _new_id(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    await peer.configure(0, subscription(77))
    peer.post(b"x")
    check((await peer.push()).push.sub_ids, (77,), "sIds")


@GROUP.case(
    "5.1.3",
    "The answer to configureStream comes before its messages",
    sends="a PUT, and later configureStream",
    expects="configureStreamResponse, then the PUSH",
    statement="8.3",
)
async def _answer_first(bench: Bench) -> None:
    peer, _ = await bench.queue()
    peer.post(b"x")
    await peer.ack()
    before = len(peer.kinds)
    await peer.configure(0, subscription(1))
    await peer.push()
    check(peer.kinds[before:], [EventType.CONTROL, EventType.PUSH], "events")


@GROUP.case(
    "5.1.4",
    "Messages keep the order of one producer",
    sends="100 PUT",
    expects="100 deliveries in the same order",
    statement="13.10",
)
async def _order(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    for number in range(100):
        peer.post(b"%d" % number)
    check(await peer.payloads(100), [b"%d" % number for number in range(100)], "payloads")


@GROUP.case(
    "5.1.5",
    "A queue without subscriptions delivers nothing",
    sends="openQueue and a PUT without configureStream",
    expects="no PUSH",
    statement="8.1",
)
async def _no_subscription(bench: Bench) -> None:
    peer, _ = await bench.queue()
    peer.post(b"x")
    await peer.ack()
    await peer.no_push()


@GROUP.case(
    "5.1.6",
    "A producer receives nothing",
    sends="configureStream on a queue opened for writing, and a PUT",
    expects="success, and no PUSH",
    statement="13.9",
    level=_O,
)
async def _producer(bench: Bench) -> None:
    peer, _ = await bench.queue(read=False)
    await peer.configure(0, subscription(1))
    peer.post(b"x")
    await peer.ack()
    await peer.no_push()


@GROUP.case(
    "5.1.7",
    "A suspended consumer receives nothing",
    sends="configureStream without subscriptions, as an SDK does on an unhealthy host, and a PUT",
    expects="an ACK, no PUSH until the next configureStream",
    statement="8.5",
)
async def _suspended(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    await peer.configure(0)
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")
    await peer.no_push()
    await peer.configure(0, subscription(2))
    check((await peer.push()).push.sub_ids, (2,), "sIds")


# ---- 5.2 limits


class _Limit(NamedTuple):
    """A limit, the sizes of the posted messages, and how many of them are delivered."""

    number: str
    statement: str
    title: str
    sends: str
    expects: str
    limit: Subscription
    sizes: tuple[int, ...]
    delivered: int


_LIMITS = [
    _Limit("5.2.1", "8.20", "Delivery stops at the limit of messages",
           "20 PUT with maxUnconfirmedMessages 10", "10 deliveries", subscription(1, messages=10), (1,) * 20, 10),
    _Limit("5.2.4", "8.20", "Delivery stops at the limit of bytes",
           "PUT of 60, 60 and 1 bytes with maxUnconfirmedBytes 100", "two deliveries", subscription(1, size=100), (60, 60, 1), 2),
    _Limit("5.2.5", "8.20", "A message may exceed the limit of bytes",
           "a PUT of 1,000 bytes with maxUnconfirmedBytes 10", "the delivery", subscription(1, size=10), (1000,), 1),
    _Limit("5.2.6", "8.21", "A limit of 0 delivers nothing",
           "a PUT with maxUnconfirmedMessages 0", "no PUSH", subscription(1, messages=0), (1,), 0),
]  # fmt: skip


def _limit_check(row: _Limit) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.consumer(row.limit)
        for size in row.sizes:
            peer.post(bytes(size))
        if row.delivered:
            sizes = [len(each) for each in await peer.payloads(row.delivered)]
            check(sizes, list(row.sizes[: row.delivered]), "sizes")
        await peer.no_push()

    return run


for _limit in _LIMITS:
    GROUP.case(
        _limit.number, _limit.title, sends=_limit.sends, expects=_limit.expects, statement=_limit.statement
    )(_limit_check(_limit))


@GROUP.case(
    "5.2.2",
    "Delivery resumes below 80 percent of the limit",
    sends="CONFIRM of one message, then of another, with a limit of 10",
    expects="no delivery after the first, two after the second",
    statement="8.24",
    level=_O,
)
async def _resume(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1, messages=10))
    for number in range(20):
        peer.post(b"%d" % number)
    got = await peer.pushes(10)
    peer.confirm(got[0].push.guid)
    await peer.no_push()
    peer.confirm(got[1].push.guid)
    check(await peer.payloads(2), [b"10", b"11"], "payloads")
    await peer.no_push()


@GROUP.case(
    "5.2.3",
    "A limit of 1 delivers one message at a time",
    sends="3 PUT with maxUnconfirmedMessages 1, and a CONFIRM for each delivery",
    expects="each message after the confirmation of the previous one",
    statement="8.20",
)
async def _one(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1, messages=1))
    for number in range(3):
        peer.post(b"%d" % number)
    for number in range(3):
        got = await peer.push()
        check(got.payload, b"%d" % number, "payload")
        await peer.no_push()
        peer.confirm(got.push.guid)


@GROUP.case(
    "5.2.7",
    "A higher limit resumes delivery",
    sends="3 PUT with a limit of 1, then configureStream with a limit of 10",
    expects="the other two messages",
    statement="8.23",
)
async def _higher(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1, messages=1))
    for number in range(3):
        peer.post(b"%d" % number)
    await peer.push()
    await peer.configure(0, subscription(1, messages=10))
    check(await peer.payloads(2), [b"1", b"2"], "payloads")


@GROUP.case(
    "5.2.8",
    "A lower limit counts the unconfirmed messages",
    sends="3 PUT with a limit of 3, then a limit of 2 and a PUT",
    expects="no PUSH while 3 messages are unconfirmed",
    statement="8.23",
)
async def _lower(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1, messages=3))
    for number in range(3):
        peer.post(b"%d" % number)
    await peer.pushes(3)
    await peer.configure(0, subscription(1, messages=2))
    peer.post(b"3")
    await peer.no_push()


@GROUP.case(
    "5.2.9",
    "Limits belong to each subscription",
    sends="two subscriptions with a limit of 1 each, two PUT for each",
    expects="one delivery for each subscription",
    statement="8.22",
)
async def _each(bench: Bench) -> None:
    peer, _ = await bench.consumer(
        subscription(1, "x == 1", messages=1), subscription(2, "x == 2", messages=1)
    )
    for x in (1, 1, 2, 2):
        peer.post(b"%d" % x, properties={"x": x})
    check(sorted(await peer.payloads(2)), [b"1", b"2"], "payloads")
    await peer.no_push()


# ---- 5.3 confirmations


def _gone_check(count: int) -> Check:
    async def run(bench: Bench) -> None:
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

    return run


for _place, _statement, _title, _sends, _count in (
    (1, "14.1", "A confirmed message is gone", "a CONFIRM, then closeQueue", 1),
    (2, "14.8", "One event confirms many messages", "a CONFIRM event of 20 messages", 20),
):
    GROUP.case(
        f"5.3.{_place}",
        _title,
        sends=f"{_sends}; a consumer in another session",
        expects="no delivery",
        statement=_statement,
    )(_gone_check(_count))


@GROUP.case(
    "5.3.3",
    "Another session may confirm a message",
    sends="a CONFIRM from a session that did not receive the message",
    expects="no second delivery after the first session has closed its queue",
    statement="14.10",
    level=_O,
)
async def _other_session(bench: Bench) -> None:
    one, uri = await bench.consumer(subscription(1, priority=2))
    two = await bench.reader(uri, subscription(1, priority=1))
    guid = one.post(b"x")
    await one.push()
    two.confirm(guid)
    await two.barrier()
    await one.close(uri)
    await two.no_push()


_Confirm = Callable[[bytes], bytes]


#: Confirmations that confirm nothing: number, level, what, the event from the GUID, whether it confirms.
_CONFIRMS: list[tuple[int, str, str, Level, str, _Confirm, bool]] = [
    (4, "14.5", "A confirmation of an unknown GUID is ignored", _M, "a CONFIRM of another GUID", lambda g: confirm_event((0, b"\x41" * 16, 0)), False),
    (5, "14.5", "A confirmation with an unknown qId is ignored", _M, "a CONFIRM with qId 77", lambda g: confirm_event((77, g, 0)), False),
    (6, "14.5", "A confirmation with an unknown subQueueId is ignored", _M, "a CONFIRM with subQueueId 5", lambda g: confirm_event((0, g, 5)), False),
    (7, "14.5", "A confirmation with the sId is ignored", _M, "a CONFIRM with the sId of the PUSH as subQueueId", lambda g: confirm_event((0, g, 1)), False),
    (8, "14.5", "A GUID of zeros is ignored", _M, "a CONFIRM of zeros", lambda g: confirm_event((0, bytes(16), 0)), False),
    (9, "14.6", "A CONFIRM event without messages is ignored", _M, "a CONFIRM event with a header alone", lambda g: confirm_event(), False),
    (10, "14.6", "A CONFIRM event without a header is ignored", _M, "an empty CONFIRM event", lambda g: pack_event_header(HEADER_SIZE, EventType.CONFIRM), False),
    (11, "14.7", "A ConfirmHeader of 0 words is ignored", _O, "a CONFIRM event with headerWords 0", lambda g: confirm_event((0, g, 0), header=b"\x06\0\0\0"), False),
    (12, "14.7", "A ConfirmMessage of 0 words is ignored", _O, "a CONFIRM event with perMessageWords 0", lambda g: confirm_event((0, g, 0), header=b"\x10\0\0\0"), False),
    (13, "1.7", "Reserved bytes are skipped", _M, "a CONFIRM event with other reserved bytes", lambda g: confirm_event((0, g, 0), header=b"\x16\xff\xff\xff"), True),
    (14, "1.8", "A longer header is skipped", _M, "a CONFIRM event with headerWords 2", lambda g: confirm_event((0, g, 0), header=b"\x26\0\0\0\0\0\0\0"), True),
    (15, "14.5", "The same message may be confirmed twice", _M, "a CONFIRM event with the GUID twice", lambda g: confirm_event((0, g, 0), (0, g, 0)), True),
    (16, "14.5", "A good confirmation follows an ignored one", _M, "a CONFIRM event with an unknown GUID first", lambda g: confirm_event((0, b"\x41" * 16, 0), (0, g, 0)), True),
    (17, "14.6", "A truncated confirmation is ignored", _M, "a CONFIRM event of 16 bytes", lambda g: pack_event_header(HEADER_SIZE + 16, EventType.CONFIRM) + b"\x16\0\0\0" + bytes(4) + g[:8], False),
]  # fmt: skip


def _confirm_check(event: _Confirm, confirms: bool) -> Check:
    async def run(bench: Bench) -> None:
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
        check(got, [b"last"] if confirms else [b"x"], "next delivery")

    return run


for _number, _statement, _title, _level, _sends, _event, _confirms in _CONFIRMS:
    GROUP.case(
        f"5.3.{_number}",
        _title,
        sends=f"{_sends}; then a consumer in another session",
        expects="no second delivery" if _confirms else "the message again in the other session",
        statement=_statement,
        level=_level,
    )(_confirm_check(_event, _confirms))


# ---- 5.4 redelivery


@GROUP.case(
    "5.4.1",
    "Unconfirmed messages of a closed queue are delivered again",
    sends="closeQueue with 5 unconfirmed messages; a consumer in another session",
    expects="the 5 messages, in order, with the flag OUT_OF_ORDER",
    statement="13.12",
)
async def _again(bench: Bench) -> None:
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


@GROUP.case(
    "5.4.2",
    "Unconfirmed messages of a lost connection are delivered at once",
    sends="the end of a connection with an unconfirmed message; another consumer is connected",
    expects="the message in the other session",
    statement="13.12",
)
async def _lost(bench: Bench) -> None:
    peer, uri = await bench.consumer(subscription(1, priority=2))
    other = await bench.reader(uri, subscription(1, priority=1))
    peer.post(b"x")
    await peer.push()
    peer.drop()
    check((await other.push()).payload, b"x", "payload")


@GROUP.case(
    "5.4.3",
    "Confirmed messages are not delivered again",
    sends="the end of a connection with the first and the third of 4 messages confirmed",
    expects="the second and the fourth message in the other session",
    statement="14.1",
)
async def _gaps(bench: Bench) -> None:
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


@GROUP.case(
    "5.4.4",
    "Delivered messages stay with a consumer that is deconfigured",
    sends="configureStream without subscriptions with an unconfirmed message; another consumer is connected",
    expects="no PUSH in the other session before closeQueue",
    statement="13.16",
    level=_O,
)
async def _deconfigured(bench: Bench) -> None:
    peer, uri = await bench.consumer(subscription(1, priority=2))
    other = await bench.reader(uri, subscription(1, priority=1))
    peer.post(b"x")
    await peer.push()
    await peer.configure(0)
    await other.no_push()
    await peer.close(uri)
    check((await other.push()).payload, b"x", "payload")


@GROUP.case(
    "5.4.5",
    "A message of three lost connections is dropped",
    sends="three consumers that lose their connections, in a domain with maxDeliveryAttempts 3",
    expects="three deliveries, then only new messages",
    statement="13.15",
    level=_O,
    domains=("attempts",),
)
async def _attempts(bench: Bench) -> None:
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


@GROUP.case(
    "5.4.6",
    "Closed queues do not count as attempts",
    sends="five times open, receive and close, in a domain with maxDeliveryAttempts 3",
    expects="five deliveries",
    statement="13.15",
    level=_O,
    domains=("attempts",),
)
async def _graceful(bench: Bench) -> None:
    producer, uri = await bench.queue("attempts", read=False)
    producer.post(b"x")
    await producer.ack()
    peer = await bench.client()
    for _ in range(5):
        await peer.open(uri, write=False)
        await peer.configure(0, subscription(1))
        check(await peer.payloads(1), [b"x"], "payloads")
        await peer.close(uri, write=False)


@GROUP.case(
    "5.4.7",
    "A first delivery has no flag",
    sends="a PUT with a waiting consumer",
    expects="a PUSH without OUT_OF_ORDER",
    statement="13.7",
    level=_S,
)
async def _first(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    peer.post(b"x")
    if (await peer.push()).again:
        raise fail("no flag OUT_OF_ORDER", "the flag")
