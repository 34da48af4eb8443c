# SPDX-License-Identifier: Apache-2.0
"""Each public coroutine can be cancelled: the session stays usable, and no message is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import bmq
from tests.fakes.broker import Peer
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"


async def cancel_after(turns: int, call: Awaitable[Any]) -> bool:
    """Cancel a call some turns of the loop after its start; return whether the call was cancelled."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    except (bmq.Error, StopAsyncIteration):
        return False
    return False


async def check_usable(peer: Peer, session: bmq.Session, queue: bmq.Queue) -> None:
    """Check that a session is usable."""
    peer.answer("OpenQueue", "ConfigureStream", "CloseQueue", "PUT")
    async with asyncio.timeout(20):
        await eventually(lambda: queue.state is bmq.QueueState.OPEN)
        ack = await queue.post(b"77")
        assert ack.status is bmq.AckStatus.SUCCESS
        for consumer in queue.consumers:
            if consumer._buffer is not queue._default:  # too late to cancel
                await consumer.close()
        receiving = asyncio.ensure_future(queue.receive())
        await eventually(lambda: queue.state is bmq.QueueState.OPEN and queue.consumers)
        peer.connection.push(88)
        assert (await receiving).data == b"88"
        await queue.configure(max_unconfirmed_messages=5)
        await queue.flush()
        for opened in session.queues:
            if opened is not queue:  # too late to cancel
                await opened.close()
        other = await session.open_queue(OTHER, read=True, default_subscription=True, write=True)
        await other.close()


async def _slow_items() -> AsyncIterator[bytes]:
    for number in range(3):
        yield b"%d" % number
    await asyncio.Event().wait()


Call = Callable[[bmq.Session, bmq.Queue], Awaitable[Any]]

#: Every waiting public coroutine, with the answers to be held back.
CALLS: dict[str, tuple[str, Call]] = {
    "open_queue, opening": (
        "OpenQueue",
        lambda s, _: s.open_queue(OTHER, read=True, default_subscription=True, write=True),
    ),
    "open_queue, configuring": (
        "ConfigureStream",
        lambda s, _: s.open_queue(OTHER, read=True, default_subscription=True, write=True),
    ),
    "post": ("PUT", lambda _, q: q.post(b"1")),
    "post with a deadline": ("PUT", lambda _, q: q.post(b"1", timeout=60)),
    "post_nowait": ("PUT", lambda _, q: q.post_nowait(b"1")),
    "post_many": ("PUT", lambda _, q: q.post_many([b"1", b"2"])),
    "post_many, waiting for items": ("", lambda _, q: q.post_many(_slow_items())),
    "flush": ("PUT", lambda _, q: _post_and(q, q.flush)),
    "receive": ("", lambda _, q: q.receive()),
    "receive with a deadline": ("", lambda _, q: q.receive(60)),
    "receive_many": ("", lambda _, q: q.receive_many()),
    "iteration": ("", lambda _, q: anext(aiter(q))),
    "batches": ("", lambda _, q: anext(q.batches())),
    "configure": ("ConfigureStream", lambda _, q: q.configure(priority=3)),
    "subscribe": ("ConfigureStream", lambda _, q: q.subscribe("x > 1").open()),
    "consumer.receive": ("ConfigureStream", lambda _, q: q.subscribe("x > 1").receive()),
    "consumer.wait": ("ConfigureStream", lambda _, q: q.subscribe("x > 1").wait()),
    "consumer.close": ("ConfigureStream", lambda _, q: _open_and_close(q)),
    "consumer.configure": ("ConfigureStream", lambda _, q: q._default.consumer.configure("x > 2")),  # type: ignore[union-attr]
    "events": ("", lambda s, _: anext(s.events())),
}


async def _post_and(queue: bmq.Queue, call: Callable[[], Awaitable[None]]) -> None:
    queue.post_nowait(b"1").add_done_callback(lambda future: future.cancelled() or future.exception())
    await call()


async def _open_and_close(queue: bmq.Queue) -> None:
    consumer = queue.subscribe("x > 9")
    queue._subscriptions.add(consumer._buffer)
    await consumer.close()


