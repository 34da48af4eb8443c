# SPDX-License-Identifier: Apache-2.0
"""Delayed messages through a network gone wrong, and a broker that is killed."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack

import pytest

import bmq
from bmq.broker import Broker
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from bmq.testing import FaultProxy, History, check, fresh_queue_uri
from tests.integration import chaos

SEED = int(os.environ.get("BMQ_CHAOS_SEED", "7"))
SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "4"))
RATE = 200


async def test_no_message_is_lost_early_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two movers, one of which is replaced every second; all traffic passes a faulty proxy."""
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    uri = fresh_queue_uri("bmq.test.mem.priority", "delayed-chaos")
    history = History()
    shop, desk = history.process("shop"), history.process("desk")
    if broker is not None:
        await broker.start()
    target = named or (broker.uri if broker else "")

    async def produce(queue: bmq.Queue, until: float) -> None:
        number = 0
        async with asyncio.TaskGroup() as group:
            while time.time() < until or number <= RATE:  # a busy machine posts less
                group.create_task(queue.post(b"%d" % number, not_before=time.time() + number % 20 / 10))
                number += 1
                await asyncio.sleep(1 / RATE)

    async def consume(queue: bmq.Queue) -> None:
        async for message in queue:
            message.confirm()

    async def move(where: str, seconds: float | None) -> None:
        while True:
            try:
                await move_once(where, seconds)
            except bmq.Error as error:
                if not error.retryable:  # a broker that stops refuses to open queues
                    raise
                await asyncio.sleep(0.05)

    async def move_once(where: str, seconds: float | None) -> None:
        async with bmq.connect(where, disconnect_timeout=2) as session:
            queue = await session.open_queue(
                delay_queue_of(uri), read=True, default_subscription=False, timeout=chaos.DEADLINE
            )
            task = asyncio.create_task(Mover(queue, grace=0).run())
            try:
                await asyncio.wait([task], timeout=seconds)
            finally:
                task.cancel()
                await asyncio.wait([task])

    try:
        async with asyncio.timeout(2 * SECONDS + 2 * chaos.DEADLINE), AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy(target, seed=SEED))
            session = await stack.enter_async_context(
                bmq.connect(proxy.uri, interceptors=[shop], max_unacked_messages=50_000)
            )
            producer = await session.open_queue(uri, write=True)
            consumer = await stack.enter_async_context(bmq.connect(proxy.uri, interceptors=[desk]))
            reader = await consumer.open_queue(uri, read=True)
            tasks = [
                asyncio.create_task(each)
                for each in (consume(reader), move(proxy.uri, None), move(target, 1.0))
            ]
            steps = chaos.plan(SEED, SECONDS, restarts=broker is not None)
            producing = asyncio.create_task(produce(producer, time.time() + SECONDS))
            faults = await chaos.inject(steps, proxy, broker, history)
            await producing
            await chaos.everything_arrives(history)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            failures = [task.exception() for task in tasks if not task.cancelled()]
    finally:
        if broker is not None:
            await broker.stop()
    assert not any(failures), failures
    assert faults > 3
    verdict = check(history)
    assert verdict.delivered == verdict.posted > RATE
    assert not verdict.duplicates
