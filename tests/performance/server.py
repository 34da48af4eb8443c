# SPDX-License-Identifier: Apache-2.0
"""A scripted broker that is excluded from the counts of a test."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import bmq
from bmq.wire.ack import encode_acks
from bmq.wire.confirm import ConfirmMessage
from bmq.wire.put import DecodedPut
from tests.fakes.broker import Connection, Peer, ScriptedBroker


class Counter:
    """Counts the calls of Python and C functions in this thread.

    Args:
        own: whether to count only this project's functions and their calls.
    """

    def __init__(self, *, own: bool = False) -> None:
        self.calls = 0
        self._prefix = str(Path(bmq.__file__).parent) if own else ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(self._prefix):
            self.calls += 1


@contextmanager
def counted(*, own: bool = False) -> Iterator[Counter]:
    """Count calls inside the block, but not those the server makes, nor the finalizers of garbage."""
    counter = Counter(own=own)
    gc.disable()
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
        gc.enable()


def uncounted(method: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        profiler = sys.getprofile()
        sys.setprofile(None)
        try:
            method(*args)
        finally:
            sys.setprofile(profiler)

    return call


class Tally(ScriptedBroker):
    """Counts input without keeping it, except for GUIDs to be acknowledged."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    def posted(self, puts: list[DecodedPut]) -> None:
        self.server.post_count += len(puts)
        if self.server.keep:
            self.server.guids += [(put.queue_id, put.guid) for put in puts]

    def confirmed(self, confirms: list[ConfirmMessage]) -> None:
        self.server.confirm_count += len(confirms)


class UncountedConnection(Connection):
    @uncounted
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)

    @uncounted
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.peer.look()


class Server(Peer):
    """Opens whatever is asked for; acknowledges and delivers when told.

    Attributes:
        post_count: how many messages arrived.
        confirm_count: how many confirmations arrived.
        keep: whether GUIDs are kept, to be acknowledged.
        guids: those that were kept, with the id of their queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self.post_count = self.confirm_count = 0
        self.keep = True
        self.guids: list[tuple[int, bytes]] = []
        self._delivered = 0
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def accept(self) -> Connection:
        return UncountedConnection(self, Tally(self))

    def look(self) -> None:
        """Wake waiters for the arrived input."""
        for reached, future in self._waiting:
            if reached() and not future.done():
                future.set_result(None)

    async def until(self, reached: Callable[[], bool]) -> None:
        if not reached():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((reached, future))
            await future

    def acknowledge(self) -> None:
        """Acknowledge everything, a thousand in an event."""
        guids, self.guids = self.guids, []
        for start in range(0, len(guids), 1000):
            acks = [(0, 0, guid, q_id) for q_id, guid in guids[start : start + 1000]]
            self.connection.send(encode_acks(acks))

    def deliver(self, count: int, data: bytes, properties: dict[str, Any] | None = None) -> None:
        """Push messages to the first queue, two hundred in an event."""
        connection = self.connection
        s_ids = (connection.s_ids[0],)
        first, self._delivered = self._delivered, self._delivered + count
        for start in range(first, self._delivered, 200):
            numbers = range(start + 1, min(start + 200, self._delivered) + 1)
            messages = [(number.to_bytes(16, "big"), data) for number in numbers]
            connection.send(connection.script.push(0, messages, s_ids, properties))
