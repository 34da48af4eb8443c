# SPDX-License-Identifier: Apache-2.0
"""The status of a subscriber: active, failing, blocked, lost, closed; and its counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import bmq
from bmq.testing import FaultProxy
from bmq.workers import SubscriberState, SubscriberStatus, status
from tests.waiting import eventually
from tests.workers.conftest import FakeClock
from tests.workers.stage import Stage, consuming, numbered, post

TIMEOUT = 20.0


class Standstill(FakeClock):
    """Pauses never end."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


def only(queue: bmq.Queue) -> SubscriberStatus:
    """The status of the queue's only consumer."""
    (found,) = status(*queue.consumers)
    return found


async def until(queue: bmq.Queue, condition: Callable[[SubscriberStatus], bool]) -> SubscriberStatus:
    """Wait until the queue has a consumer in this state."""
    await eventually(lambda: any(condition(each) for each in status(*queue.consumers)), timeout=TIMEOUT)
    return only(queue)


def is_(state: SubscriberState) -> Callable[[SubscriberStatus], bool]:
    return lambda found: found.state is state


async def refuse(message: bmq.Message) -> None:
    raise OSError("not today")


@pytest.mark.statement("6.9", "6.17")
async def test_failing_message_101_blocks_later_messages(stage: Stage) -> None:
    """CMQ's first scenario: of 200 messages the 101st fails, and the remaining 99 wait behind it."""

    async def handle(message: bmq.Message) -> None:
        if message.data == b"100":
            raise OSError("not today")

    await post(stage.queue, *numbered(200))
    async with consuming(
        stage.queue,
        handle,
        retry=bmq.Backoff(1, retries=None, factor=2, cap=60, give_up_after=60),
        clock=Standstill(),
    ):
        await until(stage.queue, is_(SubscriberState.BLOCKED))
        await until(stage.queue, lambda found: found.waiting == 99)
        found = only(stage.queue)
    assert (found.handled, found.failing, found.handling, found.waiting) == (100, 1, 1, 99)
    assert (found.attempts_failed, found.given_up, found.left, found.limit) == (1, 0, 0, 1000)


@pytest.mark.statement("6.9")
async def test_subscriber_without_failures_is_active(stage: Stage) -> None:
    await post(stage.queue, *numbered(3))
    async with consuming(stage.queue, stage.handle, expression="!exists(x)"):
        await stage.next(3)
        await until(stage.queue, lambda found: found.handled == 3)
        found = only(stage.queue)
    assert found.state is SubscriberState.ACTIVE
    assert found.subscription == "!exists(x)"
    assert found.handler.endswith("Stage.handle")
    assert (found.waiting, found.failing, found.attempts_failed) == (0, 0, 0)


@pytest.mark.statement("6.9")
async def test_giving_up_makes_a_subscriber_failing_until_a_success(stage: Stage) -> None:
    ill = True

    async def handle(message: bmq.Message) -> None:
        if ill:
            raise OSError("not today")

    await post(stage.queue, *numbered(2))
    async with consuming(stage.queue, handle, retry=bmq.NoRetry(then="discard")):
        await until(stage.queue, lambda found: found.given_up == 2)
        assert only(stage.queue).state is SubscriberState.FAILING
        ill = False
        await post(stage.queue, b"2")
        found = await until(stage.queue, is_(SubscriberState.ACTIVE))
    assert (found.handled, found.given_up, found.attempts_failed) == (1, 2, 2)


@pytest.mark.statement("6.9")
async def test_one_waiting_worker_makes_the_subscriber_failing(stage: Stage) -> None:
    async def handle(message: bmq.Message) -> None:
        if message.data == b"0":
            raise OSError("not today")
        await stage.handle(message)

    await post(stage.queue, *numbered(5))
    async with consuming(stage.queue, handle, retry=bmq.Backoff(1), concurrency=2, clock=Standstill()):
        await stage.next(4)
        found = await until(stage.queue, is_(SubscriberState.FAILING))
    assert (found.failing, found.handled) == (1, 4)


