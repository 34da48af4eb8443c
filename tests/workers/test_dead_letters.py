# SPDX-License-Identifier: Apache-2.0
"""Dead letters of messages that cannot be posted unchanged, and the identity of dead letters."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import bmq
from bmq.wire.constants import Compression, PutFlags
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.put import encode_put
from bmq.workers import Failure
from tests.fakes.client import dial
from tests.workers.stage import Stage, consuming

Fresh = Callable[..., str]

PROVENANCE = {"bmq_dead_attempts", "bmq_dead_error", "bmq_dead_guid", "bmq_dead_queue"}


async def fail(message: bmq.Message) -> None:
    raise ValueError("no")


async def post_bytes(
    broker_uri: str,
    queue: str,
    data: bytes,
    flags: PutFlags = PutFlags.MESSAGE_PROPERTIES,
    zipped: bool = False,
) -> None:
    """Post application data unchanged, as no correct client would."""
    async with dial(broker_uri) as raw:
        await raw.negotiate()
        await raw.open(queue, write=True)
        compression = Compression.ZLIB if zipped else Compression.NONE
        schema = int(bool(flags))
        put = encode_put(
            0, secrets.token_bytes(16), data, PutFlags.ACK_REQUESTED | flags, schema, compression
        )
        raw.put_encoded(put)
        assert [ack.status for ack in await raw.acks(1)] == [0]


def encoded(properties: Mapping[str, PropertyInput], **renamed: str) -> bytes:
    """Encode properties, and replace names by illegal names of the same length."""
    area = encode_properties(properties, new=True)
    for name, other in renamed.items():
        assert len(name.encode()) == len(other.encode())
        area = area.replace(name.encode(), other.encode())
    return area


async def put_aside(stage: Stage, dead: bmq.Queue) -> bmq.Message:
    """Let a worker fail on all messages of the queue and on a later message; return the first dead letter."""
    await stage.post(b"behind")
    retry = bmq.NoRetry(bmq.DeadLetter(dead))
    async with consuming(stage.queue, fail, retry=retry, max_unconfirmed_messages=1):
        letter = await dead.receive(timeout=10)
        behind = await dead.receive(timeout=10)
    assert behind.data == b"behind"
    for message in (letter, behind):
        message.confirm()
    assert await stage.left() == []
    return letter


@pytest.fixture
async def dead(session: bmq.Session, fresh: Fresh) -> bmq.Queue:
    return await session.open_queue(fresh(), read=True, write=True)


@pytest.mark.parametrize("count", [251, 252, 255])
async def test_as_many_properties_as_a_message_can_have(stage: Stage, dead: bmq.Queue, count: int) -> None:
    properties = {f"p{n}": n for n in range(count)}
    await stage.queue.post(b"payload", properties=properties)
    letter = await put_aside(stage, dead)
    assert letter.data == b"payload"
    found: dict[str, Any] = {**letter.properties}
    rest = json.loads(found.pop("bmq_dead_properties", "[]"))
    assert len(letter.properties) <= 255
    assert set(found) >= PROVENANCE
    assert all(kind == "INT64" for _, kind, _ in rest)
    found.update((name, value) for name, _, value in rest)
    assert {name: value for name, value in found.items() if name not in PROVENANCE} == properties
    assert bool(rest) == (count > 251)


async def test_names_that_cannot_be_posted_are_kept_in_json(stage: Stage, dead: bmq.Queue) -> None:
    properties: dict[str, PropertyInput] = {"Aa": 1, "Bb": b"\0\xff", "Cc": "text", "fine": True}
    area = encoded(properties, Aa="_x", Bb="é", Cc="$$")
    await post_bytes(stage.broker_uri, stage.uri, area + b"payload")
    letter = await put_aside(stage, dead)
    assert letter.data == b"payload"
    assert letter.properties["fine"] is True
    assert set(letter.properties) == {"fine", "bmq_dead_properties", *PROVENANCE}
    assert json.loads(str(letter.properties["bmq_dead_properties"])) == [
        ["_x", "INT64", 1],
        ["é", "BINARY", base64.b64encode(b"\0\xff").decode()],
        ["$$", "STRING", "text"],
    ]


async def test_repeated_dead_letter_keeps_its_first_origin(stage: Stage, dead: bmq.Queue) -> None:
    first = {"bmq_dead_error": "OSError: first", "bmq_dead_attempts": 9, "OrderType": "EXPRESS"}
    await stage.queue.post(b"payload", properties=first)
    found = (await put_aside(stage, dead)).properties
    assert (found["bmq_dead_error"], found["bmq_dead_attempts"]) == ("ValueError: no", 1)
    assert found["OrderType"] == "EXPRESS"
    assert json.loads(str(found["bmq_dead_properties"])) == [
        ["bmq_dead_attempts", "INT64", 9],
        ["bmq_dead_error", "STRING", "OSError: first"],
    ]


async def test_a_letter_moved_to_its_queue_and_given_up_again_does_not_grow(
    stage: Stage, dead: bmq.Queue
) -> None:
    area = encoded({"Aa": 1, "fine": True}, Aa="_x")
    await post_bytes(stage.broker_uri, stage.uri, area + b"payload")
    retry = bmq.NoRetry(bmq.DeadLetter(dead))
    async with consuming(stage.queue, fail, retry=retry):
        letter = first = await dead.receive(timeout=10)
        for _ in range(3):
            await stage.queue.post(letter.data, properties=letter.properties.typed())
            letter = await dead.receive(timeout=10)
            assert letter.guid != first.guid
            assert (letter.data, dict(letter.properties)) == (b"payload", dict(first.properties))
        elsewhere = {**letter.properties.typed(), "bmq_dead_queue": dead.uri}
        await stage.queue.post(letter.data, properties=elsewhere)
        letter = await dead.receive(timeout=10)
    assert letter.properties["bmq_dead_queue"] == stage.uri
    assert dead.uri in str(letter.properties["bmq_dead_properties"]), "of another queue: nothing is lost"


@pytest.mark.parametrize(
    ("data", "zipped", "why"),
    [
        (encoded({"a": 1}) + b"no ZLIB", True, "not a zlib stream"),
        (encoded({"a": 1}), False, "the payload is empty"),
        (encoded({"Aa": bytes(800)}, Aa="_x") + b"payload", False, "exceed the limits"),
    ],
    ids=["compression", "no payload", "no room for more properties"],
)
async def test_unreadable_message_becomes_a_raw_dead_letter(
    stage: Stage, dead: bmq.Queue, monkeypatch: pytest.MonkeyPatch, data: bytes, zipped: bool, why: str
) -> None:
    monkeypatch.setattr("bmq.wire.properties.MAX_PROPERTIES_AREA", 1000)  # it is 64 MiB
    await post_bytes(stage.broker_uri, stage.uri, data, zipped=zipped)
    letter = await put_aside(stage, dead)
    assert letter.data == data
    assert set(letter.properties) == {"bmq_dead_raw", *PROVENANCE}
    assert why in str(letter.properties["bmq_dead_raw"])


async def test_message_with_invalid_properties_becomes_a_raw_dead_letter(fresh: Fresh) -> None:
    """A real broker drops such an event; the embedded broker and others may check less."""
    data, uri = b"\xff\0\0\x0a" + b"\xff" * 36, fresh()
    async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(uri, read=True, write=True, default_subscription=False)
        dead = await session.open_queue(fresh(), read=True, write=True)
        await post_bytes(broker.uri, uri, data)
        letter = await put_aside(Stage(queue, broker.uri), dead)
        assert letter.data == data
        assert letter.properties["bmq_dead_raw"]


async def test_long_error_is_truncated(stage: Stage, dead: bmq.Queue) -> None:
    talk = stage.failing(error=ValueError("x" * 5000))
    await stage.post(b"payload")
    async with consuming(stage.queue, talk, retry=bmq.NoRetry(bmq.DeadLetter(dead))):
        letter = await dead.receive(timeout=10)
    assert letter.properties["bmq_dead_error"] == "ValueError: " + "x" * 988
    letter.confirm()


async def test_messages_with_one_guid_are_several_dead_letters(
    session: bmq.Session, other_session: bmq.Session, fresh: Fresh, dead: bmq.Queue
) -> None:
    """A message in two applications, and messages of two queues."""
    guid, fanout, first, second = (
        secrets.token_hex(16).upper(),
        fresh("bmq.test.mem.fanout"),
        fresh(),
        fresh(),
    )
    for uri in (fanout, first, second):
        await (await other_session.open_queue(uri, write=True)).post(b"x", guid=guid)
    for uri in (f"{fanout}?id=foo", f"{fanout}?id=bar", first, second):
        queue = await session.open_queue(uri, read=True, default_subscription=False)
        async with consuming(queue, fail, retry=bmq.NoRetry(bmq.DeadLetter(dead))):
            letter = await dead.receive(timeout=10)
        letter.confirm()
        assert (letter.properties["bmq_dead_guid"], letter.properties["bmq_dead_queue"]) == (guid, uri)


async def test_the_same_message_put_aside_twice_is_one_dead_letter(
    session: bmq.Session, stage: Stage, dead: bmq.Queue
) -> None:
    letters = bmq.DeadLetter(dead)
    await stage.queue.post(b"x", properties={f"p{n}": n for n in range(255)})

    async def pause(seconds: float) -> None:
        raise AssertionError

    async with stage.queue.subscribe() as consumer:
        message = await consumer.receive()
        for attempt in (1, 2):
            await letters.post(Failure(message, ValueError("no"), attempt, None, "handler"), dead, pause)
        message.confirm()
    await dead.post(b"end")
    assert [(await dead.receive()).data for _ in range(2)] == [b"x", b"end"]
