# SPDX-License-Identifier: Apache-2.0
"""Members join, leave, die and stall at random, beside a model of the owners.

The model is the ranking alone, which gives the owner of a bucket after each change without asking the broker.
Messages posted without a change of members must arrive at these owners, each once, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncGenerator

import pytest

import bmq
from bmq.broker import Broker
from bmq.testing import FaultProxy, fresh_queue_uri
from tests.waiting import eventually

BUCKETS = 8
ROUNDS = 15
EACH = 40


class Member:
    """A member with its own connection, which can be cut permanently.

    Attributes:
        handled: numbers of the handled messages, in order.
        confirmed: the part of them confirmed while connected.
    """

    def __init__(self, name: str, weight: float, pause: float) -> None:
        self.name, self.weight, self.pause = name, weight, pause
        self.handled: list[int] = []
        self._stack = contextlib.AsyncExitStack()

    async def join(self, broker: str, uri: str) -> None:
        self._proxy = await self._stack.enter_async_context(FaultProxy(broker))
        session = await self._stack.enter_async_context(
            bmq.connect(self._proxy.uri, reconnect=False, close_timeout=5.0)
        )
        queue = await session.open_queue(uri, read=True)
        self.group = queue.group(
            "k", buckets=BUCKETS, member=self.name, weight=self.weight, coordination="none"
        )
        await self.group.open()
        self._task = asyncio.create_task(self._handle())

    async def _handle(self) -> None:
        with contextlib.suppress(bmq.Error):
            async for message in self.group:
                number = int(message.data)
                if self.pause:
                    await asyncio.sleep(self.pause)
                self.handled.append(number)
                message.confirm()

    async def leave(self) -> None:
        await self.group.close()
        await self._task
        await self._stack.aclose()

    async def die(self) -> None:
        self._proxy.cut()
        await self._task
        with contextlib.suppress(bmq.Error):
            await self._stack.aclose()


@contextlib.asynccontextmanager
async def broker_and_writer(uri: str) -> AsyncGenerator[tuple[str, bmq.Queue]]:
    async with Broker(port=0) as broker, bmq.connect(broker.uri) as session:
        yield broker.uri, await session.open_queue(uri, write=True)


@pytest.mark.parametrize("seed", range(4))
async def test_owners_are_those_of_the_model(seed: int) -> None:
    rng = random.Random(seed)
    uri = fresh_queue_uri("bmq.test.mem.priority", "model")
    posted: list[int] = []
    everybody: list[Member] = []
    live: dict[str, Member] = {}
    async with broker_and_writer(uri) as (broker, writer):

        async def post() -> list[int]:
            numbers = [len(posted) + each for each in range(EACH)]
            posted.extend(numbers)
            report = await writer.post_many(bmq.PutMessage(b"%d" % n, {"k": n - 200}) for n in numbers)
            report.raise_for_failures()
            return numbers

        for _ in range(ROUNDS):
            # What is under way while members come and go belongs to whoever gets it.
            under_way = await post()
            deed = rng.choice(["join", "join", "leave", "die"]) if len(live) > 1 else "join"
            if deed == "join" and len(live) < 6:
                name = f"m{len(everybody)}"
                member = Member(name, rng.choice([0.5, 1.0, 4.0]), rng.choice([0.0, 0.0, 0.002]))
                everybody.append(member)
                live[name] = member
                await member.join(broker, uri)
            elif deed != "join":
                member = live.pop(rng.choice(sorted(live)))
                await (member.leave() if deed == "leave" else member.die())
            await eventually(lambda: set(posted) <= _handled(everybody), 20)

            before = {name: len(member.handled) for name, member in live.items()}
            numbers = await post()
            await eventually(lambda: set(posted) <= _handled(everybody), 20)
            model = bmq.groups.owners({name: member.weight for name, member in live.items()}, BUCKETS)
            for name, member in live.items():
                expected = [n for n in numbers if model[(n - 200) % BUCKETS] == name]
                got = member.handled[before[name] :]
                assert sorted(got) == expected, (name, seed)
                assert _in_order(got), (name, seed)
                assert member.group.owned >= {(n - 200) % BUCKETS for n in expected}
            assert under_way

        for member in live.values():
            await member.leave()
    # Every member has had each bucket in order, over all rounds: nobody had a bucket's older messages later.
    for member in everybody:
        assert _in_order(member.handled), (member.name, seed)
    died = {n for member in everybody if member not in live.values() for n in member.handled}
    times: dict[int, int] = defaultdict(int)
    for member in everybody:
        for number in member.handled:
            times[number] += 1
    # Only what a member had handled that is no more can come again.
    assert {number for number, count in times.items() if count > 1} <= died


def _handled(members: list[Member]) -> set[int]:
    return {number for member in members for number in member.handled}


def _in_order(numbers: list[int]) -> bool:
    latest: dict[int, int] = {}
    for number in numbers:
        if latest.get(number % BUCKETS, -1) >= number:
            return False
        latest[number % BUCKETS] = number
    return True
