# SPDX-License-Identifier: Apache-2.0
"""Statements of the protocol's description about sessions, one by one: see docs/protocol/seeds.md."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import google_crc32c
import pytest

import bmq
from tests.client.bench import URI, opened
from tests.extras import TABLES
from tests.fakes.broker import Peer, guid
from tests.waiting import eventually


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
    async with opened(peer, write=True) as (_, queue):
        acks = [await queue.post(b"%d" % n) for n in range(3)]
        identity = peer.connection.script.identity
        assert identity is not None
        assert {ack.guid[-12:] for ack in acks} == {identity.guid_info.client_id.upper()}


@pytest.mark.statement("3.16", "4.25", "4.26")
async def test_many_posts_and_many_confirmations_of_one_turn_are_one_event_each(peer: Peer) -> None:
    async with opened(peer, read=True, write=True, default_subscription=True) as (_, queue):
        posts = [queue.post_nowait(b"%d" % n) for n in range(1000)]
        assert not any(post.done() for post in posts)
        await asyncio.gather(*posts)
        assert peer.posted == list(range(1000))
        peer.connection.push(*range(500))
        for message in [await queue.receive() for _ in range(500)]:
            message.confirm()
        await eventually(lambda: "CONFIRM" in peer.log)
        assert [each.guid for each in peer.connection.script.confirms] == [guid(n) for n in range(500)]
        assert (peer.log.count("PUT"), peer.log.count("CONFIRM")) == (1, 1)


@pytest.mark.statement("4.27")
async def test_a_callback_receives_the_acknowledgement(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with opened(peer, write=True) as (_, queue):
        heard: list[bmq.AckStatus] = []
        post = queue.post_nowait(b"1")
        post.add_done_callback(lambda done: heard.append(done.result().status))
        await eventually(lambda: peer.connection.script.puts)
        assert heard == []
        peer.answer("PUT")
        await eventually(lambda: heard)
        assert heard == [bmq.AckStatus.SUCCESS]


@pytest.mark.statement("7.1")
async def test_no_call_or_event_makes_the_thread_wait(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker, in the same thread, reads nothing: a write that waits for it would wait for ever."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    async with opened(peer, read=True, write=True, default_subscription=True) as (session, queue):
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


def _rows(count: int, payload: bytes, properties: dict[str, Any]) -> object:
    import pyarrow

    return pyarrow.table({name: [each] * count for name, each in {"value": payload, **properties}.items()})


@pytest.mark.parametrize("compression", [bmq.Compression.NONE, bmq.Compression.ZLIB])
@pytest.mark.statement("3.7")
async def test_every_way_to_post_sends_the_crc_of_its_bytes(peer: Peer, compression: bmq.Compression) -> None:
    """A single post, the posts of a turn, of a list and of a table are encoded in ways of their own."""
    async with opened(peer, write=True, compression=compression) as (_, queue):
        peer.hold.add("PUT")  # the posts stay to be looked at
        payload = b"z" * 5000
        puts = peer.connection.script.puts
        posts: list[asyncio.Future[Any]] = []

        async def begin(count: int, *some: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
            before = len(puts)
            posts.extend(map(asyncio.ensure_future, some))
            await eventually(lambda: len(puts) == before + count)

        for given in (None, {"x": 1, "name": "n" * 100}):
            await begin(1, queue.post(payload, properties=given))
            await begin(3, *(queue.post_nowait(payload, properties=given) for _ in range(3)))
            await begin(3, queue.post_many([bmq.PutMessage(payload, given)] * 3))
            if TABLES:
                table = _rows(4, payload, given or {})
                await begin(4, queue.post_table(table, properties=list(given or {})))
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