async def test_limits_full_of_left_messages_block(stage: Stage) -> None:
    await post(stage.queue, *numbered(5))
    async with consuming(stage.queue, refuse, retry=bmq.NoRetry("leave"), max_unconfirmed_messages=3):
        found = await until(stage.queue, lambda found: found.left == 3)
    assert found.state is SubscriberState.BLOCKED
    assert (found.given_up, found.limit) == (3, 3)


async def test_manual_confirmations_block_until_they_are_made(stage: Stage) -> None:
    await post(stage.queue, *numbered(6))
    manual = bmq.AckPolicy.MANUAL
    async with consuming(stage.queue, stage.handle, ack=manual, max_unconfirmed_messages=3):
        messages = [await stage.seen.get() for _ in range(3)]
        assert (await until(stage.queue, is_(SubscriberState.BLOCKED))).left == 3
        for message in messages:
            message.confirm()
        messages = [await stage.seen.get() for _ in range(3)]
        messages[0].confirm()
        assert (await until(stage.queue, is_(SubscriberState.ACTIVE))).left == 2


async def test_consumer_without_a_worker_is_blocked_while_no_task_receives(stage: Stage) -> None:
    await post(stage.queue, *numbered(3))
    async with stage.queue.subscribe(max_unconfirmed_messages=2) as consumer:
        assert (await until(stage.queue, is_(SubscriberState.BLOCKED))).waiting == 2
        held = [await consumer.receive(TIMEOUT) for _ in range(2)]
        found = only(stage.queue)
        assert (found.state, found.waiting, found.unconfirmed) == (SubscriberState.BLOCKED, 0, 2)
        for message in held:
            message.confirm()
        (await consumer.receive(TIMEOUT)).confirm()
        found = only(stage.queue)
        assert (found.state, found.handler, found.waiting) == (SubscriberState.ACTIVE, "", 0)
    (closed,) = status(consumer)
    assert closed.state is SubscriberState.CLOSED


@pytest.mark.statement("6.9")
async def test_status_reports_a_missing_connection_until_connected(
    bmq_proxy: FaultProxy, bmq_session: bmq.Session, bmq_queue_uri: str
) -> None:
    queue = await bmq_session.open_queue(bmq_queue_uri, read=True, subscriptions=["x == 1"])
    assert only(queue).state is SubscriberState.ACTIVE
    bmq_proxy.refuse()
    bmq_proxy.cut()
    await until(queue, is_(SubscriberState.LOST))
    await bmq_proxy.accept()
    await until(queue, is_(SubscriberState.ACTIVE))


@pytest.mark.statement("6.9")
async def test_an_app_prints_a_table(broker_uri: str, stage: Stage) -> None:
    app = bmq.App(broker_uri, clock=Standstill())
    assert list(app.status()) == []
    uri = stage.queue.uri

    @app.consumer(uri, expression="x == 1", retry=bmq.Backoff(5))
    async def bill(message: bmq.Message) -> None:
        raise OSError("not today")

    @app.consumer(uri, expression="x == 2")
    async def ship(message: bmq.Message) -> None: ...

    running = asyncio.create_task(app.run(signals=False))
    await eventually(lambda: len(app.status()) == 2, timeout=TIMEOUT)
    items = [bmq.PutMessage(b"%d" % n, {"x": 1 + n // 3}) for n in range(5)]
    (await stage.queue.post_many(items)).raise_for_failures()
    await eventually(lambda: app.status()[1].handled == 2 and app.status()[0].waiting == 2, timeout=TIMEOUT)
    assert str(app.status()).splitlines() == [
        "subscriber  subscription  status   waiting  unconfirmed  failing  left  handled  given up",
        "----------  ------------  -------  -------  -----------  -------  ----  -------  --------",
        "bill        x == 1        blocked        2            3        1     0        0         0",
        "ship        x == 2        active         0            0        0     0        2         0",
    ]
    app.stop()
    await running
    assert {each.state for each in app.status()} == {SubscriberState.CLOSED}
