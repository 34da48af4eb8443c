# SPDX-License-Identifier: Apache-2.0
"""Exclusive groups at an embedded broker."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import bmq
from bmq.groups import Gained, GroupEvent, Lost, Reason
from bmq.groups._coordinator import Coordinator
from bmq.groups._protocol import Order
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.subscriptions import Expression
from bmq.testing import FaultProxy, Simulation
from tests.groups.conftest import OPTIONS, Connect, Open, post
from tests.sweeps import sweep
from tests.waiting import eventually


async def test_a_member_without_an_answer_hands_out_nothing_after_its_lease(
    bmq_connect: Connect, bmq_broker: bmq.broker.Broker, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        async with queue.group("k", **OPTIONS) as group:
            await eventually(lambda: len(group.owned) == 6)
            await post(writer, *range(12))
            (await group.receive(timeout=10)).confirm()
            await eventually(lambda: group.stats().waiting == 11)
            proxy.swallow()
            await eventually(lambda: not group.owned)
            assert group.receive_nowait() is None
            assert group.stats().waiting == 11
            proxy.cut()
            proxy.heal()
            await eventually(lambda: len(group.owned) == 6)
            for _ in range(11):
                (await group.receive(timeout=10)).confirm()


async def test_no_window_of_a_bucket_is_ever_full(writer: bmq.Queue, reader: bmq.Queue) -> None:
    """A real broker loses the order of the messages behind a full window."""
    async with reader.group("k", max_unconfirmed_messages=2, **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        await post(writer, *range(60))
        await eventually(lambda: group.stats().waiting == 60)
        taken = [int((await group.receive(timeout=10)).data) for _ in range(60)]
        assert [n for n in taken if n % 6 == 1] == list(range(1, 60, 6))


async def test_a_subscription_to_nothing_stands_above_all_buckets(reader: bmq.Queue) -> None:
    """A real broker stops the whole queue if the first evaluated expression has a window of 0."""
    async with reader.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        first, second, *_ = sorted(reader.consumers, key=lambda each: -each.options.priority)
        assert first.options.priority > second.options.priority
        assert first.options.max_unconfirmed_messages > 0
        (text,) = first.expressions
        assert not any(
            Expression(text, strict=False).matches({"k": 0, "bmq_none": each}) for each in (0, 1, -1, "")
        )
    assert not reader.consumers


@pytest.mark.parametrize("other", [{"buckets": 8}, {"expression": "x == 1"}, {"key": "j"}])
async def test_a_member_that_differs_from_the_group_ends_with_an_error(
    writer: bmq.Queue, reader: bmq.Queue, open_reader: Open, other: dict[str, Any]
) -> None:
    """Otherwise, buckets known to a single member would have no owner."""
    new = await open_reader()
    async with reader.group("k", **OPTIONS) as first:
        await eventually(lambda: len(first.owned) == 6)
        group = new.group(**{"key": "k", **OPTIONS, **other})
        with pytest.raises(bmq.UsageError, match="same key, buckets and expression"):
            await group.receive(timeout=10)
        await group.close()
        await eventually(lambda: len(first.owned) == 6)
        await post(writer, *range(12))
        for _ in range(12):
            (await first.receive(timeout=10)).confirm()


def all_settled(groups: Sequence[bmq.groups.Group]) -> bool:
    return all(each.stats().settled for each in groups)


@sweep("other", [{}, {"buckets": 8}, {"expression": "x == 1"}])
def test_members_that_left_together_are_not_awaited_after_a_change(other: dict[str, Any]) -> None:
    """A deployment that changes the buckets stops all members, and starts them again."""

    async def main(sim: Simulation) -> None:
        broker = sim.broker()
        for options in ({"key": "k", "buckets": 6}, {"key": "k", "buckets": 6, **other}):
            async with AsyncExitStack() as stack:
                groups: list[bmq.groups.Group] = []
                for _ in range(3):
                    session = await stack.enter_async_context(bmq.connect(broker.uri))
                    queue = await session.open_queue("bmq://bmq.test.mem.priority/q", read=True)
                    groups.append(queue.group(**options, lease=60.0))
                await asyncio.gather(*(each.open() for each in groups))
                await sim.until(functools.partial(all_settled, groups), timeout=15.0)
                await asyncio.gather(*(each.close() for each in groups))

    for seed in range(2):
        sim = Simulation(seed)
        sim.run(main, sim)


def test_a_bucket_moves_only_when_its_messages_are_confirmed() -> None:
    seen: list[GroupEvent] = []

    async def main(sim: Simulation) -> None:
        uri = sim.broker().uri
        async with bmq.connect(uri) as one, bmq.connect(uri) as two:
            old = await one.open_queue("bmq://bmq.test.mem.priority/q", read=True, write=True)
            new = await two.open_queue(old.uri, read=True)
            await post(old, *range(6))
            async with old.group("k", buckets=6, on_event=seen.append) as first:
                held = [await first.receive() for _ in range(6)]
                fences = [first.fence(bucket) for bucket in range(6)]
                async with new.group("k", buckets=6) as second:
                    await asyncio.sleep(60)
                    assert not second.owned
                    for message in held:
                        message.confirm()
                    await sim.until(lambda: len(first.owned) == len(second.owned) == 3)
                    assert first.owned | second.owned == set(range(6))
                    assert all(second.fence(bucket) > fences[bucket] for bucket in second.owned)
                    moved = [each for each in seen if isinstance(each, Lost)]
                    assert {each.bucket for each in moved} == second.owned
                    assert {each.reason for each in moved} == {Reason.MOVED}
                await sim.until(lambda: len(first.owned) == 6)
                assert sum(isinstance(each, Gained) for each in seen) == 9

    sim = Simulation(1)
    sim.run(main, sim)


async def test_many_members_that_join_at_once_send_few_requests(
    bmq_connect: Connect, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[str] = []
    requests: list[int] = []
    send, ask = Coordinator._send, QueueCore._request_configure

    def sent(self: Coordinator, each: list[Order]) -> None:
        orders.extend(order.who for order in each)
        send(self, each)

    def asked(self: QueueCore, subscriptions: Sequence[SubscriptionCore] | None, deadline: float) -> None:
        requests.append(len(subscriptions or ()))
        ask(self, subscriptions, deadline)

    monkeypatch.setattr(Coordinator, "_send", sent)
    monkeypatch.setattr(QueueCore, "_request_configure", asked)
    sessions = [await bmq_connect(repeat_subscriptions_after=0) for _ in range(10)]  # requests of groups only
    queues = [await session.open_queue(bmq_queue_uri, read=True) for session in sessions]
    groups = await asyncio.gather(*(queue.group("k", buckets=60) for queue in queues))
    await eventually(lambda: [len(group.owned) for group in groups] == [6] * 10)
    # With an order for each report, and moves of buckets to each new member, the leader would send many more.
    assert len(orders) < 80
    assert len(requests) < 13 * len(groups)
    await asyncio.gather(*(group.close() for group in groups))


async def test_each_member_gets_its_order_in_a_window_of_one_message(
    bmq_connect: Connect, bmq_queue_uri: str
) -> None:
    """A leader answers several members in one turn of the event loop."""
    sessions = [await bmq_connect(max_unacked_messages=1) for _ in range(6)]
    queues = [await session.open_queue(bmq_queue_uri, read=True) for session in sessions]
    options = {**OPTIONS, "lease": 30.0}
    async with asyncio.timeout(10):
        groups = await asyncio.gather(*(queue.group("k", **options) for queue in queues))
        await eventually(lambda: [len(group.owned) for group in groups] == [1] * 6)
    await asyncio.gather(*(group.close() for group in groups))
