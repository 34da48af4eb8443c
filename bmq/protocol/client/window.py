"""The window: every post that has no outcome yet, in the order of posting."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bmq.protocol.client.queue import QueueCore
from bmq.wire.put import Outgoing

__all__ = ["Entry", "Lot", "Window"]

#: One unacknowledged post: what was posted, ready to be sent again; the number of its lot; which of the
#: token's posts it is. It refers to nothing that refers to others: the garbage collector forgets such a tuple
#: as soon as it has met it, and a deep window costs it nothing.
Entry = tuple[Outgoing, int, int]


class Lot:
    """Posts that were made together.

    Attributes:
        queue: the queue they were posted to.
        token: whom the outcomes are for.
        posted: when they were posted.
        left: how many of them have no outcome yet.
    """

    __slots__ = ("left", "posted", "queue", "token")

    def __init__(self, queue: QueueCore, token: object, posted: float, left: int) -> None:
        self.queue = queue
        self.token = token
        self.posted = posted
        self.left = left


class Window:
    """Holds unacknowledged posts by GUID until they are acknowledged or given up.

    It is the only owner of their bytes: what a reconnect sends again comes from here.

    Attributes:
        bytes: the size of the application data of all messages held.
        entries: the posts by GUID, in the order of posting.
        lots: those with posts in the window by number, in the order of posting. Whoever changes ``entries``
            keeps ``bytes`` and each lot's ``left`` right.
        last: the number of the latest lot.
    """

    __slots__ = ("bytes", "entries", "last", "lots")

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.lots: dict[int, Lot] = {}
        self.bytes = 0
        self.last = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, guid: bytes) -> bool:
        return guid in self.entries

    def oldest(self, queue: QueueCore | None = None) -> float | None:
        """Return when the post was made that has waited longest, of all or of those to one queue."""
        return next((lot.posted for lot in self.lots.values() if queue is None or lot.queue is queue), None)

    def __iter__(self) -> Iterator[tuple[QueueCore, Outgoing]]:
        """Iterate over queues and what was posted to them, in the order of posting."""
        lots = self.lots
        for message, number, _ in self.entries.values():
            yield lots[number].queue, message

    def take(self, wanted: Callable[[Lot], bool]) -> list[tuple[Lot, int, bytes]]:
        """Remove every post of the lots that are wanted; return lot, tag and GUID of each, in order."""
        lots = {number: lot for number, lot in self.lots.items() if wanted(lot)}
        if not lots:
            return []
        taken: list[tuple[Lot, int, bytes]] = []
        for message, number, tag in self.entries.values():
            if number in lots:
                taken.append((lots[number], tag, message[0]))
                self.bytes -= len(message[1])
        for _, _, guid in taken:
            del self.entries[guid]
        for number in lots:
            del self.lots[number]
        return taken
