# SPDX-License-Identifier: Apache-2.0
"""A faulty network, and applications that must keep working.

The schedule of faults derives from a seed. The load is the same for each client under test:

- ``orders``, a priority queue with two consumers in two sessions;
- ``ledger``, a priority queue with one consumer;
- ``news``, a fanout queue with two applications.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any

import bmq
from bmq.broker import Broker
from bmq.testing import Fault, FaultProxy, History, Recorder, fresh_queue_uri, plan_faults

#: The applications of the fanout queue.
APP_IDS = ("foo", "bar")
#: Maximum seconds of a step, on a slow machine under load.
DEADLINE = 40.0
#: Posts a second: by 20 tasks that wait for each acknowledgement, by one that does not, and by post_many.
RATE_ORDERS = RATE_LEDGER = RATE_NEWS = 500
WORKERS = 20
TICK = 0.02

#: The bytes of a payload.
SIZE = 128


def payload(stream: str, number: int) -> bytes:
    """Return the message of a stream with a number, counted from 0."""
    return f"{stream}:{number}:".encode().ljust(SIZE, b".")


@dataclass(frozen=True)
class Restart:
    """The broker is killed after some seconds of traffic, and started again with its stored messages."""

    after: float
    seconds: float


Step = Fault | Restart


def plan(seed: int, seconds: float, *, restarts: bool) -> list[Step]:
    """Draw a schedule of this many seconds. Equal arguments give equal schedules."""
    random = Random(f"restarts/{seed}")
    steps: list[Step] = []
    left = seconds
    for fault in plan_faults(seed, int(seconds * 5) + 5, pause=(0.2, 1.0), duration=(0.05, 1.0)):
        step: Step = fault
        if restarts and random.random() < 0.12:
            step = Restart(fault.after, round(random.uniform(0.05, 0.5), 3))
        left -= step.after + step.seconds
        if left < 0:
            break
        steps.append(step)
    return steps


async def inject(steps: list[Step], proxy: FaultProxy, broker: Broker | None, history: History) -> int:
    """Inject the faults one after the other, and record them; return their number.

    Afterwards the network is intact.
    """
    try:
        for step in steps:
            await asyncio.sleep(step.after)
            history.fault(step.kind if isinstance(step, Fault) else "restart")
            if isinstance(step, Fault):
                await step.apply(proxy)
            else:
                assert broker is not None
                await broker.stop(graceful=False)
                await asyncio.sleep(step.seconds)
                await broker.start()
    finally:
        proxy.heal()
        await proxy.accept()
        for connection in proxy.connections[:]:
            if not connection._whole:
                connection.cut()  # as the operating system would after its timeout
        history.healed()
    return len(steps)


async def everything_arrives(history: History, seconds: float = DEADLINE) -> None:
    """Wait until no message is under way, or until the deadline; a later check lists missing messages."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while history.pending():  # noqa: ASYNC110 - several processes may write to it
                await asyncio.sleep(0.02)


def new_uris(hint: str) -> dict[str, str]:
    """Return the URIs of unused queues."""
    priority, fanout = "bmq.test.mem.priority", "bmq.test.mem.fanout"
    return {
        "orders": fresh_queue_uri(priority, f"{hint}-orders"),
        "ledger": fresh_queue_uri(priority, f"{hint}-ledger"),
        "news": fresh_queue_uri(fanout, f"{hint}-news"),
    }


