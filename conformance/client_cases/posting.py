# SPDX-License-Identifier: Apache-2.0
"""Posted messages and their acknowledgements."""

from __future__ import annotations

from bmq.wire.ack import encode_acks
from bmq.wire.constants import PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.message import split_application_data
from bmq.wire.put import DecodedPut
from conformance.case import Cases, Check, Level, check, fail
from conformance.stage import FEATURES, Line, Opened, Stage, accepted, guid

__all__ = ["CASES"]

CASES = Cases(23, "Posting")
ORDERS = "bmq://bmq.test.mem.priority/conform-orders"


async def _writing(stage: Stage, features: str = FEATURES) -> tuple[Line, Opened]:
    line = await stage.started(features)
    return line, await stage.opened(line, ORDERS, write=True)


def _read(put: DecodedPut) -> tuple[dict[str, object], bytes]:
    properties, payload = split_application_data(
        put.data,
        has_properties=bool(put.flags & PutFlags.MESSAGE_PROPERTIES),
        schema_id=put.schema_id,
        compression=put.compression,
    )
    return dict(properties), payload


@CASES.case(
    "23.1.1",
    "A posted message has the queue's number, a GUID and the payload, and asks for an acknowledgement.",
    sends="an ACK",
    expects="a PUT message",
    statement="10.2",
)
async def posts(stage: Stage) -> None:
    line, queue = await _writing(stage)
    asked = stage.post(queue, b"hello")
    (put,) = await line.puts()
    check(put.queue_id, queue.q_id, "qId")
    check(any(put.guid), True, "a GUID that is not zero:")
    check(bool(put.flags & PutFlags.ACK_REQUESTED), True, "the flag ACK_REQUESTED")
    check(_read(put)[1], b"hello", "payload")
    line.acknowledge([put])
    check((await stage.done(asked)).get("status"), "SUCCESS", "status")


@CASES.case(
    "23.1.2",
    "The checksum is the CRC32-C of the application data.",
    sends="an ACK",
    expects="the right checksum",
    statement="10.5",
)
async def has_a_checksum(stage: Stage) -> None:
    line, queue = await _writing(stage)
    stage.post(queue, b"hello", {"n": 1})
    (put,) = await line.puts()
    check(put.crc, crc32c(put.data), "CRC32-C")


def _payload_of(size: int) -> None:
    @CASES.case(
        f"23.1.{_SIZES.index(size) + 3}",
        f"A payload of {size:,} bytes arrives.",
        sends="an ACK",
        expects="the payload, with the padding of the protocol",
        statement="2.16",
    )
    async def posts_a_size(stage: Stage) -> None:
        line, queue = await _writing(stage)
        payload = bytes(index % 251 for index in range(size))
        asked = stage.post(queue, payload)
        (put,) = await line.puts()
        check(_read(put)[1] == payload, True, "the payload is equal:")
        line.acknowledge([put])
        check((await stage.done(asked)).get("status"), "SUCCESS", "status")


_SIZES = (1, 3, 4, 5, 1_000_000)
for _size in _SIZES:
    _payload_of(_size)


@CASES.case(
    "23.1.8",
    "Two messages have different GUIDs.",
    sends="nothing",
    expects="different GUIDs",
    statement="10.10",
)
async def has_new_guids(stage: Stage) -> None:
    line, queue = await _writing(stage)
    stage.post(queue, b"one")
    stage.post(queue, b"two")
    one, two = await line.puts(2)
    if one.guid == two.guid:
        raise fail("different GUIDs", one.guid.hex())


@CASES.case(
    "23.2.1",
    "Properties are written in the new encoding for a broker that names it.",
    sends="a brokerResponse with MPS:MESSAGE_PROPERTIES_EX",
    expects="a property area with schema id 1, and the properties",
    statement="12.6",
)
async def writes_new_properties(stage: Stage) -> None:
    line, queue = await _writing(stage)
    stage.post(queue, b"x", {"region": "eu", "count": 7})
    (put,) = await line.puts()
    check(_read(put)[0], {"region": "eu", "count": 7}, "properties")


@CASES.case(
    "23.2.2",
    "Properties are written in the old encoding for a broker that does not name the new one.",
    sends="a brokerResponse without MPS:MESSAGE_PROPERTIES_EX",
    expects="a property area with schema id 0, and the properties",
    statement="12.6",
)
async def writes_old_properties(stage: Stage) -> None:
    line, queue = await _writing(stage, features="PROTOCOL_ENCODING:BER,JSON")
    stage.post(queue, b"x", {"region": "eu", "count": 7})
    (put,) = await line.puts()
    check(put.schema_id, 0, "schemaId")
    check(_read(put)[0], {"region": "eu", "count": 7}, "properties")


