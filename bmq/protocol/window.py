"""The window: every post that has no outcome yet, in the order of posting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bmq.wire.put import Outgoing

__all__ = ["Pending", "Window"]


class Pending(NamedTuple):
    """One unacknowledged post.

    Attributes:
        queue: the queue it was posted to.
        message: what was posted, ready to be sent again.
        token: whom the outcome is for.
        tag: which of the token's posts it is.
        posted: when it was posted.
    """

    queue: Any
    message: Outgoing
    token: Any
    tag: int
    posted: float


class Window:
    """Holds unacknowledged posts by GUID until they are acknowledged or given up.

    It is the only owner of their bytes: what a reconnect sends again comes from here.

    Attributes:
        bytes: the size of the application data of all messages held.
        entries: the posts by GUID, in the order of posting; whoever changes it keeps ``bytes`` right.
    """

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.entries: dict[bytes, Pending] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, guid: bytes) -> bool:
        return guid in self.entries

    def oldest(self) -> Pending | None:
        """Return the post that has waited longest."""
        return next(iter(self.entries.values()), None)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self.entries.values())

    def take(self, wanted: Callable[[Pending], bool]) -> list[tuple[bytes, Pending]]:
        """Remove and return every post that is wanted, in order."""
        taken = [(guid, pending) for guid, pending in self.entries.items() if wanted(pending)]
        for guid, pending in taken:
            del self.entries[guid]
            self.bytes -= len(pending.message[1])
        return taken
