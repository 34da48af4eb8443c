# SPDX-License-Identifier: Apache-2.0
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The form of a client's events, the order of its requests, and rare forms of a broker's messages."""

from __future__ import annotations

from collections.abc import Callable

from bmq.wire.constants import EventType, PushFlags, PutFlags
from bmq.wire.control import ConfigureQueueStream, ConfigureStream, OpenQueue
from bmq.wire.event import HEADER_SIZE
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.push import encode_push
from conformance.case import Cases, Level, Mismatch, check, fail
from conformance.peer import QUIET
from conformance.stage import ORDERS, OTHER, Line, Opened, Stage, guid, pushed

__all__ = ["CASES"]

CASES = Cases(27, "Forms and order")
_SENT_BY_CLIENTS = {
    EventType.CONTROL,
    EventType.PUT,
    EventType.CONFIRM,
    EventType.HEARTBEAT_REQ,
    EventType.HEARTBEAT_RSP,
    EventType.AUTHENTICATION,
}
_LONG = 45.0


async def _whole_session(stage: Stage) -> Line:
    """Post, receive and confirm a message, close the queue, end the session."""
    line, queue = await stage.queue(read=True, write=True)
    posted = stage.post(queue, b"hello", {"n": 1})
    line.acknowledge(await line.puts())
    await stage.done(posted)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello"))
    received = await stage.done(asked)
    await stage.done(stage.do("confirm", guid=received["guid"]))
    await line.confirms()
    asked = stage.do("close", queue=queue.uri)
    await stage.served(line, asked)
    asked = stage.do("stop")
    await stage.served(line, asked)
    return line


@CASES.case("27.1.1", "2.3")
async def has_plain_headers(stage: Stage) -> None:
    """Each event of a client has a header of two words with the version 1, and no fragment bit.

    Sends: the answers of a whole session.
    Expects: events with fragment 0, protocolVersion 1 and headerWords 2.
    """
    for event in (await _whole_session(stage)).seen:
        data = event.data
        check((data[0] >> 7, data[4] >> 6, data[5]), (0, 1, 2), f"{event.type}: fragment, version, words")


@CASES.case("27.1.2", "1.6")
async def writes_zeros(stage: Stage) -> None:
    """Reserved fields are 0.

    Sends: the answers of a whole session.
    Expects: zeros in the reserved fields of EventHeader, PutHeader and ConfirmHeader.
    """
    for event in (await _whole_session(stage)).seen:
        data, body = event.data, event.data[HEADER_SIZE:]
        check(data[7], 0, "reserved of the EventHeader")
        codec = event.type in (EventType.CONTROL, EventType.AUTHENTICATION)
        check(data[6] & (0x1F if codec else 0xFF), 0, "typeSpecific beside the codec")
        if event.type == EventType.PUT:
            check(body[34:36], bytes(2), "reserved of the PutHeader")
        elif event.type == EventType.CONFIRM:
            check(body[1:4], bytes(3), "reserved of the ConfirmHeader")


@CASES.case("27.1.3", "2.8")
async def sends_its_own_types(stage: Stage) -> None:
    """A client sends only events of the types for clients.

    Sends: the answers of a whole session.
    Expects: events of the types CONTROL, PUT, CONFIRM and HEARTBEAT.
    """
    line = await _whole_session(stage)
    wrong = [int(event.type) for event in line.seen if event.type not in _SENT_BY_CLIENTS]
    check(wrong, [], "types of events that no client sends:")


@CASES.case("27.2.1", "3.23")
async def numbers_requests(stage: Stage) -> None:
    """Requests that wait for their answers at the same time have different numbers.

    Sends: no answer to the first request until a second has arrived, or two seconds are over.
    Expects: different rIds.
    """
    line = await stage.started()
    calls = [stage.do("open", queue=uri, write=True) for uri in (ORDERS, OTHER)]
    first = await line.any_request()
    try:
        second = await line.any_request(2.0)
    except Mismatch:  # the client makes one request at a time
        line.reply(first)
        line.reply(await line.any_request())
    else:
        if first.r_id == second.r_id:
            raise fail("different rIds", f"rId {first.r_id} twice")
        line.reply(first)
        line.reply(second)
    for call in calls:
        await stage.done(call)


@CASES.case("27.2.2", "7.18")
async def configures_an_open_queue(stage: Stage) -> None:
    """A reader configures its stream after the openQueueResponse.

    Sends: openQueueResponse after a pause.
    Expects: no configureStream in the pause.
    """
    line = await stage.started()
    asked = stage.do("open", queue=ORDERS, read=True)
    opening, _ = await line.wanted(OpenQueue)
    try:
        early = await line.any_request(QUIET)
    except Mismatch:
        line.reply(opening)
    else:
        raise fail("no request before the openQueueResponse", early.body)
    request = await line.any_request()
    if not isinstance(request.body, (ConfigureStream, ConfigureQueueStream)):
        raise fail("a configuration of the stream", request.body)
    line.reply(request)
    line.serve()
    await stage.done(asked)


@CASES.case("27.2.3", "7.18", seconds=_LONG)
async def posts_to_an_open_queue(stage: Stage) -> None:
    """A message waits until its queue is open again.

    Sends: the end of the connection instead of an ACK; then openQueueResponse after a pause.
    Expects: no PUT in the pause, and the message after it; or a failure of the call.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"hello")
    (first,) = await line.puts()
    line.drop()
    line = await stage.negotiated()
    opening, _ = await line.wanted(OpenQueue)
    await line.nothing(EventType.PUT)
    line.reply(opening)
    line.serve()
    if not (puts := await stage.again_or_failed(line, [asked])):
        return
    (again,) = puts
    check(again.guid.hex(), first.guid.hex(), "GUID")
    line.acknowledge([again])
    check((await stage.done(asked)).get("status"), "SUCCESS", "status")


