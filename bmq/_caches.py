# SPDX-License-Identifier: Apache-2.0
"""The caches of the process: each has a bound, a name, and its place in one register.

Encoders, compiled expressions and parsed headers repeat from message to message, so they are kept beyond the
session that made them. Their keys come from peers and applications, so each cache has a bound. A full cache
is emptied: a peer that never repeats a key costs what it would cost without a cache, and a usual program
never fills one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

__all__ = ["CACHES", "Cache", "clear_caches"]

K = TypeVar("K")
V = TypeVar("V")


class Cache(dict[K, V]):
    """A dict with a bound. Reading is that of a dict; :meth:`keep` adds.

    Args:
        name: the cache's name in :data:`CACHES`.
        size: largest number of entries.
        always: entries that stay when the cache is emptied.
    """

    __slots__ = ("_always", "size")

    def __init__(self, name: str, size: int, always: Mapping[K, V] | None = None) -> None:
        super().__init__(always or {})
        self.size = size
        self._always = dict(always or {})
        CACHES[name] = cast("Cache[object, object]", self)

    def keep(self, key: K, value: V) -> V:
        """Add an entry, and return its value; a full cache is emptied first."""
        if len(self) >= self.size:
            self.empty()
        self[key] = value
        return value

    def empty(self) -> None:
        """Remove the entries, except those that stay always."""
        self.clear()
        self.update(self._always)


#: Every cache of the process, by its name.
CACHES: dict[str, Cache[object, object]] = {}


def clear_caches() -> None:
    """Empty every cache of the process, for a test that counts memory."""
    for cache in CACHES.values():
        cache.empty()
