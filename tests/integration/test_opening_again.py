# SPDX-License-Identifier: Apache-2.0
"""A timed-out open is retried on the same connection, whatever the fate of the first request."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import Direction, FaultProxy
from tests.integration.steps import TIMEOUT, Connect, NewUri, left_in, payloads, take


async def time_out(session: bmq.Session, uri: str) -> None:
    with pytest.raises(bmq.RequestTimeout) as caught:
        await session.open_queue(uri, read=True, timeout=0.2)
    assert caught.value.retryable


async def test_lost_answer_leaves_no_state(
    bmq_proxy: FaultProxy, bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    """The broker has then opened the queue twice; the last close ends both."""
    session, other = await bmq_connect(), await bmq_connect()
    bmq_proxy.swallow(Direction.TO_CLIENT)
    await time_out(session, bmq_queue_uri)
    bmq_proxy.heal()
    queue = await session.open_queue(bmq_queue_uri, read=True, timeout=TIMEOUT)
    writer = await other.open_queue(bmq_queue_uri, write=True)
    await writer.post(b"a")
    await take(queue, 1)
    await queue.close()
    assert await left_in(bmq_connect, bmq_queue_uri) == [b"a"]
    assert session.stats().reconnects == 0


async def test_late_answers_open_the_queue_once(
    bmq_proxy: FaultProxy, bmq_connect: Connect, bmq_new_queue_uri: NewUri
) -> None:
    """Two requests are answered late; one close then returns unconfirmed messages to others.

    The session still reads another application of the queue.
    """
    uri = bmq_new_queue_uri("bmq.test.mem.fanout")
    session, other = await bmq_connect(), await bmq_connect()
    writer = await other.open_queue(uri, write=True)
    await session.open_queue(f"{uri}?id=bar", read=True)
    bmq_proxy.stall(Direction.TO_BROKER)
    # All sessions use the proxy, so the second session waits, too.
    await time_out(session, f"{uri}?id=foo")
    again = asyncio.create_task(session.open_queue(f"{uri}?id=foo", read=True, timeout=TIMEOUT))
    posting = asyncio.create_task(writer.post(b"a"))
    await asyncio.sleep(0)
    bmq_proxy.heal()
    queue = await again
    await posting
    assert (await queue.receive(TIMEOUT)).data == b"a"
    # After the answer to another request, the broker has sent all returned messages.
    await (await session.open_queue(f"{uri}?id=baz", read=True)).close()
    await queue.close()
    elsewhere = await other.open_queue(f"{uri}?id=foo", read=True)
    assert await payloads(elsewhere, 1) == [b"a"]
    assert session.stats().reconnects == 0
