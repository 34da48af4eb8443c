# SPDX-License-Identifier: Apache-2.0
"""The official client uses bmq's extensions through the properties of the conventions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import bmq
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from tests.integration.official.conftest import TIMEOUT, Client, StillBroker
from tests.waiting import eventually

Connect = Callable[..., Client]
NewUri = Callable[[str], str]

PRIORITY = "bmq.test.mem.priority"


def test_delayed_messages_are_exchanged_with_the_official_client(
    broker: StillBroker, connect: Connect, new_uri: NewUri
) -> None:
    uri, official = new_uri(PRIORITY), connect()
    official.session.open_queue(uri, read=True)
    official.session.open_queue(delay_queue_of(uri), write=True)
    due = round(time.time() * 1000) + 500
    by_hand = {"bmq_due": due, "bmq_destination": uri, "CustomerId": 7}
    official.post(delay_queue_of(uri), b"by hand", properties=by_hand)

    async def move() -> None:
        async with asyncio.timeout(TIMEOUT), bmq.connect(broker.uri) as session:
            queue = await session.open_queue(uri, write=True)
            await queue.post(b"ours", properties={"CustomerId": 8}, delay=0.2)
            waiting = await session.open_queue(delay_queue_of(uri), read=True, default_subscription=False)
            mover = Mover(waiting)
            moving = asyncio.create_task(mover.run())
            await eventually(lambda: mover.moved == 2, TIMEOUT)
            assert time.time() * 1000 >= due
            moving.cancel()

    asyncio.run(move())
    theirs, ours = sorted(official.take(2), key=lambda message: message.data)
    assert (theirs.data, ours.data) == (b"by hand", b"ours")
    assert theirs.properties == {"bmq_due": due, "CustomerId": 7}
    assert ours.properties["CustomerId"] == 8


def test_official_client_answers_requests(broker: StillBroker, connect: Connect, new_uri: NewUri) -> None:
    uri, official = new_uri(PRIORITY), connect()
    official.session.open_queue(uri, read=True)

    async def ask() -> list[bytes]:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue(uri, write=True)
            asked = [asyncio.create_task(queue.request(data, timeout=TIMEOUT)) for data in (b"a", b"b")]
            return [reply.data for reply in await asyncio.gather(*asked)]

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(asyncio.run, ask())
        requests = official.take(2)
        (reply_to,) = {str(request.properties["bmq_reply_to"]) for request in requests}
        official.session.open_queue(reply_to, write=True)
        for request in requests:
            answer = {"bmq_request": request.guid.hex().upper()}
            official.post(reply_to, request.data.upper(), properties=answer)
        assert asking.result(TIMEOUT) == [b"A", b"B"]


def test_official_client_sends_requests(broker: StillBroker, connect: Connect, new_uri: NewUri) -> None:
    uri, replies, official = new_uri(PRIORITY), new_uri(PRIORITY), connect()
    official.session.open_queue(uri, write=True)
    official.session.open_queue(replies, read=True)
    app = bmq.App(broker.uri)

    @app.responder(uri)
    async def upper(message: bmq.Message) -> bytes:
        if not message.data.isalpha():
            raise ValueError("no letters")
        return message.data.upper()

    async def serve() -> None:
        serving = asyncio.create_task(app.run(signals=False))
        both = await asyncio.to_thread(official.take, 2)
        app.stop()
        await serving
        good, bad = sorted(both, key=lambda reply: "bmq_error" in reply.properties)
        assert good.data == b"A"
        assert bad.properties["bmq_error"] == "ValueError: no letters"
        assert len(str(good.properties["bmq_request"])) == 32

    for data in (b"a", b"1"):
        official.post(uri, data, properties={"bmq_reply_to": replies})
    asyncio.run(serve())


def bucket(key: bytes) -> int:
    """CRC-32C bit by bit, as RFC 3720 has it, without the highest bit."""
    crc = 0xFFFFFFFF
    for byte in key:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0x7FFFFFFF


def test_official_client_posts_with_a_bucket(broker: StillBroker, connect: Connect, new_uri: NewUri) -> None:
    """Messages of one key reach one member in order, from any producer."""
    uri, official = new_uri(PRIORITY), connect()
    official.session.open_queue(uri, write=True)
    keys = [f"order-{number}" for number in range(40)]

    async def consume() -> dict[str, list[tuple[str, bytes]]]:
        got: dict[str, list[tuple[str, bytes]]] = {key: [] for key in keys}
        async with asyncio.timeout(TIMEOUT), bmq.connect(broker.uri) as one, bmq.connect(broker.uri) as two:
            groups = [
                (await session.open_queue(uri, read=True)).group(member=name, buckets=8)
                for session, name in ((one, "a"), (two, "b"))
            ]

            async def member(group: bmq.groups.Group) -> None:
                async for message in group:
                    key = str(message.properties["key"])
                    assert group.bucket_of(message) == bucket(key.encode()) % 8
                    got[key].append((group.member, message.data))
                    message.confirm()

            for group in groups:
                await group.open()
            tasks = [asyncio.create_task(member(group)) for group in groups]
            await eventually(lambda: [len(group.owned) for group in groups] == [4, 4], TIMEOUT)
            for data in (b"1", b"2", b"3"):
                for key in keys:
                    by_hand = {"key": key, "bmq_bucket": bucket(key.encode())}
                    official.post(uri, data, properties=by_hand)
            ours = await one.open_output(uri)
            await asyncio.to_thread(official.statuses, 3 * len(keys))
            for key in keys:
                await ours.post(b"4", properties={"key": key}, key=key)
            await eventually(lambda: all(len(each) == 4 for each in got.values()), TIMEOUT)
            for group in groups:
                await group.close()
            await asyncio.gather(*tasks)
        return got

    got = asyncio.run(consume())
    assert {member for each in got.values() for member, _ in each} == {"a", "b"}
    for each in got.values():
        assert [data for _, data in each] == [b"1", b"2", b"3", b"4"]
        assert len({member for member, _ in each}) == 1
