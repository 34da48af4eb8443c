# SPDX-License-Identifier: Apache-2.0
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Delivered messages and their confirmations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.properties import PropertyInput
from conformance.case import Cases, Check, Level, check
from conformance.stage import Line, Opened, Stage, guid, pushed

__all__ = ["CASES"]

CASES = Cases(24, "Receiving")
ORDERS = "bmq://bmq.test.mem.priority/conform-orders"
NEWS = "bmq://bmq.test.mem.fanout/conform-news?id=foo"


async def _reading(stage: Stage, uri: str = ORDERS) -> tuple[Line, Opened]:
    line = await stage.started()
    return line, await stage.opened(line, uri, read=True)


@CASES.case(
    "24.1.1",
    "A delivered message reaches the application.",
    sends="a PUSH message",
    expects="its payload and its GUID",
    statement="13.5",
)
async def receives(stage: Stage) -> None:
    line, queue = await _reading(stage)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    check(await stage.received(asked), b"hello", "payload")
    check((await stage.done(asked)).get("guid", "").upper(), guid(1).hex().upper(), "GUID")


@CASES.case(
    "24.1.2",
    "Messages of one event and of several events arrive in order.",
    sends="three messages in an event, and two more in events of their own",
    expects="five messages in order",
    statement="13.5",
)
async def keeps_the_order(stage: Stage) -> None:
    line, queue = await _reading(stage)
    line.deliver(*(pushed(queue, number, b"%d" % number) for number in (1, 2, 3)))
    line.deliver(pushed(queue, 4, b"4"))
    line.deliver(pushed(queue, 5, b"5"))
    arrived = [await stage.received(stage.do("receive", queue=queue.uri)) for _ in range(5)]
    check(arrived, [b"1", b"2", b"3", b"4", b"5"], "payloads")


class _Delivery(NamedTuple):
    """PUSH messages, each in an event of its own, and what the application receives."""

    number: str
    statement: str
    title: str
    level: Level
    sends: str
    expects: str
    messages: Callable[[Opened], list[bytes]]
    payload: bytes
    properties: dict[str, PropertyInput] | None = None  # not compared where None


_SOME: dict[str, PropertyInput] = {"region": "eu", "count": 7, "paid": True, "note": ""}
_TYPES = "a PUSH message with a string, an integer, a boolean and an empty string"
_LONG = b"again and again " * 500
_UNKNOWN_OPTION = (40 << 26 | 2).to_bytes(4, "big") + b"\0\0\0\7"

_DELIVERIES = [
    _Delivery("24.1.3", "12.8", "Properties in the new encoding are read.", Level.MUST,
              _TYPES, "the properties and the payload",
              lambda queue: [pushed(queue, 1, b"body", properties=_SOME, new=True)], b"body", _SOME),
    _Delivery("24.1.4", "12.8", "Properties in the old encoding are read.", Level.MUST,
              _TYPES, "the properties and the payload",
              lambda queue: [pushed(queue, 1, b"body", properties=_SOME, new=False)], b"body", _SOME),
    _Delivery("24.1.5", "13.5", "A message compressed with zlib is decompressed.", Level.MUST,
              "a PUSH message with the compression ZLIB, with properties", "the payload and the properties",
              lambda queue: [pushed(queue, 1, _LONG, properties={"n": 1}, compression=Compression.ZLIB)],
              _LONG, {"n": 1}),
    _Delivery("24.1.7", "13.6", "An empty payload arrives.", Level.SHOULD,
              "a PUSH message without a payload, with properties", "an empty payload",
              lambda queue: [pushed(queue, 1, b"", properties={"n": 1})], b""),
    _Delivery("24.1.8", "13.4", "Options of an unknown type are skipped.", Level.SHOULD,
              "a PUSH message with an option of type 40 in front of the subscription", "the payload",
              lambda queue: [
                  pushed(queue, 1, b"hello", options=_UNKNOWN_OPTION + encode_sub_queue_ids(queue.s_ids[:1]))
              ], b"hello"),
    _Delivery("24.1.9", "13.7", "A message marked as out of order arrives like any other.", Level.MUST,
              "a PUSH message with the flag OUT_OF_ORDER", "the payload",
              lambda queue: [pushed(queue, 1, b"again", flags=PushFlags.OUT_OF_ORDER)], b"again"),
    _Delivery("24.1.10", "13.8", "A message for a queue that is not open is ignored.", Level.SHOULD,
              "a PUSH message for qId 4711, then one for the open queue", "the second message",
              lambda queue: [pushed(queue, 1, b"nobody's", q_id=4711), pushed(queue, 2, b"mine")], b"mine"),
]  # fmt: skip


