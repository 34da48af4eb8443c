# SPDX-License-Identifier: Apache-2.0
"""Simulate the billing service: connections break, the service dies, the broker crashes.

python examples/simulated_service/simulate.py books_twice --seeds 20
BMQ_SIM_SEED=3 python examples/simulated_service/simulate.py books_twice
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Callable

import billing

import bmq
from bmq.testing import History, Recorder, Simulation, check

Version = Callable[[bmq.App, billing.Store, Recorder], None]
VERSIONS: dict[str, Version] = {
    version.__name__: version
    for version in (billing.confirms_early, billing.books_twice, billing.loses_updates, billing.is_right)
}


def simulate(version: Version, seed: int) -> None:
    """Run one seed; raises AssertionError if the service breaks a promise."""
    sim = Simulation(seed)
    history = History(key="account")
    store, owed = billing.Store(), dict[str, int]()

    async def shop(uri: str) -> None:
        recorder = history.process("shop")
        async with bmq.connect(uri, interceptors=[recorder], on_event=recorder.on_event) as session:
            queue = await session.open_queue(billing.PAYMENTS, write=True)
            for number in range(50):
                account = sim.random.choice(("ann", "bob"))
                owed[account] = owed.get(account, 0) + number
                await queue.post(b"%d" % number, properties={"account": account})
                await asyncio.sleep(sim.random.choice((0.0, 0.0, 0.5)))

    async def service(uri: str) -> None:
        recorder = history.process("service")
        app = bmq.App(uri, interceptors=[recorder], on_event=recorder.on_event, retry_first_connect=True)
        version(app, store, recorder)
        await app.run(signals=False)

    async def main() -> None:
        broker = sim.broker()
        serving = sim.process("service", service, broker.uri)
        posting = sim.process("shop", shop, broker.uri)
        while posting.running:
            await asyncio.sleep(sim.random.uniform(0.0, 2.0))
            fault = sim.random.choice(("reset", "kill", "crash"))
            sim.note(fault)
            history.fault(fault)
            if fault == "reset":
                for connection in sim.network.connections:
                    connection.reset()
            elif fault == "kill":
                serving.kill()
                history.killed("service")
                serving.start()
            else:
                broker.restart()
        history.healed()
        await sim.until(lambda: not history.pending(), timeout=60)
        check(history)
        assert store.balances == owed, f"booked {store.balances}, owed {owed}"

    try:
        sim.run(main)
    except BaseException as error:
        error.add_note(sim.report())
        error.add_note("last events:\n" + "\n".join(history.tail(10)))
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the billing service.")
    parser.add_argument("version", choices=VERSIONS)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds (20)")
    options = parser.parse_args()
    replay = os.environ.get("BMQ_SIM_SEED")  # the simulation then shows the wire trace
    if replay is None:
        logging.disable(logging.CRITICAL)
    for seed in range(options.seeds) if replay is None else [int(replay)]:
        try:
            simulate(VERSIONS[options.version], seed)
        except AssertionError as error:
            text = str(error).splitlines()
            raise SystemExit(
                "\n".join([f"seed {seed}:", *text[:4], *getattr(error, "__notes__", ())])
            ) from None
    print(f"{options.version}: every promise kept")


if __name__ == "__main__":
    main()
