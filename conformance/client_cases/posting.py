# SPDX-License-Identifier: Apache-2.0
"""Posted messages and their acknowledgements."""

from __future__ import annotations

from bmq.wire.ack import encode_acks
from bmq.wire.constants import PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.message import split_application_data
from bmq.wire.put import DecodedPut
from conformance.case import Cases, Level, check, fail
from conformance.stage import Stage, accepted, guid

__all__ = ["CASES"]

CASES = Cases(23, "Posting")


def _read(put: DecodedPut) -> tuple[dict[str, object], bytes]:
    properties, payload = split_application_data(
        put.data,
        has_properties=bool(put.flags & PutFlags.MESSAGE_PROPERTIES),
        schema_id=put.schema_id,
        compression=put.compression,
    )
    return dict(properties), payload


@CASES.case("23.1.1", "10.2")
async def posts(stage: Stage) -> None:
    """A posted message has the queue's number, a GUID and the payload, and asks for an acknowledgement.

    Sends: an ACK.
    Expects: a PUT message.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"hello")
    (put,) = await line.puts()
    check(put.queue_id, queue.q_id, "qId")
    check(any(put.guid), True, "a GUID that is not zero:")
    check(bool(put.flags & PutFlags.ACK_REQUESTED), True, "the flag ACK_REQUESTED")
    check(_read(put)[1], b"hello", "payload")
    line.acknowledge([put])
    check((await stage.done(asked)).get("status"), "SUCCESS", "status")


@CASES.case("23.1.2", "10.5")
async def has_a_checksum(stage: Stage) -> None:
    """The checksum is the CRC32-C of the application data.

    Sends: an ACK.
    Expects: the right checksum.
    """
    line, queue = await stage.queue(write=True)
    stage.post(queue, b"hello", {"n": 1})
    (put,) = await line.puts()
    check(put.crc, crc32c(put.data), "CRC32-C")


async def _payload_of(stage: Stage, size: int) -> None:
    line, queue = await stage.queue(write=True)
    payload = bytes(index % 251 for index in range(size))
    asked = stage.post(queue, payload)
    (put,) = await line.puts()
    check(_read(put)[1] == payload, True, "the payload is equal:")
    line.acknowledge([put])
    check((await stage.done(asked)).get("status"), "SUCCESS", "status")


for _place, _size in enumerate((1, 3, 4, 5, 1_000_000), 3):
    CASES.add(
        f"23.1.{_place}",
        "2.16",
        Level.MUST,
        f"A payload of {_size:,} bytes arrives",
        "an ACK",
        "the payload, with the padding of the protocol",
        _payload_of,
        _size,
    )


@CASES.case("23.1.8", "10.10")
async def has_new_guids(stage: Stage) -> None:
    """Two messages have different GUIDs.

    Sends: nothing.
    Expects: different GUIDs.
    """
    line, queue = await stage.queue(write=True)
    stage.post(queue, b"one")
    stage.post(queue, b"two")
    one, two = await line.puts(2)
    if one.guid == two.guid:
        raise fail("different GUIDs", one.guid.hex())


@CASES.case("23.2.1", "12.6")
async def writes_new_properties(stage: Stage) -> None:
    """Properties are written in the new encoding for a broker that names it.

    Sends: a brokerResponse with MPS:MESSAGE_PROPERTIES_EX.
    Expects: a property area with schema id 1, and the properties.
    """
    line, queue = await stage.queue(write=True)
    stage.post(queue, b"x", {"region": "eu", "count": 7})
    (put,) = await line.puts()
    check(_read(put)[0], {"region": "eu", "count": 7}, "properties")


@CASES.case("23.2.2", "12.6")
async def writes_old_properties(stage: Stage) -> None:
    """Properties are written in the old encoding for a broker that does not name the new one.

    Sends: a brokerResponse without MPS:MESSAGE_PROPERTIES_EX.
    Expects: a property area with schema id 0, and the properties.
    """
    line, queue = await stage.queue(write=True, features="PROTOCOL_ENCODING:BER,JSON")
    stage.post(queue, b"x", {"region": "eu", "count": 7})
    (put,) = await line.puts()
    check(put.schema_id, 0, "schemaId")
    check(_read(put)[0], {"region": "eu", "count": 7}, "properties")


@CASES.case("23.3.1", "11.6")
async def matches_acknowledgements(stage: Stage) -> None:
    """Acknowledgements in another order reach their messages.

    Sends: acknowledgements of three messages in reverse order, the second one negative.
    Expects: the second call reports the failure.
    """
    line, queue = await stage.queue(write=True)
    calls = [stage.post(queue, b"%d" % number) for number in range(3)]
    puts = await line.puts(3)
    by_payload = {_read(put)[1]: put for put in puts}
    for number, status in ((2, 0), (1, 1), (0, 0)):
        line.acknowledge([by_payload[b"%d" % number]], status)
    answers = [await stage.answer(call) for call in calls]
    check([accepted(answer) for answer in answers], [True, False, True], "accepted")


_FAILED = "a failure of the call; the session goes on"


async def _status(stage: Stage, status: int) -> None:
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"x")
    line.acknowledge(await line.puts(), status)
    answer = await stage.answer(asked)
    check(accepted(answer), False, "accepted")
    await stage.alive(line, queue)


CASES.rows(_status, [
    ("23.3.2", "11.7", Level.MUST, "A message refused with status 1 (LIMIT_MESSAGES) is reported as not accepted", "1", _FAILED, 1),
    ("23.3.3", "11.7", Level.MUST, "A message refused with status 2 (LIMIT_BYTES) is reported as not accepted", "2", _FAILED, 2),
    ("23.3.4", "11.7", Level.MUST, "A message refused with status 5 (UNKNOWN) is reported as not accepted", "5", _FAILED, 5),
    ("23.3.5", "11.7", Level.MUST, "A message refused with status 6 (STORAGE_FAILURE) is reported as not accepted", "6", _FAILED, 6),
    ("23.3.6", "11.7", Level.SHOULD, "A message refused with status 13 (unknown) is reported as not accepted", "13", _FAILED, 13),
], sends="an acknowledgement with status {}")  # fmt: skip


@CASES.case("23.3.7", "2.5")
async def reads_many_acknowledgements(stage: Stage) -> None:
    """One event acknowledges many messages.

    Sends: one ACK event for 50 messages.
    Expects: success of all calls.
    """
    line, queue = await stage.queue(write=True)
    calls = [stage.post(queue, b"%d" % number) for number in range(50)]
    line.acknowledge(await line.puts(50))
    for call in calls:
        check(accepted(await stage.answer(call)), True, "accepted")


async def _unknown(stage: Stage, q_id: int | None) -> None:
    line, queue = await stage.queue(write=True)
    # A correlation id that the client has not sent; 0 for a client with GUIDs of its own.
    correlation_id = 4711 if line.legacy else 0
    line.send(encode_acks([(0, correlation_id, guid(99), queue.q_id if q_id is None else q_id)]))
    await stage.alive(line, queue)


CASES.rows(_unknown, [
    ("23.3.8", "11.8", Level.SHOULD, "An acknowledgement of an unknown message is ignored", "GUID", "the session goes on", None),
    ("23.3.11", "11.8", Level.SHOULD, "An acknowledgement of an unknown queue is ignored", "queue", "the session goes on", 4711),
], sends="an acknowledgement of a {} that the client does not know")  # fmt: skip


@CASES.case("23.3.9", "11.8")
async def ignores_a_second_acknowledgement(stage: Stage) -> None:
    """A second acknowledgement of a message is ignored.

    Sends: the same acknowledgement twice, the second time negative.
    Expects: success of the call; the session goes on.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"x")
    puts = await line.puts()
    line.acknowledge(puts)
    line.acknowledge(puts, 1)
    check(accepted(await stage.answer(asked)), True, "accepted")
    await stage.alive(line, queue)


@CASES.case("23.3.10", "11.9")
async def waits_for_the_acknowledgement(stage: Stage) -> None:
    """A message without an acknowledgement is not reported as accepted.

    Sends: nothing.
    Expects: no answer of the call.
    """
    line, queue = await stage.queue(write=True)
    asked = stage.post(queue, b"x")
    puts = await line.puts()
    await stage.alive(line, queue)
    check(asked.done(), False, "an answer before the acknowledgement:")
    line.acknowledge(puts)
    check(accepted(await stage.answer(asked)), True, "accepted")
