# SPDX-License-Identifier: Apache-2.0
"""Large payloads, posted and received, beside a copy of the same bytes over loopback.

    python benchmarks/payloads.py [--rounds 5] [--megabytes 256] [--output NAME]

The peers acknowledge or push as fast as their sockets allow (``clients/acking.py``, ``clients/pushing.py``);
a broker would be slower than the client. The copy is made by two processes with prepared bytes and one
buffer. A client has to do more. When posting, it computes the CRC of each payload and takes the
acknowledgements. When receiving, it makes a ``bytes`` object of each payload, and confirms. The floors do
that and nothing else, with the same peers. The least client (``clients/least.py``) also has an object for
each message, and hands messages to a task. With zlib, the comparison is zlib alone. All figures of a line are
measured in the same run, each in a new process.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import socket
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness import HERE, Job, environment, fresh_queue, started_broker, wait_until_idle, write_table

sys.path.insert(0, str(HERE / "clients"))

SIZES = {"16 KiB": 16 * 1024, "1 MiB": 1024 * 1024}
LEVEL, STRATEGY = zlib.Z_DEFAULT_COMPRESSION, zlib.Z_FILTERED


def bare(uri: str) -> socket.socket:
    address = urlsplit(uri)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=120)


def copied(uri: str, count: int, size: int) -> float:
    """Receive the bytes into one buffer."""
    with bare(uri) as connection:
        buffer = bytearray(1 << 20)
        connection.recv_into(buffer, 1)
        begin = time.perf_counter()
        while connection.recv_into(buffer):
            pass
        return count / (time.perf_counter() - begin)


class Cutting(asyncio.BufferedProtocol):
    """Receives into one buffer, makes a ``bytes`` object of each payload, and confirms.

    The payloads of a read are confirmed together. The confirmations have fixed contents, and are encoded once
    for each number of payloads.
    """

    def __init__(self, count: int, size: int) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._left = count
        self._size = size
        self._buffer = memoryview(bytearray(max(1 << 20, size) + 4096))
        self._have = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        have, size, view = self._have + nbytes, self._size, self._buffer
        if whole := have // size:
            cut = [bytes(view[at : at + size]) for at in range(0, whole * size, size)]
            self._transport.write(confirms(len(cut)))
            view[: have - whole * size] = bytes(view[whole * size : have])
            have -= whole * size
            self._left -= len(cut)
            if self._left <= 0 and not self.done.done():
                self.done.set_result(None)
        self._have = have


@functools.cache
def confirms(number: int) -> bytes:
    from bmq.wire.confirm import encode_queue_confirms, pack_confirms

    return pack_confirms([encode_queue_confirms(0, [bytes(16)] * number, 1)])


async def cut(uri: str, count: int, size: int) -> float:
    """Receive in an event loop, without messages, tasks and checks."""
    address, loop = urlsplit(uri), asyncio.get_running_loop()
    begin = time.perf_counter()
    transport, protocol = await loop.create_connection(
        lambda: Cutting(count, size), address.hostname, address.port
    )
    await protocol.done
    taken = time.perf_counter() - begin
    transport.close()
    return count / taken


async def received(uri: str, count: int, size: int) -> float:
    import bmq

    left = count
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(
            "bmq://bmq.test.mem.priority/payloads",
            read=True,
            max_unconfirmed_messages=2**31 - 1,
            max_unconfirmed_bytes=2**40,
        )
        # The peer pushes when the loop begins. Of large messages, many arrive before the first is handed
        # out: a time that began there would leave them out.
        begin = time.perf_counter()
        async for message in queue:
            assert len(message.data) == size
            message.confirm()
            left -= 1
            if not left:
                break
        return count / (time.perf_counter() - begin)


async def posted_compressed(uri: str, count: int, size: int) -> float:
    from pushing import payload_of

    import bmq

    payload = payload_of(size)
    async with bmq.connect(uri) as session:
        queue = await session.open_queue(
            "bmq://bmq.test.mem.priority/payloads", write=True, compression=bmq.Compression.ZLIB
        )
        begin = time.perf_counter()
        report = await queue.post_many(payload for _ in range(count))
        assert report.acknowledged == count, report
        return count / (time.perf_counter() - begin)


def compressed(uri: str, count: int, size: int) -> float:
    """Only compress the payloads."""
    from pushing import payload_of

    payload = payload_of(size)
    begin = time.perf_counter()
    for _ in range(count):
        stream = zlib.compressobj(LEVEL, zlib.DEFLATED, 15, 8, STRATEGY)
        b"".join((stream.compress(payload), stream.flush()))
    return count / (time.perf_counter() - begin)


def decompressed(uri: str, count: int, size: int) -> float:
    """Only decompress the payloads."""
    from pushing import payload_of

    data = zlib.compress(payload_of(size))
    begin = time.perf_counter()
    for _ in range(count):
        zlib.decompressobj().decompress(data, size)
    return count / (time.perf_counter() - begin)


ALONE: dict[str, Any] = {
    each.__name__: each for each in (copied, cut, received, posted_compressed, compressed, decompressed)
}


def run(name: str, uri: str, count: int, size: int) -> float:
    """Make a measurement in a new process."""
    command = [sys.executable, __file__, "--one", name, uri, str(count), str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1]))


def against(peer: str, *arguments: str | int, name: str, count: int, size: int) -> float:
    program = str(HERE / "clients" / f"{peer}.py")
    with started_broker(program, *map(str, arguments)) as (uri, _):
        wait_until_idle(2.0)
        return run(name, uri, count, size)


def once(count: int, size: int) -> dict[str, float]:
    """Make all measurements of a size once."""
    less = max(2, count // 8)
    found = {
        "copy": fresh_queue(Job("raw", "loopback", count, size)).run("")["rate"],
        "gathered": fresh_queue(Job("floor", "gathered", count, size, peer="acking")).run("")["rate"],
        "post": fresh_queue(Job("ours", "post_many", count, size, peer="acking")).run("")["rate"],
        "copied": against("pushing", count, size, "--bare", name="copied", count=count, size=size),
        "cut": against("pushing", count, size, "--bare", name="cut", count=count, size=size),
        "receive": against("pushing", count, size, name="received", count=count, size=size),
        "compress": run("compressed", "", less, size),
        "post, zlib": against("acking", name="posted_compressed", count=less, size=size),
        "decompress": run("decompressed", "", less, size),
        "receive, zlib": against("pushing", less, size, "--zlib", name="received", count=less, size=size),
    }
    if size <= LARGEST_OF_LEAST:
        job = Job("least", "post_many", count, size, peer="acking")
        found["least post"] = fresh_queue(job).run("")["rate"]
        with started_broker(PUSHING, str(count), str(size), "--subscription", "1") as (uri, _):
            wait_until_idle(2.0)
            found["least receive"] = fresh_queue(Job("least", "consume", count, size)).run(uri)["rate"]
    return found


#: Each line, with what it is compared with, its floor, and the least client.
LINES = {
    "post": ("copy", "gathered", "least post"),
    "receive": ("copied", "cut", "least receive"),
    "post, zlib": ("compress", "", ""),
    "receive, zlib": ("decompress", "", ""),
}
#: The least client joins the parts of an event with copies: of larger events, many.
LARGEST_OF_LEAST = 64 * 1024
PUSHING = str(HERE / "clients" / "pushing.py")


COLUMNS = (
    "what", "MB a second", "beside, MB a second", "part (spread)",
    "floor", "part of the floor", "least client", "part of the least client",
)  # fmt: skip


def rows(results: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Return the rows of the table."""
    made: list[list[str]] = []
    for title, rounds in results.items():
        size = SIZES[title]

        def speed(name: str, rounds: list[dict[str, float]] = rounds, size: int = size) -> float:
            return statistics.median(each[name] for each in rounds) * size / 1e6

        for mine, (other, *floors) in LINES.items():
            parts = sorted(each[mine] / each[other] for each in rounds)
            what = "copy" if other in ("copy", "copied") else "zlib alone"
            cells = [
                f"{mine}, {title}",
                f"{speed(mine):,.0f}",
                f"{what}: {speed(other):,.0f}",
                f"{statistics.median(parts):.2f} ({parts[0]:.2f}-{parts[-1]:.2f})",
            ]
            for floor in floors:
                if floor in rounds[0]:
                    part = statistics.median(each[mine] / each[floor] for each in rounds)
                    cells += [f"{speed(floor):,.0f}", f"{part:.2f}"]
                else:
                    cells += ["", ""]
            made.append(cells)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024, help="of each measurement")
    parser.add_argument("--output", type=Path, default=Path("build/payloads"), metavar="NAME")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, uri, count, size = options.one
        result = ALONE[name](uri, int(count), int(size))
        if asyncio.iscoroutine(result):
            import bmq

            result = bmq.run(result)
        print(json.dumps(result))
        return
    results: dict[str, list[dict[str, float]]] = {title: [] for title in SIZES}
    for _ in range(options.rounds):
        for title, size in SIZES.items():
            results[title].append(once(options.megabytes * 1_000_000 // size, size))
    about = f"median of {options.rounds} rounds of {options.megabytes:,} MB a line"
    write_table(options.output, COLUMNS, rows(results), about=about, runs=results)


if __name__ == "__main__":
    main()
