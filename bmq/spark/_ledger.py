# SPDX-License-Identifier: Apache-2.0
"""The known messages of a stream, by batch, and the state of each batch: committed or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Arrivals", "GuidSets", "Guids", "Known", "Ledger"]

#: GUIDs by queue URI, because applications of a fanout queue share GUIDs. A GUID has 16 bytes, half the size
#: of the text.
Guids = dict[str, list[bytes]]

#: The same GUIDs, for lookups.
GuidSets = dict[str, set[bytes]]

_REMEMBERED_BATCHES = 8


class Known(NamedTuple):
    """Known and new messages among delivered ones.

    Attributes:
        fresh: positions of the new messages; None if every message is new.
        again: GUIDs of the known messages.
    """

    fresh: list[int] | None
    again: list[bytes]


class Ledger:
    """Messages by batch.

    After every reconnect and restart, the broker redelivers unconfirmed messages; the ledger recognises them.
    Messages of committed batches are remembered for a few more batches, because a confirmation can be lost
    with the connection.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[bytes]] = {}
        self._open: deque[tuple[int, Guids]] = deque()
        self._closed: deque[tuple[int, Guids]] = deque()

    def arrive(self, uri: str, guids: list[bytes]) -> Known:
        """Record messages; return the new and the known messages.

        Args:
            uri: queue of the messages.
            guids: GUIDs of the messages.
        """
        known = self._known.setdefault(uri, set())
        if known.isdisjoint(guids):
            before = len(known)
            known.update(guids)
            if len(known) == before + len(guids):
                return Known(None, [])
            known.difference_update(guids)
        fresh: list[int] = []
        again: list[bytes] = []
        for place, guid in enumerate(guids):
            if guid in known:
                again.append(guid)
            else:
                known.add(guid)
                fresh.append(place)
        return Known(fresh, again)

    def drop(self, uri: str, guids: Iterable[bytes]) -> None:
        """Forget messages without a batch. The messages must not become part of a later batch."""
        self._known.get(uri, set()).difference_update(guids)

    def recall(self, end: int, guids: Guids) -> None:
        """Record a batch of an earlier run, as :meth:`hand_out` does."""
        for uri, each in guids.items():
            self._known.setdefault(uri, set()).update(each)
        self.hand_out(end, guids)

    def hand_out(self, end: int, guids: Guids) -> None:
        """Record a batch handed to Spark.

        Args:
            end: number of messages up to the end of the batch.
            guids: messages of the batch.
        """
        self._open.append((end, guids))

    def committed(self, uri: str, guids: list[bytes]) -> set[bytes]:
        """Return the committed messages among the given messages."""
        found: set[bytes] = set()
        wanted = set(guids)
        for _, batch in self._closed:
            found |= wanted.intersection(batch.get(uri, ()))
        return found

    def all_committed(self) -> Guids:
        """Return all remembered committed messages."""
        found: Guids = {}
        for _, batch in self._closed:
            for uri, guids in batch.items():
                found.setdefault(uri, []).extend(guids)
        return found

    def commit(self, end: int) -> list[Guids]:
        """Record all messages before ``end`` as committed; return the newly committed batches."""
        committed: list[Guids] = []
        while self._open and self._open[0][0] <= end:
            batch = self._open.popleft()
            self._closed.append(batch)
            committed.append(batch[1])
        return committed

    def forget(self) -> int:
        """Forget the oldest committed batches; return the end of the last forgotten batch."""
        end = 0
        while len(self._closed) > _REMEMBERED_BATCHES:
            end, guids = self._closed.popleft()
            for uri, each in guids.items():
                self._known[uri].difference_update(each)
        return end


# An odd number with multiples spread over all 64 bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Arrivals:
    """GUIDs of stored rows, to find rows of one message once all rows are stored.

    A set of GUIDs finds a repeated message on arrival, and costs as much time as receiving the message.
    Repetitions are rare: a single sort at the end is cheaper, with a second copy of the rows if necessary.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._guids: dict[str, list[tuple[int, Any]]] = {}

    def add(self, uri: str, guids: Any) -> None:
        """Note the next rows.

        Args:
            uri: URI of the rows' queue. Applications of a fanout queue share GUIDs.
            guids: numpy array of the rows' GUIDs, 16 bytes each.
        """
        self._guids.setdefault(uri, []).append((self._rows, guids))
        self._rows += len(guids)

    def repeated(self) -> Any:
        """Return the numbers of repeated rows, ascending: rows with an earlier row of the same message."""
        found: list[Any] = []
        for parts in self._guids.values():
            halves = np.concatenate([np.ascontiguousarray(guids) for _, guids in parts]).view(np.uint64)
            halves = halves.reshape(-1, 2)
            mixed = np.sort(halves[:, 0] * _SPREAD ^ halves[:, 1])
            if not (mixed[1:] == mixed[:-1]).any():
                continue
            numbers = np.concatenate([np.arange(first, first + len(guids)) for first, guids in parts])
            _, earliest = np.unique(halves, axis=0, return_index=True)
            found.append(np.delete(numbers, earliest))
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)
