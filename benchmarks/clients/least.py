# SPDX-License-Identifier: Apache-2.0
"""The least work of an asyncio client in Python: one queue, one consumer, no reconnection, no checks.

The argument is a JSON object (see ``harness.Job``), and the output is the result as a JSON object. Only the
handshake is shared with bmq: each message is read or written by one ``struct`` call, and is one object for
the application. A client with limits, subscriptions and retransmission cannot need less.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections import deque
from collections.abc import Iterable
from struct import Struct
from typing import Any

from google_crc32c import value as crc32c
from ours import Meter, consume
from raw import Connection, guids

from bmq.wire.confirm import encode_queue_confirms, pack_confirms
from bmq.wire.constants import EventType
from bmq.wire.control import QueueFlags
from bmq.wire.event import HEADER_SIZE, pack_event_header

PUT, PUSH = Struct(">II i16sII"), Struct(">II i16sI")
WORDS, ACK_REQUESTED = 0x0FFFFFFF, 1 << 28
LIST_HEADER, ACK, GUID_IN_ACK = 4, 24, 4
PER_EVENT = 500


class Message:
    """A received message."""

    __slots__ = ("data", "guid", "owner")

    def __init__(self, owner: Client, guid: bytes, data: bytes) -> None:
        self.owner, self.guid, self.data = owner, guid, data

    def confirm(self) -> None:
        self.owner.confirm(self.guid)


class Client(asyncio.Protocol):
    """A connection after the handshake."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: Any = None
        self.held = b""
        self.messages: deque[Message] = deque()
        self.arrival = self.loop.create_future()
        self.confirmed: list[bytes] = []
        self.unacked: dict[bytes, bytes] = {}
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=4 * 1024 * 1024)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.held:
            data = self.held + data
        offset, end = 0, len(data)
        while end - offset >= HEADER_SIZE:
            length = int.from_bytes(data[offset : offset + 4], "big")
            if end - offset < length:
                break
            kind = data[offset + 4] & 0x3F
            if kind == EventType.PUSH:
                self.pushed(data, offset + HEADER_SIZE, offset + length)
            elif kind == EventType.ACK:
                self.acked(data, offset + HEADER_SIZE + LIST_HEADER, offset + length)
            offset += length
        self.held = data[offset:]
        if not self.arrival.done():
            self.arrival.set_result(None)

    def pushed(self, event: bytes, at: int, end: int) -> None:
        append, unpack = self.messages.append, PUSH.unpack_from
        while at < end:
            first, shape, _, guid, _ = unpack(event, at)
            stop = at + (first & WORDS) * 4
            start = at + ((shape & 63) + (shape >> 8)) * 4
            append(Message(self, guid, event[start : stop - event[stop - 1]]))
            at = stop

    def acked(self, event: bytes, at: int, end: int) -> None:
        unacked = self.unacked
        while at < end:
            del unacked[event[at + GUID_IN_ACK : at + GUID_IN_ACK + 16]]
            at += ACK

    def confirm(self, guid: bytes) -> None:
        if not self.confirmed:
            self.loop.call_soon(self.flush)
        self.confirmed.append(guid)

    def flush(self) -> None:
        self.transport.write(pack_confirms([encode_queue_confirms(0, self.confirmed, 0)]))
        self.confirmed = []

    def __aiter__(self) -> Client:
        return self

    async def __anext__(self) -> Message:
        while not self.messages:
            self.arrival = self.loop.create_future()
            await self.arrival
        return self.messages.popleft()

    async def batch(self) -> list[Message]:
        while not self.messages:
            self.arrival = self.loop.create_future()
            await self.arrival
        taken = list(self.messages)
        self.messages.clear()
        return taken

    async def post_many(self, payloads: Iterable[bytes], all_guids: list[bytes]) -> None:
        pack, unacked = PUT.pack, self.unacked
        pieces: list[bytes] = []
        size = 0
        for guid, payload in zip(all_guids, payloads, strict=True):
            pad = 4 - (len(payload) & 3)
            length = 36 + len(payload) + pad
            unacked[guid] = payload
            pieces += (
                pack(ACK_REQUESTED | length >> 2, 9, 0, guid, crc32c(payload), 0),
                payload,
                bytes([pad]) * pad,
            )
            size += length
            if len(pieces) == 3 * PER_EVENT:
                pieces.insert(0, pack_event_header(HEADER_SIZE + size, EventType.PUT))
                self.transport.write(b"".join(pieces))
                pieces, size = [], 0
                await self.writable.wait()
                await asyncio.sleep(0)
        if pieces:
            pieces.insert(0, pack_event_header(HEADER_SIZE + size, EventType.PUT))
            self.transport.write(b"".join(pieces))
        while unacked:
            self.arrival = self.loop.create_future()
            await self.arrival


async def main(job: dict[str, Any]) -> dict[str, Any]:
    count, size = job["count"], job["size"]
    posting = job["case"] == "post_many"
    connection = Connection(job["broker"])
    parameters = connection.open(job["queue"], QueueFlags.WRITE if posting else QueueFlags.READ)
    held: socket.socket = connection.socket.dup()
    held.setblocking(False)
    payload, all_guids = bytes(size), guids(job["seed"], count)
    transport, client = await asyncio.get_running_loop().create_connection(Client, sock=held)
    meter = Meter()
    if posting:
        await client.post_many((payload for _ in range(count)), all_guids)
    else:
        connection.socket.setblocking(True)
        connection.configure(True, wait=False)
        held.setblocking(False)
        if job["case"] == "consume":
            await consume(client, job, meter)
        else:
            left = count
            while left > 0:
                batch = await client.batch()
                for message in batch:
                    assert len(message.data) == size
                transport.write(pack_confirms([encode_queue_confirms(0, [m.guid for m in batch], 0)]))
                left -= len(batch)
        await asyncio.sleep(0)
    result = meter.result(count)
    transport.pause_reading()
    connection.socket.setblocking(True)
    if not posting:
        connection.configure(False)
    connection.close(parameters)
    return result


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    if job["loop"] == "uvloop":
        from uvloop import run
    else:
        from asyncio import run
    print(json.dumps(run(main(job))))
