# SPDX-License-Identifier: Apache-2.0
"""Receiving messages with two properties: ``async for`` beside the official client.

    python benchmarks/properties.py tcp://localhost:30114 [--rounds 5] [--count 200000]

This program shares no code with ``make bench``, except for the writing of the table and the least client. It
posts all messages first, opens the queue, and takes the time from the first message to the last one. Each
message is confirmed, and both of its properties are compared. Each measurement is a new process.

The floor is the least client in Python (``clients/least.py``): one ``struct`` call for each message and one
for its properties, whose positions are known beforehand, without a comparison of names, without limits and
without reconnection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from struct import Struct
from typing import Any

DOMAIN = "bmq.test.mem.priority"


async def fill(broker: str, uri: str, count: int) -> None:
    import bmq

    async with bmq.connect(broker) as session:
        queue = await session.open_queue(uri, write=True)
        await queue.post_many(
            bmq.PutMessage(b"x" * 200, {"region": "EMEA", "amount": number}) for number in range(count)
        )


async def ours(broker: str, uri: str, count: int) -> tuple[float, float]:
    import bmq

    number, total, begin, cpu = 0, 0, 0.0, 0.0
    async with bmq.connect(broker) as session:
        queue = await session.open_queue(
            uri, read=True, max_unconfirmed_messages=10_000_000, max_unconfirmed_bytes=2**30
        )
        async for message in queue:
            if not number:
                begin, cpu = time.perf_counter(), time.process_time()
            if message.properties["region"] == "EMEA":
                total += message.properties["amount"]
            message.confirm()
            number += 1
            if number == count:
                break
        result = time.perf_counter() - begin, time.process_time() - cpu
    if total != count * (count - 1) // 2:
        raise SystemExit("a property was wrong")
    return result


async def least(broker: str, uri: str, count: int) -> tuple[float, float]:
    sys.path.insert(0, str(Path(__file__).parent / "clients"))
    from least import PUSH, WORDS, Client, Message
    from raw import Connection

    from bmq.wire.control import QueueFlags
    from bmq.wire.properties import encode_properties

    area = encode_properties({"region": "EMEA", "amount": 1}, new=True)
    amount = area.index(b"amount") + len("amount")
    values = Struct(f">{amount}xq{area.index(b'EMEA') - amount - 8}x4s").unpack_from

    class WithProperties(Message):
        __slots__ = ("properties",)

        def __init__(self, owner: Client, guid: bytes, data: bytes) -> None:
            self.owner, self.guid, self.data = owner, guid, data
            amount, region = values(data)
            self.properties = {"amount": amount, "region": region.decode()}

    class Receiver(Client):
        def pushed(self, event: bytes, at: int, end: int) -> None:
            append, unpack = self.messages.append, PUSH.unpack_from
            while at < end:
                first, shape, _, guid, _ = unpack(event, at)
                stop = at + (first & WORDS) * 4
                start = at + ((shape & 63) + (shape >> 8)) * 4
                append(WithProperties(self, guid, event[start : stop - event[stop - 1]]))
                at = stop

    number, total, begin, cpu = 0, 0, 0.0, 0.0
    connection = Connection(broker)
    parameters = connection.open(uri, QueueFlags.READ)
    held = connection.socket.dup()
    held.setblocking(False)
    created: Any = await asyncio.get_running_loop().create_connection(Receiver, sock=held)
    transport, client = created
    connection.socket.setblocking(True)
    connection.configure(True, wait=False)
    held.setblocking(False)
    async for message in client:
        if not number:
            begin, cpu = time.perf_counter(), time.process_time()
        if message.properties["region"] == "EMEA":
            total += message.properties["amount"]
        message.confirm()
        number += 1
        if number == count:
            break
    result = time.perf_counter() - begin, time.process_time() - cpu
    await asyncio.sleep(0)
    transport.pause_reading()
    connection.socket.setblocking(True)
    connection.configure(False)
    connection.close(parameters)
    if total != count * (count - 1) // 2:
        raise SystemExit("a property was wrong")
    return result


def official(broker: str, uri: str, count: int) -> tuple[float, float]:
    import blazingmq

    number, total, begin, cpu = 0, 0, 0.0, 0.0
    end = end_cpu = 0.0
    done = threading.Event()

    def on_message(message: blazingmq.Message, handle: blazingmq.MessageHandle) -> None:
        nonlocal number, total, begin, cpu, end, end_cpu
        if not number:
            begin, cpu = time.perf_counter(), time.process_time()
        if message.properties["region"] == "EMEA":
            total += message.properties["amount"]
        handle.confirm()
        number += 1
        if number == count:
            end, end_cpu = time.perf_counter(), time.process_time()
            done.set()

    options = blazingmq.QueueOptions(
        max_unconfirmed_messages=10_000_000, max_unconfirmed_bytes=2**30, consumer_priority=1
    )
    with blazingmq.Session(lambda event: None, on_message=on_message, broker=broker) as session:
        session.open_queue(uri, read=True, options=options)
        if not done.wait(300):
            raise SystemExit(f"{count - number} messages never came")
        session.close_queue(uri)
    if total != count * (count - 1) // 2:
        raise SystemExit("a property was wrong")
    return end - begin, end_cpu - cpu


def one(client: str, broker: str, uri: str, count: int) -> None:
    if client == "fill":
        asyncio.run(fill(broker, uri, count))
    elif client == "official":
        print(json.dumps(official(broker, uri, count)))
    else:
        import bmq

        print(json.dumps(bmq.run((least if client == "least" else ours)(broker, uri, count))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("broker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--output", type=Path, default=Path("build/properties"), metavar="NAME")
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "URI"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one[0], options.broker, options.one[1], options.count)
        return

    def run(client: str, uri: str) -> str:
        command = [sys.executable, __file__, options.broker, "--count", str(options.count)]
        # The official client prefers the variable to the address in the program.
        environment = {name: value for name, value in os.environ.items() if name != "BMQ_BROKER_URI"}
        command += ["--one", client, uri]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        return done.stdout

    ratios, cpu = list[float](), list[float]()
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "official": [], "least": []}
    for number in range(options.rounds):
        taken: dict[str, tuple[float, float]] = {}
        order = ("ours", "least", "official")
        for client in order if number % 2 else reversed(order):
            uri = f"bmq://{DOMAIN}/properties-{uuid.uuid4().hex}"
            run("fill", uri)
            taken[client] = json.loads(run(client, uri))
            found[client].append((options.count / taken[client][0], taken[client][1] / options.count * 1e6))
        rates = {client: options.count / wall for client, (wall, _) in taken.items()}
        micros = {client: used / options.count * 1e6 for client, (_, used) in taken.items()}
        ratios.append(rates["ours"] / rates["official"])
        cpu.append(micros["official"] / micros["ours"])
        print(
            f"round {number + 1}: {rates['ours']:,.0f} and {rates['official']:,.0f} messages a second: "
            f"{ratios[-1]:.2f} times; CPU us {micros['ours']:.2f} and {micros['official']:.2f}; "
            f"least client {rates['least']:,.0f}, CPU us {micros['least']:.2f}",
            flush=True,
        )
    print(
        f"median {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"CPU time {statistics.median(cpu):.2f} times less"
    )
    from harness import broker_name, write_table

    rows: list[list[str]] = []
    for place, what, digits in ((0, "messages a second", 0), (1, "CPU us a message", 2)):
        medians = [statistics.median(each[place] for each in found[name]) for name in found]
        spreads: list[str] = []
        for one_client, other in (("ours", "official"), ("least", "official"), ("ours", "least")):
            pairs = zip(found[one_client], found[other], strict=True)
            times = sorted(a[place] / b[place] for a, b in pairs)
            spreads.append(f"{statistics.median(times):.2f} ({times[0]:.2f}-{times[-1]:.2f})")
        cells = [f"{each:,.{digits}f}" for each in medians]
        rows.append([what, *cells[:2], spreads[0], cells[2], *spreads[1:]])
    columns = (
        "async for, two properties compared", "bmq", "official", "times (spread)",
        "floor: least client", "times official", "bmq, times the floor",
    )  # fmt: skip
    broker, rounds = broker_name(options.broker), options.rounds
    about = f"broker: {broker}; median of {rounds} rounds of {options.count:,} messages"
    write_table(options.output, columns, rows, about=about, runs=found)


if __name__ == "__main__":
    main()
