# SPDX-License-Identifier: Apache-2.0
"""Requests and durable retries through a network gone wrong, and a broker that is killed."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import FaultProxy, fresh_queue_uri
from tests.integration import chaos

SEED = int(os.environ.get("BMQ_CHAOS_SEED", "11"))
SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "3"))
DOMAIN = "bmq.test.mem.priority"


@asynccontextmanager
async def disturbed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, asyncio.Task[object]]]:
    """A proxy's address, and what does the faults while the block runs."""
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    if broker is not None:
        await broker.start()
    try:
        target = named or (broker.uri if broker else "")
        async with asyncio.timeout(2 * SECONDS + 2 * chaos.DEADLINE), FaultProxy(target, seed=SEED) as proxy:
            steps = chaos.plan(SEED, SECONDS, restarts=broker is not None)
            yield proxy.uri, asyncio.create_task(chaos.inject(steps, proxy, broker))
    finally:
        if broker is not None:
            await broker.stop()


async def test_every_request_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with disturbed(monkeypatch) as (uri, faults):
        queue_uri = fresh_queue_uri(DOMAIN, "requests-chaos")
        app = bmq.App(uri)

        @app.responder(queue_uri, concurrency=5)
        async def double(message: bmq.Message) -> bytes:
            return b"%d" % (2 * int(message.data))

        serving = asyncio.create_task(app.run(signals=False))
        answered: list[int] = []
        async with bmq.connect(uri) as session:
            queue = await session.open_queue(queue_uri, write=True)

            async def ask(first: int) -> None:
                number = first
                while not faults.done():
                    reply = await queue.request(b"%d" % number, timeout=60)
                    assert reply.data == b"%d" % (2 * number)
                    answered.append(number)
                    number += 5
                    await asyncio.sleep(0.02)

            async with asyncio.TaskGroup() as group:
                for first in range(5):
                    group.create_task(ask(first))
        app.stop()
        await serving
        assert len(faults.result()) > 2  # type: ignore[arg-type]
    assert len(answered) == len(set(answered)) > 20


async def test_every_message_is_handled_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails twice, and comes back; what was handled twice was delivered twice by a lost connection."""
    async with disturbed(monkeypatch) as (uri, faults):
        queue_uri = fresh_queue_uri(DOMAIN, "retries-chaos")
        app = bmq.App(uri)
        handled: Counter[bytes] = Counter()
        count = 0
        posted = False
        complete = asyncio.Event()

        def complete_at_the_end() -> None:
            if posted and len(handled) == count:
                complete.set()

        @app.consumer(queue_uri, concurrency=5, retry=bmq.Backoff(0.3, retries=1000, durable=True))
        async def handle(message: bmq.Message) -> None:
            if message.properties.get("bmq_attempts", 0) < 2:  # type: ignore[operator]
                raise OSError("not now")
            handled[message.data] += 1
            complete_at_the_end()

        serving = asyncio.create_task(app.run(signals=False))
        async with bmq.connect(uri) as session:
            queue = await session.open_queue(queue_uri, write=True)
            while not faults.done():
                await queue.post(b"%d" % count)
                count += 1
                await asyncio.sleep(0.02)
            await queue.post(b"%d" % count)  # once the network is well
            count += 1
            posted = True
            complete_at_the_end()
            await asyncio.wait_for(complete.wait(), chaos.DEADLINE)
        app.stop()
        await serving
    assert len(handled) == count > 20
    assert sum(handled.values()) - count <= 0.05 * count
