# SPDX-License-Identifier: Apache-2.0
"""References to a session, and the end of unclosed sessions; one event loop for each test."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import bmq
from bmq.broker import Broker
from tests.client.bench import URI, opened
from tests.fakes.broker import Peer
from tests.waiting import eventually


async def test_a_referenced_queue_keeps_its_session(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    del session
    gc.collect()
    await queue.post(b"1")
    peer.connection.push(1)
    message = await queue.receive(timeout=20)
    del queue
    gc.collect()
    message.confirm()  # a message is enough
    await eventually(lambda: peer.connection.script.confirms)
    await message.consumer.queue.session.close()


async def test_a_task_that_waits_keeps_its_session(peer: Peer) -> None:
    async def work() -> bytes:
        session = await bmq.connect(peer.uri)
        queue = await session.open_queue(URI, read=True, default_subscription=True)
        data = (await queue.receive()).data
        await session.close()
        return data

    task = asyncio.ensure_future(work())
    await eventually(lambda: peer.connections and peer.connection.s_ids)
    gc.collect()
    peer.connection.push(7)
    assert await task == b"7"


@pytest.mark.statement("4.35")
async def test_closed_session_leaves_no_task_or_timer(peer: Peer) -> None:
    session = await bmq.connect(peer.uri)
    queue = await session.open_queue(URI, read=True, default_subscription=True, write=True)
    await queue.post(b"1")
    await session.close()
    connection = weakref.ref(session._connection)
    del session, queue
    gc.collect()
    assert connection() is None


def run(script: str) -> subprocess.CompletedProcess[str]:
    prelude = """
        import asyncio, bmq, sys
        from tests.fakes.broker import Peer
        from tests.waiting import eventually
        URI = "bmq://bmq.test.mem.priority/q"
        async def connect(hold=()):
            peer = Peer()
            await peer.start()
            peer.hold = set(hold)
            return peer, await bmq.connect(peer.uri)
    """
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", dedent(prelude) + dedent(script)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,  # a guard: a busy machine takes half a minute to start an interpreter
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("runner", ["asyncio.run", "bmq.run"])
def test_an_interpreter_with_an_open_session_ends_and_warns(runner: str) -> None:
    done = run(f"""
        async def main():
            global session, queue
            _, session = await connect()
            queue = await session.open_queue(URI, read=True, default_subscription=True)

        {runner}(main())
    """)
    assert "was never closed" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Task was destroyed" not in done.stderr


def test_a_closing_session_causes_no_resource_warning() -> None:
    done = run("""
        async def main():
            peer, session = await connect(["Disconnect"])
            closing = asyncio.ensure_future(session.close())
            await eventually(lambda: "Disconnect" in peer.log)

        asyncio.new_event_loop().run_until_complete(main())  # and nobody cancels what is left
    """)
    assert "was never closed" not in done.stderr


@pytest.mark.parametrize("runner", ["asyncio.run", "bmq.run"])
def test_leaving_the_loop_while_reconnecting_destroys_no_task(runner: str) -> None:
    done = run(f"""
        async def main():
            global session
            peer, session = await connect()
            queue = await session.open_queue(URI, write=True)
            await peer.stop()
            post = asyncio.ensure_future(queue.post(b"1"))
            await eventually(lambda: session.state is bmq.SessionState.RECONNECTING)

        {runner}(main())
        assert session.state is bmq.SessionState.CLOSED, session
    """)
    assert "Task was destroyed" not in done.stderr
    # bmq.run waits for the outcome of the post, which this program ignores.
    assert ("PostError" in done.stderr) is (runner == "bmq.run")
    assert ("1 posts without outcome" in done.stderr) is (runner == "bmq.run")


def test_an_unstarted_session_causes_no_warning() -> None:
    assert run("bmq.connect('tcp://localhost:1')").stderr == ""


def in_another_loop(call: Callable[[], Any]) -> None:

    async def main() -> None:
        result = call()
        if asyncio.iscoroutine(result) or asyncio.isfuture(result):
            await result

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, main()).result(timeout=60)


async def test_every_call_refuses_another_event_loop(peer: Peer) -> None:
    async with opened(peer, read=True, default_subscription=True, write=True) as (session, queue):
        peer.connection.push(1)
        message = await queue.receive(timeout=20)
        for call in (message.confirm, lambda: queue.post_nowait(b"1"), queue.receive_nowait):
            with pytest.raises(bmq.UsageError, match="call_soon_threadsafe"):
                await asyncio.to_thread(call)
        for call in (
            lambda: session.open_queue("bmq://bmq.test.mem.priority/other", read=True),
            session.close,
            lambda: queue.post(b"1"),
            lambda: queue.post_nowait(b"1"),
            lambda: queue.post_many([b"1"]),
            queue.flush,
            lambda: queue.configure(priority=1),
            lambda: queue.subscribe("x > 1").open(),
            queue.close,
            lambda: queue.receive(timeout=20),
            lambda: queue.receive_many(timeout=20),
            queue.receive_nowait,
            lambda: anext(aiter(queue)),
            lambda: anext(queue.batches()),
            lambda: queue.subscribe("x > 1").close(),
            message.__aenter__,
            message.confirm,
            lambda: session.set_trace(bmq.Trace.ON),
        ):
            for busy in (False, True):
                # Data is about to be sent in this turn, as usual in a busy program.
                pending = queue.post_nowait(b"2") if busy else None
                with pytest.raises(bmq.UsageError, match="belong to the event loop"):
                    in_another_loop(call)
                if pending is not None:
                    await pending
        # No call had an effect: no post was stored, no message taken or confirmed, no queue closed.
        assert queue.unacked == 0
        assert set(peer.posted) == {2}
        assert peer.connection.script.confirms == []
        peer.connection.push(2)
        assert (await queue.receive(timeout=20)).data == b"2"
        message.confirm()
        await eventually(lambda: len(peer.connection.script.confirms) == 1)


async def exchange(uri: str, thread: int) -> None:
    """Post messages whose properties have many schemas, and compare what arrives."""
    sent = [
        (b"%d of %d" % (n, thread), {f"p{n % 7}": n, "thread": thread, "text": "t" * (n % 5)})
        for n in range(100)
    ]
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(f"bmq://bmq.test.mem.priority/{thread}", read=True, write=True)
        for data, properties in sent:
            queue.post_nowait(data, properties=properties)
        for expected in sent:
            async with await queue.receive(timeout=20) as message:
                assert (message.data, dict(message.properties)) == expected


async def test_sessions_in_threads_exchange_messages_unharmed() -> None:
    async with Broker() as broker:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, exchange(broker.uri, n)) for n in range(4)))
