# SPDX-License-Identifier: Apache-2.0
"""Subscriptions change under a steady flow: matching messages arrive, in the order of delivery.

The broker is a separate process (or the broker of BMQ_BROKER_URI), so its data arrives at any time, not in
step with the client's calls. BMQ_ORDER_SEED repeats a run, and BMQ_ORDER_SECONDS extends it.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

import bmq
from bmq.protocol.framing import Framer
from bmq.wire.constants import DEFAULT_MAX_INCOMING_EVENT, EventType
from bmq.wire.properties import split_properties
from bmq.wire.push import decode_pushes
from tests.integration.steps import TIMEOUT, NewUri

KEYS = 4
ROUNDS = 60
#: The minimum duration in seconds.
SECONDS = float(os.environ.get("BMQ_ORDER_SECONDS", "0"))


@pytest.fixture(scope="module")
def process_uri() -> Iterator[str]:
    """A broker in a process of its own; starting one takes 0.4 s, and each test uses new queues."""
    command = [sys.executable, "-m", "bmq", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" on ")[2].strip()
        process.terminate()


@pytest.fixture
def broker_uri(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if named := os.environ.get("BMQ_BROKER_URI"):
        monkeypatch.delenv("BMQ_BROKER_URI")  # the variable would also override the address of the tap
        return named
    uri: str = request.getfixturevalue("process_uri")
    return uri


def messages(first: int, count: int, keys: int = 2) -> list[bmq.PutMessage]:
    """Return numbered messages, equally distributed among the keys."""
    return [
        bmq.PutMessage(b"%d" % number, properties={"k": number % keys})
        for number in range(first, first + count)
    ]


async def take(consumer: bmq.Consumer | bmq.Queue, count: int) -> list[int]:
    """Receive and confirm this many messages; return their numbers."""
    found: list[int] = []
    for _ in range(count):
        message = await consumer.receive(TIMEOUT)
        message.confirm()
        found.append(int(message.data))
    return found


@pytest.mark.parametrize("default", [None, True, False])
async def test_subscribing_while_messages_are_in_flight(
    broker_uri: str, bmq_new_queue_uri: NewUri, default: bool | None
) -> None:
    for _ in range(5):
        uri = bmq_new_queue_uri()
        async with bmq.connect(broker_uri) as posting, bmq.connect(broker_uri) as session:
            producer = await posting.open_queue(uri, write=True)
            await producer.post_many(messages(0, 200))
            queue = await session.open_queue(uri, read=True, default_subscription=default)
            more = asyncio.create_task(producer.post_many(messages(200, 200)))
            consumer = await queue.subscribe("k == 1", priority=1)
            await more
            await producer.post_many(messages(400, 20))
            # If all messages were requested at once, some have arrived by the default subscription.
            left = queue._default.messages if default else 0  # type: ignore[union-attr]
            early = [number for number in await take(queue, left) if number % 2] if left else []
            rest = await take(consumer, 210 - len(early))
            assert rest == sorted(rest)
            assert sorted(early + rest) == list(range(1, 420, 2))


class Tap:
    """A proxy that records the broker's order of delivery.

    A broker need not deliver in posting order: messages that waited for a subscription arrive late.
    """

    def __init__(self, broker_uri: str) -> None:
        self._host, _, port = broker_uri.removeprefix("tcp://").rpartition(":")
        self._port = int(port)
        self.delivered: list[int] = []

    async def __aenter__(self) -> Tap:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.uri = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(
            self._pass(reader, to_broker, None),
            self._pass(from_broker, writer, Framer(DEFAULT_MAX_INCOMING_EVENT)),
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, framer: Framer | None
    ) -> None:
        while data := await reader.read(65536):
            for event in framer.feed(data)[0] if framer is not None else ():
                if event.type == EventType.PUSH:
                    for message in decode_pushes(event.data, event.body):
                        length = split_properties(message.data, message.schema_id != 0)[1]
                        self.delivered.append(int(message.data[length:]))
            writer.write(data)
        writer.close()


class Flow:
    """A queue under a steady flow, and a session with at most one consumer per key."""

    def __init__(
        self, producer: bmq.Queue, queue: bmq.Queue, chance: random.Random, limits: list[int]
    ) -> None:
        self.limits = limits
        self.producer = producer
        self.queue = queue
        self.chance = chance
        self.posted = 0
        self.ending = False
        self.complete = asyncio.Event()
        #: The keys and numbers of received messages in order, in total and by consumer.
        self.shown: list[tuple[int, int]] = []
        self.by_consumer: dict[bmq.Consumer, list[tuple[int, int]]] = {}
        self.here: dict[int, bmq.Consumer] = {}
        self.tasks: dict[bmq.Consumer, asyncio.Task[None]] = {}

    async def produce(self) -> None:
        while not self.ending:
            batch = messages(self.posted, self.chance.randrange(1, 40), KEYS)
            self.posted += len(batch)
            (await self.producer.post_many(batch)).raise_for_failures()

    async def consume(self, consumer: bmq.Consumer) -> None:
        async for message in consumer:
            number = int(message.data)
            assert message.properties["k"] == number % KEYS
            self.shown.append((number % KEYS, number))
            self.by_consumer[consumer].append((number % KEYS, number))
            message.confirm()
            if self.ending and len(self.shown) >= self.posted:
                self.complete.set()
            if not self.chance.randrange(20):
                await asyncio.sleep(0)

    def receive(self, consumer: bmq.Consumer) -> None:
        if consumer not in self.tasks:
            self.tasks[consumer] = asyncio.create_task(self.consume(consumer))

    async def add(self, expression: str, key: int, priority: int) -> None:
        """Add a consumer; some consumers never receive, and their messages go to others."""
        limit = self.chance.choice(self.limits)
        consumer = self.queue.subscribe(expression, priority=priority, max_unconfirmed_messages=limit)
        self.here[key] = consumer
        self.by_consumer[consumer] = []
        await consumer.open()
        if self.chance.randrange(3):
            self.receive(consumer)

    async def change(self, key: int) -> None:
        """Add, change or remove the consumer of a key."""
        consumer = self.here.get(key)
        if consumer is None:
            await self.add(f"k == {key}", key, self.chance.randrange(1, 4))
        elif self.chance.randrange(2):
            await consumer.configure(
                priority=self.chance.randrange(1, 4),
                max_unconfirmed_messages=self.chance.choice(self.limits),
            )
        else:
            del self.here[key]
            await consumer.close()


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("rest", [False, True], ids=["a consumer a key", "and one for the rest"])
async def test_matching_messages_arrive_in_order(
    broker_uri: str, bmq_new_queue_uri: NewUri, rest: bool
) -> None:
    seed = int(os.environ.get("BMQ_ORDER_SEED", secrets.randbits(32)))
    print(f"BMQ_ORDER_SEED={seed}")
    uri = bmq_new_queue_uri()
    async with Tap(broker_uri) as tap, bmq.connect(broker_uri) as posting, bmq.connect(tap.uri) as session:
        queue = await session.open_queue(uri, read=True)
        # Messages beyond a full consumer go to the consumer of the rest at once, before waiting messages: no
        # order
        # is defined.
        limits = [100_000] if rest else [20, 200, 1000]
        flow = Flow(await posting.open_queue(uri, write=True), queue, random.Random(seed), limits)
        if rest:
            await flow.add("k >= 0", -1, 0)
            flow.receive(flow.here[-1])
        producing = asyncio.create_task(flow.produce())
        began = asyncio.get_running_loop().time()
        rounds = 0
        while rounds < ROUNDS or asyncio.get_running_loop().time() < began + SECONDS:
            rounds += 1
            keys = flow.chance.sample(range(KEYS), flow.chance.randrange(1, 3))
            await asyncio.gather(*[flow.change(key) for key in keys])
        flow.ending = True
        await producing
        # At the end a consumer receives the rest, and a second consumer the messages waiting for a key.
        for key in range(KEYS):
            if key not in flow.here:
                await flow.change(key)
        for consumer in flow.here.values():
            flow.receive(consumer)
        last = messages(flow.posted, KEYS, KEYS)
        flow.posted += KEYS
        flow.complete.clear()  # all earlier messages may have been received already
        await flow.producer.post_many(last)
        async with asyncio.timeout(2 * TIMEOUT + SECONDS):
            await flow.complete.wait()
        assert queue.unclaimed == 0
    print(f"{rounds} rounds of changes, {flow.posted:,} messages")
    assert sorted(number for _, number in flow.shown) == sorted(tap.delivered) == list(range(flow.posted))
    place = {number: index for index, number in enumerate(tap.delivered)}
    for shown in flow.by_consumer.values() if rest else [flow.shown]:
        for key in range(KEYS):
            places = [place[number] for k, number in shown if k == key]
            assert places == sorted(places)
