# SPDX-License-Identifier: Apache-2.0
"""Which messages of a stream are known: those in its batches, and which of these batches are committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["GuidSets", "Guids", "Known", "Ledger"]

#: GUIDs by the URI of the queue they came from: applications of a fanout queue share GUIDs. Each is its 16
#: bytes: half of what texts cost.
Guids = dict[str, list[bytes]]

#: The same, to look them up.
GuidSets = dict[str, set[bytes]]

_REMEMBERED_BATCHES = 8


class Known(NamedTuple):
    """What is known of messages that were delivered.

    Attributes:
        fresh: the places of those that are new; None if that is so for all.
        again: the GUIDs of the others.
    """

    fresh: list[int] | None
    again: list[bytes]


class Ledger:
    """Messages by batch.

    The broker delivers again what was not confirmed, after every reconnect and restart; the ledger recognises
    it. Messages of committed batches are remembered for a few batches more, because a confirmation can be
    lost with the connection.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[bytes]] = {}
        self._open: deque[tuple[int, Guids]] = deque()
        self._closed: deque[tuple[int, Guids]] = deque()

    def arrive(self, uri: str, guids: list[bytes]) -> Known:
        """Note messages, and return which of them are new.

        Args:
            uri: the queue they came from.
            guids: their GUIDs.
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
        """Forget messages that are in no batch, and never will be."""
        self._known.get(uri, set()).difference_update(guids)

    def recall(self, end: int, guids: Guids) -> None:
        """Note a batch of an earlier run, as :meth:`hand_out`."""
        for uri, each in guids.items():
            self._known.setdefault(uri, set()).update(each)
        self.hand_out(end, guids)

    def hand_out(self, end: int, guids: Guids) -> None:
        """Note a batch that is handed to Spark.

        Args:
            end: how many messages there are up to its end.
            guids: its messages.
        """
        self._open.append((end, guids))

    def committed(self, uri: str, guids: list[bytes]) -> set[bytes]:
        """Return those that are committed."""
        found: set[bytes] = set()
        wanted = set(guids)
        for _, batch in self._closed:
            found |= wanted.intersection(batch.get(uri, ()))
        return found

    def all_committed(self) -> Guids:
        """Return all committed messages that are remembered."""
        found: Guids = {}
        for _, batch in self._closed:
            for uri, guids in batch.items():
                found.setdefault(uri, []).extend(guids)
        return found

    def commit(self, end: int) -> list[Guids]:
        """Note that everything up to ``end`` is committed; return the batches for which that is new."""
        committed: list[Guids] = []
        while self._open and self._open[0][0] <= end:
            batch = self._open.popleft()
            self._closed.append(batch)
            committed.append(batch[1])
        return committed

    def forget(self) -> int:
        """Forget the oldest committed batches; return up to where everything is forgotten."""
        end = 0
        while len(self._closed) > _REMEMBERED_BATCHES:
            end, guids = self._closed.popleft()
            for uri, each in guids.items():
                self._known[uri].difference_update(each)
        return end
