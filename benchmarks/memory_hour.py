# SPDX-License-Identifier: Apache-2.0
"""The memory of a process that posts and receives for an hour, while its connections break.

    python benchmarks/memory_hour.py [--broker tcp://localhost:30114] [--seconds 3600]
    python benchmarks/memory_hour.py --draw docs/assets/memory.png [--samples build/hour.jsonl]

One process has a session that posts and a session that receives, both through a proxy of another process.
The proxy cuts both connections each 20 to 30 seconds. A line of the file has the memory in use and the counts
of one second; the last line tells whether each message was acknowledged and received. ``--draw`` makes the
picture, and prints the summary.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import harness

TICK = 0.01
PAUSE = (20.0, 30.0)
#: Seconds at the end of a run to receive the remaining messages.
REST = 120.0
#: Limits of the load: posts without an acknowledgement, and messages posted and not received. The load waits
#: at these limits. On a busy machine, the rate falls; the memory does not depend on the length of a wait.
WINDOW = 10_000
ON_THE_WAY = 20_000


def resident() -> int:
    """Return the memory in use by the current process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Load:
    """The messages posted and received by a process."""

    def __init__(self) -> None:
        self.posted = self.acked = self.failed = self.full = 0
        self.received = self.again = 0
        self.first: dict[str, int] = {}
        self.next = 0  # every earlier message was received
        self.ahead: set[int] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def settled(self, future: Any) -> None:
        if future.cancelled() or future.exception():
            self.failed += 1
        else:
            self.acked += 1

    def arrived(self, number: int) -> None:
        if number < self.next or number in self.ahead:
            self.again += 1
            return
        self.received += 1
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1


async def post(load: Load, queue: Any, rate: int, seconds: float) -> None:
    """Post at a rate, in turn with a future each and with ``post_many``. Missed messages are not made up."""
    import bmq

    body = bytes(range(256))
    now = begin = time.monotonic()
    due = 0.0

    async def many(numbers: range) -> None:
        report = await queue.post_many(
            bmq.PutMessage(body, {"number": number, "CustomerId": "a customer"}) for number in numbers
        )
        load.acked += report.posted - len(report.failures)
        load.failed += len(report.failures)

    turn = 0
    while now - begin < seconds:
        before, now = now, time.monotonic()
        due += min(now - before, 10 * TICK) * rate
        if load.posted - load.received > ON_THE_WAY:
            due = 0.0
        numbers = range(load.posted, load.posted + int(due))
        due -= len(numbers)
        turn += 1
        if turn % 2:
            task = asyncio.create_task(many(numbers))
            load.tasks.add(task)
            task.add_done_callback(load.tasks.discard)
            load.posted += len(numbers)
        else:
            for number in numbers:
                properties = {"number": number, "CustomerId": "a customer"}
                try:
                    queue.post_nowait(body, properties=properties).add_done_callback(load.settled)
                except bmq.BufferFull:
                    load.full += 1
                    await queue.post(body, properties=properties)
                    load.acked += 1
                load.posted += 1
        await asyncio.sleep(TICK)


async def receive(load: Load, queue: Any) -> None:
    async for message in queue:
        load.arrived(message.properties["number"])
        message.confirm()


async def sample(load: Load, sessions: list[Any], path: Path, begin: float) -> None:
    """Write a line each second, the number of objects each ten seconds."""
    second = 0
    with path.open("w") as file:
        while True:
            second += 1
            await asyncio.sleep(begin + second - time.monotonic())
            line: dict[str, Any] = {
                "second": second,
                "resident": resident(),
                "blocks": sys.getallocatedblocks(),
                "collections": [each["collections"] for each in gc.get_stats()],
                "cpu": time.process_time(),
                "posted": load.posted,
                "acked": load.acked,
                "received": load.received,
                "again": load.again,
                "ahead": len(load.ahead),
                "reconnects": [session.stats().reconnects for session in sessions],
            }
            if second % 10 == 0:
                line["objects"] = len(gc.get_objects())
            file.write(json.dumps(line) + "\n")
            file.flush()


async def hour(broker: str, rate: int, seconds: float, path: Path) -> None:
    import bmq

    load, uri = Load(), f"bmq://{harness.DOMAIN}/hour-{uuid.uuid4().hex}"
    async with (
        bmq.connect(broker) as consuming,
        bmq.connect(broker, max_unacked_messages=WINDOW) as producing,
        await consuming.open_queue(uri, read=True, max_unconfirmed_messages=WINDOW) as source,
        await producing.open_queue(uri, write=True) as queue,
    ):
        begin = time.monotonic()
        receiver = asyncio.create_task(receive(load, source))
        sampler = asyncio.create_task(sample(load, [producing, consuming], path, begin))
        await post(load, queue, rate, seconds)
        end = time.monotonic()
        while load.received < load.posted or load.acked < load.posted:
            await asyncio.sleep(0.1)
            if time.monotonic() > end + REST:
                break
        receiver.cancel()
        sampler.cancel()
        await asyncio.wait([receiver, sampler])
        result = {
            "seconds": round(end - begin, 1),
            "rate": load.posted / (end - begin),
            "posted": load.posted,
            "acked": load.acked,
            "failed": load.failed,
            "found no room": load.full,
            "received": load.received,
            "received again": load.again,
            "reconnects": [session.stats().reconnects for session in (producing, consuming)],
            "python": sys.version.split()[0],
        }
    with path.open("a") as file:
        file.write(json.dumps({"result": result}) + "\n")
    print(json.dumps(result), flush=True)


