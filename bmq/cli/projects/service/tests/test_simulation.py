# SPDX-License-Identifier: Apache-2.0
"""The service, while connections break, the broker crashes and the service is killed, in virtual time.

A failed run prints its seed: BMQ_SIM_SEED=... pytest repeats this run.
"""

from __future__ import annotations

import asyncio

import bmq
from bmq.testing import Simulation, check, simulated

from bmq_new_module.app import DEAD, ORDERS, Carrier, Order, get_carrier, make_app

NUMBERS = set(range(20))


@simulated(seeds=5)
async def test_every_order_is_shipped(sim: Simulation) -> None:
    broker = sim.broker()
    shipped: set[int] = set()  # outlives the process that is killed, as a database does

    class Database(Carrier):
        async def take(self, order: Order) -> None:
            await asyncio.sleep(0.05)
            shipped.add(order.number)

    async def serve() -> None:
        recorder = sim.recorder
        app = make_app(broker.uri, interceptors=[recorder], on_event=recorder.on_event)
        app.overrides[get_carrier] = Database
        await app.run()

    async def shop() -> None:
        recorder = sim.recorder
        async with bmq.connect(
            broker.uri, retry_first_connect=True, interceptors=[recorder], on_event=recorder.on_event
        ) as session:
            orders = (await session.open_queue(ORDERS, write=True)).typed(Order)
            for number in sorted(NUMBERS):
                await orders.post(Order(number, customer=number % 3, address="1 Main Street"))
                await asyncio.sleep(0.2)

    service = sim.process("service", serve)
    shopping = sim.process("shop", shop)
    await sim.faults(5, victims=[service])
    await shopping.wait()
    await sim.until(lambda: shipped == NUMBERS, timeout=600)
    assert not broker.broker.posted(DEAD)
    service.stop()
    await service.wait()
    check(sim.history)  # no message was lost, and none came back after its confirmation
