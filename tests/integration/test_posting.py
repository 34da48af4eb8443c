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


async def test_two_thousand_messages_stay_in_order(queue: bmq.Queue) -> None:
    posts = [queue.post_nowait(f"{number}".encode()) for number in range(2000)]
    acks = await asyncio.gather(*posts)
    assert len({ack.guid for ack in acks}) == 2000
    # With the default limit of 1,000 unconfirmed messages, this also tests confirmations in between.
    assert await payloads(queue, 2000) == [f"{number}".encode() for number in range(2000)]


async def test_flush_without_posts_returns_at_once(
    queue: bmq.Queue, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    other = await bmq_session.open_queue(bmq_new_queue_uri(), write=True)
    pending = other.post_nowait(b"of another queue")
    await queue.flush(timeout=0)
    assert queue.unacked == 0
    assert not pending.done()
    await other.flush(timeout=TIMEOUT)
    assert pending.done()


class TestPostMany:
    async def test_post_many_takes_an_async_iterable(self, queue: bmq.Queue) -> None:
        async def items() -> AsyncIterator[bytes]:
            for number in range(500):
                yield b"%d" % number

        report = await queue.post_many(items())
        assert report.acknowledged == 500
        assert await payloads(queue, 500) == [b"%d" % number for number in range(500)]

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
        for number, (item_, message) in enumerate(zip(items, await take(queue, 800), strict=True)):
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
        report = await queue.post_many(b"%d" % number for number in range(1000))
        assert report.acknowledged == 1000
        assert await payloads(queue, 1000) == [b"%d" % number for number in range(1000)]

    async def test_each_refused_item_is_reported(
        self, bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
    ) -> None:
        uri = bmq_new_queue_uri("bmq.test.small.priority")
        queue = await bmq_session.open_queue(uri, write=True)
        # A limit of 10 admits 11: the check comes before the message is added.
        report = await queue.post_many(b"x" for _ in range(14))
        assert (report.posted, report.acknowledged) == (14, 11)
        assert [failure.index for failure in report.failures] == [11, 12, 13]
        with pytest.raises(bmq.PostError) as caught:
            report.raise_for_failures()
        assert caught.value.status is bmq.AckStatus.LIMIT_MESSAGES


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


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("size", [1, 1023, 1024, 100_000])
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


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
@pytest.mark.statement("3.18")
async def test_large_payloads_arrive(queue: bmq.Queue, size: int) -> None:
    payload = Random(size).randbytes(size)
    await queue.post(payload, timeout=60)
    message = await queue.receive(timeout=60)
    assert hashlib.sha256(message.data).digest() == hashlib.sha256(payload).digest()
    message.confirm()


async def test_messages_are_received_in_batches(
    queue: bmq.Queue, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    await queue.post_many(b"%d" % number for number in range(100))
    received: list[bytes] = []
    while len(received) < 100:
        async with await queue.receive_many(max_messages=30, timeout=TIMEOUT) as batch:
            assert 1 <= len(batch) <= 30
            received += [message.data for message in batch]
    assert received == [b"%d" % number for number in range(100)]
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == []


async def test_a_property_of_a_batch(queue: bmq.Queue) -> None:
    def properties(number: int) -> dict[str, Any] | None:
        if number % 10 == 9:
            return None
        if number % 10 == 8:
            return {"kind": bmq.PropertyValue(bmq.PropertyType.SHORT, number)}
        return {"id": number, "kind": "k" * (number % 6), "express": number % 2 == 0}

    await queue.post_many(
        bmq.PutMessage(
            b"payload" * 1000,
            properties(number),
            compression=bmq.Compression.ZLIB if number % 7 == 0 else None,
        )
        for number in range(100)
    )
    received = 0
    while received < 100:
        async with await queue.receive_many(timeout=TIMEOUT) as batch:
            for name in ("id", "kind", "express", "missing"):
                assert batch.column(name) == [message.properties.get(name) for message in batch]
            numbers = range(received, received + len(batch))
            assert batch.column("id") == [None if number % 10 > 7 else number for number in numbers]
            received += len(batch)


async def test_a_full_quota_refuses_posts_until_confirmations(
    bmq_session: bmq.Session, bmq_new_queue_uri: NewUri
) -> None:
    uri = bmq_new_queue_uri("bmq.test.small.priority")
    queue = await bmq_session.open_queue(uri, read=True, write=True)
    for _ in range(11):
        await queue.post(b"x")
    with pytest.raises(bmq.PostError, match="reached its limit of messages") as caught:
        await queue.post(b"x")
    assert caught.value.status is bmq.AckStatus.LIMIT_MESSAGES
    assert caught.value.retryable
    assert caught.value.queue_uri == uri
    await payloads(queue, 11)
    # Confirmations have no answer. An answered request was read behind the confirmations.
    await queue.configure(max_unconfirmed_messages=100)
    await queue.post(b"again")