@pytest.mark.parametrize("name", CALLS)
@sweep("turns", [0, 1, 2, 3, 5, 8, 50])
async def test_a_session_works_after_a_cancellation(peer: Peer, name: str, turns: int) -> None:
    held, call = CALLS[name]
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        peer.hold = {held} - {""}
        await cancel_after(turns, call(session, queue))
        await check_usable(peer, session, queue)


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][0]])
@sweep("turns", range(12))
async def test_a_cancellation_in_the_middle_of_an_answer_is_harmless(
    peer: Peer, name: str, turns: int
) -> None:
    _, call = CALLS[name]
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        await cancel_after(turns, call(session, queue))  # the answer arrives during these turns
        await check_usable(peer, session, queue)


@pytest.mark.parametrize("held", ["clientIdentity", "authenticationRequest", ""])
@sweep("turns", range(0, 12, 2))
async def test_cancelled_connecting_leaves_no_connection(peer: Peer, held: str, turns: int) -> None:
    peer.hold = {held} - {""}
    connecting = bmq.connect(peer.uri, credentials=bmq.Credentials.anonymous())
    if not await cancel_after(turns, connecting.__aenter__()):
        await connecting.__aexit__(None, None, None)
    await eventually(lambda: all(connection.transport is None for connection in peer.connections))


async def test_open_can_be_repeated_at_once_after_a_cancellation_at_any_time(
    broker: bmq.broker.Broker,
) -> None:
    async with bmq.connect(broker.uri) as session:
        for turns in range(1, 41):
            opening = session.open_queue(URI, read=True, default_subscription=True, write=True)
            await cancel_after(turns, opening)
            for queue in session.queues:
                await queue.close()  # too late to cancel
            queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
            await queue.post(b"1")
            (await queue.receive()).confirm()
            await queue.close()


async def _directly(opening: Awaitable[bmq.Queue]) -> bmq.Queue:
    return await opening


async def _in_wait_for(opening: Awaitable[bmq.Queue]) -> bmq.Queue:
    return await asyncio.wait_for(opening, 60)


async def _in_another_task(opening: Awaitable[bmq.Queue]) -> bmq.Queue:
    return await asyncio.ensure_future(opening)


async def _gathered(opening: Awaitable[bmq.Queue]) -> bmq.Queue:
    return (await asyncio.gather(opening))[0]


@pytest.mark.parametrize("how", [_directly, _in_wait_for, _in_another_task, _gathered])
@sweep("turns", range(1, 20))
async def test_a_queue_can_be_opened_in_the_turn_in_which_its_opening_is_cancelled(
    broker: bmq.broker.Broker, how: Callable[[Awaitable[bmq.Queue]], Awaitable[bmq.Queue]], turns: int
) -> None:
    async with bmq.connect(broker.uri) as session:
        opened: list[bmq.Queue] = []

        async def opening() -> bmq.Queue:
            opened.append(await session.open_queue(URI, read=True, write=True))
            return opened[0]

        task = asyncio.ensure_future(how(opening()))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            return
        try:
            queue = await session.open_queue(URI, read=True, write=True)
        except bmq.StateError:
            # The call has returned: the waiter was cancelled too late.
            assert how is not _directly
            (queue,) = opened
        await queue.post(b"1")
        (await queue.receive()).confirm()
        assert session.queues == [queue]
        await asyncio.wait([task])


async def test_a_queue_that_is_being_opened_cannot_be_opened_again(broker: bmq.broker.Broker) -> None:
    async with bmq.connect(broker.uri) as session:
        first = asyncio.ensure_future(session.open_queue(URI, read=True))
        await asyncio.sleep(0)
        with pytest.raises(bmq.StateError, match="already open"):
            await session.open_queue(URI, read=True)
        assert session.queues == [await first]


@pytest.mark.parametrize("way", ["close begun", "close cancelled", "timed out"])
@sweep("turns", range(8))
async def test_a_queue_can_be_opened_while_its_earlier_opening_is_undone(
    broker: bmq.broker.Broker, way: str, turns: int
) -> None:
    async with bmq.connect(broker.uri) as session:
        if way.startswith("close"):
            queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
            task = asyncio.ensure_future(queue.close())
            await asyncio.sleep(0)
        else:
            timeout = 0 if way == "timed out" else None
            task = asyncio.ensure_future(session.open_queue(URI, read=True, timeout=timeout))
        for _ in range(turns):
            await asyncio.sleep(0)
        if way.endswith("cancelled"):
            task.cancel()
        again = await session.open_queue(URI, read=True, write=True)
        await asyncio.gather(task, return_exceptions=True)
        assert session.queues == [again]
        await again.post(b"1")


