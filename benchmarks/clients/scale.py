"""How this client's cost a message depends on how much there is of something.

Takes one JSON object as its argument (see ``harness.Job``, ``count`` is what varies), prints one as its
result: CPU microseconds a message.
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


class Cpu:
    """The CPU time since it was made."""

    def __init__(self) -> None:
        gc.collect()
        self._start = time.process_time()

    def per(self, messages: int) -> float:
        return (time.process_time() - self._start) / messages * 1e6


async def messages(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    queue = await session.open_queue(job["queue"], write=True)
    cpu = Cpu()
    await queue.post_many(PAYLOAD for _ in range(job["count"]))
    return {"cpu_us": cpu.per(job["count"])}


async def queues(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """The same number of messages to more and more queues, all at once; then everything received."""
    opened = [
        await session.open_queue(f"{job['queue']}-{number}", read=True, write=True)
        for number in range(job["count"])
    ]
    each = MESSAGES // job["count"]

    async def work(queue: bmq.Queue) -> None:
        left = each
        posting = asyncio.gather(queue.post_many(PAYLOAD for _ in range(each)))
        async for batch in queue.batches():
            batch.confirm()
            left -= len(batch)
            if not left:
                break
        await posting

    cpu = Cpu()
    await asyncio.gather(*map(work, opened))
    return {"cpu_us": cpu.per(each * len(opened))}


async def subscriptions(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """The same number of messages, spread over more and more subscriptions of one queue."""
    count = job["count"]
    queue = await session.open_queue(job["queue"], read=True, write=True, max_unconfirmed_messages=MESSAGES)
    consumers = [queue.subscribe(f"x == {number}") for number in range(count)]
    for consumer in consumers:
        await consumer.open()
    total = 20_000
    cpu = Cpu()
    posting = asyncio.ensure_future(
        queue.post_many(bmq.PutMessage(PAYLOAD, {"x": number % count}) for number in range(total))
    )

    async def receive(consumer: bmq.Consumer) -> None:
        left = total // count
        async for batch in consumer.batches():
            batch.confirm()
            left -= len(batch)
            if not left:
                break

    await asyncio.gather(*map(receive, consumers))
    await posting
    return {"cpu_us": cpu.per(total)}


async def unacknowledged(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """Post to a broker that acknowledges nothing, when that many posts wait already."""
    queue = await session.open_queue(job["queue"], write=True)
    step, spent = 100_000, 0.0
    waiting: list[asyncio.Future[Any]] = []
    for reached in range(0, job["count"] + 1, step):
        cpu = Cpu()
        waiting.append(asyncio.gather(queue.post_many(PAYLOAD for _ in range(step))))
        await written(session, queue, reached + step)
        spent = cpu.per(step)
    await session.close(timeout=0)
    await asyncio.gather(*waiting)
    return {"cpu_us": spent}


async def written(session: bmq.Session, queue: bmq.Queue, count: int) -> None:
    """Wait until so many posts are without outcome and on their way: nothing tells, so look."""
    while queue.unacked < count or session.stats().write_buffer_bytes:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def window(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """The memory of posts that wait for their outcome."""
    queue = await session.open_queue(job["queue"], write=True)
    tracemalloc.start()
    task = asyncio.gather(queue.post_many(PAYLOAD for _ in range(job["count"])))
    await written(session, queue, job["count"])
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await session.close(timeout=0)
    await task
    return {"bytes": held / job["count"] - len(PAYLOAD)}


async def open_queues(session: bmq.Session, job: dict[str, Any]) -> dict[str, Any]:
    """The memory of open queues."""
    tracemalloc.start()
    uris = [f"{job['queue']}-{number}" for number in range(job["count"])]
    opened = [await session.open_queue(uri, read=True, write=True) for uri in uris]
    gc.collect()
    return {"bytes": tracemalloc.get_traced_memory()[0], "queues": len(opened)}


CASES = {f.__name__: f for f in (messages, queues, subscriptions, unacknowledged, window, open_queues)}


async def main(job: dict[str, Any]) -> dict[str, Any]:
    async with bmq.connect(job["broker"], max_unacked_messages=2_000_000, max_unacked_bytes=2**31) as session:
        return await CASES[job["case"]](session, job)


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    job = json.loads(sys.argv[1])
    print(json.dumps(bmq.run(main(job))))
