# SPDX-License-Identifier: Apache-2.0
"""Posting and receiving: payloads, properties, compression, batches, order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

import bmq
from bmq import Compression, PropertyType, PropertyValue, PutMessage
from tests.integration.steps import TIMEOUT, Connect, NewUri, left_in, payloads, take

MIB = 1024 * 1024


@pytest.fixture
async def queue(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, read=True, write=True)


@pytest.mark.statement("1.27")
async def test_message_arrives_unchanged(queue: bmq.Queue, bmq_queue_uri: str) -> None:
    await queue.subscribe()  # before the first post: a broker marks messages that waited for a subscription
    ack = await queue.post(b"one coffee", properties={"OrderType": "EXPRESS"})
    (message,) = await take(queue.consumers[0], 1)
    assert message.data == b"one coffee"
    assert message.properties == {"OrderType": "EXPRESS"}
    assert message.guid == ack.guid
    assert message.queue_uri == ack.queue_uri == bmq_queue_uri
    assert ack.status is bmq.AckStatus.SUCCESS
    assert not message.redelivered


@pytest.mark.statement("4.12")
async def test_confirmed_messages_are_not_redelivered(
    queue: bmq.Queue, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    for payload in (b"confirmed", b"left"):
        await queue.post(payload)
    first, _ = await take(queue, 2)
    first.confirm()
    first.confirm()
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"left"]


async def test_a_message_as_a_context_is_confirmed_unless_the_block_fails(
    queue: bmq.Queue, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    for payload in (b"handled", b"failed"):
        await queue.post(payload)
    handled, failed = await take(queue, 2)
    async with handled:
        pass
    with pytest.raises(ZeroDivisionError):
        async with failed:
            _ = 1 / 0
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"failed"]


class TestPostMany:
    async def test_items_of_all_kinds_stay_in_order(self, queue: bmq.Queue) -> None:
        def item(number: int) -> bytes | PutMessage:
            data = b"%d" % number
            guid = number.to_bytes(16, "big").hex().upper() if number % 11 == 3 else None
            packed = bmq.Compression.ZLIB if number % 13 == 5 else None
            shapes: list[dict[str, Any]] = [
                {"n": number},
                {"s": "x" * (number % 9), "n": number},
                {"n": True},
            ]
            if number % 5 < 3:
                return PutMessage(data, shapes[number % 5], guid=guid, compression=packed)
            return PutMessage(data, guid=guid, tags=["odd"]) if number % 2 else data

        items = [item(number) for number in range(800)]
        report = await queue.post_many(items)
        assert (report.acknowledged, report.bytes) == (800, sum(len(b"%d" % n) for n in range(800)))
        received: list[bmq.Message] = []
        while len(received) < 800:
            async with await queue.receive_many(max_messages=300, timeout=TIMEOUT) as batch:
                assert 1 <= len(batch) <= 300
                for name in ("n", "s", "missing"):
                    assert batch.column(name) == [message.properties.get(name) for message in batch]
                received += batch
        for number, (item_, message) in enumerate(zip(items, received, strict=True)):
            assert message.data == b"%d" % number
            expected = item_ if isinstance(item_, PutMessage) else PutMessage(item_)
            assert message.tags == frozenset(expected.tags)
            assert {k: v for k, v in message.properties.items() if k != "t.odd"} == (
                expected.properties or {}
            )
            assert expected.guid in (None, message.guid)

    @pytest.mark.parametrize(
        "wrong",
        [
            PutMessage(b"x", {"n": 2**63}),
            PutMessage(b"x", {"n": 1.5}),  # type: ignore[dict-item]
            PutMessage(b""),
            PutMessage(bytes(33 * MIB), {"n": bytes(33 * MIB)}),
            "text",
        ],
    )
    async def test_items_before_an_illegal_item_are_posted(self, queue: bmq.Queue, wrong: Any) -> None:
        good = [PutMessage(b"%d" % number, {"n": number}) for number in range(5)]
        for _ in range(2):  # the second time the schema is known
            with pytest.raises(bmq.UsageError):
                await queue.post_many([*good, wrong, b"never"])
            assert await payloads(queue, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await queue.flush(timeout=TIMEOUT)
        assert queue.stats().posted == 10

    async def test_more_than_the_window_waits_instead_of_failing(
        self, bmq_connect: Connect, bmq_queue_uri: str
    ) -> None:
        session = await bmq_connect(max_unacked_messages=50)
        queue = await session.open_queue(bmq_queue_uri, read=True, write=True)

        async def items() -> AsyncIterator[bytes]:
            for number in range(1000):
                yield b"%d" % number

        report = await queue.post_many(items())
        assert report.acknowledged == 1000
        assert await payloads(queue, 1000) == [b"%d" % number for number in range(1000)]


async def test_a_full_window_is_an_error_of_post_nowait(bmq_connect: Connect, bmq_queue_uri: str) -> None:
    session = await bmq_connect(max_unacked_messages=10)
    queue = await session.open_queue(bmq_queue_uri, write=True)
    posts = [queue.post_nowait(b"x") for _ in range(10)]
    with pytest.raises(bmq.BufferFull, match="10 posts") as caught:
        queue.post_nowait(b"x")
    assert caught.value.retryable
    await asyncio.gather(*posts)
    await queue.post(b"x")


EVERY_TYPE = {
    "bool": PropertyValue(PropertyType.BOOL, True),
    "char": PropertyValue(PropertyType.CHAR, b"\x80"),
    "short": PropertyValue(PropertyType.SHORT, -(2**15)),
    "int32": PropertyValue(PropertyType.INT32, 2**31 - 1),
    "int64": PropertyValue(PropertyType.INT64, -(2**63)),
    "string": PropertyValue(PropertyType.STRING, "Grüße, 世界"),
    "binary": PropertyValue(PropertyType.BINARY, bytes(range(256))),
    "empty": PropertyValue(PropertyType.STRING, ""),
}


@pytest.mark.parametrize("size", [1, 1023, 1024, 100_000])
@pytest.mark.parametrize("compression", Compression)
async def test_every_property_type_with_and_without_compression(
    bmq_connect: Connect, bmq_queue_uri: str, compression: Compression, size: int
) -> None:
    session = await bmq_connect(compression=compression)
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True)
    payload = (b"compressible " * (size // 13 + 1))[:size]
    await queue.post(payload, properties=EVERY_TYPE)
    await queue.post(payload)
    typed, plain = await take(queue, 2)
    assert typed.data == plain.data == payload
    assert dict(typed.properties) == {name: value for name, (_, value) in EVERY_TYPE.items()}
    assert typed.property_types == {name: kind for name, (kind, _) in EVERY_TYPE.items()}
    assert dict(plain.properties) == {}


@pytest.mark.statement("3.13")
async def test_compression_is_chosen_for_a_post_a_queue_or_a_session(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    text = b"the same again and again " * 200
    zlib, none = bmq.Compression.ZLIB, bmq.Compression.NONE
    session = await bmq_connect(compression=none, compression_threshold=100, compression_level=9)
    queue = await session.open_queue(bmq_queue_uri, read=True, write=True, compression=zlib)
    await queue.post(text)
    await queue.post(text, compression=none)
    await queue.post(b"short" * 10)
    await queue.post_many([bmq.PutMessage(text, compression=none), bmq.PutMessage(text, {"x": 1})])
    messages = await take(queue, 5)
    assert [message.data == text for message in messages] == [True, True, False, True, True]
    assert [len(message.raw) < 500 for message in messages] == [True, False, True, False, True]
    assert messages[2].raw == b"short" * 10
    with pytest.raises(bmq.UsageError, match=r"compression must be one of bmq\.Compression"):
        queue.post_nowait(text, compression="zlib")  # type: ignore[arg-type]
    with pytest.raises(bmq.UsageError, match="compression_level must be an integer from -1 to 9, not 12"):
        await bmq_connect(compression_level=12)


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
@pytest.mark.statement("3.18")
async def test_large_payloads_arrive(queue: bmq.Queue, size: int) -> None:
    payload = Random(size).randbytes(size)
    await queue.post(payload, timeout=60)
    message = await queue.receive(timeout=60)
    assert hashlib.sha256(message.data).digest() == hashlib.sha256(payload).digest()
    message.confirm()


async def test_a_full_quota_refuses_posts_until_confirmations(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.small.priority")
    queue = await bmq_session.open_queue(uri, read=True, write=True)
    # A limit of 10 admits 11: the check comes before the message is added.
    report = await queue.post_many(b"x" for _ in range(14))
    assert (report.posted, report.acknowledged) == (14, 11)
    assert [failure.index for failure in report.failures] == [11, 12, 13]
    with pytest.raises(bmq.PostError):
        report.raise_for_failures()
    with pytest.raises(bmq.PostError, match="reached its limit of messages") as caught:
        await queue.post(b"x")
    assert caught.value.status is bmq.AckStatus.LIMIT_MESSAGES
    assert caught.value.retryable
    assert caught.value.queue_uri == uri
    await payloads(queue, 11)
    # Confirmations have no answer. An answered request was read behind the confirmations.
    await queue.configure(max_unconfirmed_messages=100)
    await queue.post(b"again")
