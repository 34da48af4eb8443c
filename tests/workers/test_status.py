# SPDX-License-Identifier: Apache-2.0
"""The status of a subscriber: active, failing, blocked, lost, closed; and its counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.workers import SubscriberState, SubscriberStatus, status
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
