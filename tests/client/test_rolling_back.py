# SPDX-License-Identifier: Apache-2.0
"""A queue's subscriptions after a broker has refused a change."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.wire.control import ConfigureStream
from tests.fakes.broker import Peer
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


def asked(peer: Peer) -> list[list[str]]:
    """The expressions of each configureStream that is held."""
    return [
        [each.expression.text for each in request.body.stream_parameters.subscriptions]
        for request in peer.connection.script.requests
        if isinstance(request.body, ConfigureStream)
    ]


def refuse_what_is_held(peer: Peer) -> None:
    """Answer held requests with a failure; later requests are held again."""
    peer.refuse.add("ConfigureStream")
    peer.answer("ConfigureStream")
    peer.refuse.discard("ConfigureStream")
    peer.hold.add("ConfigureStream")


async def test_refusal_with_several_pending_changes_keeps_the_accepted_configuration(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        standing = await queue.subscribe("a > 1", priority=3)
        changed = await queue.subscribe("b > 1")
        before = [consumer.options for consumer in (standing, changed)]
        peer.hold.add("ConfigureStream")
        new = queue.subscribe("c > 1")
        changes = [
            asyncio.ensure_future(changed.configure(priority=7)),
            asyncio.ensure_future(new.open()),
        ]
        await eventually(lambda: asked(peer))
        changes.append(asyncio.ensure_future(standing.configure(max_unconfirmed_messages=5)))
        changes.append(asyncio.ensure_future(queue.subscribe("d > 1").open()))
        await asyncio.sleep(0)
        refuse_what_is_held(peer)
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [bmq.ConfigureQueueError] * 4
        assert queue.consumers == [standing, changed]
        assert [consumer.options for consumer in (standing, changed)] == before
        assert asked(peer) == []
        # So it is restored on the next connection.
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and asked(peer))
        assert asked(peer) == [["a > 1", "b > 1"]]
        peer.answer("ConfigureStream")
        await new.open()
        assert queue.consumers == [standing, changed, new]


async def test_a_consumer_closed_during_a_refusal_stays_closed(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True)
        standing = await queue.subscribe("a > 1")
        leaving = await queue.subscribe("b > 1")
        peer.hold.add("ConfigureStream")
        refused = asyncio.ensure_future(queue.subscribe("c > 1").open())
        await eventually(lambda: asked(peer))
        closing = asyncio.ensure_future(leaving.close())
        await asyncio.sleep(0)
        assert asked(peer) == [["a > 1", "b > 1", "c > 1"]]
        refuse_what_is_held(peer)
        with pytest.raises(bmq.ConfigureQueueError):
            await refused
        await closing
        assert queue.consumers == [standing]
        # The broker still has it: it is told.
        await eventually(lambda: asked(peer))
        assert asked(peer) == [["a > 1"]]
        peer.answer("ConfigureStream")
        await standing.configure(priority=2)
        assert queue.consumers == [standing]
