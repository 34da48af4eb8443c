# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a session, as callers see it during closing."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import FaultProxy
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


async def test_draining_session_accepts_posts_of_handlers_and_opens_no_queue(
    broker: bmq.broker.Broker,
) -> None:
    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1")
        async with await queue.receive(timeout=30):
            closing = asyncio.create_task(session.close())
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            with pytest.raises(bmq.SessionClosed, match="closing"):
                await session.open_queue(URI + "2", write=True)
            await queue.post(b"2")
        report = await closing
        assert report.clean
        assert session.state is bmq.SessionState.CLOSED
        with pytest.raises(bmq.SessionClosed):
            queue.post_nowait(b"3")


async def test_a_connection_that_is_lost_while_a_session_drains_is_restored(
    broker: bmq.broker.Broker,
) -> None:
    async with FaultProxy(broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True)
        await queue.post(b"1")
        async with await queue.receive(timeout=30):
            closing = asyncio.create_task(session.close())
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            proxy.cut()
            await eventually(lambda: session.state is bmq.SessionState.DRAINING_LOST)
            await eventually(lambda: session.state is bmq.SessionState.DRAINING)
            await queue.post(b"2")
        assert (await closing).clean


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_broadcast_queue_whose_subscription_fails_is_closed_again(
    peer: Peer, cancelled: bool
) -> None:
    peer.open_options = {"routing": 7}
    peer.hold.add("ConfigureStream")
    async with bmq.connect(peer.uri) as session:
        opening = asyncio.ensure_future(session.open_queue(URI, read=True))
        await eventually(lambda: peer.log.count("ConfigureStream") == 1)
        peer.answer("ConfigureStream")  # the stream of a reader without subscriptions
        peer.hold.add("ConfigureStream")
        await eventually(lambda: peer.log.count("ConfigureStream") == 2)
        assert not opening.done()
        if cancelled:
            opening.cancel()
        else:
            peer.refuse.add("ConfigureStream")
        peer.answer("ConfigureStream")
        with pytest.raises(asyncio.CancelledError if cancelled else bmq.ConfigureQueueError):
            await opening
        peer.refuse.clear()
        peer.answer("ConfigureStream")
        queue = await session.open_queue(URI, read=True)
        assert peer.log.count("CloseQueue") == 1
        peer.connection.push(1)
        assert (await queue.receive()).data == b"1"