class Load:
    """Producers and consumers on this client.

    ::

        async with Load(uri, new_uris("chaos"), history) as load:
            ...                           # faults
            await load.finish()
        check(history)

    A failed task fails the run, because no fault of the network may cause an error of a task.

    Args:
        broker: address of the broker.
        uris: URIs of the queues, by name.
        history: record of all posts and messages.
        options: options of the sessions.
    """

    def __init__(self, broker: str, uris: dict[str, str], history: History, **options: Any) -> None:
        history.applications(uris["news"], APP_IDS)
        self._history = history
        self._broker = broker
        self._options = options
        self._uris = uris
        self._recorders: dict[bmq.Session, Recorder] = {}
        self._producing = True
        self._producers: list[asyncio.Task[None]] = []
        self._written: list[bmq.Queue] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Load:
        async with asyncio.timeout(DEADLINE), contextlib.AsyncExitStack() as stack:
            sessions = [
                await self._open_session(stack, name)
                for name in ("producer", "first consumer", "second consumer")
            ]
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await self._consume(*sessions[1:])
            await self._produce(sessions[0])
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._producing = False
        await self._stack.__aexit__(*error)

    async def _open_session(self, stack: contextlib.AsyncExitStack, name: str) -> bmq.Session:
        recorder = self._history.process(name)
        session = await bmq.connect(
            self._broker,
            process_name=name,
            interceptors=[recorder],
            on_event=recorder.on_event,
            **self._options,
        )
        self._recorders[session] = recorder

        async def close() -> None:
            async with asyncio.timeout(DEADLINE):
                report = await session.close()
            assert report.clean, f"{name}: {report}"

        stack.push_async_callback(close)
        return session

    async def finish(self) -> None:
        """Stop posting, and wait for every outcome and every message."""
        self._producing = False
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*self._producers)
            for queue in self._written:
                await queue.flush()
        await everything_arrives(self._history)
        for consumer in self._consumers:
            consumer.cancel()
        for session, recorder in self._recorders.items():
            recorder.statistics(session)
        mishaps = [
            event
            for event in self._history.events(op="session")
            if event["event"] in ("QueueReopenFailed", "Disconnected")
        ]
        assert not mishaps, mishaps

    # producers

    async def _produce(self, session: bmq.Session) -> None:
        orders, ledger, news = [
            await session.open_queue(self._uris[name], write=True) for name in ("orders", "ledger", "news")
        ]
        self._written = [orders, ledger, news]
        producers = [self._post(orders, f"orders-{number}") for number in range(WORKERS)]
        producers += [self._post_nowait(ledger), self._post_many(news)]
        self._producers = [self._tasks.create_task(producer) for producer in producers]

    async def _post(self, queue: bmq.Queue, stream: str) -> None:
        number = 0
        while self._producing:
            async with asyncio.timeout(DEADLINE):
                with contextlib.suppress(bmq.PostError):  # the history has it
                    await queue.post(payload(stream, number))
            number += 1
            await asyncio.sleep(WORKERS / RATE_ORDERS)

    async def _post_nowait(self, queue: bmq.Queue) -> None:
        number = 0
        while self._producing:
            for _ in range(round(RATE_LEDGER * TICK)):
                try:
                    future = queue.post_nowait(payload("ledger", number))
                except bmq.BufferFull:
                    break
                future.add_done_callback(asyncio.Future.exception)
                number += 1
            await asyncio.sleep(TICK)

    async def _post_many(self, queue: bmq.Queue) -> None:
        """Successive calls take the messages, and wait for the outcomes."""
        calls: list[asyncio.Task[int]] = []
        number = 0
        while self._producing:
            taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            calls.append(self._tasks.create_task(self._post_some(queue, number, taken)))
            number += await taken
        await asyncio.gather(*calls)

    async def _post_some(self, queue: bmq.Queue, first: int, taken: asyncio.Future[int]) -> int:
        count = 0

        async def paced() -> AsyncIterator[bytes]:
            nonlocal count
            while self._producing and count < RATE_NEWS:
                for _ in range(round(RATE_NEWS * TICK)):
                    count += 1
                    yield payload("news", first + count - 1)
                await asyncio.sleep(TICK)
            taken.set_result(count)

        async with asyncio.timeout(DEADLINE):
            report = await queue.post_many(paced())
        assert report.posted == count == report.acknowledged + len(report.failures)
        assert len({failure.index for failure in report.failures}) == len(report.failures)
        return count

    # consumers

    async def _consume(self, first: bmq.Session, second: bmq.Session) -> None:
        uris = self._uris
        orders = await first.open_queue(uris["orders"], read=True)
        more_orders = await second.open_queue(uris["orders"], read=True)
        ledger = await first.open_queue(uris["ledger"], read=True)
        foo = await first.open_queue(f"{uris['news']}?id=foo", read=True)
        bar = await second.open_queue(f"{uris['news']}?id=bar", read=True)
        self._consumers = [
            self._tasks.create_task(consumer)
            for consumer in (
                self._each(orders),
                self._batches(more_orders),
                self._handler(ledger),
                self._each(foo),
                self._batches(bar),
            )
        ]

    async def _each(self, queue: bmq.Queue) -> None:
        """Confirm at once."""
        async for message in queue:
            message.confirm()

    async def _handler(self, queue: bmq.Queue) -> None:
        """Confirm by leaving a block, in a later turn of the loop."""
        async for message in queue:
            async with message:
                await asyncio.sleep(0)

    async def _batches(self, queue: bmq.Queue) -> None:
        """Hold messages in hand for a while."""
        async for batch in queue.batches(100):
            await asyncio.sleep(0.002)
            batch.confirm()
