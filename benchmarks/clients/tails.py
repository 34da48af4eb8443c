# SPDX-License-Identifier: Apache-2.0
"""Latency at a given rate, from a tick of ``pacer.py`` to the acknowledgement or to the own message.

The post's payload is the tick. Each client reads ticks as a service reads requests: bmq in the event loop,
the official client in a thread. The argument is a JSON object; its queues are filled one after another. A
refused post ends the program. The output has the times in nanoseconds, and the possible causes of long times.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import struct
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

TICK = 8
# A turn with more ticks than this number follows a pause.
MANY = 10
PACER = str(Path(__file__).with_name("pacer.py"))
clock = time.monotonic_ns


def paced(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the pacer."""
    return subprocess.Popen(
        [sys.executable, "-S", "-E", PACER, str(job["rate"]), str(job["count"])], stdout=subprocess.PIPE
    )


def ticks(data: bytes) -> list[bytes]:
    """Divide the bytes from the pipe into ticks; a pipe keeps writes of this size together."""
    return [data[at : at + TICK] for at in range(0, len(data), TICK)]


def began(tick: bytes) -> int:
    return int(struct.unpack("=q", tick)[0])


class Samples:
    """Begin and end of each message, in arrays: a collection would visit a million tuples."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._begins = array("q")
        self._ends = array("q")

    def add(self, begin: int, end: int) -> bool:
        """Add a message; return whether the message was the last."""
        self._begins.append(begin)
        self._ends.append(end)
        self.left -= 1
        return not self.left

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._begins, self._ends, strict=True))


class Collections:
    """The pauses of the garbage collector."""

    def __init__(self) -> None:
        self.pauses: list[tuple[int, int]] = []
        self._began = 0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = clock()
        else:
            self.pauses.append((self._began, clock()))


async def ours(job: dict[str, Any]) -> dict[str, Any]:
    import bmq

    size, count, own = job["size"], job["count"], job["case"] == "own"
    filler = bytes(size - TICK)
    samples = Samples(count)
    posted = 0
    turns: list[int] = []  # number of ticks read in each turn
    bursts: list[tuple[int, int]] = []  # first tick and time of a turn with many
    done = asyncio.get_running_loop().create_future()

    def answered(tick: bytes) -> None:
        if samples.add(began(tick), clock()):
            done.set_result(None)

    def acked(future: asyncio.Future[Any], tick: bytes) -> None:
        if (error := future.exception()) is None:
            answered(tick)
        elif not done.done():
            done.set_exception(error)

    class Ticks(asyncio.Protocol):
        left = b""

        def data_received(self, data: bytes) -> None:
            nonlocal posted
            data = self.left + data
            whole = len(data) // TICK * TICK
            self.left = data[whole:]
            turns.append(whole // TICK)
            if whole > MANY * TICK:
                bursts.append((began(data[:TICK]), clock()))
            for tick in ticks(data[:whole]):
                future = queues[posted // job["a_queue"]].post_nowait(tick + filler)
                posted += 1
                if not own:
                    future.add_done_callback(lambda future, tick=tick: acked(future, tick))

    async def receive(queue: bmq.Queue) -> None:
        async for message in queue:
            answered(message.data[:TICK])
            message.confirm()

    async with bmq.connect(job["broker"], busy_poll=job["poll"]) as session:
        queues = [await session.open_queue(uri, read=own, write=True) for uri in job["queues"]]
        readers = [asyncio.ensure_future(receive(queue)) for queue in queues if own]
        collections = Collections()
        before = resource.getrusage(resource.RUSAGE_SELF)
        with paced(job) as pacer:
            assert pacer.stdout is not None
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_read_pipe(Ticks, pacer.stdout)
            await done
            transport.close()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for reader in readers:
            reader.cancel()
    return report(samples, before, usage, turns=turns, bursts=bursts, pauses=collections.pauses)


def official(job: dict[str, Any]) -> dict[str, Any]:
    import blazingmq

    size, count, own = job["size"], job["count"], job["case"] == "own"
    filler = bytes(size - TICK)
    samples = Samples(count)
    done = threading.Event()

    def answered(tick: bytes) -> None:
        if samples.add(began(tick), clock()):
            done.set()

    def on_message(message: Any, handle: Any) -> None:
        answered(message.data[:TICK])
        handle.confirm()

    refused: list[Any] = []

    def acked(ack: Any, tick: bytes | None) -> None:
        if ack.status is not blazingmq.AckStatus.SUCCESS:
            refused.append(ack)
            done.set()
        elif tick is not None:
            answered(tick)

    with blazingmq.Session(
        lambda event: None, on_message=on_message if own else None, broker=job["broker"]
    ) as session:
        for uri in job["queues"]:
            session.open_queue(uri, read=own, write=True)
        collections = Collections()
        before = resource.getrusage(resource.RUSAGE_SELF)
        with paced(job) as pacer:
            assert pacer.stdout is not None
            posted = 0
            while posted < count:
                for tick in ticks(pacer.stdout.read1(TICK * 512)):
                    uri = job["queues"][posted // job["a_queue"]]
                    mine = None if own else tick
                    session.post(uri, tick + filler, on_ack=lambda ack, mine=mine: acked(ack, mine))
                    posted += 1
            if not done.wait(60):
                raise SystemExit(f"{samples.left} answers never came")
            if refused:
                raise SystemExit(f"{len(refused)} posts were refused, the first with {refused[0]}")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for uri in job["queues"]:
            session.close_queue(uri)
    return report(samples, before, usage, turns=[], bursts=[], pauses=collections.pauses)


def report(
    taken: Samples,
    before: Any,
    after: Any,
    *,
    turns: list[int],
    bursts: list[tuple[int, int]],
    pauses: list[tuple[int, int]],
) -> dict[str, Any]:
    samples = taken.pairs()
    samples = samples[len(samples) // 20 :]  # without the start
    times = sorted(end - begin for begin, end in samples)
    slow = times[int(len(times) * 0.99)]
    late = [(begin, end) for begin, end in samples if end - begin >= slow]
    collected = sum(
        any(begin < to and at < end and to - at > slow / 4 for at, to in pauses) for begin, end in late
    )
    return {
        "p50": times[len(times) // 2],
        "p99": slow,
        "p999": times[int(len(times) * 0.999)],
        "worst": times[-1],
        "cpu_us": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / len(samples) * 1e6,
        "preempted": after.ru_nivcsw - before.ru_nivcsw,
        "collections": len(pauses),
        "longest_collection": max((to - at for at, to in pauses), default=0),
        "slowest_hundredth": len(late),
        "of_these_in_a_collection": collected,
        "of_these_read_together": sum(any(at <= begin <= to for at, to in bursts) for begin, _ in late),
        "ticks_a_turn": sum(turns) / len(turns) if turns else 0,
    }


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if job["client"] == "official":
        result = official(job)
    elif job["loop"] == "uvloop":
        from bmq import run

        result = run(ours(job))
    else:
        result = asyncio.run(ours(job))
    print(json.dumps(result))
