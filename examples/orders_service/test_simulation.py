# SPDX-License-Identifier: Apache-2.0
"""Orders, two processes of the service, and faults, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from messages import DEAD, LETTERS, ORDERS, Order
from orders import Shared
from repository import Debt, get_repository
from service import make_app

import bmq
from bmq.conventions import derived_guid
from bmq.testing import (
    SIMULATED_FAULTS,
    SimulatedFault,
    Simulation,
    check,
    simulated,
)

NUMBERS = range(20)
# A clock that jumps delivers reminders early: movers and producers must
# have synchronised clocks.
FAULTS: list[SimulatedFault] = [
    kind for kind in SIMULATED_FAULTS if kind != "clock"
]


#: The queue, the value and the delay of each message.
Outputs = list[tuple[str, Any, float | None]]


@dataclass
class Tables:
    """Instead of a database, whose driver has a thread in real time.

    The tables survive the kill of a process.
    """

    debts: dict[int, Debt] = field(default_factory=dict[int, Debt])
    outputs: dict[str, Outputs] = field(default_factory=dict[str, Outputs])


class Changes:
    def __init__(self) -> None:
        self.debts: dict[int, Debt] = {}
        self.outputs: Outputs = []

    async def add(self, number: int, customer: int, total: int) -> None:
        await asyncio.sleep(0.01)
        self.debts[number] = Debt(customer, total)

    def post(
        self, uri: str, value: object, *, delay: float | None = None
    ) -> None:
        self.outputs.append((uri, value, delay))


class Repository:
    def __init__(self, tables: Tables, app: bmq.App[Shared]) -> None:
        self._tables = tables
        self._app = app

    @asynccontextmanager
    async def once(
        self, message: bmq.Message
    ) -> AsyncGenerator[Changes | None]:
        outputs = self._tables.outputs
        if message.guid in outputs:
            yield None
        else:
            changes = Changes()
            yield changes
            if message.guid not in outputs:  # or another process was faster
                debts = self._tables.debts
                assert not debts.keys() & changes.debts.keys(), (
                    "booked twice"
                )
                debts |= changes.debts
                outputs[message.guid] = changes.outputs
        for number, (uri, value, delay) in enumerate(outputs[message.guid]):
            kind: type[Any] = value.__class__
            queue = (await self._app.queue(uri)).typed(kind)
            guid = derived_guid(message.guid, uri, str(number))
            await queue.post(value, delay=delay, guid=guid)

    async def debt(self, number: int) -> Debt | None:
        await asyncio.sleep(0.01)
        return self._tables.debts.get(number)


@simulated(seeds=5)
async def test_every_order_is_booked_and_followed_by_a_letter(
    sim: Simulation,
) -> None:
    tables = Tables()
    broker = sim.broker()
    sim.history.applications(LETTERS, [])

    def observed() -> dict[str, Any]:
        recorder = sim.recorder  # of the process that asks
        return {"interceptors": [recorder], "on_event": recorder.on_event}

    async def serve() -> None:
        app = make_app(broker.uri, **observed())
        app.overrides[get_repository] = lambda: Repository(tables, app)
        await app.run()

    async def shop() -> None:
        async with bmq.connect(
            broker.uri, retry_first_connect=True, **observed()
        ) as session:
            queue = await session.open_queue(ORDERS, write=True)
            orders = queue.typed(Order)
            for number in NUMBERS:
                await orders.post(Order(number, number % 3, "cake"))
                await asyncio.sleep(0.2)

    services = [
        sim.process(f"service {number}", serve) for number in (1, 2)
    ]
    shopping = sim.process("shop", shop)
    await sim.faults(5, victims=services, kinds=FAULTS)
    await shopping.wait()

    def letters() -> int:
        return len({each.guid for each in broker.broker.posted(LETTERS)})

    await sim.until(lambda: letters() == len(NUMBERS), timeout=600)
    assert sorted(tables.debts) == list(NUMBERS)
    assert not broker.broker.posted(DEAD)
    for service in services:
        service.stop()
        await service.wait()
    check(sim.history)
