# SPDX-License-Identifier: Apache-2.0
"""A network gone wrong, and applications that go on all the same.

The schedule of faults follows from a seed. The load is the same for every client that is put through it:

- ``orders``, a priority queue with two consumers in two sessions;
- ``ledger``, a priority queue with one consumer;
- ``news``, a fanout queue with two applications.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import bmq
from bmq import events
from bmq.broker import Broker
from bmq.protocol.client.redelivery import UncertainConfirms
from bmq.testing import Fault, FaultProxy, fresh_queue_uri, plan_faults
from tests.integration.accounts import SUCCESS, Accounts, Key, Moment, Result, key_of, payload

#: Which application receives which streams.
APPS = {"orders": "orders", "ledger": "ledger", "news/foo": "news", "news/bar": "news"}
#: No step takes longer than this, on a slow machine under load.
DEADLINE = 40.0
#: Posts a second: 20 tasks that wait for each acknowledgement, one that does not wait, one post_many.
RATE_ORDERS = RATE_LEDGER = RATE_NEWS = 500
WORKERS = 20
TICK = 0.02

_LIFE = (events.Connected, events.ConnectionLost, events.StateRestored)
_MISHAPS = (events.QueueReopenFailed, events.Disconnected)


@dataclass(frozen=True)
class Restart:
    """The broker is killed, and started again with what it had stored.

    Attributes:
        after: seconds of undisturbed traffic before it.
        down: seconds without a broker.
    """

    after: float
    down: float


Step = Fault | Restart


def plan(seed: int, seconds: float, *, restarts: bool, pause: tuple[float, float] = (0.2, 1.0)) -> list[Step]:
    """Draw a schedule of so many seconds. The same arguments draw the same one."""
    random = Random(f"restarts/{seed}")
    steps: list[Step] = []
    left = seconds
    for fault in plan_faults(seed, int(seconds * 5) + 5, pause=pause, duration=(0.05, 1.0)):
        step: Step = fault
        if restarts and random.random() < 0.12:
            step = Restart(fault.after, round(random.uniform(0.05, 0.5), 3))
        left -= step.after + (step.down if isinstance(step, Restart) else step.seconds)
        if left < 0:
            break
        steps.append(step)
    return steps


async def inject(
    steps: list[Step], proxy: FaultProxy, broker: Broker | None, accounts: Accounts | None = None
) -> list[Moment]:
    """Do it all, one after the other; returns what began when. Afterwards the network is in good order."""
    done: list[Moment] = []
    try:
        for step in steps:
            await asyncio.sleep(step.after)
            what = step.kind if isinstance(step, Fault) else "restart"
            done.append(Moment(time.monotonic(), what))
            if isinstance(step, Fault):
                await step.apply(proxy)
            else:
                assert broker is not None
                await broker.stop(graceful=False)
                await asyncio.sleep(step.down)
                if accounts is not None:
                    accounts.restarted()
                await broker.start()
    finally:
        proxy.heal()
        await proxy.accept()
        for connection in proxy.connections[:]:
            if not connection._is_whole:
                connection.cut()  # as the operating system would, at last
    return done


def count_faults(faults: list[Moment]) -> str:
    """Say what there was."""
    counts = Counter(fault.what for fault in faults)
    return f"{len(faults)}: " + ", ".join(f"{count} {what}" for what, count in counts.most_common())


def new_uris(hint: str) -> dict[str, str]:
    """Queues that nobody else uses."""
    priority, fanout = "bmq.test.mem.priority", "bmq.test.mem.fanout"
    return {
        "orders": fresh_queue_uri(priority, f"{hint}-orders"),
        "ledger": fresh_queue_uri(priority, f"{hint}-ledger"),
        "news": fresh_queue_uri(fanout, f"{hint}-news"),
    }


@contextlib.contextmanager
def counted_drops() -> Iterator[list[int]]:
    """Count the redeliveries that sessions keep from their applications."""
    original, count = UncertainConfirms.take, [0]

    def take(self: UncertainConfirms, message: bytes) -> bool:
        known = original(self, message)
        count[0] += known
        return known

    UncertainConfirms.take = take  # type: ignore[method-assign]
    try:
        yield count
    finally:
        UncertainConfirms.take = original  # type: ignore[method-assign]


class _Client:
    """A session whose life is recorded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.moments: list[Moment] = []
        self.mishaps: list[events.SessionEvent] = []
        #: The number of the present connection.
        self.connection = 0

    def note(self, event: events.SessionEvent) -> None:
        if isinstance(event, events.ConnectionLost):
            self.connection += 1
        if isinstance(event, _LIFE):
            self.moments.append(Moment(time.monotonic(), type(event).__name__))
        elif isinstance(event, _MISHAPS):
            self.mishaps.append(event)


