# SPDX-License-Identifier: Apache-2.0
"""Floors: the minimum work of any client in Python, measured with the standard library.

Takes a JSON object as its argument (see ``harness.Job``), and prints its result as a JSON object.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from raw import EVENT_BYTES, PER_EVENT, Connection, guids

from bmq.wire.ack import ACK_SIZE
from bmq.wire.constants import EventType, PutFlags
from bmq.wire.control import QueueFlags
from bmq.wire.event import HEADER_SIZE, pack_event_header
from bmq.wire.put import encode_put, encode_puts

WARM = 500


class Waiter(asyncio.Protocol):
    """Resolves a future when data arrives: the minimum of every asyncio client."""

    future: asyncio.Future[None]

    def data_received(self, data: bytes) -> None:
        if not self.future.done():
            self.future.set_result(None)


async def ack_latency(job: dict[str, Any]) -> dict[str, Any]:
    """Send one pre-encoded event at a time; a task awaits the future of its answer."""
    connection = Connection(job["broker"])
    parameters = connection.open(job["queue"], QueueFlags.WRITE)
    loop = asyncio.get_running_loop()
    held = connection.socket.dup()
    held.setblocking(False)
    transport, waiter = await loop.create_connection(Waiter, sock=held)
    payload, samples, clock = bytes(job["size"]), [], time.perf_counter_ns
    events: list[bytes] = []
    for guid in guids(job["seed"], job["count"] + WARM):
        body = encode_put(0, guid, payload)
        events.append(pack_event_header(HEADER_SIZE + len(body), EventType.PUT) + body)
    for event in events:
        begin = clock()
        waiter.future = loop.create_future()
        transport.write(event)
        await waiter.future
        samples.append((clock() - begin) / 1000)
    transport.pause_reading()
    connection.socket.setblocking(True)
    connection.close(parameters)
    return {"rate": 0.0, "cpu": 0.0, "samples_us": samples[WARM:]}


class Acknowledged:
    """Counts the acknowledgements from a socket, unread."""

    def __init__(self, peer: socket.socket) -> None:
        self.count = 0
        self._peer = peer
        self._held = bytearray()

    def read(self, flags: int = 0) -> None:
        """Read once; with ``MSG_DONTWAIT``, only what has arrived."""
        try:
            self._held += self._peer.recv(1 << 16, flags)
        except BlockingIOError:
            return
        held = self._held
        while len(held) >= HEADER_SIZE and len(held) >= (length := int.from_bytes(held[:4], "big")):
            self.count += (length - HEADER_SIZE) // ACK_SIZE  # the header of the list is shorter than an item
            del held[:length]


def gathered(job: dict[str, Any]) -> dict[str, Any]:
    """Compute CRC and header of each message, write the pieces at once, and count the acknowledgements.

    Only the socket copies the data.
    """
    payload, count, flags = bytes(job["size"]), job["count"], int(PutFlags.ACK_REQUESTED)
    messages = [(guid, payload, flags, 0, 0) for guid in guids(job["seed"], count)]
    each = max(1, min(PER_EVENT, EVENT_BYTES // job["size"]))
    address = urlsplit(job["broker"])
    with socket.create_connection((address.hostname or "", address.port or 0)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        acknowledged = Acknowledged(peer)
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        for start in range(0, count, each):
            pieces, _, size = encode_puts(0, messages[start : start + each])
            pieces.insert(0, pack_event_header(HEADER_SIZE + size, EventType.PUT))
            left = HEADER_SIZE + size - peer.sendmsg(pieces)
            if left:
                peer.sendall(memoryview(b"".join(pieces))[-left:])
            acknowledged.read(socket.MSG_DONTWAIT)
        while acknowledged.count < count:
            acknowledged.read()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"rate": count / wall, "cpu": cpu, "cpu_us": cpu / count * 1e6}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if job["loop"] == "uvloop":
        from uvloop import run
    else:
        from asyncio import run
    print(json.dumps(gathered(job) if job["case"] == "gathered" else run(ack_latency(job))))
