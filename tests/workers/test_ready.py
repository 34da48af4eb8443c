# SPDX-License-Identifier: Apache-2.0
"""Ready means working: /readyz, health() and status() follow the work, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.testing import Simulation, simulated
from bmq.workers import SubscriberState
from tests.sweeps import sweep
from tests.waiting import eventually

URI = "bmq://bmq.test.mem.priority/work"
LETTERS = f"{URI}.dead"
BLOCKS = bmq.Backoff(every=1, retries=None)


class Service:
    """An app with one handler that can be told to fail."""

    def __init__(self, broker: str, **options: Any) -> None:
        self.fails: Exception | None = None
        self.handled = 0
        self.app = bmq.App(broker, health="127.0.0.1:0")
        self.app.consumer(URI, **options)(self.handle)

    async def handle(self, message: bmq.Message) -> None:
        if self.fails is not None:
            raise self.fails
        self.handled += 1

    @property
    def health(self) -> bmq.health.Health | None:
        """What /readyz says; None for an app that starts or stops."""
        return self.app._health()

    def ready(self) -> bool:
        return self.health is not None and self.health.ready

    def state(self) -> SubscriberState:
        return self.app.status()[0].state


once = simulated(seeds=1)


@asynccontextmanager
async def posting(broker: bmq.broker.Broker, every: float = 0.1) -> AsyncIterator[bmq.Queue]:
    """Post a message now and then."""

    async def post(queue: bmq.Queue) -> None:
        for number in range(1_000_000):
            queue.post_nowait(b"%d" % number, properties={"k": number % 7})
            await asyncio.sleep(every)

    async with bmq.connect(broker.uri) as session:
        queue = await session.open_queue(URI, write=True)
        task = asyncio.create_task(post(queue))
        yield queue
        task.cancel()


def of_group(buckets: int) -> dict[str, Any]:
    return {"group": lambda queue: queue.group("k", buckets=buckets)}


AWAY, NO = ConnectionError("away"), ValueError("no")
#: Options of the handler, its error, and what is said about it.
FAILURES: dict[str, tuple[dict[str, Any], Exception, str]] = {
    "blocked": ({"retry": BLOCKS}, AWAY, "is blocked"),
    "lanes": ({"retry": BLOCKS, "key": "k", "concurrency": 9}, AWAY, "every attempt"),
    "group": ({**of_group(4), "concurrency": 9}, AWAY, "every attempt"),
    "dead letters": ({"retry": bmq.Backoff(1, retries=0, then=bmq.DeadLetter(LETTERS))}, NO, "were given up"),
    "discarded": ({"retry": bmq.Backoff(1, retries=0, then="discard")}, NO, "were given up"),
}


@sweep("name", FAILURES)
@once
async def test_an_app_whose_handler_always_fails_is_not_ready(sim: Simulation, name: str) -> None:
    options, error, why = FAILURES[name]
    async with bmq.broker.Broker() as broker:
        service = Service(broker.uri, **options)
        async with service.app, posting(broker):
            await eventually(lambda: service.handled > 10)
            assert str(service.health) == "ready"
            assert service.state() is SubscriberState.ACTIVE
            service.fails, began = error, sim.now
            await eventually(lambda: service.health is not None and bool(service.health.troubles), timeout=9)
            assert sim.now - began < 1
            await eventually(lambda: not service.ready(), timeout=9)
            assert sim.now - began < 6
            assert why in str(service.health)
            assert why in str(service.app.session.health())
            assert service.state() in (SubscriberState.BLOCKED, SubscriberState.FAILING)
            assert service.health is not None
            since = service.health.since
            service.fails = None
            await eventually(lambda: str(service.health) == "ready", timeout=9)
            assert service.health.since > since


@once
async def test_one_bad_message_among_others_leaves_the_app_ready(sim: Simulation) -> None:
    handled: list[bytes] = []

    async def handle(message: bmq.Message) -> None:
        if message.data == b"3":
            raise ConnectionError("away")
        handled.append(message.data)

    async with bmq.broker.Broker() as broker:
        app = bmq.App(broker.uri)
        app.consumer(URI, retry=BLOCKS, key="k", concurrency=3)(handle)
        async with app, posting(broker):
            for _ in range(100):
                await asyncio.sleep(0.1)
                assert app.session.health().ready
    assert len(handled) > 50


@once
async def test_failures_are_forgotten_when_no_message_follows(sim: Simulation) -> None:
    async with bmq.broker.Broker() as broker:
        service = Service(broker.uri, retry=bmq.Backoff(every=1, retries=0, then="discard"))
        service.fails = ValueError("no")
        async with service.app, posting(broker):
            await eventually(lambda: not service.ready())
        async with service.app:
            assert str(service.health) == "ready"
            async with posting(broker):
                await eventually(lambda: not service.ready())
            await asyncio.sleep(61)
            assert str(service.health) == "ready"


@once
async def test_a_member_is_ready_once_it_holds_its_buckets(sim: Simulation) -> None:
    """After the death of the only member, the next one has to wait for the lease."""
    async with bmq.broker.Broker() as broker, posting(broker):
        first, second = Service(broker.uri, **of_group(4)), Service(broker.uri, **of_group(4))
        begun = second.app._begun()
        states: list[SubscriberState] = []
        async with first.app:
            await eventually(lambda: first.handled > 10)
            task = asyncio.create_task(second.app.run(signals=False))
            while not second.ready():
                assert not begun.done()
                assert not second.handled
                states += [each.state for each in second.app.status()]
                await asyncio.sleep(0.001)
            await eventually(lambda: second.handled and begun.done())
        assert set(states) == {SubscriberState.JOINING}
        await eventually(lambda: second.ready())
        broker.faults.disconnect()
        assert await eventually(lambda: not second.ready())
        handled = second.handled
        while not second.ready():
            handled = second.handled
            await asyncio.sleep(0.001)
        await eventually(lambda: second.handled > handled)
        second.app.stop()
        assert not second.ready()
        await task


@once
async def test_a_member_with_other_buckets_is_never_ready(sim: Simulation) -> None:
    async with bmq.broker.Broker() as broker:
        first, second = Service(broker.uri, **of_group(4)), Service(broker.uri, **of_group(8))
        begun = second.app._begun()
        async with first.app, posting(broker):
            task = asyncio.create_task(second.app.run(signals=False))
            while not task.done():
                assert not second.ready()
                await asyncio.sleep(0.001)
            assert not begun.done()
            with pytest.raises(bmq.UsageError, match="buckets"):
                await task
            assert first.ready()


@once
async def test_a_spare_member_becomes_ready(sim: Simulation) -> None:
    async with bmq.broker.Broker() as broker:
        first, second = Service(broker.uri, **of_group(1)), Service(broker.uri, **of_group(1))
        async with first.app, second.app:
            assert first.ready()
            assert second.ready()
