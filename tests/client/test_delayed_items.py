# SPDX-License-Identifier: Apache-2.0
"""``post_many`` with messages that have a delay: they wait in the queue of delayed messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import bmq
from bmq.broker import Broker
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"


class Watching(bmq.Interceptor):
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def on_post(self, queue: bmq.Queue, posts: Sequence[bmq.interceptors.OutgoingMessage]) -> None:
        self.seen += [post.data for post in posts]


def items(count: int) -> Iterator[bytes | bmq.PutMessage]:
    for number in range(count):
        data = b"%d" % number
        yield bmq.PutMessage(data, {"n": number}, delay=3600.0) if number % 3 == 1 else data


async def as_they_come(count: int) -> AsyncIterator[bytes | bmq.PutMessage]:
    for item in items(count):
        yield item


@sweep("observed", [False, True])
@sweep("source", [items, as_they_come])
async def test_items_with_a_delay_wait_in_their_queue(source: Any, observed: bool) -> None:
    watching = Watching()
    async with (
        Broker() as broker,
        bmq.connect(broker.uri, interceptors=[watching] if observed else ()) as session,
    ):
        queue = await session.open_queue(URI, read=True, write=True)
        waiting = await session.open_queue(queue.delay_queue_uri, read=True)
        report = await queue.post_many(source(3000))
        assert (report.posted, report.acknowledged, report.failures) == (3000, 3000, [])
        due = [message async for message in _some(waiting, 1000)]
        assert [message.data for message in due] == [b"%d" % n for n in range(3000) if n % 3 == 1]
        assert {message.properties["bmq_destination"] for message in due} == {URI}
        assert due[0].properties["n"] == 1
        now = [message.data async for message in _some(queue, 2000)]
        assert now == [b"%d" % n for n in range(3000) if n % 3 != 1]
        assert len(watching.seen) == (3000 if observed else 0)


async def _some(queue: bmq.Queue, count: int) -> AsyncIterator[bmq.Message]:
    for _ in range(count):
        message = await queue.receive(20)
        message.confirm()
        yield message


async def test_illegal_delay_ends_the_call_and_preceding_items_are_posted() -> None:
    async with Broker() as broker, bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        with pytest.raises(bmq.UsageError, match="delay"):
            await queue.post_many([b"1", bmq.PutMessage(b"2", delay=-1.0), b"3"])
        message = await queue.receive(20)
        assert message.data == b"1"
        message.confirm()
        await queue.flush()
        assert queue.receive_nowait() is None
