"""Message GUIDs that a repeated task makes again, so that the broker drops what it has already.

What that guarantees, and what not, is in the documentation of :func:`bmq.spark.write_partition`.

A GUID never comes from a row's position: a repeated task may see its rows in another order, and then the
broker would drop a row whose GUID was another row's before.
"""

from __future__ import annotations

import hashlib
import marshal
import secrets
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from bmq.errors import UsageError

__all__ = ["ContentGuids", "GuidMaker", "GuidMode", "IdGuids", "RandomGuids", "guid_maker"]

_SIZE = 16


class GuidMode(StrEnum):
    """Where message GUIDs come from: what a row says, a column, or chance."""

    CONTENT = "content"
    ID = "id"
    RANDOM = "random"


class GuidMaker(Protocol):
    """Makes the GUIDs of the rows of one partition that go to one queue."""

    def make(self, contents: list[Any], ids: list[Any] | None) -> list[bytes | None]:
        """Return a GUID for each row; None for a row whose GUID came before in this partition.

        Args:
            contents: value and properties of each row, of types that ``marshal`` takes.
            ids: the id of each row, where there is an id column.
        """
        ...


def guid_maker(mode: GuidMode, queue: str, scope: tuple[str, ...]) -> GuidMaker:
    """Return what makes the GUIDs of one partition and one queue.

    Args:
        mode: where they come from.
        queue: the target queue's URI.
        scope: what tells this write from others that may post equal rows: the job, the batch, the partition,
            the write's name.
    """
    if mode is GuidMode.ID:
        return IdGuids(queue)
    if mode is GuidMode.RANDOM:
        return RandomGuids()
    return ContentGuids((queue, *scope))


class ContentGuids:
    """GUIDs from what a row contains and how many equal rows came before: the order does not matter."""

    def __init__(self, scope: tuple[str, ...]) -> None:
        self._key = _key("content", *scope)
        self._seen = Occurrences()

    def make(self, contents: list[Any], ids: list[Any] | None) -> list[bytes | None]:
        """See :meth:`GuidMaker.make`."""
        key, blake = self._key, hashlib.blake2b
        # Version 0 of the format neither counts references nor looks at interning: equal data, equal bytes.
        guids: list[bytes | None] = [
            blake(marshal.dumps(row, 0), digest_size=_SIZE, key=key).digest() for row in contents
        ]
        ranks = self._seen.ranks(guids)
        if ranks is None:
            return [_versioned(guid) for guid in guids if guid is not None]
        for index, rank in enumerate(ranks):
            guid = guids[index] or b""
            if rank:
                guid = blake(rank.to_bytes(8, "big"), digest_size=_SIZE, key=guid).digest()
            guids[index] = _versioned(guid)
        return guids


class IdGuids:
    """GUIDs from an id column."""

    def __init__(self, queue: str) -> None:
        self._key = _key("id", queue)
        self._seen = Occurrences()

    def make(self, contents: list[Any], ids: list[Any] | None) -> list[bytes | None]:
        """See :meth:`GuidMaker.make`."""
        if ids is None:
            raise UsageError("guidMode=id needs an id column")
        key, blake = self._key, hashlib.blake2b
        guids: list[bytes | None] = [
            _versioned(blake(marshal.dumps(each, 0), digest_size=_SIZE, key=key).digest()) for each in ids
        ]
        ranks = self._seen.ranks(guids)
        if ranks is not None:
            guids = [None if rank else guid for guid, rank in zip(guids, ranks, strict=True)]
        return guids


class RandomGuids:
    """New GUIDs every time; within a task a message that is posted again keeps its GUID."""

    def make(self, contents: list[Any], ids: list[Any] | None) -> list[bytes | None]:
        """See :meth:`GuidMaker.make`."""
        pool = secrets.token_bytes(_SIZE * len(contents))
        return [_versioned(pool[at : at + _SIZE]) for at in range(0, len(pool), _SIZE)]


class Occurrences:
    """Counts equal digests over all slices of a partition, in eight bytes for each distinct one.

    Sorted arrays, merged when they are of similar size. Two different digests that agree in those eight bytes
    count as equal. No row is lost by that, but a repeated task may then make other GUIDs; it happens once in
    a hundred million partitions of a million rows.
    """

    def __init__(self) -> None:
        self._levels: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._repeated: dict[int, int] = {}

    def ranks(self, digests: list[bytes | None]) -> list[int] | None:
        """Return how often each came before, and count it; None when none of them did."""
        joined = b"".join(each for each in digests if each is not None)
        keys = np.frombuffer(joined, dtype=np.uint64)[1::2]
        unique = np.unique(keys)
        seen = np.zeros(len(unique), dtype=np.bool_)
        for level in self._levels:
            at = np.searchsorted(level, unique)
            at[at == len(level)] = 0
            seen |= level[at] == unique
        fresh = unique[~seen]
        ranks = None
        if len(fresh) < len(keys):
            ranks = self._count(keys.tolist(), set(unique[seen].tolist()))
        if len(fresh):
            self._add(fresh)
        return ranks

    def _count(self, keys: list[int], before: set[int]) -> list[int]:
        ranks: list[int] = []
        counts: dict[int, int] = {}
        for key in keys:
            count = counts.get(key)
            if count is None:
                count = self._repeated.get(key, 1 if key in before else 0)
            ranks.append(count)
            counts[key] = count + 1
        self._repeated.update((key, count) for key, count in counts.items() if count > 1)
        return ranks

    def _add(self, fresh: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        levels = self._levels
        while levels and len(levels[-1]) <= 2 * len(fresh):
            fresh = np.sort(np.concatenate((levels.pop(), fresh)))
        levels.append(fresh)


def _key(*scope: str) -> bytes:
    return hashlib.blake2b(marshal.dumps(scope, 0), digest_size=32).digest()


# The upper two bits are the version of GUIDs that clients make.
_FIRST = [bytes((first & 0x3F | 0x40,)) for first in range(256)]


def _versioned(digest: bytes) -> bytes:
    return _FIRST[digest[0]] + digest[1:]
