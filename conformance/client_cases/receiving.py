# SPDX-License-Identifier: Apache-2.0
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Delivered messages and their confirmations."""

from __future__ import annotations

from collections.abc import Callable

from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import PropertyInput
from conformance.case import Cases, Level, check
from conformance.stage import NEWS, Opened, Stage, guid, pushed

__all__ = ["CASES"]

CASES = Cases(24, "Receiving")


@CASES.case("24.1.1", "13.5")
async def receives(stage: Stage) -> None:
    """A delivered message reaches the application.

    Sends: a PUSH message.
    Expects: its payload and its GUID.
    """
    line, queue = await stage.queue(read=True)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    check(await stage.received(asked), b"hello", "payload")
    check((await stage.done(asked)).get("guid", "").upper(), guid(1).hex().upper(), "GUID")


@CASES.case("24.1.2", "13.5")
async def keeps_the_order(stage: Stage) -> None:
    """Messages of one event and of several events arrive in order.

    Sends: three messages in an event, and two more in events of their own.
    Expects: five messages in order.
    """
    line, queue = await stage.queue(read=True)
    line.deliver(*(pushed(queue, number, b"%d" % number) for number in (1, 2, 3)))
    line.deliver(pushed(queue, 4, b"4"))
    line.deliver(pushed(queue, 5, b"5"))
    arrived = [await stage.received(stage.do("receive", queue=queue.uri)) for _ in range(5)]
    check(arrived, [b"1", b"2", b"3", b"4", b"5"], "payloads")


_SOME: dict[str, PropertyInput] = {"region": "eu", "count": 7, "paid": True, "note": ""}
_TYPES = "a PUSH message with a string, an integer, a boolean and an empty string"
_LONG = b"again and again " * 500
_UNKNOWN_OPTION = (40 << 26 | 2).to_bytes(4, "big") + b"\0\0\0\7"


async def _delivery(
    stage: Stage,
    messages: Callable[[Opened], list[bytes]],
    payload: bytes,
    properties: dict[str, PropertyInput] | None = None,
) -> None:
    """Send PUSH messages, each in an event of its own, and compare what the application receives."""
    line, queue = await stage.queue(read=True)
    asked = stage.do("receive", queue=queue.uri)
    for message in messages(queue):
        line.deliver(message)
    check(await stage.received(asked), payload, "payload")
    if properties is not None:
        check((await stage.done(asked)).get("properties"), properties, "properties")


CASES.rows(_delivery, [
    ("24.1.3", "12.8", Level.MUST, "Properties in the new encoding are read", _TYPES, "the properties and the payload",
     lambda queue: [pushed(queue, 1, b"body", properties=_SOME, new=True)], b"body", _SOME),
    ("24.1.4", "12.8", Level.MUST, "Properties in the old encoding are read", _TYPES, "the properties and the payload",
     lambda queue: [pushed(queue, 1, b"body", properties=_SOME, new=False)], b"body", _SOME),
    ("24.1.5", "13.5", Level.MUST, "A message compressed with zlib is decompressed", "a PUSH message with the compression ZLIB, with properties",
     "the payload and the properties", lambda queue: [pushed(queue, 1, _LONG, properties={"n": 1}, compression=Compression.ZLIB)], _LONG, {"n": 1}),
    ("24.1.7", "13.6", Level.SHOULD, "An empty payload arrives", "a PUSH message without a payload, with properties", "an empty payload",
     lambda queue: [pushed(queue, 1, b"", properties={"n": 1})], b""),
    ("24.1.8", "13.4", Level.SHOULD, "Options of an unknown type are skipped", "a PUSH message with an option of type 40 in front of the subscription", "the payload",
     lambda queue: [ pushed(queue, 1, b"hello", options=_UNKNOWN_OPTION + encode_sub_queue_ids(queue.s_ids[:1])) ], b"hello"),
    ("24.1.9", "13.7", Level.MUST, "A message marked as out of order arrives like any other", "a PUSH message with the flag OUT_OF_ORDER", "the payload",
     lambda queue: [pushed(queue, 1, b"again", flags=PushFlags.OUT_OF_ORDER)], b"again"),
    ("24.1.10", "13.8", Level.SHOULD, "A message for a queue that is not open is ignored", "a PUSH message for qId 4711, then one for the open queue",
     "the second message", lambda queue: [pushed(queue, 1, b"nobody's", q_id=4711), pushed(queue, 2, b"mine")], b"mine"),
])  # fmt: skip


@CASES.case("24.1.6", "2.4")
async def reads_large_messages(stage: Stage) -> None:
    """A message of a megabyte arrives, in any pieces.

    Sends: a PUSH message of 1,000,003 bytes, in two writes.
    Expects: the payload.
    """
    line, queue = await stage.queue(read=True)
    asked = stage.do("receive", queue=queue.uri)
    payload = bytes(index % 253 for index in range(1_000_003))
    message = pushed(queue, 1, payload)
    event = pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + message
    line.send(event[:5])
    await line.flushed()
    line.send(event[5:])
    check(await stage.received(asked) == payload, True, "the payload is equal:")


@CASES.case("24.2.1", "14.2")
async def confirms(stage: Stage) -> None:
    """A confirmation has the queue's number and the GUID.

    Sends: a PUSH message.
    Expects: a CONFIRM message.
    """
    line, queue = await stage.queue(read=True)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    received = await stage.done(asked)
    await stage.done(stage.do("confirm", guid=received["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.queue_id, queue.q_id, "qId")
    check(confirmed.guid.hex(), guid(1).hex(), "GUID")
    check(confirmed.sub_queue_id, queue.sub_id, "subQueueId")


@CASES.case("24.2.2", "14.2")
async def confirms_for_an_application(stage: Stage) -> None:
    """A confirmation of a fanout application has the number of the application.

    Sends: a PUSH message.
    Expects: a CONFIRM message with the subId of openQueue.
    """
    line, queue = await stage.queue(NEWS, read=True)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    received = await stage.done(asked)
    await stage.done(stage.do("confirm", guid=received["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.sub_queue_id, queue.sub_id, "subQueueId")


@CASES.case("24.2.3", "14.3")
async def confirms_only_confirmed_messages(stage: Stage) -> None:
    """A message that the application has not confirmed is not confirmed.

    Sends: two PUSH messages.
    Expects: one CONFIRM message, for the confirmed message.
    """
    line, queue = await stage.queue(read=True)
    calls = [stage.do("receive", queue=queue.uri) for _ in range(2)]
    line.deliver(pushed(queue, 1, b"one"), pushed(queue, 2, b"two"))
    answers = [await stage.done(call) for call in calls]
    await stage.done(stage.do("confirm", guid=answers[1]["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.guid.hex().upper(), answers[1]["guid"].upper(), "GUID")
    await line.nothing(EventType.CONFIRM)