class Load:
    """Producers and consumers on this client.

    ::

        async with Load(uri, new_uris("chaos")) as load:
            ...                           # faults
            result = await load.finish()

    One task that fails fails the run: nothing that happens to the network is an error here.

    Args:
        broker: where to connect to.
        uris: the queues, by name.
        options: for the sessions.
    """

    def __init__(self, broker: str, uris: dict[str, str], **options: Any) -> None:
        self.accounts = Accounts(APPS)
        self._broker = broker
        self._options = options
        self._uris = uris
        self._clients: list[_Client] = []
        self._producing = True
        self._producers: list[asyncio.Task[None]] = []
        self._written: list[bmq.Queue] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Load:
        async with asyncio.timeout(DEADLINE), contextlib.AsyncExitStack() as stack:
            self._dropped = stack.enter_context(counted_drops())
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
        client = _Client(name)
        self._clients.append(client)
        session = await bmq.connect(self._broker, process_name=name, on_event=client.note, **self._options)

        async def close() -> None:
            async with asyncio.timeout(DEADLINE):
                report = await session.close()
            assert report.clean, f"{name}: {report}"

        stack.push_async_callback(close)
        return session

    async def finish(self) -> Result:
        """Stop posting, wait for every outcome and every message, and close the accounts."""
        arrived = asyncio.Event()
        self.accounts.on_complete = arrived.set
        self._producing = False
        async with asyncio.timeout(DEADLINE):
            await asyncio.gather(*self._producers)
            for queue in self._written:
                await queue.flush()
        with contextlib.suppress(TimeoutError):  # then something is lost, as the result says
            async with asyncio.timeout(DEADLINE):
                while not self.accounts.complete:
                    await arrived.wait()
                    arrived.clear()
        for consumer in self._consumers:
            consumer.cancel()
        result = self.accounts.result()
        result.dropped = self._dropped[0]
        result.sessions = {client.name: client.moments for client in self._clients}
        mishaps = [event for client in self._clients for event in client.mishaps]
        assert not mishaps, mishaps
        return result

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
            key = (stream, number)
            self.accounts.posting(key)
            async with asyncio.timeout(DEADLINE):
                try:
                    await queue.post(payload(key))
                except bmq.PostError as error:
                    self.accounts.outcome(key, error.status.name)
                else:
                    self.accounts.outcome(key, SUCCESS)
            number += 1
            await asyncio.sleep(WORKERS / RATE_ORDERS)

    async def _post_nowait(self, queue: bmq.Queue) -> None:
        number = 0
        while self._producing:
            for _ in range(round(RATE_LEDGER * TICK)):
                key = ("ledger", number)
                self.accounts.posting(key)
                try:
                    future = queue.post_nowait(payload(key))
                except bmq.BufferFull:
                    self.accounts.refused(key)
                    break
                future.add_done_callback(lambda future, key=key: self._ledger_outcome(future, key))
                number += 1
            await asyncio.sleep(TICK)

    def _ledger_outcome(self, future: asyncio.Future[bmq.Ack], key: Key) -> None:
        error = future.exception()
        if error is None:
            self.accounts.outcome(key, SUCCESS)
        else:
            assert isinstance(error, bmq.PostError)
            self.accounts.outcome(key, error.status.name)

    async def _post_many(self, queue: bmq.Queue) -> None:
        """A call after the other takes messages; all of them wait for outcomes."""
        calls: list[asyncio.Task[None]] = []
        number = 0
        while self._producing:
            keys: list[Key] = []
            taken = asyncio.Event()
            call = self._tasks.create_task(self._post_some(queue, keys, number, taken))
            calls.append(call)
            await taken.wait()
            number += len(keys)
        await asyncio.gather(*calls)

    async def _post_some(self, queue: bmq.Queue, keys: list[Key], first: int, taken: asyncio.Event) -> None:
        async def paced() -> AsyncIterator[bytes]:
            while self._producing and len(keys) < RATE_NEWS:
                for _ in range(round(RATE_NEWS * TICK)):
                    keys.append(("news", first + len(keys)))
                    self.accounts.posting(keys[-1])
                    yield payload(keys[-1])
                await asyncio.sleep(TICK)
            taken.set()

        async with asyncio.timeout(DEADLINE):
            report = await queue.post_many(paced())
        assert report.posted == len(keys) == report.acknowledged + len(report.failures)
        failed = {failure.index: failure.error.status.name for failure in report.failures}
        assert len(failed) == len(report.failures), "a post has failed twice"
        for index, key in enumerate(keys):
            self.accounts.outcome(key, failed.get(index, SUCCESS))

    # consumers

    async def _consume(self, first: bmq.Session, second: bmq.Session) -> None:
        one, two = self._clients[1:]
        uris = self._uris
        orders = await first.open_queue(uris["orders"], read=True)
        more_orders = await second.open_queue(uris["orders"], read=True)
        ledger = await first.open_queue(uris["ledger"], read=True)
        foo = await first.open_queue(f"{uris['news']}?id=foo", read=True)
        bar = await second.open_queue(f"{uris['news']}?id=bar", read=True)
        self._consumers = [
            self._tasks.create_task(consumer)
            for consumer in (
                self._each("orders", one, orders),
                self._batches("orders", two, more_orders),
                self._handler("ledger", one, ledger),
                self._each("news/foo", one, foo),
                self._batches("news/bar", two, bar),
            )
        ]

    def _took(self, app: str, client: _Client, message: bmq.Message) -> Key:
        key = key_of(message.data)
        self.accounts.delivered(app, client.name, client.connection, key, redelivered=message.redelivered)
        return key

    async def _each(self, app: str, client: _Client, queue: bmq.Queue) -> None:
        """Confirm at once."""
        async for message in queue:
            key = self._took(app, client, message)
            message.confirm()
            self.accounts.confirmed(app, client.connection, key)

    async def _handler(self, app: str, client: _Client, queue: bmq.Queue) -> None:
        """Confirm by leaving a block, in a later turn of the loop."""
        async for message in queue:
            async with message:
                key = self._took(app, client, message)
                await asyncio.sleep(0)
            self.accounts.confirmed(app, client.connection, key)

    async def _batches(self, app: str, client: _Client, queue: bmq.Queue) -> None:
        """Hold messages in hand for a while."""
        async for batch in queue.batches(100):
            keys = [self._took(app, client, message) for message in batch]
            await asyncio.sleep(0.002)
            batch.confirm()
            for key in keys:
                self.accounts.confirmed(app, client.connection, key)
