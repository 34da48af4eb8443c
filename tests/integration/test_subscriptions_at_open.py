# SPDX-License-Identifier: Apache-2.0
"""A queue that is opened with its subscriptions receives no unwanted messages."""

from __future__ import annotations

import pytest

import bmq
from bmq.subscriptions import P
from tests.integration.steps import Connect, is_quiet, payloads, take


@pytest.mark.statement("1.28")
async def test_each_subscription_has_its_consumer(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
    await writer.post_many(
        [bmq.PutMessage(b"%d" % n, {"x": n}) for n in (3, 1, 2, 1)] + [bmq.PutMessage(b"-", tags=["red"])]
    )
    queue = await bmq_session.open_queue(
        bmq_queue_uri,
        read=True,
        subscriptions=[
            "x == 1",
            P("x") == 2,
            bmq.Subscription("x == 3", priority=7, max_unconfirmed_messages=5),
            bmq.TagFilter(all_of=["red"]),
        ],
    )
    one, two, three, red = queue.consumers
    assert three.options.priority == 7
    assert three.options.max_unconfirmed_messages == 5
    assert one.options.priority == 0
    assert await payloads(one, 2) == [b"1", b"1"]
    assert await payloads(two, 1) == [b"2"]
    assert await payloads(three, 1) == [b"3"]
    assert await payloads(red, 1) == [b"-"]


async def test_a_consumer_of_open_queue_can_be_changed_and_closed(
    bmq_connect: Connect, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    writer = await (await bmq_connect()).open_queue(bmq_queue_uri, write=True)
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, subscriptions=["x == 1", "x == 2"])
    one, two = queue.consumers
    await one.configure("x == 3")
    await two.close()
    assert queue.consumers == [one]
    await writer.post_many([bmq.PutMessage(b"%d" % n, {"x": n}) for n in (1, 2, 3)])
    assert await payloads(one, 1) == [b"3"]
    assert await is_quiet(one)


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
