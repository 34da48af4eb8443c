# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster is killed under traffic, and acknowledged messages are missing or have a wrong payload.

    python conformance/upstream/lost_behind_proxy.py --broker /usr/local/bin/bmqbrkr --kills 20

The program starts three nodes and a proxy on loopback. Each round posts to a priority and a fanout queue with
strong consistency, kills a node with SIGKILL, restarts it, and posts on. The producer and the consumers are
connected to the proxy, or to different nodes with ``--at nodes``. The program then waits until 20 s pass
without a message, and counts acknowledged messages that no consumer has. A payload names the queue and the
number of its message. The program compares payloads with GUIDs, and with the bytes that the producer sent,
taken from a relay between producer and broker. It needs the package of bmq.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import bmq
from bmq.testing import fresh_queue_uri
from tests.integration.cluster import RealCluster

#: The receiving applications of each domain.
DOMAINS = {
    "bmq.test.persistent.priority.sc": ("",),
    "bmq.test.persistent.fanout.sc": ("foo", "bar"),
}
QUIET = 20.0


class Relay:
    """A relay to one address, with the bytes that the client sent."""

    def __init__(self, uri: str) -> None:
        self._host, port = uri.removeprefix("tcp://").split(":")
        self._port = int(port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = bytearray()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        for pair in ((reader, up_writer, self.sent), (up_reader, writer, bytearray())):
            task = asyncio.create_task(self._copy(*pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                kept += data
                sink.write(data)
                await sink.drain()
        sink.close()

    def payload(self, guid: str) -> list[bytes]:
        """The payloads sent under a GUID: the header of a PUT has 8 bytes after the GUID."""
        first = bytes.fromhex(guid)
        return [
            bytes(self.sent[found.end() + 8 : found.end() + 24]).split(b";")[0]
            for found in re.finditer(re.escape(first), self.sent)
        ]


class Reader:
    """The messages that an application received."""

    def __init__(self, session: bmq.Session, uri: str) -> None:
        self.session, self.uri = session, uri
        self.received: collections.Counter[int] = collections.Counter()
        self.payloads: list[tuple[str, bytes]] = []

    async def read(self) -> None:
        queue = await self.session.open_queue(self.uri, read=True)
        async with queue.subscribe() as consumer:
            async for message in consumer:
                self.payloads.append((str(message.guid), message.data))
                kind, number = message.data.rstrip(b";").split()
                if kind == kind_of(self.uri):
                    self.received[int(number)] += 1
                message.confirm()


def kind_of(uri: str) -> bytes:
    return b"fanout" if "fanout" in uri else b"priority"


class Writer:
    """The outcomes of the posts to a queue, with the times of posts and acknowledgements."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[float, float, str]] = {}
        self.refused: collections.Counter[str] = collections.Counter()

    async def post(self, queue: bmq.Queue, rate: int) -> None:
        waiting: list[asyncio.Future[bmq.Ack]] = []
        number, due = 0, time.monotonic()
        try:
            while True:
                waiting.append(self._post(queue, number))
                number += 1
                due = max(due + 1 / rate, time.monotonic() - 1 / rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)

    def _post(self, queue: bmq.Queue, number: int) -> asyncio.Future[bmq.Ack]:
        posted = time.monotonic()
        future = queue.post_nowait(b"%s %d;" % (kind_of(str(queue.uri)), number))

        def done(future: asyncio.Future[bmq.Ack]) -> None:
            if not future.cancelled() and (error := future.exception()) is None:
                self.acknowledged[number] = posted, time.monotonic(), str(future.result().guid)
            elif not future.cancelled():
                self.refused[str(error)[:60]] += 1

        future.add_done_callback(done)
        return future


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def arrive(readers: dict[str, list[Reader]], writers: dict[str, Writer]) -> None:
    """Wait until everything has arrived, or nothing has for QUIET seconds."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        if all(
            writers[uri].acknowledged.keys() <= r.received.keys() for uri in readers for r in readers[uri]
        ):
            return
        now = sum(r.received.total() for each in readers.values() for r in each)
        if now != count:
            count, since = now, time.monotonic()
        await asyncio.sleep(0.2)


async def round_(cluster: RealCluster, arguments: argparse.Namespace) -> collections.Counter[str]:
    primary = await cluster.primary()
    victim = primary if arguments.killed == "primary" else (primary + 1) % 3
    others = [node for node in range(3) if node != primary]
    producing, consuming = cluster.ways["proxy"] * 2
    if arguments.at == "nodes":
        nodes = cluster.ways["nodes"]
        producing, consuming = (",".join([nodes[first], *nodes]) for first in (others[0], others[1]))
    books: collections.Counter[str] = collections.Counter(kills=1)
    relay = Relay(producing.split(",")[0])
    async with (
        relay as relayed,
        bmq.connect(relayed) as producer,
        bmq.connect(consuming) as consumer,
    ):
        readers: dict[str, list[Reader]] = {}
        writers: dict[str, Writer] = {}
        tasks: list[asyncio.Task[None]] = []
        posting: list[asyncio.Task[None]] = []
        for domain, applications in DOMAINS.items():
            uri = fresh_queue_uri(domain, "lost")
            readers[uri] = [Reader(consumer, f"{uri}?id={app}" if app else uri) for app in applications]
            tasks += [asyncio.create_task(reader.read()) for reader in readers[uri]]
            writers[uri] = Writer()
            queue = await producer.open_queue(uri, write=True)
            posting.append(asyncio.create_task(writers[uri].post(queue, arguments.rate)))
        await asyncio.sleep(2)
        killed = time.monotonic()
        await cluster.kill(victim, signal.SIGKILL)
        await asyncio.sleep(arguments.down)
        await cluster.revive(victim)
        await asyncio.sleep(2)
        for task in posting:
            await stop(task)
        await arrive(readers, writers)
        for uri, writer in writers.items():
            books["acknowledged"] += len(writer.acknowledged)
            books["refused"] += writer.refused.total()
            for reader in readers[uri]:
                books["received"] += len(reader.received)
                books["twice"] += reader.received.total() - len(reader.received)
                missing = sorted(writer.acknowledged.keys() - reader.received.keys())
                books["missing"] += len(missing)
                books["queues with missing messages"] += bool(missing)
                of = {guid: b"%s %d;" % (kind_of(uri), n) for n, (*_, guid) in writer.acknowledged.items()}
                for guid, payload in reader.payloads:
                    if of.get(guid, payload) != payload:
                        books["wrong payloads"] += 1
                        print(
                            f"  wrong payload: {guid} was posted with {of[guid]!r}, sent with "
                            f"{relay.payload(guid)}, received with {payload!r}, {reader.uri}"
                        )
                for number in missing:
                    posted, at, guid = writer.acknowledged[number]
                    print(
                        f"  missing: {number} {guid}, posted {posted - killed:+.3f} s and acknowledged "
                        f"{at - killed:+.3f} s from the kill, {reader.uri}"
                    )
        for task in tasks:
            await stop(task)
        if books["missing"]:
            await again(consuming, readers, writers, books)
    return books


async def again(
    address: str,
    readers: dict[str, list[Reader]],
    writers: dict[str, Writer],
    books: collections.Counter[str],
) -> None:
    """Read the queues in a new session: messages that come now were kept by the nodes."""
    async with bmq.connect(address) as session:
        for uri, each in readers.items():
            for reader in each:
                if missing := writers[uri].acknowledged.keys() - reader.received.keys():
                    late = Reader(session, reader.uri)
                    task = asyncio.create_task(late.read())
                    await asyncio.sleep(10)
                    await stop(task)
                    books["of them after a new open"] += len(missing & late.received.keys())


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", required=True, help="executable of the broker")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--at", choices=("proxy", "nodes"), default="proxy", help="where the clients connect")
    parser.add_argument("--killed", choices=("primary", "replica"), default="primary")
    parser.add_argument("--rate", type=int, default=50, help="posts a second to each of the queues")
    parser.add_argument("--down", type=float, default=5.0, help="seconds until the node is restarted")
    arguments = parser.parse_args()
    total: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as work:
        cluster = RealCluster(arguments.broker, Path(work))
        try:
            await cluster.start()
            for number in range(1, arguments.kills + 1):
                books = await round_(cluster, arguments)
                total.update(books)
                print(f"kill {number}: " + ", ".join(f"{n} {what}" for what, n in books.items()), flush=True)
        finally:
            await cluster.stop()
    print("total: " + ", ".join(f"{n:,} {what}" for what, n in total.items()))


if __name__ == "__main__":
    asyncio.run(main())
