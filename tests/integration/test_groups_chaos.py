# SPDX-License-Identifier: Apache-2.0
"""A consumer group while the connections of its members are cut, stalled and split."""

from __future__ import annotations

import asyncio
import os

import pytest

import bmq
from bmq.testing import FaultProxy, History, check, fresh_queue_uri, plan_faults
from tests.integration.chaos import everything_arrives

KEYS = 100
BUCKETS = 16
SECONDS = float(os.environ.get("BMQ_CHAOS_SECONDS", "3"))


class Member:
    """A member behind a separate proxy."""

    def __init__(self, name: str, seed: int, history: History) -> None:
        self.name = name
        self._recorder = history.process(name)
        self._steps = plan_faults(seed, 100 + int(5 * SECONDS), pause=(0.1, 0.5), duration=(0.05, 0.3))

    async def run(self, broker: str, uri: str, ready: asyncio.Event) -> None:
        recorder = self._recorder
        async with (
            FaultProxy(broker) as self.proxy,
            bmq.connect(self.proxy.uri, interceptors=[recorder], on_event=recorder.on_event) as session,
            (await session.open_queue(uri, read=True)).group(
                "k", member=self.name, buckets=16, coordination="none"
            ) as group,
        ):
            ready.set()
            async for message in group:
                async with message:
                    await asyncio.sleep(0)

    async def suffer(self, until: float) -> int:
        """Carry out the plan; return its length."""
        count = 0
        try:
            for step in self._steps:
                if count >= 4 and asyncio.get_running_loop().time() + step.after > until:
                    break
                await asyncio.sleep(step.after)
                await step.apply(self.proxy)
                count += 1
        finally:
            self.proxy.heal()
            await self.proxy.accept()
            for connection in self.proxy.connections[:]:
                if not connection._is_whole:
                    connection.cut()
        return count


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_message_is_lost_and_reordered_ones_are_marked(
    bmq_broker: bmq.broker.Broker, seed: int
) -> None:
    uri = fresh_queue_uri("bmq.test.mem.priority", "group-chaos")
    history = History(key="bucket")
    members = [Member(name, seed * 10 + index, history) for index, name in enumerate(("a", "b", "c"))]
    async with bmq.connect(bmq_broker.uri, interceptors=[history.process("producer")]) as session:
        writer = await session.open_queue(uri, write=True)
        ready = [asyncio.Event() for _ in members]
        running = [
            asyncio.create_task(member.run(bmq_broker.uri, uri, event))
            for member, event in zip(members, ready, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in ready))
        until = asyncio.get_running_loop().time() + SECONDS
        suffering = [asyncio.create_task(member.suffer(until)) for member in members]
        posted = 0
        while not all(task.done() for task in suffering):
            keys = [n % KEYS - 50 for n in range(posted, posted + 20)]
            report = await writer.post_many(
                bmq.PutMessage(b"%d" % key, {"k": key, "bucket": key % BUCKETS}) for key in keys
            )
            report.raise_for_failures()
            posted += 20
            await asyncio.sleep(0.02)
        assert sum(task.result() for task in suffering) > 10
        await everything_arrives(history, 30)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    # A member that regains a bucket receives the messages of its dying predecessor late, and marked.
    verdict = check(
        history, rules=["lost", "unfinished", "outcome", "content", "key-order", "confirm", "again"]
    )
    lost = len(list(history.events(op="connection", type="fail")))
    assert lost > 0
    # Duplicates were in hand, or their confirmation in flight, when a connection was lost: one burst each.
    assert sum(verdict.duplicates.values()) <= (lost + len(members)) * 100, seed
