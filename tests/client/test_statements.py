# SPDX-License-Identifier: Apache-2.0
"""Statements of the protocol's description about sessions, one by one: see docs/seeds.md."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


@pytest.mark.statement("4.1")
async def test_a_client_that_is_refused_closes_the_connection(peer: Peer) -> None:
    peer.refuse.add("clientIdentity")
    with pytest.raises(bmq.NegotiationError):
        await bmq.connect(peer.uri)
    assert peer.log == ["clientIdentity"]
    await eventually(lambda: peer.connection.transport is None)


@pytest.mark.statement("4.24")
async def test_guids_end_with_the_client_id_of_negotiation(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        acks = [await queue.post(b"%d" % n) for n in range(3)]
        identity = peer.connection.script.identity
        assert identity is not None
        assert {ack.guid[-12:] for ack in acks} == {identity.guid_info.client_id.upper()}


@pytest.mark.statement("3.16", "4.25")
async def test_a_thousand_posts_of_one_turn_are_one_event(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        posts = [queue.post_nowait(b"%d" % n) for n in range(1000)]
        assert not any(post.done() for post in posts)
        await asyncio.gather(*posts)
        assert peer.log.count("PUT") == 1
        assert peer.posted == list(range(1000))


@pytest.mark.statement("3.16", "4.26")
async def test_five_hundred_confirmations_of_one_turn_are_one_event(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        peer.connection.push(*range(500))
        for message in [await queue.receive() for _ in range(500)]:
            message.confirm()
        await eventually(lambda: "CONFIRM" in peer.log)
        assert [each.guid for each in peer.connection.script.confirms] == [guid(n) for n in range(500)]
        assert peer.log.count("CONFIRM") == 1


@pytest.mark.statement("4.27")
async def test_a_callback_receives_the_acknowledgement(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        heard: list[bmq.AckStatus] = []
        post = queue.post_nowait(b"1")
        post.add_done_callback(lambda done: heard.append(done.result().status))
        await eventually(lambda: peer.connection.script.puts)
        assert heard == []
        peer.answer("PUT")
        await eventually(lambda: heard)
        assert heard == [bmq.AckStatus.SUCCESS]


@pytest.mark.statement("4.28")
async def test_the_connection_ends_after_the_answer_to_disconnect(peer: Peer) -> None:
    peer.hold.add("Disconnect")
    session = await bmq.connect(peer.uri)
    closing = asyncio.create_task(session.close())
    await eventually(lambda: "Disconnect" in peer.log)
    assert peer.connection.transport is not None
    assert not closing.done()
    peer.answer("Disconnect")
    await closing
    await eventually(lambda: peer.connection.transport is None)
    assert peer.log[-1] == "Disconnect"


@pytest.mark.statement("7.1")
async def test_the_loop_turns_while_a_broker_does_not_answer(peer: Peer) -> None:
    peer.hold |= {"OpenQueue", "PUT"}
    async with bmq.connect(peer.uri) as session:
        opening = asyncio.create_task(session.open_queue(URI, write=True))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not opening.done()
        peer.answer("OpenQueue")
        post = (await opening).post_nowait(b"1")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not post.done()
        peer.answer("PUT")
        await post


@pytest.mark.statement("7.6")
async def test_three_hundred_queues_are_opened_and_opened_again(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queues = [await session.open_queue(f"{URI}{n}", write=True) for n in range(300)]
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and peer.log.count("OpenQueue") == 300)
        acks = await asyncio.gather(*(queue.post_nowait(b"%d" % n) for n, queue in enumerate(queues)))
        assert {ack.status for ack in acks} == {bmq.AckStatus.SUCCESS}
        assert sorted(peer.posted) == list(range(300))
