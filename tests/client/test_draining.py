# SPDX-License-Identifier: Apache-2.0
"""Messages that do not match a filter are confirmed by their properties alone."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

import bmq
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/drained"
PAYLOAD = bytes(30_000_000)


async def test_discarded_messages_are_not_decompressed() -> None:
    uri = f"{URI}-inflated"
    async with (
        bmq.broker.Broker(port=0) as broker,
        bmq.connect(broker.uri, compression=bmq.Compression.ZLIB) as producing,
        bmq.connect(broker.uri) as consuming,
    ):
        producer = await producing.open_queue(uri, write=True)
        for _ in range(3):
            await producer.post(PAYLOAD, properties={"x": 2})
        await producer.post(b"last", properties={"x": 1})
        queue = await consuming.open_queue(uri, read=True)
        tracemalloc.start()
        try:
            async with queue.subscribe("exists(x) && x == 1", discard_unmatched=True) as consumer:
                assert (await consumer.receive(20)).data == b"last"
                await eventually(lambda: len(broker._node.queues[uri].store) == 1)
                assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


URGENT, LATE = bmq.TagFilter(any_of={"urgent"}), bmq.TagFilter(any_of={"late"})
CLASH = "would confirm each other's messages unseen"


@pytest.mark.parametrize("other", ["this session", "another session", "another thread"])
async def test_consumers_that_would_discard_the_messages_of_each_other_are_refused(
    broker: bmq.broker.Broker, other: str
) -> None:
    """Each would confirm what the other one wants, without a word."""
    uri = f"{URI}-by-two"
    async with bmq.connect(broker.uri) as session, bmq.connect(broker.uri) as second:
        queue = await session.open_queue(uri, read=True, write=True)
        theirs = queue if other == "this session" else await second.open_queue(uri, read=True)
        first = await queue.subscribe(URGENT, discard_unmatched=True)
        if other == "another thread":

            def subscribe() -> None:
                with bmq.blocking.connect(broker.uri) as blocking:
                    reader = blocking.open_queue(uri, read=True)
                    with reader.subscribe(LATE, discard_unmatched=True):
                        pass

            with pytest.raises(bmq.UsageError, match=CLASH):
                await asyncio.to_thread(subscribe)
            return
        with pytest.raises(bmq.UsageError, match=CLASH) as caught:
            await theirs.subscribe(LATE, discard_unmatched=True)
        assert "exists(t.urgent)" in str(caught.value)
        assert "exists(t.late)" in str(caught.value)
        # The same filter is the purpose of the option, and other applications and queues are apart.
        same = await theirs.subscribe(bmq.TagFilter(any_of=["urgent"]), discard_unmatched=True)
        async with await second.open_queue(f"{uri}-other", read=True) as apart:
            await apart.subscribe(LATE, discard_unmatched=True)
        with pytest.raises(bmq.UsageError, match=CLASH):
            await same.configure(LATE)
        await same.close()
        await first.close()
        async with theirs.subscribe(LATE, discard_unmatched=True) as late:
            await queue.post_many([bmq.PutMessage(b"x", tags=[tag]) for tag in ("late", "urgent", "late")])
            assert [message.tags for message in await late.receive_many(2, 20)] == [{"late"}] * 2


async def test_a_queue_with_consumers_that_would_discard_the_messages_of_each_other_is_not_opened(
    broker: bmq.broker.Broker,
) -> None:
    uri = f"{URI}-at-once"
    both = [bmq.Subscription(each, discard_unmatched=True) for each in (URGENT, LATE)]
    async with bmq.connect(broker.uri) as session:
        with pytest.raises(bmq.UsageError, match=CLASH):
            await session.open_queue(uri, read=True, subscriptions=both)
        queue = await session.open_queue(uri, read=True, subscriptions=both[1:])
        assert len(queue.consumers) == 1
