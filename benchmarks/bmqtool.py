# SPDX-License-Identifier: Apache-2.0
"""``bmq bench`` beside the broker's own ``bmqtool --mode auto``, taking turns on one broker.

usage: python benchmarks/bmqtool.py BMQTOOL URI [--messages 200000] [--size 256] [--rounds 5]

Both post to a queue, and then read and confirm the messages. bmqtool does not report durations, so for both
tools an admin client polls the queue every 20 milliseconds. The duration is the time from the first change to
the last, without the start of the tools. Latency is measured by each tool, from a post to its delivery:
bmqtool sends a message every millisecond, bmq bench one message after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import bmq

LOOK = 0.02
# Pause before latency is measured: a broker that has just removed a queue's messages is busy for a while.
QUIET = 3.0
PER_EVENT = 500
WINDOW = "10000:268435456"
BROKER = "tcp://127.0.0.1:30114"


class Queue:
    """A separate queue for one measurement."""

    def __init__(self, admin: bmq.admin.Admin, messages: int) -> None:
        self.uri = f"bmq://bmq.test.mem.priority/bmqtool-{os.getpid()}-{time.time_ns()}"
        self._queue = admin.queue(self.uri)
        self._messages = messages

    async def _depth(self) -> int:
        try:
            return (await self._queue.depth()).messages
        except bmq.errors.AdminError:
            return 0  # the queue is not open yet

    async def takes(self, start: int, end: int) -> float:
        """Return the messages a second from depth ``start`` to depth ``end``.

        Or to the point where the depth turns: the next step may have begun between two polls.
        """
        depth = await self._depth()
        while depth == start:
            await asyncio.sleep(LOOK)
            depth = await self._depth()
        began, first = time.perf_counter(), depth
        while depth != end:
            await asyncio.sleep(LOOK)
            before, depth = depth, await self._depth()
            if abs(end - depth) > abs(end - before):
                depth = before
                break
        return abs(depth - first) / (time.perf_counter() - began)

    async def produced(self) -> float:
        return await self.takes(0, self._messages)

    async def consumed(self) -> float:
        return await self.takes(self._messages, 0)


async def run(*command: str) -> str:
    """Run a program, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode()[-2000:]
    return said.decode()


async def measured(what: asyncio.Task[float], *command: str) -> float:
    """Return a measurement made while a program runs."""
    await run(*command)
    return await asyncio.wait_for(what, 60)


class Bmqtool:
    """The broker's own tool."""

    name = "bmqtool"

    def __init__(self, program: str, uri: str, size: int) -> None:
        self._start = [program, "--mode", "auto", "-b", uri, "-m", str(size), "-v", "warning"]

    def _command(self, queue: Queue, *options: str) -> list[str]:
        return [*self._start, "-q", queue.uri, *options]

    async def rates(self, queue: Queue, messages: int) -> tuple[float, float]:
        events = ["-e", str(PER_EVENT), "--eventscount", str(messages // PER_EVENT), "-r", "100", "-i", "1"]
        produced = asyncio.create_task(queue.produced())
        posting = await measured(produced, *self._command(queue, "-f", "write,ack", *events))
        consumed = asyncio.create_task(queue.consumed())
        reading = await measured(
            consumed, *self._command(queue, "-f", "read", "-c", "-u", WINDOW, "--shutdownGrace", "3")
        )
        return posting, reading

    async def latency(self, queue: Queue, rounds: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "latency.json"
            options = [
                "-f",
                "read,write",
                "-c",
                "-e",
                "1",
                "-r",
                "1",
                "-i",
                "1",
                "--eventscount",
                str(rounds),
            ]
            shown = await run(*self._command(queue, *options, "-l", "hires", "--latency-report", str(report)))
            assert report.exists(), shown
            return float(json.loads(report.read_text())["median"]) / 1e3


class Bench:
    """``bmq bench``."""

    name = "bmq bench"

    def __init__(self, uri: str, size: int) -> None:
        self._start = [sys.executable, "-m", "bmq", "bench", "--broker", uri, "--json", "--size", str(size)]

    async def rates(self, queue: Queue, messages: int) -> tuple[float, float]:
        async def both() -> tuple[float, float]:
            return await queue.produced(), await queue.consumed()

        watching = asyncio.create_task(both())
        phases = ["--phase", "produce", "--phase", "consume", "--messages", str(messages)]
        await run(*self._start, queue.uri, *phases)
        return await asyncio.wait_for(watching, 60)

    async def latency(self, queue: Queue, rounds: int) -> float:
        said = await run(*self._start, queue.uri, "--phase", "roundtrip", "--rounds", str(rounds))
        return float(json.loads(said)["push_seconds"]["p50"]) * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bmqtool")
    parser.add_argument("uri", nargs="?", default=BROKER)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    messages = options.messages // PER_EVENT * PER_EVENT
    tools = [Bench(options.uri, options.size), Bmqtool(options.bmqtool, options.uri, options.size)]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with bmq.admin.connect(options.uri) as admin:
        for number in range(options.rounds):
            for tool in tools if number % 2 else tools[::-1]:
                produce, consume = await tool.rates(Queue(admin, messages), messages)
                await asyncio.sleep(QUIET)
                latency = await tool.latency(Queue(admin, 0), 1000)
                for name, value in {"produce": produce, "consume": consume, "latency": latency}.items():
                    found[tool.name][name].append(value)
                print(
                    f"{tool.name:<10} {produce:>9,.0f}/s {consume:>9,.0f}/s {latency:>7,.0f} us", flush=True
                )
    print(
        f"\n{options.rounds} rounds, {messages:,} messages of {options.size} bytes: medians, also of ratios"
    )
    for name, unit in {"produce": "messages/s", "consume": "messages/s", "latency": "us, median"}.items():
        ours, theirs = (statistics.median(found[tool.name][name]) for tool in tools)
        each = zip(*(found[tool.name][name] for tool in tools), strict=True)
        ratios = sorted(mine / other for mine, other in each)
        shown = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:<8} {ours:>10,.0f} {theirs:>10,.0f} {unit}: {shown}")


if __name__ == "__main__":
    asyncio.run(main())
