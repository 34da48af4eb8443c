# SPDX-License-Identifier: Apache-2.0
"""A member notices that its clock and the leader's clock differ."""

from __future__ import annotations

import asyncio

import pytest

import bmq
from bmq.testing import SimulatedBroker, Simulation


@pytest.mark.parametrize(
    ("leads", "ahead", "told"),
    [
        (False, 40.0, "40 s behind"),
        (False, -40.0, "40 s ahead"),
        (True, 40.0, "40 s ahead"),
        (True, -40.0, "40 s behind"),
        (False, 1.0, ""),
        (True, -1.0, ""),
    ],
)
def test_a_member_warns_once_when_its_clock_and_the_leaders_differ(
    leads: bool, ahead: float, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    groups: list[bmq.groups.Group] = []

    async def take(broker: SimulatedBroker) -> None:
        async with bmq.connect(broker.uri) as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/clocks", read=True)
            async with queue.group("k", buckets=4) as group:
                groups.append(group)
                async for message in group:
                    message.confirm()

    async def main(sim: Simulation) -> None:
        broker = sim.broker("broker")
        leader = sim.process("leader", take, broker)
        leader.jump(ahead if leads else 0.0)
        await sim.until(lambda: groups and len(groups[0].owned) == 4)
        member = sim.process("member", take, broker)
        member.jump(0.0 if leads else ahead)
        await sim.until(lambda: len(groups) == 2 and len(groups[1].owned) == 2)
        await asyncio.sleep(60)  # virtual seconds, with reports of the member
        for each in (leader, member):
            each.kill()

    sim = Simulation(1)
    sim.run(main, sim)
    lines = [each for each in caplog.messages if "clock" in each]
    assert len(lines) == bool(told)
    assert all(f"the leader's clock is {told}" in line for line in lines)
