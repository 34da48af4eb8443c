# SPDX-License-Identifier: Apache-2.0
"""Programs whose network and broker fail at random: messages, delays, requests and durable retries.

``BMQ_CHAOS_SECONDS`` is the time of each run with faults (5), ``BMQ_CHAOS_SEED`` the seed of their schedule.
Every run prints its seed, and the same seed makes the same schedule.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

import bmq
from bmq.broker import Broker
from bmq.conventions import delay_queue_of
from bmq.delays import Mover
from bmq.testing import FaultProxy, History, Verdict, examine, fresh_queue_uri
from tests.integration import chaos

SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "5"))
CHOSEN = os.environ.get("BMQ_CHAOS_SEED")
SEED = int(CHOSEN or secrets.randbelow(1_000_000))
REPLAY = f"replay it with BMQ_CHAOS_SEED={SEED} BMQ_CHAOS_SECONDS={SECONDS * 2:g}"
#: Few enough that a stall fills the window: posting has to wait, and goes on.
WINDOW = 500
#: Delayed messages a second.
RATE = 200

pytestmark = pytest.mark.timeout(SECONDS + 4 * chaos.DEADLINE)


class Trouble:
    """A broker behind a faulty proxy.

    Attributes:
        broker_uri: address of the broker, past the proxy.
        uri: address of the proxy.
        history: record of the programs.
        faults: the task that injects the faults; its result is their number.
    """

    def __init__(self, broker_uri: str, proxy: FaultProxy, broker: Broker | None) -> None:
        self.broker_uri, self.uri = broker_uri, proxy.uri
        self.history = History()
        self._proxy, self._broker = proxy, broker

    def begin(self, seed: int = SEED) -> None:
        steps = chaos.plan(seed, SECONDS, restarts=self._broker is not None)
        self.faults = asyncio.create_task(chaos.inject(steps, self._proxy, self._broker, self.history))


@pytest.fixture
async def trouble(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trouble]:
    """The broker of the environment; otherwise an embedded broker, which is also killed."""
    named = os.environ.get("BMQ_BROKER_URI")
    monkeypatch.delenv("BMQ_BROKER_URI", raising=False)  # it would lead sessions past the proxy
    # Connections that only one side has lost are noticed by their silence; the longest stall is shorter.
    broker = None if named else Broker(heartbeat_interval_ms=500, max_missed_heartbeats=3)
    async with AsyncExitStack() as stack:
        if broker is not None:
            await stack.enter_async_context(broker)
        target = named or (broker.uri if broker else "")
        yield Trouble(target, await stack.enter_async_context(FaultProxy(target, seed=SEED)), broker)


def checked(history: History) -> Verdict:
    verdict = examine(history)
    print(f"BMQ_CHAOS_SEED={SEED}, {SECONDS:g} s: {verdict}", file=sys.stderr)
    assert verdict.ok, f"{verdict}\n{REPLAY}"
    return verdict


async def test_chaos_loses_no_message_and_hangs_no_call(trouble: Trouble) -> None:
    uris = chaos.new_uris("chaos")
    async with chaos.Load(trouble.uri, uris, trouble.history, max_unacked_messages=WINDOW) as load:
        trouble.begin()
        faults = await trouble.faults
        await load.finish()
    verdict = checked(trouble.history)
    assert verdict.acknowledged > 10 * faults, f"posting did not go on; {REPLAY}"


async def test_no_delayed_message_is_lost_early_or_twice(trouble: Trouble) -> None:
    """Two movers, one of which is replaced every second."""
    uri = fresh_queue_uri("bmq.test.mem.priority", "delayed-chaos")
    due: dict[bytes, float] = {}

    async def produce(queue: bmq.Queue, until: float) -> None:
        async with asyncio.TaskGroup() as group:
            while time.time() < until or len(due) <= RATE:  # a busy machine posts less
                data = b"%d" % len(due)
                due[data] = time.time() + len(due) % 20 / 10
                group.create_task(queue.post(data, not_before=due[data]))
                await asyncio.sleep(1 / RATE)

    async def consume(queue: bmq.Queue) -> None:
        async for message in queue:
            assert time.time() >= due[message.data] - 0.001
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

    shop, desk = trouble.history.process("shop"), trouble.history.process("desk")
    async with (
        bmq.connect(trouble.uri, interceptors=[shop], max_unacked_messages=50_000) as posting,
        bmq.connect(trouble.uri, interceptors=[desk]) as reading,
    ):
        writer = await posting.open_queue(uri, write=True)
        reader = await reading.open_queue(uri, read=True)
        tasks = [
            asyncio.create_task(each)
            for each in (consume(reader), move(trouble.uri, None), move(trouble.broker_uri, 1.0))
        ]
        trouble.begin(int(CHOSEN or 7))
        await produce(writer, time.time() + SECONDS)
        assert await trouble.faults > 3
        await chaos.everything_arrives(trouble.history)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not [task.exception() for task in tasks if not task.cancelled()]
    verdict = checked(trouble.history)
    assert verdict.delivered == verdict.posted > RATE
    assert not verdict.duplicates


async def test_every_request_gets_its_own_answer(trouble: Trouble) -> None:
    desk, shop = trouble.history.process("desk"), trouble.history.process("shop")
    queue_uri = fresh_queue_uri("bmq.test.mem.priority", "requests-chaos")
    app = bmq.App(trouble.uri, interceptors=[desk], on_event=desk.on_event)

    @app.responder(queue_uri, concurrency=5)
    async def double(message: bmq.Message) -> bytes:
        return b"%d" % (2 * int(message.data))

    async with app, bmq.connect(trouble.uri, interceptors=[shop], on_event=shop.on_event) as session:
        queue = await session.open_queue(queue_uri, write=True)
        trouble.begin(int(CHOSEN or 11))

        async def ask(first: int) -> None:
            number = first
            while not trouble.faults.done() or number < first + 25:  # a busy machine asks less
                with shop.effect(f"ask {number}"):
                    reply = await queue.request(b"%d" % number, timeout=60)
                    assert reply.data == b"%d" % (2 * number)
                number += 5
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            for first in range(5):
                group.create_task(ask(first))
        await chaos.everything_arrives(trouble.history)
    assert trouble.faults.result() > 2
    checked(trouble.history)
    assert len(list(trouble.history.events(op="effect", type="ok"))) > 20


async def test_every_message_is_eventually_handled(trouble: Trouble) -> None:
    """Each fails twice, and comes back; what was handled twice was delivered twice by a lost connection."""
    desk, shop = trouble.history.process("desk"), trouble.history.process("shop")
    queue_uri = fresh_queue_uri("bmq.test.mem.priority", "retries-chaos")
    app = bmq.App(trouble.uri, interceptors=[desk], on_event=desk.on_event)

    @app.consumer(queue_uri, concurrency=5, retry=bmq.Backoff(0.3, retries=1000, durable=True))
    async def handle(message: bmq.Message) -> None:
        if message.properties.get("bmq_attempts", 0) < 2:  # type: ignore[operator]
            raise OSError("not now")

    async with app, bmq.connect(trouble.uri, interceptors=[shop], on_event=shop.on_event) as session:
        queue = await session.open_queue(queue_uri, write=True)
        trouble.begin()
        count = 0
        while not trouble.faults.done() or count < 20:
            await queue.post(b"%d" % count)
            count += 1
            await asyncio.sleep(0.02)
        await queue.post(b"%d" % count)  # once the network is well
        await chaos.everything_arrives(trouble.history)
    verdict = checked(trouble.history)
    assert verdict.handled["ok"] >= count + 1 > 20
    delivered = Counter(event["message"] for event in trouble.history.events(op="deliver"))
    handled = Counter(event["message"] for event in trouble.history.events(op="handle", type="ok"))
    assert handled <= delivered
