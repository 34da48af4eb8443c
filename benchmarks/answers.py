# SPDX-License-Identifier: Apache-2.0
"""Requests: their latency compared with a post, and their number a second.

usage: python benchmarks/answers.py [--broker tcp://127.0.0.1:30114] [--rounds 20]

Without --broker, an embedded broker in this process is used. Posts and requests take turns, so that other
load affects both alike: the ratio is the result, and not the times.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from contextlib import AsyncExitStack

import bmq
from bmq.testing import fresh_queue_uri

EACH = 300
BURST = 2000


async def measure(broker: str, rounds: int) -> None:
    """Send requests, post, and print the results."""
    asked, posted = (fresh_queue_uri("bmq.test.mem.priority", name) for name in ("asked", "posted"))
    app = bmq.App(broker)

    @app.responder(asked, concurrency=50)
    async def echo(message: bmq.Message) -> bytes:
        return message.data

    serving = asyncio.create_task(app.run(signals=False))
    async with bmq.connect(broker) as session:
        questions = await session.open_queue(asked, write=True)
        posts = await session.open_queue(posted, read=True, write=True)
        ratios: list[float] = []
        requests: list[float] = []
        rates: list[float] = []
        for _ in range(rounds):
            post_times: list[float] = []
            request_times: list[float] = []
            for _ in range(EACH):
                began = time.perf_counter()
                await posts.post(b"x")
                post_times.append(time.perf_counter() - began)
                began = time.perf_counter()
                await questions.request(b"x", timeout=60)
                request_times.append(time.perf_counter() - began)
            while (message := posts.receive_nowait()) is not None:
                message.confirm()
            requests.append(statistics.median(request_times))
            ratios.append(requests[-1] / statistics.median(post_times))
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(BURST):
                    group.create_task(questions.request(b"x", timeout=60))
            rates.append(BURST / (time.perf_counter() - began))
    app.stop()
    await serving
    ratios.sort()
    print(
        f"a request takes {statistics.median(ratios):.1f} times as long as a post ({ratios[0]:.1f} to "
        f"{ratios[-1]:.1f} in {rounds} rounds of {EACH}), {statistics.median(requests) * 1000:.2f} ms in the "
        f"median; of {BURST:,} at once {statistics.median(rates):,.0f} a second come back"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--broker")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    async with AsyncExitStack() as stack:
        broker = given.broker
        if broker is None:
            broker = (await stack.enter_async_context(bmq.broker.Broker(port=0))).uri
        await measure(broker, given.rounds)


if __name__ == "__main__":
    asyncio.run(main())
