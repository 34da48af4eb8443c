# SPDX-License-Identifier: Apache-2.0
"""Each consumer of bmq, with each poison: later messages are delivered, and few lines are logged.

Handlers are in test_never_confirmed.py, and tables in test_tables.py. ``BMQ_POISONS=10000`` floods each
consumer with ten thousand of each poison.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from taskiq.api import run_receiver_task

import bmq
from bmq.conventions import delay_queue_of
from bmq.delays import DueMessages, Mover
from bmq.taskiq import BmqBroker
from bmq.workers import Sweeper
from tests.poison.poisons import POISONS, Order, beside, flood
from tests.waiting import until_depth

#: How many messages each consumer may have unconfirmed.
LIMIT = 20
GOOD = b'{"amount": 1}'


@dataclass
class Scene:
    """The broker, a session for posting and for consumers without one, and two unused queues."""

    address: str
    session: bmq.Session
    uri: str
    letters: str
    good: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def open(self, uri: str | None = None, **options: Any) -> bmq.Queue:
        """Open the queue."""
        options.setdefault("default_subscription", False)
        return await self.session.open_queue(
            uri or self.uri, read=True, write=True, max_unconfirmed_messages=LIMIT, **options
        )

    def see(self, data: bytes) -> None:
        """Record a handed-out payload."""
        if data == GOOD:
            self.good.put_nowait(None)

    def take(self, message: bmq.Message | bmq.TypedMessage[Order]) -> None:
        """Act like a program that confirms what it cannot read."""
        try:
            if isinstance(message, bmq.TypedMessage):
                self.see(GOOD if message.value == Order(1) else b"")
            else:
                self.see(message.data)
        except (bmq.ProtocolError, bmq.Undecodable):
            pass
        message.confirm()


#: A running consumer: its queue, open for writing, and a function that posts a good message there.
Running = AsyncIterator[tuple[bmq.Queue, Callable[[], Awaitable[object]]]]


def loop(receive: Callable[[bmq.Queue, Scene], Awaitable[None]], **good: Any) -> Callable[[Scene], Running]:
    """A program that receives in a loop."""

    async def looping(scene: Scene) -> Running:
        queue = await scene.open(default_subscription=None)
        async with beside(receive(queue, scene)):
            yield queue, lambda: queue.post(GOOD, **good)

    return looping


async def iterate(queue: bmq.Queue, scene: Scene) -> None:
    async for message in queue:
        scene.take(message)


async def batches(queue: bmq.Queue, scene: Scene) -> None:
    async for batch in queue.batches(7):
        for message in batch:
            scene.take(message)


async def values(queue: bmq.Queue, scene: Scene) -> None:
    async for message in queue.typed(Order).subscribe():
        scene.take(message)


async def batches_of_values(queue: bmq.Queue, scene: Scene) -> None:
    async for batch in queue.typed(Order).batches(7):
        for message in batch:
            scene.take(message)


async def due(queue: bmq.Queue, scene: Scene) -> None:
    async with DueMessages(queue) as messages:
        async for message in messages:
            scene.take(message)


async def group(queue: bmq.Queue, scene: Scene) -> None:
    async for message in queue.group(buckets=2):
        scene.take(message)


async def requester(scene: Scene) -> Running:
    """The reply queue is flooded."""
    queue = await scene.open(default_subscription=None)

    async def ask() -> bmq.Message:
        asking.append(asyncio.ensure_future(queue.request(b"question", timeout=60)))
        request = await queue.receive(60)
        request.confirm()
        return request

    async def post() -> None:
        request = await ask()
        await replies.post(GOOD, properties={"bmq_request": request.guid})
        scene.see((await asking[-1]).data)

    asking: list[asyncio.Future[bmq.Message]] = []
    first = await ask()
    replies = await scene.session.open_queue(str(first.properties["bmq_reply_to"]), write=True)
    await replies.post(b"first", properties={"bmq_request": first.guid})
    await asking[0]
    yield replies, post


async def taskiq(scene: Scene) -> Running:
    broker = BmqBroker(scene.address, scene.uri, max_unconfirmed_messages=LIMIT)
    broker.is_worker_process = True

    @broker.task(task_name="good")
    async def good() -> None:
        scene.good.put_nowait(None)

    queue = await scene.session.open_queue(scene.uri, write=True)
    await broker.startup()
    async with beside(run_receiver_task(broker)):
        yield queue, good.kiq
    await broker.shutdown()


async def mover(scene: Scene) -> Running:
    queue = await scene.open(default_subscription=None)
    waiting = await scene.open(delay_queue_of(scene.uri))

    def post() -> Awaitable[object]:
        due = {"bmq_due": int(time.time() * 1000), "bmq_destination": scene.uri}
        return waiting.post(GOOD, properties=due)

    async with beside(Mover(waiting, max_held=LIMIT).run()), beside(iterate(queue, scene)):
        yield waiting, post


async def sweeper(scene: Scene) -> Running:
    queue = await scene.session.open_queue(scene.uri, write=True)
    letters = await scene.open(scene.letters, default_subscription=None)
    sweeping = Sweeper(scene.uri, put_aside=scene.letters, max_unconfirmed_messages=LIMIT)
    async with (
        bmq.connect(scene.address) as session,
        beside(sweeping.run(session)),
        beside(iterate(letters, scene)),
    ):
        yield queue, lambda: queue.post(GOOD)


CONSUMERS: dict[str, Callable[[Scene], Running]] = {
    "a loop": loop(iterate),
    "a loop over batches": loop(batches),
    "a loop over values": loop(values),
    "a loop over batches of values": loop(batches_of_values),
    "a loop over due messages": loop(due),
    "a group": loop(group, key="customer"),
    "a requester": requester,
    "taskiq": taskiq,
    "a mover": mover,
    "a sweeper": sweeper,
}
COUNT = int(os.environ.get("BMQ_POISONS", 3 * LIMIT))
PATIENCE = 60 + COUNT / 10


@pytest.fixture
def scene(bmq_broker: Any, bmq_session: bmq.Session, bmq_new_queue_uri: Callable[..., str]) -> Scene:
    return Scene(bmq_broker.uri, bmq_session, bmq_new_queue_uri(), bmq_new_queue_uri())


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("name", CONSUMERS)
async def test_good_message_is_delivered_after_each_poison(
    scene: Scene, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    poison = ""
    try:
        async with asyncio.timeout(PATIENCE), asynccontextmanager(CONSUMERS[name])(scene) as (queue, post):
            for poison in POISONS:
                await flood(queue, [POISONS[poison]] * COUNT)
                await post()
                await scene.good.get()
    except TimeoutError:
        pytest.fail(f"{name} stands still behind: {poison}")
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    first = [line for line in lines if "more like this since" not in line]  # repeated once a minute
    assert len(first) <= 8, "at most one of each kind, and of the number of those left, of each handler"


@pytest.mark.parametrize("name", ["a mover", "taskiq"])
async def test_services_leave_in_the_queue_what_they_cannot_use(scene: Scene, name: str) -> None:
    async with asyncio.timeout(PATIENCE), asynccontextmanager(CONSUMERS[name])(scene) as (queue, post):
        await flood(queue, [POISONS["no zlib"]] * 2 * LIMIT)
        await post()
        await scene.good.get()
    await until_depth(scene.address, queue.uri, 2 * LIMIT)
