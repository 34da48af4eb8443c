# SPDX-License-Identifier: Apache-2.0
"""The cost of waiting for outcomes and handlers does not grow with their number, in function calls."""

from __future__ import annotations

import asyncio

import bmq
from tests.fakes.broker import Peer
from tests.performance.server import counted
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/stuck"
OTHER = "bmq://bmq.test.mem.priority/other"


async def test_a_flush_waits_only_for_earlier_posts(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue, other = await session.open_queue(URI, write=True), await session.open_queue(OTHER, write=True)
        peer.hold = {"PUT"}
        pending = [queue.post_nowait(b"0"), other.post_nowait(b"1"), other.post_nowait(b"2")]
        first = asyncio.ensure_future(other.flush())
        await asyncio.sleep(0)
        pending.append(other.post_nowait(b"3"))
        second = asyncio.ensure_future(other.flush())
        script = (await eventually(lambda: len(peer.connection.script.puts) == 4 and peer.connection)).script
        # The acknowledgements come in another order than the posts.
        for number, done in ((3, (False, False)), (1, (False, False)), (2, (True, True))):
            [put] = [put for put in script.puts if int(put.data) == number]
            script.puts.remove(put)
            before = session.stats().acknowledged
            peer.connection.send(script.ack([put]))
            await eventually(lambda before=before: session.stats().acknowledged > before)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (first.done(), second.done()) == done
        peer.answer("PUT")
        await asyncio.gather(*pending, first, second)


async def test_many_tasks_flush_at_the_cost_of_each(peer: Peer) -> None:
    """While another queue has many posts in front that are not acknowledged."""
    costs: list[float] = []
    for count in (100, 400):
        async with bmq.connect(peer.uri) as session:
            stuck = await session.open_queue(URI, write=True)
            queue = await session.open_queue(OTHER, write=True)
            peer.hold = {"PUT"}
            pending = [stuck.post_nowait(b"0") for _ in range(count)]
            flushes: list[asyncio.Task[None]] = []
            for number in range(count):
                pending.append(queue.post_nowait(b"1%d" % number))
                flushes.append(asyncio.ensure_future(queue.flush()))
                await asyncio.sleep(0)
            script = peer.connection.script
            while len(script.puts) < 2 * count:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            puts = [put for put in script.puts if put.data != b"0"]
            script.puts[:] = [put for put in script.puts if put.data == b"0"]
            with counted(own=True) as counter:
                for put, flush in zip(puts, flushes, strict=True):
                    peer.connection.send(script.ack([put]))
                    await flush
            costs.append(counter.calls / count)
            assert stuck.unacked == count
            peer.answer("PUT")
            await asyncio.gather(*pending)
    assert costs[1] < costs[0] * 1.1
