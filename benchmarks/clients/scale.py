# SPDX-License-Identifier: Apache-2.0
"""The cost of a message as a function of the number of queues, subscriptions or posts.

Takes a JSON object as its argument (see ``harness.Job``; ``count`` is the variable), and prints its result,
CPU
microseconds a message, as a JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from typing import Any

import bmq

PAYLOAD = bytes(256)
MESSAGES = 100_000
BLOCK = 100


class Cpu:
    """CPU time since the creation of the object."""

    def __init__(self) -> None:
        gc.collect()
        self._start = time.process_time()

    def per(self, messages: int) -> float:
        return (time.process_time() - self._start) / messages * 1e6


async def messages(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    # The first messages of a process cost more, regardless of their number.
    await (await session.open_queue(f"{job['queue']}-first", write=True)).post_many([PAYLOAD] * BLOCK)
    queue = await session.open_queue(job["queue"], write=True)
    cpu = Cpu()
    await queue.post_many(PAYLOAD for _ in range(job["count"]))
    return {"cpu_us": cpu.per(job["count"])}


async def queues(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Post, receive and confirm the same messages in a growing number of queues.

    Messages go in blocks of 100, ten blocks at a time, each block to one queue. The numbers of messages in
    flight, and of messages arriving together, therefore do not depend on the number of
    queues.
    """
    opened = [
        await session.open_queue(f"{job['queue']}-{number}", read=True, write=True)
        for number in range(job["count"])
    ]
    return await blocks([(queue, queue, PAYLOAD) for queue in opened])


async def subscriptions(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Do the same with a growing number of subscriptions of one queue, one for each block."""
    queue = await session.open_queue(job["queue"], read=True, write=True, max_unconfirmed_messages=MESSAGES)
    consumers = [queue.subscribe(f"x == {number}") for number in range(job["count"])]
    for consumer in consumers:
        await consumer.open()
    return await blocks(
        [
            (queue, consumer, bmq.PutMessage(PAYLOAD, {"x": number}))
            for number, consumer in enumerate(consumers)
        ]
    )


async def blocks(targets: list[tuple[bmq.Queue, Any, Any]]) -> dict[str, Any]:
    turns = asyncio.Semaphore(10)
    left = MESSAGES
    done = asyncio.Event()

    async def post(queue: bmq.Queue, item: Any) -> None:
        async with turns:
            (await queue.post_many([item] * BLOCK)).raise_for_failures()

    async def receive(consumer: Any) -> None:
        nonlocal left
        async for batch in consumer.batches():
            batch.confirm()
            left -= len(batch)
            del batch  # otherwise each waiting consumer keeps its last batch
            if not left:
                done.set()

    receivers = [asyncio.ensure_future(receive(consumer)) for _, consumer, _ in targets]
    await asyncio.sleep(0)
    cpu = Cpu()
    await asyncio.gather(
        *(
            post(queue, item)
            for number in range(MESSAGES // BLOCK)
            for queue, _, item in [targets[number % len(targets)]]
        )
    )
    await done.wait()
    result = {"cpu_us": cpu.per(MESSAGES)}
    for receiver in receivers:
        receiver.cancel()
    await asyncio.wait(receivers)
    return result


async def unacknowledged(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Post to a broker without acknowledgements, after a given number of earlier posts."""
    queue = await session.open_queue(job["queue"], write=True)
    step, spent = 100_000, 0.0
    # The first messages of a process cost more, regardless of earlier posts.
    waiting = [asyncio.gather(queue.post_many(PAYLOAD for _ in range(BLOCK)))]
    await written(session, queue, BLOCK)
    for reached in range(0, job["count"] + 1, step):
        cpu = Cpu()
        waiting.append(asyncio.gather(queue.post_many(PAYLOAD for _ in range(step))))
        await written(session, queue, BLOCK + reached + step)
        spent = cpu.per(step)
    await session.close(timeout=0)
    await asyncio.gather(*waiting)
    return {"cpu_us": spent}


async def plain(_: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the memory alone: put the same number of GUIDs and tuples into a dictionary."""
    step, spent = 100_000, 0.0
    held: dict[bytes, Any] = {}
    for reached in range(0, job["count"] + 1, step):
        cpu = Cpu()
        for number in range(reached, reached + step):
            guid = number.to_bytes(16, "big")
            held[guid] = (guid, PAYLOAD, 1, 0, 0), reached, number
        spent = cpu.per(step)
    return {"cpu_us": spent}


async def written(session: bmq.Session, queue: bmq.Queue, count: int) -> None:
    """Wait until this many posts are sent and without an outcome; no event reports this, so poll."""
    while queue.unacked < count or session.stats().write_buffer_bytes:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def window(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the memory of posts without an outcome."""
    queue = await session.open_queue(job["queue"], write=True)
    tracemalloc.start()
    # Each post has its own payload: the window refers to the application's object.
    task = asyncio.gather(queue.post_many(bytes(len(PAYLOAD)) for _ in range(job["count"])))
    await written(session, queue, job["count"])
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await session.close(timeout=0)
    await task
    return {"bytes": held / job["count"] - len(PAYLOAD)}


async def open_queues(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Measure the memory of open queues."""
    tracemalloc.start()
    uris = [f"{job['queue']}-{number}" for number in range(job["count"])]
    opened = [await session.open_queue(uri, read=True, write=True) for uri in uris]
    gc.collect()
    return {"bytes": tracemalloc.get_traced_memory()[0], "queues": len(opened)}


CASES = {f.__name__: f for f in (messages, queues, subscriptions, unacknowledged, plain, window, open_queues)}


async def main(job: dict[str, Any]) -> dict[str, Any]:
    limits = {"max_unacked_messages": 2_000_000, "max_unacked_bytes": 2**31}
    unlimited = job["case"] in ("unacknowledged", "window")
    async with bmq.connect(job["broker"], **(limits if unlimited else {})) as session:
        return await CASES[job["case"]](session, job)


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    job = json.loads(sys.argv[1])
    print(json.dumps(bmq.run(main(job))))
