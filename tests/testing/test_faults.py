# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bmq.testing import FAULTS, Fault, FaultProxy, plan_faults, random_faults, replay_faults
from tests.sweeps import sweep
from tests.testing.upstream import client, upstream

QUICK = {"pause": (0.0, 0.001), "duration": (0.001, 0.005)}


def test_the_same_seed_plans_the_same() -> None:
    assert plan_faults(1, 50) == plan_faults(1, 50)
    assert plan_faults(1, 50) != plan_faults(2, 50)


def test_every_kind_of_fault_is_drawn() -> None:
    assert {fault.kind for fault in plan_faults(1, 500)} == set(FAULTS)
    assert {fault.kind for fault in plan_faults(1, 5, kinds=["corrupt"])} == {"corrupt"}


def test_printed_plan_is_code_that_recreates_the_plan() -> None:
    plan = plan_faults(3, 100)
    assert eval(repr(plan), {"Fault": Fault}) == plan


@sweep("kind", [*FAULTS, "corrupt"])
async def test_every_kind_is_injected_and_healed(kind: str) -> None:
    async with upstream() as up, FaultProxy(up.uri) as proxy:
        async with client(proxy):
            await up.connection()
            plan = plan_faults(1, 3, kinds=[kind], **QUICK)  # type: ignore[list-item, arg-type]
            assert [fault async for fault in replay_faults(proxy, plan)] == plan
        # What was armed and not triggered is for connections there were.
        async with client(proxy), client(proxy) as near:
            await up.connection()
            near.send(b"x" * 3000)
            far = await up.connection()
            if kind not in {"cut inside", "corrupt"}:
                assert await far.read(3000) == b"x" * 3000


async def test_yielded_faults_equal_the_plan() -> None:
    async with upstream() as up, FaultProxy(up.uri) as proxy:
        done = [fault async for fault in random_faults(proxy, 9, 20, **QUICK)]  # type: ignore[arg-type]
    assert done == plan_faults(9, 20, **QUICK)  # type: ignore[arg-type]


async def test_leaving_early_heals_the_proxy() -> None:
    async with upstream() as up, FaultProxy(up.uri) as proxy:
        async with aclosing(
            replay_faults(proxy, [Fault(0, "split", 0.001, amount=1), Fault(9, "cut")])
        ) as faults:
            async for _ in faults:
                break
        async with client(proxy) as near:
            near.send(b"x")
            assert await (await up.connection()).read(1) == b"x"


async def test_a_cancellation_heals_the_proxy() -> None:
    async with upstream() as up, FaultProxy(up.uri) as proxy:
        task = asyncio.ensure_future(Fault(0, "refuse", 3600).apply(proxy))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with client(proxy) as near:
            near.send(b"x")
            assert await (await up.connection()).read(1) == b"x"
