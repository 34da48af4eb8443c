# SPDX-License-Identifier: Apache-2.0
"""The process-wide caches: a register of dicts with bounds.

Encoders, compiled expressions and parsed headers repeat from message to message, so the results are kept
beyond the session. Keys come from peers and applications, so each cache has a bound, and a full cache is
emptied. A peer that never repeats a key causes the cost of a missing cache. A usual program never fills a
cache.

The threads of a process share the caches without a lock: each operation on a dict is complete in itself, also
in a free-threaded interpreter. Two threads may compute the same entry, and either result serves. A permanent
entry is present at all times, because a reader may rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

__all__ = ["CACHES", "Cache", "clear_caches"]

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dict with a bound; :meth:`keep` adds entries.

    Args:
        name: name in :data:`CACHES`.
        size: largest number of entries.
        always: permanent entries.
    """

    __slots__ = ("_always", "size")

    def __init__(self, name: str, size: int, always: Mapping[K, V] | None = None) -> None:
        super().__init__(always or {})
        self.size = size
        self._always = dict(always or {})
        CACHES[name] = self

    def keep(self, key: K, value: V) -> V:
        """Add an entry, after emptying a full cache; return the value."""
        if len(self) >= self.size:
            self.empty()
        self[key] = value
        return value

    def empty(self) -> None:
        """Remove all entries except the permanent ones, which no other thread ever misses."""
        for key in list(self):
            if key not in self._always:
                self.pop(key, None)
        self.update(self._always)


class _Emptied(Protocol):
    def empty(self) -> None: ...


#: All caches of the process, by name: dicts with a bound, and objects with bounds of their own.
CACHES: dict[str, _Emptied] = {}


def clear_caches() -> None:
    """Empty all caches, for tests that count memory."""
    for cache in CACHES.values():
        cache.empty()