@CASES.case("27.3.1", "12.2")
async def omits_the_area(stage: Stage) -> None:
    """A message without properties has no properties area.

    Sends: an ACK.
    Expects: a PUT message without the flag MESSAGE_PROPERTIES, with schemaId 0, and nothing but the payload.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"hello")
    (put,) = await line.puts()
    check(put.flags & PutFlags.MESSAGE_PROPERTIES, 0, "the flag MESSAGE_PROPERTIES")
    check(put.schema_id, 0, "schemaId")
    check(put.data, b"hello", "application data")
    line.acknowledge([put])
    await stage.done(asked)


def _with_schema(queue: Opened, number: int, schema_id: int, properties: dict[str, PropertyInput]) -> bytes:
    data = encode_properties(properties, new=True) + b"body"
    return encode_push(
        queue.q_id,
        guid(number),
        data + padding(len(data)),
        encode_sub_queue_ids(queue.s_ids[:1]),
        flags=PushFlags.MESSAGE_PROPERTIES,
        schema_id=schema_id,
    )


async def _schema(stage: Stage, messages: tuple[tuple[int, dict[str, PropertyInput]], ...]) -> None:
    line, queue = await stage.queue(read=True)
    for place, (schema_id, properties) in enumerate(messages, 1):
        asked = stage.do("receive", queue=queue.uri)
        line.deliver(_with_schema(queue, place, schema_id, properties))
        check(await stage.received(asked), b"body", "payload")
        check((await stage.done(asked)).get("properties"), properties, "properties")


CASES.rows(_schema, [
    ("27.3.2", "12.5", Level.MUST, "Messages with the number of a sequence of names are read",
     "two PUSH messages with schemaId 2 and the same names, with values of other lengths", "the properties and the payloads",
     ((2, {"a": "x", "b": 1}), (2, {"a": "longer", "b": 2}))),
    ("27.3.3", "12.5", Level.MUST, "The number of a sequence of names can get another sequence",
     "PUSH messages with schemaId 2 and the names a and b, then 3 and 2 with the names c, d and e", "the properties and the payloads",
     ((2, {"a": "x", "b": 1}), (3, {"c": "one", "d": "two", "e": 3}), (2, {"c": "three", "d": "four", "e": 5}))),
])  # fmt: skip


def _infos(queue: Opened) -> bytes:
    # Type 3, entries of two words; three words with the header. Then the id, and unlimited attempts.
    return (3 << 26 | 2 << 21 | 3).to_bytes(4, "big") + queue.s_ids[0].to_bytes(4, "big") + b"\x80\0\0\0"


async def _options(stage: Stage, options: Callable[[Opened], bytes]) -> None:
    line, queue = await stage.queue(read=True)
    asked = stage.do("receive", queue=queue.uri)
    line.deliver(pushed(queue, 1, b"hello", options=options(queue)))
    check(await stage.received(asked), b"hello", "payload")


CASES.rows(_options, [
    ("27.3.4", "13.3", Level.MUST, "Subscription ids with remaining delivery attempts are read", "a PUSH message with the option SUB_QUEUE_INFOS", "the payload", _infos),
    ("27.3.5", "13.24", Level.SHOULD, "A message without a subscription id is read", "a PUSH message without options", "the payload", lambda _: b""),
])  # fmt: skip
