# SPDX-License-Identifier: Apache-2.0
"""The status of subscribers with its counts; and ready means working: health follows, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy, Simulation, simulated
from bmq.workers import SubscriberState, SubscriberStatus, status
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.conftest import Standstill
from tests.workers.stage import Stage, consuming, numbered

Condition = SubscriberState | Callable[[SubscriberStatus], Any]


async def until(queue: bmq.Queue, condition: Condition) -> SubscriberStatus:
    """Wait until the queue's only consumer is in this state; return its status."""

    def met() -> bool:
        return any(
            each.state is condition if isinstance(condition, SubscriberState) else condition(each)
            for each in status(*queue.consumers)
        )

    await eventually(met, timeout=20)
    (found,) = status(*queue.consumers)
    return found


@pytest.mark.statement("6.9", "6.17")
async def test_failing_message_101_blocks_later_messages(stage: Stage, standstill: Standstill) -> None:
    """CMQ's first scenario: of 200 messages the 101st fails, and the remaining 99 wait behind it."""
    await stage.post(*numbered(200))
    retry = bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=60)
    async with consuming(stage.queue, stage.failing(b"100"), retry=retry, clock=standstill):
        await until(stage.queue, SubscriberState.BLOCKED)
        found = await until(stage.queue, lambda found: found.waiting == 99)
    assert (found.handled, found.failing, found.handling, found.waiting) == (100, 1, 1, 99)
    assert (found.attempts_failed, found.given_up, found.left, found.limit) == (1, 0, 0, 1000)


@pytest.mark.statement("6.9")
async def test_subscriber_without_failures_is_active(stage: Stage) -> None:
    await stage.post(*numbered(3))
    async with consuming(stage.queue, stage.handle, expression="!exists(x)"):
        found = await until(stage.queue, lambda found: found.handled == 3)
    assert found.state is SubscriberState.ACTIVE
    assert found.subscription == "!exists(x)"
    assert found.handler.endswith("Stage.handle")
    assert (found.waiting, found.failing, found.attempts_failed) == (0, 0, 0)


@pytest.mark.statement("6.9")
async def test_giving_up_makes_a_subscriber_failing_until_a_success(stage: Stage) -> None:
    await stage.post(*numbered(2))
    async with consuming(stage.queue, stage.failing(), retry=bmq.NoRetry(then="discard")):
        found = await until(stage.queue, lambda found: found.given_up == 2)
        assert found.state is SubscriberState.FAILING
        await stage.post(b"good")
        found = await until(stage.queue, SubscriberState.ACTIVE)
    assert (found.handled, found.given_up, found.attempts_failed) == (1, 2, 2)


@pytest.mark.statement("6.9")
async def test_one_waiting_worker_makes_the_subscriber_failing(stage: Stage, standstill: Standstill) -> None:
    await stage.post(*numbered(5))
    options: dict[str, Any] = {"retry": bmq.Backoff(1), "concurrency": 2, "clock": standstill}
    async with consuming(stage.queue, stage.failing(b"0"), **options):
        await until(stage.queue, lambda found: found.handled == 4)
        found = await until(stage.queue, SubscriberState.FAILING)
    assert (found.failing, found.handled) == (1, 4)


async def test_limits_full_of_left_messages_block(stage: Stage) -> None:
    await stage.post(*numbered(5))
    options: dict[str, Any] = {"retry": bmq.NoRetry("leave"), "max_unconfirmed_messages": 3}
    async with consuming(stage.queue, stage.failing(), **options):
        found = await until(stage.queue, lambda found: found.left == 3)
    assert found.state is SubscriberState.BLOCKED
    assert (found.given_up, found.limit) == (3, 3)


async def test_manual_confirmations_block_until_they_are_made(stage: Stage) -> None:
    await stage.post(*numbered(6))
    manual = bmq.AckPolicy.MANUAL
    async with consuming(stage.queue, stage.handle, ack=manual, max_unconfirmed_messages=3):
        messages = [await stage.seen.get() for _ in range(3)]
        assert (await until(stage.queue, SubscriberState.BLOCKED)).left == 3
        for message in messages:
            message.confirm()
        messages = [await stage.seen.get() for _ in range(3)]
        messages[0].confirm()
        assert (await until(stage.queue, SubscriberState.ACTIVE)).left == 2


async def test_consumer_without_a_worker_is_blocked_while_no_task_receives(stage: Stage) -> None:
    await stage.post(*numbered(3))
    async with stage.queue.subscribe(max_unconfirmed_messages=2) as consumer:
        assert (await until(stage.queue, SubscriberState.BLOCKED)).waiting == 2
        held = [await consumer.receive(20) for _ in range(2)]
        (found,) = status(consumer)
        assert (found.state, found.waiting, found.unconfirmed) == (SubscriberState.BLOCKED, 0, 2)
        for message in held:
            message.confirm()
        (await consumer.receive(20)).confirm()
        (found,) = status(consumer)
        assert (found.state, found.handler, found.waiting) == (SubscriberState.ACTIVE, "", 0)
    (closed,) = status(consumer)
    assert closed.state is SubscriberState.CLOSED


@pytest.mark.statement("6.9")
async def test_status_reports_a_missing_connection_until_connected(
    bmq_proxy: FaultProxy, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, subscriptions=["x == 1"])
    assert [each.state for each in status(*queue.consumers)] == [SubscriberState.ACTIVE]
    bmq_proxy.refuse()
    bmq_proxy.cut()
    await until(queue, SubscriberState.LOST)
    await bmq_proxy.accept()
    await until(queue, SubscriberState.ACTIVE)


@pytest.mark.statement("6.9")
async def test_an_app_prints_a_table(stage: Stage, standstill: Standstill) -> None:
    app = bmq.App(stage.broker_uri, clock=standstill)
    assert list(app.status()) == []

    @app.consumer(stage.uri, expression="x == 1", retry=bmq.Backoff(5))
    async def bill(message: bmq.Message) -> None:
        raise OSError("not today")

    @app.consumer(stage.uri, expression="x == 2")
    async def ship(message: bmq.Message) -> None: ...

    async with app:
        await stage.post(*(bmq.PutMessage(b"%d" % n, {"x": 1 + n // 3}) for n in range(5)))
        await eventually(lambda: app.status()[1].handled == 2 and app.status()[0].waiting == 2)
        await standstill.resting.wait()
        assert str(app.status()).splitlines() == [
            "subscriber  subscription  status   waiting  unconfirmed  failing  left  handled  given up",
            "----------  ------------  -------  -------  -----------  -------  ----  -------  --------",
            "bill        x == 1        blocked        2            3        1     0        0         0",
            "ship        x == 2        active         0            0        0     0        2         0",
        ]
    assert {each.state for each in app.status()} == {SubscriberState.CLOSED}


# ---- the health of an app


URI = "bmq://bmq.test.mem.priority/work"
LETTERS = f"{URI}.dead"
BLOCKS = bmq.Backoff(every=1, retries=None)
once = simulated(seeds=1)


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
