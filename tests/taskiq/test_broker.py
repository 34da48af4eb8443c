# SPDX-License-Identifier: Apache-2.0
"""taskiq's requirements of a broker, tested as for its own: tasks arrive, wait, are acknowledged, return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq import (
    AckableMessage,
    AsyncBroker,
    BrokerMessage,
    TaskiqEvents,
    TaskiqState,
)
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

import bmq
from bmq.taskiq import BmqBroker
from bmq.testing import FaultProxy
from tests.fakes.broker import Peer
from tests.waiting import until_depth

Fresh = Callable[..., str]


def kicked(message: bytes = b"some", name: str = "task", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id="0af2", task_name=name, message=message, labels=labels)


async def first(broker: BmqBroker) -> AckableMessage:
    async with asyncio.timeout(10):
        async for message in broker.listen():
            return message
    raise AssertionError("it ended")


async def acknowledge(message: AckableMessage) -> None:
    result = message.ack()
    if result is not None:
        await result


@asynccontextmanager
async def started(*args: Any, worker: bool = False, **kwargs: Any) -> AsyncIterator[BmqBroker]:
    broker = BmqBroker(*args, **kwargs)
    broker.is_worker_process = worker
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: AsyncBroker, **how: Any) -> AsyncIterator[None]:
    """Run the tasks of a started broker, as a worker does."""
    running = asyncio.create_task(run_receiver_task(broker, **how))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
async def broker(broker_uri: str, uri: str) -> AsyncGenerator[BmqBroker]:
    async with started(broker_uri, uri) as broker:
        yield broker


# ---- messages


async def test_kicked_task_arrives_and_is_gone_after_its_acknowledgement(
    broker: BmqBroker, broker_uri: str, uri: str
) -> None:
    await broker.kick(kicked(b"some"))
    message = await first(broker)
    assert message.data == b"some"
    await until_depth(broker_uri, uri, 1)
    await acknowledge(message)
    await until_depth(broker_uri, uri, 0)


async def test_each_application_of_a_fanout_queue_receives_the_task(broker_uri: str, fresh: Fresh) -> None:
    uri = fresh("bmq.test.mem.fanout")
    async with started(broker_uri, f"{uri}?id=foo") as foo, started(broker_uri, f"{uri}?id=bar") as bar:
        await foo.kick(kicked(b"some"))
        assert [(await first(each)).data for each in (foo, bar)] == [b"some", b"some"]
        with pytest.raises(bmq.UsageError, match="no message can wait"):
            await foo.kick(kicked(delay=1))


async def test_names_and_labels_are_properties_that_workers_select_by(
    broker: BmqBroker, broker_uri: str, uri: str, session: bmq.Session
) -> None:
    labels = {"tenant": 7, "urgent": "True", "X-Taskiq-requeue": "1", "_retries": "2", "bmq_due": "1"}
    await broker.kick(kicked(b"1", "billing:send", **labels))
    await broker.kick(kicked(b"2", "reports:render", tenant="8"))
    async with started(broker_uri, uri, expression='task_name == "reports:render"') as reports:
        assert (await first(reports)).data == b"2"
    async with started(broker_uri, uri, expression='tenant == "7" && urgent == "True"') as billing:
        assert (await first(billing)).data == b"1"
    queue = await session.open_queue(uri, read=True)
    messages = [await queue.receive(timeout=10) for _ in range(2)]
    found = {message.data: dict(message.properties) for message in messages}
    assert found == {
        b"1": {"task_id": "0af2", "task_name": "billing:send", "tenant": "7", "urgent": "True"},
        b"2": {"task_id": "0af2", "task_name": "reports:render", "tenant": "8"},
    }


def test_a_subscription_is_checked_at_once() -> None:
    with pytest.raises(bmq.InvalidExpression):
        BmqBroker("tcp://localhost:1", "bmq://d.e/q", expression="task_name ==")
    with pytest.raises(bmq.InvalidURI):
        BmqBroker("tcp://localhost:1", "tasks")


async def test_unacknowledged_tasks_go_to_the_next_worker(broker_uri: str, uri: str) -> None:
    async with started(broker_uri, uri) as broker:
        await broker.kick(kicked(b"some"))
        message = await first(broker)
    await acknowledge(message)  # too late
    async with started(broker_uri, uri) as broker:
        assert (await first(broker)).data == b"some"


async def test_a_listener_continues_after_a_lost_connection(broker_uri: str, uri: str) -> None:
    async with FaultProxy(broker_uri) as proxy, started(proxy.uri, uri) as broker:
        listening = broker.listen()
        for number in range(3):
            await broker.kick(kicked(b"%d" % number))
            message = await asyncio.wait_for(anext(listening), 10)
            assert message.data == b"%d" % number
            await acknowledge(message)
            proxy.cut()
        await listening.aclose()


# ---- later


async def test_delayed_task_waits_and_a_worker_passes_the_task_on(broker_uri: str, uri: str) -> None:
    async with started(broker_uri, uri) as broker:
        before = time.time()
        await broker.kick(kicked(b"late", delay="0.7"))
        await broker.kick(kicked(b"at once", delay="0"))
        message = await first(broker)
        assert message.data == b"at once"
        await acknowledge(message)
        await until_depth(broker_uri, f"{uri}.delayed", 1)
        message = await first(broker)
        assert message.data == b"late"
        assert time.time() - before >= 0.7
        await until_depth(broker_uri, f"{uri}.delayed", 0)


async def test_invalid_delay_is_refused(broker: BmqBroker) -> None:
    @broker.task
    async def task() -> None: ...

    with pytest.raises(SendTaskError) as caught:
        await task.kicker().with_labels(delay="soon").kiq()
    assert str(caught.value.__cause__) == "the label delay must be a number of seconds, not 'soon'"


# ---- life


async def test_unstarted_broker_is_reported(broker_uri: str, uri: str) -> None:
    broker = BmqBroker(broker_uri, uri)
    with pytest.raises(bmq.StateError, match=r"await broker\.startup\(\) before tasks are kicked"):
        await broker.kick(kicked())
    with pytest.raises(bmq.StateError, match="not started"):
        await anext(broker.listen())
    await broker.shutdown()
    async with started(broker_uri, uri) as broker:
        with pytest.raises(bmq.StateError, match="started already"):
            await broker.startup()


async def test_failed_startup_leaves_no_open_session(broker_uri: str, uri: str) -> None:
    broker = BmqBroker(broker_uri, uri)
    seen: list[bmq.Session] = []

    @broker.on_event(TaskiqEvents.CLIENT_STARTUP)
    def fail(state: TaskiqState) -> None:
        seen.append(broker.session)
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        await broker.startup()
    assert seen[0].state.name == "CLOSED"
    with pytest.raises(bmq.StateError):
        _ = broker.session


async def test_ended_listener_receives_no_more_and_can_acknowledge(
    broker: BmqBroker, broker_uri: str, uri: str
) -> None:
    listening = broker.listen()
    await broker.kick(kicked(b"1"))
    message = await asyncio.wait_for(anext(listening), 10)
    await listening.aclose()
    await broker.kick(kicked(b"2"))
    async with started(broker_uri, uri) as other:
        assert (await first(other)).data == b"2", "not held up by the one that ends"
    await acknowledge(message)
    await until_depth(broker_uri, uri, 1)


@pytest.mark.parametrize("way", ["raises", "returns", "is cancelled"])
async def test_a_cancelled_task_is_not_acknowledged(broker_uri: str, uri: str, way: str) -> None:
    """taskiq keeps a cancellation as the task's result; the message is delivered again."""
    begun = asyncio.Event()
    async with started(broker_uri, uri, worker=True) as broker:

        @broker.task
        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if way == "raises":
                    raise ConnectionError from None
                if way == "is cancelled":
                    raise

        await work.kiq()
        before = asyncio.all_tasks()
        async with working(broker):
            await begun.wait()
            for each in asyncio.all_tasks() - before:  # as asyncio.run does
                each.cancel()
    async with started(broker_uri, uri) as broker:
        assert b"work" in (await first(broker)).data


async def test_taskiq_names_itself_unless_the_program_does() -> None:
    for more, agent in (
        ({}, "taskiq "),
        ({"user_agent": "billing"}, "billing "),
        ({"user_agent": ""}, "bmq"),
    ):
        async with (
            Peer() as peer,
            started(peer.uri, "bmq://bmq.test.mem.priority/q", mover=False, **more),
        ):
            identity = peer.connection.script.identity
        assert identity is not None
        assert identity.user_agent.startswith(agent)
