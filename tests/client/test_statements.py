# SPDX-License-Identifier: Apache-2.0
"""Statements of the protocol's description about sessions, one by one: see docs/protocol/seeds.md."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import google_crc32c
import pytest

import bmq
from tests.extras import TABLES
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"


@pytest.mark.statement("4.1")
async def test_a_client_that_is_refused_closes_the_connection(peer: Peer) -> None:
    peer.refuse.add("clientIdentity")
    with pytest.raises(bmq.NegotiationError, match="go away") as caught:
        await bmq.connect(peer.uri, retry_first_connect=True)  # a refusal is not worth another attempt
    assert not caught.value.retryable
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


@pytest.mark.statement("7.1")
async def test_no_call_and_no_event_makes_the_thread_wait(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker, in the same thread, reads nothing: a write that waits for it would wait for ever."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, write=True, default_subscription=True)
        transport = peer.connection.transport
        assert transport is not None
        transport.pause_reading()
        posts = []
        while session.stats().write_buffer_bytes < 1 << 20:
            posts.append(queue.post_nowait(bytes(1 << 20)))
            await asyncio.sleep(0)
            assert len(posts) < 100, "what the kernel does not take waits in the session"
        # A caller of post() waits, and the loop turns: messages arrive and are confirmed meanwhile.
        waiting = asyncio.ensure_future(queue.post(bytes(1 << 20)))
        peer.connection.push(*range(100))
        for message in [await queue.receive() for _ in range(100)]:
            message.confirm()
        assert not waiting.done()
        transport.resume_reading()
        await asyncio.gather(waiting, *posts)
        await eventually(lambda: len(peer.connection.script.confirms) == 100)
    assert slept == []


@pytest.mark.statement("4.10")
async def test_each_post_has_a_guid_of_its_own_and_its_ack_is_found_by_that(peer: Peer) -> None:
    """Posts of every kind; the acknowledgements come in another order, and each has another outcome."""
    peer.hold.add("PUT")
    async with bmq.connect(peer.uri) as session, bmq.connect(peer.uri) as other:
        queue, another = [await each.open_queue(URI, write=True) for each in (session, other)]
        posts: list[asyncio.Future[bmq.Ack]] = [queue.post_nowait(b"0"), queue.post_nowait(b"1")]
        posts.append(asyncio.ensure_future(queue.post(b"2")))
        await eventually(lambda: len(peer.connections[0].script.puts) == 3)
        posts.append(asyncio.ensure_future(queue.post(b"3")))
        many = asyncio.ensure_future(queue.post_many([b"4", b"5"]))
        await eventually(lambda: len(peer.connections[0].script.puts) == 6)
        posts.append(another.post_nowait(b"6"))
        await eventually(lambda: len(peer.connections[1].script.puts) == 1)
        puts = [*peer.connections[0].script.puts, *peer.connections[1].script.puts]
        by_data = {put.data: put for put in puts}
        guids = [put.guid for put in puts]
        assert len(set(guids)) == len(guids) == 7
        first, second = peer.connections
        refused = bmq.AckStatus.LIMIT_MESSAGES
        for data in (b"5", b"1", b"3"):
            first.send(first.script.ack([by_data[data]]))
        first.send(first.script.ack([by_data[b"0"], by_data[b"4"]], refused))
        for done in (posts[1], posts[3]):
            assert (await done).status is bmq.AckStatus.SUCCESS
        report = await many
        assert [each.error.guid for each in report.failures] == [by_data[b"4"].guid.hex().upper()]
        with pytest.raises(bmq.PostError, match="LIMIT_MESSAGES") as caught:
            await posts[0]
        assert caught.value.guid == by_data[b"0"].guid.hex().upper()
        assert not posts[2].done()
        assert (await posts[1]).guid == by_data[b"1"].guid.hex().upper()
        assert (await posts[3]).guid == by_data[b"3"].guid.hex().upper()
        # An acknowledgement of another session's post is nobody's here.
        first.send(first.script.ack([by_data[b"6"]]))
        first.send(first.script.ack([by_data[b"2"]]))
        await posts[2]
        assert not posts[4].done()
        second.send(second.script.ack([by_data[b"6"]]))
        await posts[4]


def _rows(count: int, payload: bytes, properties: dict[str, Any]) -> object:
    import pyarrow

    return pyarrow.table({name: [each] * count for name, each in {"value": payload, **properties}.items()})


@pytest.mark.parametrize("compression", [bmq.Compression.NONE, bmq.Compression.ZLIB])
@pytest.mark.statement("3.7")
async def test_every_way_to_post_sends_the_crc_of_the_bytes_that_travel(
    peer: Peer, compression: bmq.Compression
) -> None:
    """A single post, the posts of a turn, of a list and of a table are encoded in ways of their own."""
    async with bmq.connect(peer.uri, compression=compression) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold.add("PUT")  # the posts stay to be looked at
        payload = b"z" * 5000
        posts: list[asyncio.Future[Any]] = []
        puts = peer.connection.script.puts
        for given in (None, {"x": 1, "name": "n" * 100}):
            posts.append(asyncio.ensure_future(queue.post(payload, properties=given)))
            await eventually(lambda: len(puts) % 11 == 1)
            posts += [queue.post_nowait(payload, properties=given) for _ in range(3)]
            posts.append(asyncio.ensure_future(queue.post_many([bmq.PutMessage(payload, given)] * 3)))
            if TABLES:
                posts.append(
                    asyncio.ensure_future(
                        queue.post_table(_rows(4, payload, given or {}), properties=list(given or {}))
                    )
                )
            else:
                posts += [queue.post_nowait(payload, properties=given) for _ in range(4)]
            await eventually(lambda: len(puts) % 11 == 0)
        assert len(puts) == 22
        for put in puts:
            assert put.crc == google_crc32c.value(put.data)
            assert put.compression == compression
            assert (len(put.data) < 1000) is (compression is bmq.Compression.ZLIB)
        assert len({put.data for put in puts}) == 2
        peer.answer("PUT")
        await asyncio.gather(*posts)


@pytest.mark.statement("7.6")
async def test_three_hundred_queues_are_opened_and_opened_again(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queues = [await session.open_queue(f"{URI}{n}", write=True) for n in range(300)]
        peer.cut()
        await eventually(lambda: len(peer.connections) == 2 and peer.log.count("OpenQueue") == 300)
        acks = await asyncio.gather(*(queue.post_nowait(b"%d" % n) for n, queue in enumerate(queues)))
        assert {ack.status for ack in acks} == {bmq.AckStatus.SUCCESS}
        assert sorted(peer.posted) == list(range(300))


@pytest.mark.statement("4.31")
async def test_posts_without_a_connection_are_sent_later(peer: Peer) -> None:
    async with bmq.connect(peer.uri, reconnect_delays=lambda: itertools.repeat(0.0)) as session:
        queue = await session.open_queue(URI, write=True)
        for _ in range(3):
            await queue.post(b"one at a time")
        peer.hold.add("clientIdentity")
        peer.cut()
        await eventually(lambda: session.state is not bmq.SessionState.STARTED)
        later = queue.post_nowait(b"later")
        await eventually(lambda: len(peer.connections) > 1 and peer.connection.script.identity)
        assert not later.done()
        peer.answer("clientIdentity")
        await later
    assert len(peer.posted) == 4


async def test_connect_to_first_ack_takes_three_round_trips(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        await queue.post(b"first")
        assert peer.log == ["clientIdentity", "OpenQueue", "PUT"]
    assert peer.log[3:] == ["CloseQueue", "Disconnect"]
