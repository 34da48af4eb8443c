# SPDX-License-Identifier: Apache-2.0
"""Message GUIDs that a repeated task computes again, so that the broker drops duplicates.

:func:`bmq.spark.write_partition` documents the guarantees.

GUIDs never depend on a row's position: a repeated task may receive its rows in another order, and the broker
would then drop a row whose GUID belonged to another row before."""

from __future__ import annotations

import hashlib
import marshal
import secrets
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np

__all__ = ["GuidMaker", "GuidMode"]

_SIZE = 16

# Number of rows of a partition that are compared with other partitions; all rows of a small partition.
_SAMPLE = 1024


Guids = np.ndarray[Any, Any]


class GuidMode(StrEnum):
    """Sources of message GUIDs: a row's content, an id, a row's source message, or random numbers."""

    CONTENT = "content"
    ID = "id"
    RANDOM = "random"
    SOURCE = "source"


class GuidMaker:
    """Computes the GUIDs of the rows of one partition for one queue.

    ``content`` uses the content of a row and the number of earlier equal rows, independent of the order.
    ``source`` uses the source message and the content. Job and partition are not included: a batch repeated
    with other partitions has the same GUIDs. A row without a source message has the GUID of ``content``.
    With ``random``, a message that is posted again within the same task keeps its GUID.

    Args:
        mode: source of the GUIDs.
        queue: URI of the target queue.
        write: identity of the write.
        partition: number of the partition.
        name: name of the write.
    """

    def __init__(self, mode: GuidMode, queue: str, write: str, partition: int, name: str) -> None:
        self.mode = mode
        content = _key("content", queue, write, str(partition), name)
        if mode is GuidMode.SOURCE:
            self._key = _key("source", queue, name)
            # Prefix for rows without a source message. Other prefixes are the 32 digits of a GUID.
            self._own = b"content" + content
        else:
            self._key = _key("id", queue) if mode is GuidMode.ID else content
        self._seen = Occurrences()

    def of_contents(self, contents: list[bytes]) -> Guids:
        """Return a GUID for each row: an array of 16 bytes each.

        Args:
            contents: properties and payload of each row, as transmitted.
        """
        if self.mode is GuidMode.RANDOM:
            random = np.frombuffer(secrets.token_bytes(_SIZE * len(contents)), np.uint8)
            return _versioned(random.reshape(len(contents), _SIZE).copy())
        return _ranked(contents, np.frombuffer(self._key, np.uint8)[:_SIZE], self._seen)

    def of_messages(self, sources: Sequence[str | None]) -> Callable[[list[bytes]], Guids]:
        """Return the GUID function of the next rows, to be called slice by slice.

        Args:
            sources: GUID of each row's source message; None for none.
        """
        left = iter(sources)

        def of_contents(contents: list[bytes]) -> Guids:
            next_rows = zip(islice(left, len(contents)), contents, strict=True)
            return self.of_contents(
                [self._own + row if guid is None else guid.upper().encode() + row for guid, row in next_rows]
            )

        return of_contents

    def of_ids(self, ids: list[Any]) -> list[bytes | None]:
        """Return a GUID for each id; None for a repeated id."""
        # Version 0 of the format ignores reference counts and interning: equal data has equal bytes.
        digests = [
            hashlib.blake2b(marshal.dumps(each, 0), digest_size=_SIZE, key=self._key).digest() for each in ids
        ]
        guids = np.frombuffer(b"".join(digests), np.uint8).reshape(len(ids), _SIZE)
        ranks = self._seen.ranks(guids.view(np.uint64)[:, 1]) or [0] * len(ids)
        made = [each.tobytes() for each in _versioned(guids.copy())]
        return [None if rank else guid for guid, rank in zip(made, ranks, strict=True)]

    def sample(self) -> bytes:
        """Return the sample of :meth:`Occurrences.sample`, to compare with other partitions."""
        return self._seen.sample() if self.mode in (GuidMode.SOURCE, GuidMode.ID) else b""


class Occurrences:
    """Counts equal digests over all slices of a partition, in eight bytes for each distinct digest.

    The digests are kept in sorted arrays, which are merged when of similar size. Two different digests with
    the same eight bytes count as equal. No row is lost, but a repeated task may then compute other GUIDs.
    This happens once in a hundred million partitions of a million rows.
    """

    def __init__(self) -> None:
        self._levels: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._repeated: dict[int, int] = {}

    def ranks(self, keys: np.ndarray[Any, np.dtype[np.uint64]]) -> list[int] | None:
        """Return and record how often each digest occurred before; None if none did."""
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

    def sample(self) -> bytes:
        """Return eight bytes for each row of a sample; equal bytes mean equal messages."""
        # The smallest digests are a fair sample.
        levels = [level[:_SAMPLE] for level in self._levels]
        return np.sort(np.concatenate([np.empty(0, np.uint64), *levels]))[:_SAMPLE].tobytes()

    def _add(self, fresh: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        levels = self._levels
        while levels and len(levels[-1]) <= 2 * len(fresh):
            fresh = np.concatenate((levels.pop(), fresh))
            fresh.sort()  # in place: by far the largest array
        levels.append(fresh)


def _ranked(contents: list[bytes], key: Guids, seen: Occurrences) -> Guids:
    """Return GUIDs from contents; the number of earlier equal rows distinguishes equal contents."""
    # The fastest of the available hashes. The key distinguishes equal rows of two writes.
    digests = b"".join([hashlib.sha256(row).digest() for row in contents])
    guids = np.frombuffer(digests, np.uint8).reshape(len(contents), -1)[:, :_SIZE] ^ key
    ranks = seen.ranks(guids.view(np.uint64)[:, 1])
    for row, rank in enumerate(ranks or ()):
        if rank:
            again = hashlib.blake2b(rank.to_bytes(8, "big"), digest_size=_SIZE, key=guids[row].tobytes())
            guids[row] = np.frombuffer(again.digest(), np.uint8)
    return _versioned(guids)


def _key(*scope: str) -> bytes:
    return hashlib.blake2b(marshal.dumps(scope, 0), digest_size=32).digest()


def _versioned(guids: Guids) -> Guids:
    """Set the upper two bits to the version of client-generated GUIDs."""
    guids[:, 0] = guids[:, 0] & 0x3F | 0x40
    return guids.view(f"V{_SIZE}").reshape(-1)
