# SPDX-License-Identifier: Apache-2.0
"""The cost of a post, and of a received message, beside many waiting tasks.

    BMQ_BROKER_URI=tcp://localhost:30114 python benchmarks/waiting.py [--rounds 3] [--output NAME]

Without the variable, the embedded broker is measured. Each figure is a new process; the time is CPU time of
the client, in microseconds for a message. The last line is the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections import deque
from pathlib import Path

import harness

COUNTS = (10, 1_000, 10_000, 100_000)
MESSAGES = 100_000
CASES = {
    "post": "tasks that await post, each again after its acknowledgement",
    "room": "tasks that await post, with room for 1,000 unacknowledged messages",
    "receive": "tasks that await receive of one queue",
    "beside": "a task that awaits post, beside tasks that wait in receive",
    "floor": "the floor: tasks that await a bare future, set in one callback a turn",
}


async def measured(case: str, waiting: int, broker: str) -> float:
    import bmq

    if case == "floor":
        return await bare(waiting)
    uri = f"bmq://{harness.DOMAIN}/waiting-{uuid.uuid4().hex}"
    room = 1_000 if case == "room" else max(200_000, waiting)
    async with bmq.connect(broker, max_unacked_messages=room) as session:
        queue = await session.open_queue(
            uri, read=True, write=True, max_unconfirmed_messages=1_000_000, max_unconfirmed_bytes=2**30
        )
        if case in ("post", "room"):
            return await posted(queue, waiting)
        empty = await session.open_queue(uri + "-empty", read=True)
        if case == "receive":
            return await received(queue, waiting)
        return await beside(queue, empty, waiting)


async def posted(queue: object, waiting: int) -> float:
    each = max(1, MESSAGES // waiting)

    async def poster() -> None:
        for _ in range(each):
            await queue.post(b"payload")  # type: ignore[attr-defined]

    begin = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(waiting):
            tasks.create_task(poster())
    return (time.process_time() - begin) / (each * waiting)


async def received(queue: object, waiting: int) -> float:
    each = max(1, MESSAGES // waiting)

    async def receiver() -> None:
        for _ in range(each):
            (await queue.receive()).confirm()  # type: ignore[attr-defined]

    async with asyncio.TaskGroup() as tasks:
        for _ in range(waiting):
            tasks.create_task(receiver())
        await asyncio.sleep(0)
        begin = time.process_time()
        await queue.post_many(b"payload" for _ in range(each * waiting))  # type: ignore[attr-defined]
    return (time.process_time() - begin) / (each * waiting)


async def bare(waiting: int) -> float:
    loop, each = asyncio.get_running_loop(), max(1, MESSAGES // waiting)
    futures: deque[asyncio.Future[None]] = deque()
    turn: list[asyncio.Handle] = []

    def answer() -> None:
        turn.clear()
        for _ in range(len(futures)):
            futures.popleft().set_result(None)

    async def waiter() -> None:
        for _ in range(each):
            futures.append(future := loop.create_future())
            if not turn:
                turn.append(loop.call_soon(answer))
            await future

    begin = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(waiting):
            tasks.create_task(waiter())
    return (time.process_time() - begin) / (each * waiting)


async def beside(queue: object, empty: object, waiting: int) -> float:
    async def receiver() -> None:
        await empty.receive()  # type: ignore[attr-defined]

    tasks = [asyncio.ensure_future(receiver()) for _ in range(waiting)]
    await asyncio.sleep(0)
    for _ in range(1_000):
        await queue.post(b"payload")  # type: ignore[attr-defined]
    begin = time.process_time()
    for _ in range(5_000):
        await queue.post(b"payload")  # type: ignore[attr-defined]
    taken = (time.process_time() - begin) / 5_000
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="numbers of tasks")
    parser.add_argument("--output", type=Path, default=Path("build/waiting"), metavar="NAME")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "WAITING", "BROKER"))
    options = parser.parse_args()
    if options.one:
        import bmq

        case, waiting, broker = options.one
        print(bmq.run(measured(case, int(waiting), broker)))
        return
    with harness.broker() as (broker, name):
        found = {
            case: [min(one(case, n, broker) for _ in range(options.rounds)) for n in options.counts]
            for case in CASES
        }
    columns = ["waiting tasks, CPU us a message", *(f"{n:,}" for n in options.counts)]
    rows = [[words, *(f"{each * 1e6:.1f}" for each in found[case])] for case, words in CASES.items()]
    about = f"broker: {name}; best of {options.rounds} rounds"
    harness.write_table(options.output, columns, rows, about=about, seconds=found)


def one(case: str, waiting: int, broker: str) -> float:
    command = [sys.executable, __file__, "--one", case, str(waiting), broker]
    done = subprocess.run(command, capture_output=True, text=True, env=harness.environment())
    if done.returncode:
        raise SystemExit(f"{case} with {waiting} tasks failed:\n{done.stderr}")
    return float(json.loads(done.stdout))


if __name__ == "__main__":
    main()
