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
from bmq.testing import FaultProxy, History, check, fresh_queue_uri
from tests.integration import chaos

SEED = int(os.environ.get("BMQ_CHAOS_SEED", "11"))
SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "3"))
DOMAIN = "bmq.test.mem.priority"


@asynccontextmanager
async def disturbed(
    monkeypatch: pytest.MonkeyPatch, history: History
) -> AsyncIterator[tuple[str, asyncio.Task[int]]]:
    """A proxy's address, and the task that injects the faults while the block runs."""
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    if broker is not None:
        await broker.start()
    try:
        target = named or (broker.uri if broker else "")
        async with asyncio.timeout(2 * SECONDS + 2 * chaos.DEADLINE), FaultProxy(target, seed=SEED) as proxy:
            steps = chaos.plan(SEED, SECONDS, restarts=broker is not None)
            yield proxy.uri, asyncio.create_task(chaos.inject(steps, proxy, broker, history))
    finally:
        if broker is not None:
            await broker.stop()


async def test_every_request_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    desk, shop = history.process("desk"), history.process("shop")
    async with disturbed(monkeypatch, history) as (uri, faults):
        queue_uri = fresh_queue_uri(DOMAIN, "requests-chaos")
        app = bmq.App(uri, interceptors=[desk], on_event=desk.on_event)

        @app.responder(queue_uri, concurrency=5)
        async def double(message: bmq.Message) -> bytes:
            return b"%d" % (2 * int(message.data))

        serving = asyncio.create_task(app.run(signals=False))
        async with bmq.connect(uri, interceptors=[shop], on_event=shop.on_event) as session:
            queue = await session.open_queue(queue_uri, write=True)

            async def ask(first: int) -> None:
                number = first
                while not faults.done() or number < first + 25:  # a busy machine asks less
                    with shop.effect(f"ask {number}"):
                        reply = await queue.request(b"%d" % number, timeout=60)
                        assert reply.data == b"%d" % (2 * number)
                    number += 5
                    await asyncio.sleep(0.02)

            async with asyncio.TaskGroup() as group:
                for first in range(5):
                    group.create_task(ask(first))
            await chaos.everything_arrives(history)
        app.stop()
        await serving
        assert faults.result() > 2
    check(history)
    assert len(list(history.events(op="effect", type="ok"))) > 20


async def test_every_message_is_eventually_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails twice, and comes back; what was handled twice was delivered twice by a lost connection."""
    history = History()
    desk, shop = history.process("desk"), history.process("shop")
    async with disturbed(monkeypatch, history) as (uri, faults):
        queue_uri = fresh_queue_uri(DOMAIN, "retries-chaos")
        app = bmq.App(uri, interceptors=[desk], on_event=desk.on_event)

        @app.consumer(queue_uri, concurrency=5, retry=bmq.Backoff(0.3, retries=1000, durable=True))
        async def handle(message: bmq.Message) -> None:
            if message.properties.get("bmq_attempts", 0) < 2:  # type: ignore[operator]
                raise OSError("not now")

        serving = asyncio.create_task(app.run(signals=False))
        async with bmq.connect(uri, interceptors=[shop], on_event=shop.on_event) as session:
            queue = await session.open_queue(queue_uri, write=True)
            count = 0
            while not faults.done() or count < 20:
                await queue.post(b"%d" % count)
                count += 1
                await asyncio.sleep(0.02)
            await queue.post(b"%d" % count)  # once the network is well
            count += 1
            await chaos.everything_arrives(history)
        app.stop()
        await serving
    verdict = check(history)
    assert verdict.handled["ok"] >= count > 20
    delivered = Counter(event["message"] for event in history.events(op="deliver"))
    handled = Counter(event["message"] for event in history.events(op="handle", type="ok"))
    assert handled <= delivered
