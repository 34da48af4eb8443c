# SPDX-License-Identifier: Apache-2.0
"""Handlers of a group: the order of a key holds over processes, retries and departures."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import bmq
from bmq.testing import FaultProxy, TestApp, fresh_queue_uri
from bmq.workers import Failure
from tests.sweeps import sweep
from tests.waiting import eventually
from tests.workers.conftest import FakeClock

Connect = Callable[..., Awaitable[bmq.Session]]
ORDERS = "bmq://bmq.test.mem.priority/orders"
FAST = bmq.Backoff(every=0.02, retries=None)


async def post(queue: bmq.Queue, *numbers: int, keys: int = 4) -> None:
    """Post numbers; the key of a number is its remainder."""
    posts = [bmq.PutMessage(b"%d" % number, {"k": number % keys}) for number in numbers]
    (await queue.post_many(posts)).raise_for_failures()


@pytest.fixture
async def writer(bmq_session: bmq.Session, bmq_queue_uri: str) -> bmq.Queue:
    return await bmq_session.open_queue(bmq_queue_uri, write=True)


async def member(connect: Connect, uri: str, **options: Any) -> bmq.groups.Group:
    queue = await (await connect()).open_queue(uri, read=True)
    return queue.group("k", **{"buckets": 4, "lease": 1.0, **options})


@asynccontextmanager
async def working(group: Any, handler: Any, **options: Any) -> AsyncIterator[None]:
    """Run consume() beside the test, and end it; raise its exception."""
    task = asyncio.create_task(bmq.consume(group, handler, **options))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class Handled:
    """The numbers handled, by key, and a set of numbers that fail."""

    def __init__(self, *failing: int) -> None:
        self.done: dict[int, list[int]] = defaultdict(list)
        self.failing = set(failing)
        self.attempts = 0

    async def handle(self, message: bmq.Message) -> None:
        number = int(message.data)
        if number in self.failing:
            self.attempts += 1
            raise ConnectionError("the store is away")
        self.done[number % 4].append(number)

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    def in_order(self) -> bool:
        return all(numbers == sorted(numbers) for numbers in self.done.values())


async def test_a_failing_message_holds_its_key_and_no_other(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    handled = Handled(5)
    group = await member(bmq_connect, bmq_queue_uri, buckets=1)
    async with working(group, handled.handle, concurrency=2, retry=FAST):
        await post(writer, *range(20))
        await eventually(lambda: handled.count == 16 and handled.attempts > 2)
        assert handled.done[1] == [1], "messages of the key wait behind the failing one"
        handled.failing.clear()
        await eventually(lambda: handled.count == 20)
    assert handled.done[1] == [1, 5, 9, 13, 17]
    assert handled.in_order()
    assert group.closed


class Paid(msgspec.Struct):
    """The old form of a payment has no currency."""

    amount: int
    currency: str


LETTERS = bmq.DeadLetter(fresh_queue_uri("bmq.test.mem.priority", "dead"))


@pytest.mark.parametrize(
    ("policy", "gives_up"),
    [
        (FAST, False),
        (bmq.Backoff(every=0.02, retries=None, then=LETTERS), False),
        (bmq.Backoff(every=0.02, retries=3, then=LETTERS), True),
    ],
    ids=["nobody decides", "retries without an end", "three retries"],
)
async def test_a_value_that_cannot_be_decoded_holds_its_key_in_a_group(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str, policy: bmq.Backoff, gives_up: bool
) -> None:
    """Until the policy gives up; a new version of the handler then takes the message in order."""
    failures: list[Failure] = []
    paid: list[tuple[object, int]] = []

    async def new(payment: Paid, message: bmq.Message) -> None:
        paid.append((message.properties["k"], payment.amount))

    async def both(message: bmq.Message) -> None:
        paid.append((message.properties["k"], msgspec.json.decode(message.data)["amount"]))

    for key, data in (
        (1, b'{"amount":1}'),
        (1, b'{"amount":2,"currency":"EUR"}'),
        (2, b'{"amount":3,"currency":"EUR"}'),
    ):
        await writer.post(data, properties={"k": key})
    group = await member(bmq_connect, bmq_queue_uri, buckets=1)
    async with working(group, new, concurrency=2, retry=policy, on_error=failures.append):
        if gives_up:
            await eventually(lambda: (1, 2) in paid)
            assert [failure.retry_in is None for failure in failures] == [False, False, False, True]
            return
        await eventually(lambda: len(failures) > 5)
        assert paid == [(2, 3)]
    group = await member(bmq_connect, bmq_queue_uri, buckets=1)
    async with working(group, both, concurrency=2, retry=policy):
        await eventually(lambda: len(paid) == 3)
    assert paid == [(2, 3), (1, 1), (1, 2)]


async def test_a_leaving_member_gives_a_waiting_message_to_the_next_owner(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    """Between two attempts nothing is at work: the next owner need not wait for the pause."""
    old, new = Handled(0), Handled()
    retry = bmq.Backoff(every=3600, retries=None)
    async with working(await member(bmq_connect, bmq_queue_uri), old.handle, retry=retry):
        await post(writer, *range(8))
        await eventually(lambda: old.attempts == 1 and old.count == 6)
    async with working(await member(bmq_connect, bmq_queue_uri), new.handle):
        await eventually(lambda: new.count == 2)
    assert new.done == {0: [0, 4]}


async def test_a_joining_member_gets_a_bucket_after_its_failing_message(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    old, new = Handled(0, 1, 2, 3), Handled()
    first, second = [await member(bmq_connect, bmq_queue_uri) for _ in range(2)]
    async with working(first, old.handle, concurrency=4, retry=FAST):
        await post(writer, *range(8))
        await eventually(lambda: old.attempts > 4)
        async with working(second, new.handle):
            attempts = old.attempts
            await eventually(lambda: old.attempts > attempts + 8)
            assert not new.count
            old.failing.clear()
            await eventually(lambda: len(second.owned) == 2)
            await post(writer, *range(8, 16))
            await eventually(lambda: old.count + new.count == 16)
    for key in range(4):
        assert old.done[key] + new.done[key] == list(range(key, 16, 4))


async def test_a_message_of_a_lost_connection_is_not_tried_again(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    """The next owner may have the message already."""
    old, new = Handled(0), Handled()
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri, reconnect=False) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        group = queue.group("k", buckets=4, lease=1.0)
        task = asyncio.create_task(bmq.consume(group, old.handle, retry=FAST, clock=FakeClock()))
        await post(writer, 0)
        await eventually(lambda: old.attempts > 0)
        async with working(await member(bmq_connect, bmq_queue_uri), new.handle):
            proxy.cut()
            await eventually(lambda: new.done[0] == [0])
            old.failing.clear()
            with pytest.raises(bmq.Error):
                await task
            assert not old.count


async def test_no_attempt_begins_after_the_lease(
    bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    handled = Handled(0)
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        group = queue.group("k", buckets=4, lease=0.5)
        async with working(group, handled.handle, retry=FAST):
            await post(writer, 0)
            await eventually(lambda: handled.attempts > 1)
            proxy.swallow()
            await eventually(lambda: not group.owned)
            attempts = handled.attempts
            handled.failing.clear()
            await asyncio.sleep(0.2)
            assert (handled.attempts, handled.count) == (attempts, 0)
            proxy.cut()
            proxy.heal()
            await eventually(lambda: handled.done[0] == [0])


async def test_a_key_waits_behind_a_message_without_its_dead_letter(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    handled, group = Handled(0), await member(bmq_connect, bmq_queue_uri, buckets=1)
    dead = fresh_queue_uri("bmq.test.mem.priority", "dead")
    letters = await group.queue.session.open_queue(dead, write=True)
    async with working(group, handled.handle, retry=bmq.NoRetry(bmq.DeadLetter(letters))):
        await eventually(lambda: group.owned)
        await letters.close()
        await post(writer, 0, 4, 1, 5, 9)
        await eventually(lambda: handled.done[1] == [1, 5, 9])
        assert not handled.done[0]


async def test_values_and_typed_groups(bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str) -> None:
    seen: list[int] = []

    async def handle(number: int) -> None:
        seen.append(number)

    queue = await (await bmq_connect()).open_queue(bmq_queue_uri, read=True)
    async with working(queue.typed(int).group("k", buckets=2), handle):
        await post(writer, *range(4))
        await eventually(lambda: sorted(seen) == [0, 1, 2, 3])


@sweep(
    "options, text",
    [
        ({"retry": bmq.Backoff(every=1, durable=True)}, "durable"),
        ({"retry": bmq.Backoff(every=1, then="skip")}, "then='skip'"),
        ({"retry": bmq.Backoff(every=1)}, "then='skip'"),
        ({"retry": bmq.Backoff(every=1, retries=None, give_up_after=60)}, "then='skip'"),
        ({"retry": bmq.Backoff(every=1, retries=None, no_retry=ValueError)}, "then='skip'"),
        ({"retry": bmq.Backoff(every=1, retries=None, blocks=True)}, "blocks"),
        ({"retry": bmq.NoRetry()}, "then='skip'"),
        ({"expression": "x == 1"}, r"queue\.group"),
        ({"priority": 2}, r"queue\.group"),
        ({"max_unconfirmed_messages": 10}, r"queue\.group"),
        ({"discard_unmatched": True}, r"queue\.group"),
        ({"quarantine": bmq.DeadLetter("bmq://bmq.test.mem.priority/bad")}, "quarantine"),
        ({"group": 7}, "group"),
        ({"group": lambda: None}, "group"),
    ],
)
def test_options_that_would_break_the_order_are_refused(options: dict[str, Any], text: str) -> None:
    options = {"group": lambda queue: queue.group("k"), **options}
    with pytest.raises(bmq.UsageError, match=text):
        bmq.App().consumer(ORDERS, **options)


def test_a_group_has_a_single_handler() -> None:
    app = bmq.App()

    async def one(message: bmq.Message) -> None: ...
    async def two(message: bmq.Message) -> None: ...

    app.consumer(ORDERS, group=lambda queue: queue.group("k"))(one)
    with pytest.raises(bmq.UsageError, match="one handler"):
        app.consumer(ORDERS, expression="x == 1")(two)


async def test_a_group_in_an_app() -> None:
    handled, app = Handled(), bmq.App()
    app.consumer(ORDERS, group=lambda queue: queue.group("k", buckets=4), concurrency=4)(handled.handle)
    async with TestApp(app) as test:
        for number in range(12):
            await test.post(ORDERS, b"%d" % number, properties={"k": number % 4})
        await test.drained()
        assert handled.count == 12
        assert handled.in_order()
        (status,) = app.status()
        assert (status.queue, status.handled) == (ORDERS, 12)
        with pytest.raises(bmq.StateError, match="group"):
            await app.pause()


async def test_a_function_that_returns_no_group_ends_the_app() -> None:
    async with bmq.broker.Broker() as broker:
        app = bmq.App(broker.uri)
        app.consumer(ORDERS, group=lambda queue: None)(Handled().handle)  # type: ignore[arg-type,return-value]
        with pytest.raises(bmq.UsageError, match="returned None"):
            await app.run(signals=False)