async def test_an_open_in_the_turn_of_a_timeout_is_independent(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bmq.connect(peer.uri) as session:
        peer.hold = {"OpenQueue"}
        again: list[asyncio.Task[bmq.Queue]] = []
        core = session._driver.core
        tick = core.tick

        def tick_and_open(now: float) -> None:
            tick(now)
            if not again and any(queue.state is bmq.QueueState.OVERDUE for queue in session._driver.queues):
                again.append(asyncio.ensure_future(session.open_queue(URI, write=True)))

        monkeypatch.setattr(core, "tick", tick_and_open)
        with pytest.raises(bmq.RequestTimeout):
            await session.open_queue(URI, write=True, timeout=0.01)
        await eventually(lambda: again)
        peer.answer("OpenQueue")
        queue = await again[0]
        assert session.queues == [queue]
        await queue.post(b"1")


@pytest.mark.parametrize("turns", range(6))
async def test_waiting_for_room_can_be_cancelled(peer: Peer, turns: int) -> None:
    async with bmq.connect(peer.uri, max_unacked_messages=2) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold = {"PUT"}
        pending = [queue.post_nowait(b"%d" % n) for n in range(2)]
        assert await cancel_after(turns, queue.post(b"5"))
        waiting = [asyncio.ensure_future(queue.post(b"%d" % n)) for n in range(10, 14)]
        await asyncio.sleep(0)
        waiting.pop(1).cancel()
        peer.answer("PUT")
        async with asyncio.timeout(20):
            await asyncio.gather(*pending, *waiting)
        assert peer.posted == [0, 1, 10, 12, 13]


async def test_post_cancelled_after_acceptance_stays_posted(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        peer.hold = {"PUT"}
        assert await cancel_after(2, queue.post(b"1"))
        assert queue.unacked == 1
        peer.answer("PUT")
        await queue.flush()
        assert peer.posted == [1]


@sweep("turns", range(10))
async def test_receives_are_atomic(peer: Peer, turns: int) -> None:
    """A cancelled receiver either has the message, or leaves the message in line."""
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        got: list[bytes] = []

        async def take() -> None:
            got.append((await queue.receive(timeout=60)).data)

        for number in range(5):
            task = asyncio.ensure_future(take())
            other = asyncio.ensure_future(take())
            await asyncio.sleep(0)
            peer.connection.push(number)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if task.cancelled():
                async with asyncio.timeout(20):
                    await other  # the receiver was woken instead
            else:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
        assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]


async def test_receive_timeout_loses_no_message(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await queue.receive(timeout=0)
        peer.connection.push(1)
        assert (await queue.receive(timeout=20)).data == b"1"
        with pytest.raises(TimeoutError):
            await queue.receive_many(timeout=0.001)


async def test_tasks_cancelled_from_outside_hang_no_caller(peer: Peer) -> None:
    """Some libraries cancel all tasks of asyncio.all_tasks()."""
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    tasks = [asyncio.ensure_future(each) for each in (queue.receive(), queue.post(b"1"), queue.flush())]
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await check_usable(peer, session, queue)
    await session.close()


async def test_a_cancellation_is_raised_unchanged(peer: Peer) -> None:
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
        peer.hold = {"PUT", "OpenQueue"}
        for call in (
            queue.receive(timeout=60),
            queue.post(b"1", timeout=60),
            queue.flush(timeout=60),
            session.open_queue(OTHER, write=True, timeout=60),
        ):
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0)  # the call waits now
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        peer.answer("PUT", "OpenQueue")


async def test_posts_without_outcome_in_time_are_named(peer: Peer) -> None:
    peer.hold.add("PUT")
    async with bmq.connect(peer.uri) as session:
        queue = await session.open_queue(URI, write=True)
        with pytest.raises(bmq.TimedOut, match=f"a post to {URI} had no outcome within 0.01 s"):
            await queue.post(b"1", timeout=0.01)
        with pytest.raises(bmq.TimedOut, match=f"posts to {URI} had no outcome within 0.01 s"):
            await queue.flush(timeout=0.01)
        peer.answer("PUT")