async def disturbed(arguments: argparse.Namespace) -> int:
    """Run the load in another process, behind a proxy that cuts the connections."""
    from bmq.testing import FaultProxy

    chance = random.Random(arguments.seed)
    async with FaultProxy(arguments.broker, seed=arguments.seed) as proxy:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--load",
            "--broker",
            proxy.uri,
            "--seconds",
            str(arguments.seconds),
            "--rate",
            str(arguments.rate),
            "--samples",
            str(arguments.samples),
            env=harness.environment(),
        )
        ended = asyncio.ensure_future(process.wait())
        end, cuts = time.monotonic() + arguments.seconds, 0
        try:
            while not ended.done() and time.monotonic() < end:
                await asyncio.wait([ended], timeout=chance.uniform(*PAUSE))
                if time.monotonic() < end and not ended.done():
                    for connection in list(proxy.connections):
                        connection.cut(reset=chance.random() < 0.5)
                    cuts += 1
            return await ended
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            print(f"the connections were cut {cuts} times", flush=True)


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    result = lines[-1].get("result", {})
    return [line for line in lines if "second" in line], result


def slope(samples: list[dict[str, Any]], key: str) -> float:
    """Return the growth an hour of the straight line through all samples with the key."""
    points = [(line["second"], line[key]) for line in samples if key in line]
    return statistics.linear_regression(*zip(*points, strict=True)).slope * 3600


def summary(samples: list[dict[str, Any]], result: dict[str, Any]) -> list[str]:
    resident = [line["resident"] / 1e6 for line in samples]
    quarters = [resident[at * len(resident) // 4 : (at + 1) * len(resident) // 4] for at in range(4)]
    settled = samples[len(samples) // 6 :]
    medians = ", ".join(f"{statistics.median(quarter):.1f}" for quarter in quarters)
    return [
        f"result: {json.dumps(result)}",
        f"memory in use, MB, median of each quarter: {medians}; highest {max(resident):.1f}",
        f"growth an hour after the first sixth: {slope(settled, 'resident') / 1e6:+.2f} MB, "
        f"{slope(settled, 'blocks'):+,.0f} blocks, {slope(settled, 'objects'):+,.0f} objects",
    ]


def draw(samples: list[dict[str, Any]], result: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, (memory, rate) = plt.subplots(
        2, 1, figsize=(10, 5.2), sharex=True, layout="constrained", height_ratios=(2, 1)
    )
    minutes = [line["second"] / 60 for line in samples]
    memory.plot(minutes, [line["resident"] / 1e6 for line in samples], color="#3f51b5", linewidth=1)
    memory.set_ylabel("memory in use, MB", color="#3f51b5")
    memory.set(ylim=(0, max(line["resident"] for line in samples) / 1e6 * 1.25))
    counted = [line for line in samples if "objects" in line]
    objects = memory.twinx()
    objects.plot(
        [line["second"] / 60 for line in counted],
        [line["objects"] / 1000 for line in counted],
        color="#e67e22",
        linewidth=1,
    )
    objects.set_ylabel("thousand objects of the collector", color="#e67e22")
    objects.set_ylim(0, max(line["objects"] for line in counted) / 1000 * 2)
    spans = list(zip(samples, samples[10:], strict=False))[::10]
    # One line lies upon the other: the lower one is broad.
    for key, colour, label, width in (
        ("acked", "#9fa8da", "acknowledged", 4.0),
        ("received", "#303f9f", "received", 1.0),
    ):
        rate.plot(
            [after["second"] / 60 for _, after in spans],
            [(after[key] - before[key]) / (after["second"] - before["second"]) for before, after in spans],
            color=colour,
            linewidth=width,
            label=label,
        )
    rate.set(ylabel="messages a second", xlabel="minutes", ylim=(0, rate.get_ylim()[1] * 1.2))
    rate.legend(fontsize=8, loc="lower right", ncols=2)
    rate.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
    for axes in (memory, rate):
        axes.grid(alpha=0.3)
        axes.margins(x=0.01)
    reconnects = " and ".join(f"{count:,}" for count in result.get("reconnects", []))
    figure.suptitle(
        f"One process that posts and receives {result.get('rate', 0):,.0f} messages a second; "
        f"{reconnects} restored connections",
        fontsize=10,
    )
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", help="address of a broker; by default BMQ_BROKER_URI, or an embedded one")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=int, default=5000, help="messages a second")
    parser.add_argument("--samples", type=Path, default=Path("build/hour.jsonl"))
    parser.add_argument("--seed", type=int, default=1, help="of the pauses between cuts")
    parser.add_argument("--draw", type=Path, help="file for a picture of earlier samples")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.draw:
        samples, result = read(arguments.samples)
        draw(samples, result, arguments.draw)
        print("\n".join(summary(samples, result)))
        return
    if arguments.load:
        import bmq

        bmq.run(hour(arguments.broker, arguments.rate, arguments.seconds, arguments.samples))
        return
    sys.path.insert(0, str(harness.HERE.parent))
    arguments.samples.parent.mkdir(exist_ok=True)
    if arguments.broker:
        sys.exit(asyncio.run(disturbed(arguments)))
    with harness.broker() as (arguments.broker, _):
        sys.exit(asyncio.run(disturbed(arguments)))


if __name__ == "__main__":
    main()