def _delivery_check(row: _Delivery) -> Check:
    async def run(stage: Stage) -> None:
        line, queue = await _reading(stage)
        asked = stage.do("receive", queue=queue.uri)
        for message in row.messages(queue):
            line.deliver(message)
        check(await stage.received(asked), row.payload, "payload")
        if row.properties is not None:
            check((await stage.done(asked)).get("properties"), row.properties, "properties")

    return run


for _row in _DELIVERIES:
    CASES.case(
        _row.number,
        _row.title,
        sends=_row.sends,
        expects=_row.expects,
        statement=_row.statement,
        level=_row.level,
    )(_delivery_check(_row))


@CASES.case(
    "24.1.6",
    "A message of a megabyte arrives, in any pieces.",
    sends="a PUSH message of 1,000,003 bytes, in two writes",
    expects="the payload",
    statement="2.4",
)
async def reads_large_messages(stage: Stage) -> None:
    line, queue = await _reading(stage)
    asked = stage.do("receive", queue=queue.uri)
    payload = bytes(index % 253 for index in range(1_000_003))
    message = pushed(queue, 1, payload)
    event = pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + message
    line.send(event[:5])
    await line.flushed()
    line.send(event[5:])
    check(await stage.received(asked) == payload, True, "the payload is equal:")


@CASES.case(
    "24.2.1",
    "A confirmation has the queue's number and the GUID.",
    sends="a PUSH message",
    expects="a CONFIRM message",
    statement="14.2",
)
async def confirms(stage: Stage) -> None:
    line, queue = await _reading(stage)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    received = await stage.done(asked)
    await stage.done(stage.do("confirm", guid=received["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.queue_id, queue.q_id, "qId")
    check(confirmed.guid.hex(), guid(1).hex(), "GUID")
    check(confirmed.sub_queue_id, queue.sub_id, "subQueueId")


@CASES.case(
    "24.2.2",
    "A confirmation of a fanout application has the number of the application.",
    sends="a PUSH message",
    expects="a CONFIRM message with the subId of openQueue",
    statement="14.2",
)
async def confirms_for_an_application(stage: Stage) -> None:
    line, queue = await _reading(stage, NEWS)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    received = await stage.done(asked)
    await stage.done(stage.do("confirm", guid=received["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.sub_queue_id, queue.sub_id, "subQueueId")


@CASES.case(
    "24.2.3",
    "A message that the application has not confirmed is not confirmed.",
    sends="two PUSH messages",
    expects="one CONFIRM message, for the confirmed message",
    statement="14.3",
)
async def confirms_only_confirmed_messages(stage: Stage) -> None:
    line, queue = await _reading(stage)
    calls = [stage.do("receive", queue=queue.uri) for _ in range(2)]
    line.deliver(pushed(queue, 1, b"one"), pushed(queue, 2, b"two"))
    answers = [await stage.done(call) for call in calls]
    await stage.done(stage.do("confirm", guid=answers[1]["guid"]))
    (confirmed,) = await line.confirms()
    check(confirmed.guid.hex().upper(), answers[1]["guid"].upper(), "GUID")
    await line.nothing(EventType.CONFIRM)