@CASES.case(
    "23.3.1",
    "Acknowledgements in another order reach their messages.",
    sends="acknowledgements of three messages in reverse order, the second one negative",
    expects="the second call reports the failure",
    statement="11.6",
)
async def matches_acknowledgements(stage: Stage) -> None:
    line, queue = await _writing(stage)
    calls = [stage.post(queue, b"%d" % number) for number in range(3)]
    puts = await line.puts(3)
    by_payload = {_read(put)[1]: put for put in puts}
    for number, status in ((2, 0), (1, 1), (0, 0)):
        line.acknowledge([by_payload[b"%d" % number]], status)
    answers = [await stage.answer(call) for call in calls]
    check([accepted(answer) for answer in answers], [True, False, True], "accepted")


def _status(place: int, status: int, name: str) -> None:
    @CASES.case(
        f"23.3.{place}",
        f"A message refused with status {status} ({name}) is reported as not accepted.",
        sends=f"an acknowledgement with status {status}",
        expects="a failure of the call; the session goes on",
        statement="11.7",
        level=Level.MUST if name != "unknown" else Level.SHOULD,
    )
    async def reports_a_status(stage: Stage) -> None:
        line, queue = await _writing(stage)
        asked = stage.post(queue, b"x")
        line.acknowledge(await line.puts(), status)
        answer = await stage.answer(asked)
        check(accepted(answer), False, "accepted")
        await stage.alive(line, queue)


for _place, (_number, _name) in enumerate(
    ((1, "LIMIT_MESSAGES"), (2, "LIMIT_BYTES"), (5, "UNKNOWN"), (6, "STORAGE_FAILURE"), (13, "unknown")), 2
):
    _status(_place, _number, _name)


@CASES.case(
    "23.3.7",
    "One event acknowledges many messages.",
    sends="one ACK event for 50 messages",
    expects="success of all calls",
    statement="2.5",
)
async def reads_many_acknowledgements(stage: Stage) -> None:
    line, queue = await _writing(stage)
    calls = [stage.post(queue, b"%d" % number) for number in range(50)]
    line.acknowledge(await line.puts(50))
    for call in calls:
        check(accepted(await stage.answer(call)), True, "accepted")


def _unknown_check(q_id: int | None) -> Check:
    async def run(stage: Stage) -> None:
        line, queue = await _writing(stage)
        # A correlation id that the client has not sent; 0 for a client with GUIDs of its own.
        correlation_id = 4711 if line.legacy else 0
        line.send(encode_acks([(0, correlation_id, guid(99), queue.q_id if q_id is None else q_id)]))
        await stage.alive(line, queue)

    return run


for _place, _what, _sends, _q_id in (
    (8, "message", "GUID", None),
    (11, "queue", "queue", 4711),
):
    CASES.case(
        f"23.3.{_place}",
        f"An acknowledgement of an unknown {_what} is ignored.",
        level=Level.SHOULD,
        sends=f"an acknowledgement of a {_sends} that the client does not know",
        expects="the session goes on",
        statement="11.8",
    )(_unknown_check(_q_id))


@CASES.case(
    "23.3.9",
    "A second acknowledgement of a message is ignored.",
    sends="the same acknowledgement twice, the second time negative",
    expects="success of the call; the session goes on",
    statement="11.8",
)
async def ignores_a_second_acknowledgement(stage: Stage) -> None:
    line, queue = await _writing(stage)
    asked = stage.post(queue, b"x")
    puts = await line.puts()
    line.acknowledge(puts)
    line.acknowledge(puts, 1)
    check(accepted(await stage.answer(asked)), True, "accepted")
    await stage.alive(line, queue)


@CASES.case(
    "23.3.10",
    "A message without an acknowledgement is not reported as accepted.",
    sends="nothing",
    expects="no answer of the call",
    statement="11.9",
)
async def waits_for_the_acknowledgement(stage: Stage) -> None:
    line, queue = await _writing(stage)
    asked = stage.post(queue, b"x")
    puts = await line.puts()
    await stage.alive(line, queue)
    check(asked.done(), False, "an answer before the acknowledgement:")
    line.acknowledge(puts)
    check(accepted(await stage.answer(asked)), True, "accepted")
