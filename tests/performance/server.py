# SPDX-License-Identifier: Apache-2.0
"""A scripted broker that keeps little, and a counter of function calls."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from bmq.wire.ack import encode_acks
from bmq.wire.confirm import ConfirmMessage
from bmq.wire.put import DecodedPut
from tests.fakes.broker import Connection, Peer, ScriptedBroker
from tests.waiting import eventually


class Counter:
    """Counts the calls of Python and C functions in this thread."""

    calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")


@contextmanager
def counted() -> Iterator[Counter]:
    """Count calls inside the block, but not those of the finalizers of garbage."""
    counter = Counter()
    gc.disable()
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(None)
        gc.enable()


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

    def accept(self) -> Connection:
        return Connection(self, Tally(self))

    async def arrived(self, count: int) -> None:
        """Wait for this many messages in all."""
        await eventually(lambda: self.post_count == count)

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
