# SPDX-License-Identifier: Apache-2.0
"""Every variable that keeps received messages is known and bounded, whatever the broker sends."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import bmq
from bmq.client.message import Message
from tests.extras import with_tables
from tests.fakes.broker import Peer
from tests.waiting import eventually

PACKAGE = Path(bmq.__file__).parent
URI = "bmq://bmq.test.mem.priority/q"

_CONTAINER = r"\b(deque|list|dict|OrderedDict|defaultdict|set|tuple|Lanes)\["
_MESSAGES = (
    r"\b(Push|Numbered|Delivery|Message|MessageBatch|TypedMessage|_Event|Work|Taken|Receipt|Failure|_Item|Columns|"
    r"RecordBatch|Event)\b"
)
_KEEPS = re.compile(f"{_CONTAINER}.*{_MESSAGES}")

#: Variables that keep messages, and their bounds.
PLACES = {
    # Counted in the session's receive limit, which pauses reading.
    "client/buffer.py: ReceiveBuffer.deliveries": "the receive limit",
    "client/buffer.py: Delivery.pushes": "the receive limit",
    "arrow/consumer.py: ColumnLine._events": "the receive limit",
    "arrow/consumer.py: _Event.messages": "the receive limit",
    "client/_subscriptions.py: UnclaimedBuffer._messages": "the limit, and none beyond while reading",
    # Received from a consumer by a single call or task.
    "arrow/consumer.py: Taken.messages": "the rows of a batch",
    "arrow/consumer.py: Receipt.messages": "the rows of a batch",
    "arrow/tables.py: _Late._receipts": "the limits, which grow by what is left out: GUIDs alone",
    "arrow/consumer.py: ColumnConsumer._out": "what the application holds: GUIDs alone",
    "blocking/_receive.py: Prefetch._messages": "a constant",
    "blocking/_posts.py: SendBuffer._entries": "SendBuffer.has_room, and confirmations of messages at hand",
    "spark/stream_reader.py: _Batch.waiting": "the rows of a file",
    # Received by tasks that stop receiving at a limit.
    "workers/_sources.py: KeyedMessages._lanes": "the limits of the subscription",
    "delays/_due.py: DueMessages._held": "max_held",
    "delays/_due.py: DueMessages._latest": "the same messages by GUID: max_held",
    "delays/_mover.py: Mover._passing": "messages on their way by GUID: max_held",
    "delays/_mover.py: _Output.waiting": "max_held",
    "delays/_mover.py: _Output._timers": "max_held",
    # In the hands of the application.
    "workers/_workers.py: Workers._held": "concurrency",
    "workers/_sources.py: ArrivingMessages._parked": "the limits of the subscription",
    "workers/_sources.py: Work.taken": "the messages of a batch, while its worker has them",
    "workers/_sources.py: Work.messages": "the messages of a batch, while its worker has them",
    "workers/_sources.py: Work.ages": "the messages of a batch, while its worker has them",
    "workers/_sources.py: Work.values": "the messages of a batch, while its worker has them",
    "client/left.py: Left.left": "what handlers left unconfirmed, by their own wish",
    "client/poison.py: PutAside._waiting": "what waits for its dead letter; pending counts it",
    "groups/_lanes.py: Lane._taken": "what the application holds",
    "testing/_app.py: TestApp.failures": "what a test did",
    "client/requests.py: Requests._waiting": "requests of the application",
    # For one connection.
    "protocol/client/handshake.py: Greeting.rest": "what is read in one turn of the event loop",
    "protocol/broker/session.py: BrokerSession._rest": "what is read in one turn of the event loop",
    "protocol/client/events.py: Pushed.deliveries": "what is read in one turn of the event loop",
    "protocol/client/events.py: PushedColumns.deliveries": "what is read in one turn of the event loop",
    # Not messages.
    "blocking/_receive.py: HeldMessages._leaving": "asyncio.Event",
    "client/health.py: HostHealth._changed": "asyncio.Event",
}


def _places() -> set[str]:
    found: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(kind, ast.ClassDef):
                continue
            for node in ast.walk(kind):
                if not isinstance(node, ast.AnnAssign) or not _KEEPS.search(ast.unparse(node.annotation)):
                    continue
                target = ast.unparse(node.target)
                if target.startswith("self.") or node in kind.body:
                    name = target.removeprefix("self.")
                    found.add(f"{path.relative_to(PACKAGE).as_posix()}: {kind.name}.{name}")
    return found


def test_every_place_that_keeps_messages_is_known() -> None:
    found = _places()
    assert found - PLACES.keys() == set(), "what bounds these?"
    assert PLACES.keys() - found == set(), "not found any more"


# A broker sends far more than the subscription may hold.

SIZE = 10_000
LIMITS = {"max_unconfirmed_messages": 10, "max_unconfirmed_bytes": 20 * SIZE}

Taker = Callable[[bmq.Queue], AbstractAsyncContextManager[None]]


async def _never(_message: Message) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def _beside(*work: object) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@asynccontextmanager
async def _subscribed(queue: bmq.Queue) -> AsyncIterator[None]:
    async with queue.subscribe(**LIMITS):
        yield


@asynccontextmanager
async def _tables(queue: bmq.Queue) -> AsyncIterator[None]:
    async with queue.tables(**LIMITS) as tables, _beside(tables.receive(timeout=20)):
        yield


@asynccontextmanager
async def _one_handler(queue: bmq.Queue) -> AsyncIterator[None]:
    async with _beside(bmq.consume(queue, _never, grace=0.0, **LIMITS)):
        yield


@asynccontextmanager
async def _many_handlers(queue: bmq.Queue) -> AsyncIterator[None]:
    async with _beside(bmq.consume(queue, _never, concurrency=8, grace=0.0, **LIMITS)):
        yield


@asynccontextmanager
async def _one_lane(queue: bmq.Queue) -> AsyncIterator[None]:
    working = bmq.consume(queue, _never, key=lambda _: 1, concurrency=8, grace=0.0, **LIMITS)
    async with _beside(working):
        yield


@asynccontextmanager
async def _many_lanes(queue: bmq.Queue) -> AsyncIterator[None]:
    working = bmq.consume(queue, _never, key=lambda m: m.guid, concurrency=8, grace=0.0, **LIMITS)
    async with _beside(working):
        yield


@asynccontextmanager
async def _typed(queue: bmq.Queue) -> AsyncIterator[None]:
    async def receive() -> None:
        async for _ in queue.typed(dict, codec="application/json"):
            await asyncio.Event().wait()

    async with _beside(receive()):
        yield


@pytest.mark.parametrize(
    "taker",
    [_subscribed, _one_handler, _many_handlers, _one_lane, _many_lanes, _typed, *with_tables(_tables)],
)
async def test_a_broker_that_ignores_the_limits_cannot_fill_the_memory(peer: Peer, taker: Taker) -> None:
    limit = 500_000
    async with bmq.connect(peer.uri, max_buffered_bytes=limit) as session:
        queue = await session.open_queue(URI, read=True)

        async with taker(queue):
            await eventually(lambda: peer.connection.s_ids)
            transport = peer.connection.transport
            assert transport is not None
            sent = quiet = 0
            while sent < 2000 and quiet < 50:
                if transport.get_write_buffer_size() < 1 << 18:
                    peer.connection.push(*range(sent + 1, sent + 21), size=SIZE)
                    sent += 20
                    quiet = 0
                quiet += 1
                await asyncio.sleep(0)
            stats = session.stats()
        assert sent < 2000, "all 20 MB were read"
        assert limit // 2 < stats.buffered_bytes < 3 * limit
        assert stats.bytes_received < 3 * limit + LIMITS["max_unconfirmed_bytes"]
