# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""PUSH and CONFIRM: shape, limits, confirmation, redelivery, delivery attempts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmq.wire.constants import EventType
from bmq.wire.control import Subscription
from bmq.wire.event import HEADER_SIZE, pack_event_header
from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import confirm_event, subscription
from conformance.scene import A, B, P, play

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


GROUP.rows(play, [
    ("5.1.2", "8.4", _M, "A new sId counts from the answer on", "configureStream with another sId, and a PUT", "a PUSH with the new sId",
     A.opens(subscription(1)), A.configures(subscription(77)), A.posts(1), A.gets(1, s_ids=(77,))),
    ("5.1.4", "13.10", _M, "Messages keep the order of one producer", "100 PUT", "100 deliveries in the same order",
     A.opens(subscription(1)), A.posts(*range(100)), A.gets(*range(100))),
    ("5.1.5", "8.1", _M, "A queue without subscriptions delivers nothing", "openQueue and a PUT without configureStream", "no PUSH",
     A.opens(), A.posts(1), A.acks(0), A.gets_nothing()),
    ("5.1.6", "13.9", _O, "A producer receives nothing", "configureStream on a queue opened for writing, and a PUT", "success, and no PUSH",
     A.writes(), A.configures(subscription(1)), A.posts(1), A.acks(0), A.gets_nothing()),
    ("5.1.7", "8.5", _M, "A suspended consumer receives nothing",
     "configureStream without subscriptions, as an SDK does on an unhealthy host, and a PUT", "an ACK, no PUSH until the next configureStream",
     A.opens(subscription(1)), A.configures(), A.posts(1), A.acks(0), A.gets_nothing(), A.configures(subscription(2)),
     A.gets(1, s_ids=(2,))),
])  # fmt: skip


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


GROUP.rows(play, [
    ("5.2.2", "8.24", _O, "Delivery resumes below 80 percent of the limit",
     "CONFIRM of one message, then of another, with a limit of 10", "no delivery after the first, two after the second",
     A.opens(subscription(1, messages=10)), A.posts(*range(20)), A.gets(*range(10)), A.confirms(0), A.gets_nothing(), A.confirms(1),
     A.gets(10, 11), A.gets_nothing()),
    ("5.2.3", "8.20", _M, "A limit of 1 delivers one message at a time",
     "3 PUT with maxUnconfirmedMessages 1, and a CONFIRM for each delivery", "each message after the confirmation of the previous one",
     A.opens(subscription(1, messages=1)), A.posts(0, 1, 2), A.gets(0), A.gets_nothing(), A.confirms(0), A.gets(1), A.gets_nothing(),
     A.confirms(1), A.gets(2), A.gets_nothing()),
    ("5.2.7", "8.23", _M, "A higher limit resumes delivery",
     "3 PUT with a limit of 1, then configureStream with a limit of 10", "the other two messages",
     A.opens(subscription(1, messages=1)), A.posts(0, 1, 2), A.gets(0), A.configures(subscription(1, messages=10)), A.gets(1, 2)),
    ("5.2.8", "8.23", _M, "A lower limit counts the unconfirmed messages",
     "3 PUT with a limit of 3, then a limit of 2 and a PUT", "no PUSH while 3 messages are unconfirmed",
     A.opens(subscription(1, messages=3)), A.posts(0, 1, 2), A.gets(0, 1, 2), A.configures(subscription(1, messages=2)), A.posts(3),
     A.gets_nothing()),
])  # fmt: skip


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


GROUP.rows(play, [
    ("5.3.3", "14.10", _O, "Another session may confirm a message",
     "a CONFIRM from a session that did not receive the message", "no second delivery after the first session has closed its queue",
     A.opens(subscription(1, priority=2)), B.reads(subscription(1, priority=1)), A.posts(1), A.gets(1), B.confirms(1), A.leaves(),
     B.gets_nothing()),
])  # fmt: skip


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


GROUP.rows(play, [
    ("5.4.1", "13.12", _M, "Unconfirmed messages of a closed queue are delivered again",
     "closeQueue with 5 unconfirmed messages; a consumer in another session", "the 5 messages, in order, with the flag OUT_OF_ORDER",
     A.opens(subscription(1)), A.posts(*range(5)), A.gets(*range(5)), B.opens(write=False), A.leaves(), B.configures(subscription(1)),
     B.gets(*range(5), again=True)),
    ("5.4.2", "13.12", _M, "Unconfirmed messages of a lost connection are delivered at once",
     "the end of a connection with an unconfirmed message; another consumer is connected", "the message in the other session",
     A.opens(subscription(1, priority=2)), B.reads(subscription(1, priority=1)), A.posts(1), A.gets(1), A.drops(), B.gets(1)),
    ("5.4.4", "13.16", _O, "Delivered messages stay with a consumer that is deconfigured",
     "configureStream without subscriptions with an unconfirmed message; another consumer is connected", "no PUSH in the other session before closeQueue",
     A.opens(subscription(1, priority=2)), B.reads(subscription(1, priority=1)), A.posts(1), A.gets(1), A.configures(),
     B.gets_nothing(), A.leaves(), B.gets(1)),
    ("5.4.7", "13.7", _S, "A first delivery has no flag", "a PUT with a waiting consumer", "a PUSH without OUT_OF_ORDER",
     A.opens(subscription(1)), A.posts(1), A.gets(1, again=False)),
])  # fmt: skip


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


GROUP.rows(partial(play, kind="attempts"), [
    ("5.4.5", "13.15", _O, "A message of three lost connections is dropped",
     "three consumers that lose their connections, in a domain with maxDeliveryAttempts 3", "three deliveries, then only new messages",
     P.writes(), P.posts(b"poison"), P.acks(0), *(A.reads(), A.gets(b"poison"), A.drops()) * 3, B.opens(subscription(1)),
     B.posts(b"next"), B.gets(b"next")),
    ("5.4.6", "13.15", _O, "Closed queues do not count as attempts",
     "five times open, receive and close, in a domain with maxDeliveryAttempts 3", "five deliveries",
     P.writes(), P.posts(1), P.acks(0), *(A.reads(), A.gets(1), A.leaves()) * 5),
], domains=("attempts",))  # fmt: skip
