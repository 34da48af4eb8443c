# SPDX-License-Identifier: Apache-2.0
"""Which messages were handed to Spark, and which of them are committed: what may be confirmed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["Guids", "Ledger", "Sorted"]

#: GUIDs by the URI of the queue they came from: applications of a fanout queue share GUIDs.
Guids = dict[str, list[str]]

_REMEMBERED_BATCHES = 8


class Sorted(NamedTuple):
    """What is known of messages that were delivered.

    Attributes:
        fresh: the places of those that were not handed out; None if that is so for all.
        committed: the GUIDs of those that are committed.
    """

    fresh: list[int] | None
    committed: list[str]


class Ledger:
    """Messages by batch.

    The broker delivers again what was not confirmed, after every reconnect and restart; the ledger recognises
    it. Messages of committed batches are remembered for a few batches more, because a confirmation can be
    lost with the connection.
    """

    def __init__(self) -> None:
        self._handed_out: dict[str, set[str]] = {}
        self._committed: dict[str, set[str]] = {}
        self._open: deque[tuple[int, Guids]] = deque()
        self._closed: deque[tuple[int, Guids]] = deque()

    def sort(self, uri: str, guids: list[str], seen: set[str]) -> Sorted:
        """Return which messages are new.

        Args:
            uri: the queue they came from.
            guids: their GUIDs.
            seen: new ones of the batch that is being made; these are added.
        """
        handed_out, committed = self._handed_out.get(uri, _NONE), self._committed.get(uri, _NONE)
        before = len(seen)
        known = not (handed_out.isdisjoint(guids) and committed.isdisjoint(guids) and seen.isdisjoint(guids))
        if not known:
            seen.update(guids)
            if len(seen) == before + len(guids):
                return Sorted(None, [])
            seen.difference_update(guids)
        fresh: list[int] = []
        again: list[str] = []
        for place, guid in enumerate(guids):
            if guid in handed_out:
                continue
            if guid in committed:
                again.append(guid)
            elif guid not in seen:
                seen.add(guid)
                fresh.append(place)
        return Sorted(fresh, again)

    def hand_out(self, end: int, guids: Guids) -> None:
        """Note a batch that is handed to Spark.

        Args:
            end: how many messages there are up to its end.
            guids: its messages.
        """
        self._open.append((end, guids))
        _add(self._handed_out, guids)

    def commit(self, end: int) -> list[Guids]:
        """Note that everything up to ``end`` is committed; return what may be confirmed now."""
        confirmed: list[Guids] = []
        while self._open and self._open[0][0] <= end:
            batch = self._open.popleft()
            self._closed.append(batch)
            _remove(self._handed_out, batch[1])
            _add(self._committed, batch[1])
            confirmed.append(batch[1])
        return confirmed

    def forget(self) -> int:
        """Forget the oldest committed batches; return up to where everything is forgotten."""
        end = 0
        while len(self._closed) > _REMEMBERED_BATCHES:
            end, guids = self._closed.popleft()
            _remove(self._committed, guids)
        return end


_NONE: frozenset[str] = frozenset()


def _add(sets: dict[str, set[str]], guids: Guids) -> None:
    for uri, each in guids.items():
        sets.setdefault(uri, set()).update(each)


def _remove(sets: dict[str, set[str]], guids: Guids) -> None:
    for uri, each in guids.items():
        sets.get(uri, set()).difference_update(each)
