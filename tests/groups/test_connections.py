# SPDX-License-Identifier: Apache-2.0
"""The two connections of a member of an exclusive group: for the messages, and for the agreement."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

import bmq
from bmq.client.consumer import Consumer
from bmq.testing import FaultProxy
from tests.groups.conftest import OPTIONS, Connect, Open, Proxied
from tests.waiting import eventually


async def test_a_member_with_more_messages_than_its_memory_holds_keeps_its_lease(
    bmq_connect: Connect, writer: bmq.Queue, bmq_queue_uri: str
) -> None:
    """Reading of the messages has paused: the answers of the leader must not wait behind them."""
    session = await bmq_connect(max_buffered_messages=20)
    queue = await session.open_queue(bmq_queue_uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        fences = {bucket: group.fence(bucket) for bucket in range(6)}
        # More than the buffers of two sockets.
        large = [bmq.PutMessage(bytes(200_000), {"k": number}) for number in range(80)]
        posting = asyncio.create_task(writer.post_many(large))
        message = await group.receive(timeout=10)
        await eventually(lambda: session.health().degraded)
        member = group._coordinator._member
        until = member.lease_until
        await eventually(lambda: member.lease_until > until + 3 * OPTIONS["lease"])
        assert group.stats().waiting < 40  # an answer behind the messages would need memory for all of them
        message.confirm()
        for _ in range(79):
            (await group.receive(timeout=10)).confirm()
        assert {bucket: group.fence(bucket) for bucket in range(6)} == fences
        (await posting).raise_for_failures()


async def test_leaving_ends_the_connection_of_the_agreement(proxied: Proxied) -> None:
    proxy, queue = proxied
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        assert len(proxy.connections) == 2
    await eventually(lambda: len(proxy.connections) == 1)
    # Without the connection there is nobody to tell, and nothing to wait for.
    queue = await queue.session.open_queue(queue.uri, read=True)
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: not group.owned)


async def test_leaving_a_silent_broker_ends_after_the_lease(
    bmq_broker: bmq.broker.Broker, bmq_queue_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.groups._coordinator._LEAVE_WITHIN", 0.1)
    async with FaultProxy(bmq_broker.uri) as proxy:
        session = await bmq.connect(proxy.uri, close_timeout=0.2)
        queue = await session.open_queue(bmq_queue_uri, read=True)
        group = await queue.group("k", **OPTIONS)
        await eventually(lambda: len(group.owned) == 6)
        proxy.swallow()
        with pytest.raises(bmq.RequestTimeout):
            async with asyncio.timeout(9):  # the silence is noticed after 10 s
                await group.close()
        await session.close(timeout=0)


async def test_the_end_of_the_session_ends_both_connections(proxied: Proxied) -> None:
    proxy, queue = proxied
    group = await queue.group("k", **OPTIONS)
    await eventually(lambda: len(group.owned) == 6)
    await queue.session.close()
    await eventually(lambda: not proxy.connections)
    with pytest.raises(bmq.QueueClosed):
        await group.receive(timeout=10)


async def test_a_join_without_a_second_connection_fails_and_can_be_repeated(
    bmq_broker: bmq.broker.Broker, bmq_queue_uri: str
) -> None:
    async with FaultProxy(bmq_broker.uri) as proxy, bmq.connect(proxy.uri, connect_timeout=0.5) as session:
        queue = await session.open_queue(bmq_queue_uri, read=True)
        group = queue.group("k", **OPTIONS)
        proxy.refuse()
        with pytest.raises(bmq.ConnectionFailed) as failed:
            await group.open()
        assert "control_queue" in "".join(failed.value.__notes__)
        await proxy.accept()
        async with group:
            await eventually(lambda: len(group.owned) == 6)


async def test_the_leader_keeps_its_mark_if_it_arrives_again_on_the_same_connection(
    bmq_broker: bmq.broker.Broker, proxied: Proxied
) -> None:
    """A new primary delivers unconfirmed messages again."""
    proxy, queue = proxied
    bmq_broker.faults.duplicate_pushes()
    async with queue.group("k", **OPTIONS) as group:
        await eventually(lambda: len(group.owned) == 6)
        bmq_broker.faults.clear()
        proxy.cut()
        await eventually(lambda: not group.owned)
        # The broker would drop another first mark as a duplicate.
        await eventually(lambda: len(group.owned) == 6)


@pytest.mark.parametrize(
    "refused", ['!= "[^"]+"$', r'&& bmq_from != ""$', "^exists"], ids=["open", "narrow", "close"]
)
async def test_requests_of_a_candidate_that_the_broker_refuses_are_repeated(
    refused: str, open_reader: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure, left = Consumer.configure, [1, 2]

    async def refuse(self: Consumer, expression: Any = None, **limits: Any) -> None:
        control = self.queue.uri.endswith(".group") and not limits
        if left and control and re.search(refused, str(expression)):
            raise bmq.ConfigureQueueError(f"no {left.pop()}")
        await configure(self, expression, **limits)

    monkeypatch.setattr(Consumer, "configure", refuse)
    queues = [await open_reader() for _ in range(2)]
    groups = await asyncio.gather(*(queue.group("k", **OPTIONS) for queue in queues))
    await eventually(lambda: [len(group.owned) for group in groups] == [3, 3])
    assert not left
    assert caplog.text.count("and is repeated: no") == 2
    await asyncio.gather(*(group.close() for group in groups))


async def test_a_member_whose_host_falls_ill_passes_its_buckets_on(
    bmq_broker: bmq.broker.Broker, reader: bmq.Queue
) -> None:
    host = bmq.health.HostHealth()
    async with bmq.connect(bmq_broker.uri, host_health=host) as ill:
        queue = await ill.open_queue(reader.uri, read=True, suspends_on_bad_host_health=True)
        first = await queue.group("k", **OPTIONS)
        await eventually(lambda: len(first.owned) == 6)
        async with reader.group("k", **OPTIONS) as second:
            await eventually(lambda: len(first.owned) == len(second.owned) == 3)
            least = min(each.fence(bucket) for each in (first, second) for bucket in each.owned)
            for _ in range(2):
                host.set(False)
                await eventually(lambda: len(second.owned) == 6 and not first.owned)
                host.set(True)
                await eventually(lambda: len(first.owned) == len(second.owned) == 3)
            assert all(each.fence(bucket) > least for each in (first, second) for bucket in each.owned)
            host.set(False)
            await eventually(lambda: len(second.owned) == 6)
            await first.close()
