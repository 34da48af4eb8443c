# SPDX-License-Identifier: Apache-2.0
"""Confirmations: pending, or sent and possibly lost.

The problem: a broker does not acknowledge confirmations, so a confirmation can be lost unnoticed, in two
ways.

* The session's connection is lost, together with the confirmations in flight.
* The primary of a cluster is lost, while the session's connection to another node or to a proxy persists.
  With eventual consistency, the primary forwards a confirmation to the other nodes only after the acceptance.
  The next primary delivers the message again: without the out-of-order mark, and on the same connection, so
  only the GUID reveals the redelivery.

Therefore each confirmation is remembered for a while, sent or not. A redelivered message is confirmed again,
and not handed to the application a second time.

Invariants:

* A message not confirmed here is always handed out.
* A memory, :class:`Confirmed`, belongs to one opening of one queue, or of one application of a fanout queue.
  GUIDs confirmed by another queue or another application are unknown, as are GUIDs from before a queue was
  closed.
* A confirmation is remembered for 60 to 120 seconds of connection. Beyond 65,536 confirmations, the oldest
  half is forgotten earlier. After a lost connection, the memory lasts for five minutes: another consumer may
  have received the message first.

Most messages are new, and a lookup for each would cost a tenth of receiving. Three facts avoid the lookups.

* Large groups of confirmations are kept in encoded form, 24 bytes each. They are converted to a set of GUIDs
  only when a lookup may be necessary: see :meth:`Confirmed.prepare`.
* A cluster takes far longer than 10 ms to replace its primary. While the messages of a queue arrive in large
  events without such a pause, no confirmation was lost since the last pause. In this case only the first
  message is compared, with the first GUIDs of earlier confirmations: a broker faster than a cluster begins
  there.
* Entries do not expire individually. A generation is dropped as a whole.

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from bmq.wire.confirm import CONFIRM_SIZE, confirmed_guids, encode_confirm, encode_queue_confirms

if TYPE_CHECKING:
    from bmq.protocol.client.queue import QueueCore

__all__ = ["Confirmations", "Confirmed"]


# After a pause of this many seconds, the messages of a queue may be redeliveries.
_PAUSE: Final = 0.01
# Messages in events smaller than this may always be redeliveries.
_SMALL: Final = 16 * 1024
# Smaller groups of confirmations are not kept in encoded form.
_FEW: Final = 64
# Maximum age in seconds, and maximum number of confirmations, of a generation.
_LIFETIME: Final = 60.0
_CAPACITY: Final = 32_768
# Lifetime of the memory after a reconnect, in seconds.
_LIFETIME_AFTER_LOSS: Final = 300.0


class Confirmed:
    """The confirmed messages of a queue, in two generations.

    Attributes:
        recent: GUIDs of the younger generation, available for lookups.
        encoded: encoded confirmations of the younger generation, unavailable for lookups, by the first GUID.
        older: like ``recent``, for the older generation.
        older_encoded: like ``encoded``, for the older generation.
    """

    __slots__ = ("encoded", "older", "older_encoded", "recent")

    def __init__(self) -> None:
        self.recent: set[bytes] = set()
        self.encoded: dict[bytes, bytes] = {}
        self.older: set[bytes] = set()
        self.older_encoded: dict[bytes, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self.recent or self.encoded or self.older or self.older_encoded)

    def add(self, guids: Sequence[bytes], confirms: bytes) -> None:
        """Remember confirmations; ``confirms`` is the encoded form."""
        if len(guids) < _FEW:
            self.recent.update(guids)
        else:
            before = self.encoded.get(guids[0], b"")
            self.encoded[guids[0]] = before + confirms[-_CAPACITY * CONFIRM_SIZE :]

    def prepare(self, first: bytes, data: bytes, pause: float) -> None:
        """Make all confirmations available for lookups if arrived messages may be redeliveries.

        Args:
            first: GUID of the first message.
            data: event of the messages.
            pause: seconds since the previous messages of the queue.
        """
        if pause > _PAUSE or first in self.encoded or first in self.older_encoded or len(data) < _SMALL:
            self.index()

    def index(self) -> None:
        """Make all confirmations available for lookups."""
        if self.encoded:
            for first in self.encoded:
                self.recent.update(confirmed_guids(self.encoded[first]))
            self.encoded = {}
        if self.older_encoded:
            for first in self.older_encoded:
                self.older.update(confirmed_guids(self.older_encoded[first]))
            self.older_encoded = {}

    def knows_any(self, guids: Sequence[bytes]) -> bool:
        """Whether any of the messages is among the confirmations available for lookups."""
        if guids[0] in self.recent or guids[0] in self.older:
            return True
        return not (self.recent.isdisjoint(guids) and (not self.older or self.older.isdisjoint(guids)))

    def known(self, guids: Sequence[bytes]) -> set[bytes]:
        """Return the messages among the confirmations available for lookups."""
        return {guid for guid in guids if guid in self.recent or guid in self.older}

    def begin_generation(self) -> None:
        """Forget the older generation."""
        self.older, self.recent = self.recent, set()
        self.older_encoded, self.encoded = self.encoded, {}


class Confirmations:
    """The confirmations of a session.

    Args:
        enabled: whether confirmations are remembered after sending.

    Attributes:
        waiting: GUIDs to be confirmed with the next event, by queue.
        held: encoded confirmations that wait until their queue lets them go.
        sent: numbers of confirmations sent since the owner emptied the list, with their queues.
        changes: called before the pending GUIDs change: a list returned by :meth:`add` must not be extended
            any more.
        deadline: time to call :meth:`tick`, or None.
        unstamped: whether to call :meth:`stamp`, because a generation has begun.
    """

    __slots__ = (
        "_count",
        "_enabled",
        "_queues",
        "changes",
        "deadline",
        "held",
        "sent",
        "unstamped",
        "waiting",
    )

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self.waiting: dict[QueueCore, list[bytes]] = {}
        self.held: dict[QueueCore, bytes] = {}
        self.sent: list[tuple[QueueCore, int]] = []
        self.changes: Callable[[], None] = _nothing
        # The queues with a memory.
        self._queues: dict[QueueCore, None] = {}
        # Number of confirmations in the younger generation of all queues.
        self._count = 0
        self.deadline: float | None = None
        self.unstamped = False

    def add(self, queue: QueueCore, guids: Sequence[bytes]) -> list[bytes]:
        """Confirm messages with the next event; return the pending GUIDs of the queue."""
        if self.waiting:
            self.changes()
        pending = self.waiting.setdefault(queue, [])
        pending.extend(guids)
        return pending

    def take(self, *, everything: bool = False) -> bytes:
        """Encode, remember and return the pending confirmations.

        Args:
            everything: whether to include those that a queue would hold back.
        """
        self.changes()
        waiting, self.waiting = self.waiting, {}
        held, self.held = self.held, {}
        for queue, guids in waiting.items():
            confirms = self.remember(queue, guids)
            held[queue] = held[queue] + confirms if queue in held else confirms
        taken: list[bytes] = []
        for queue, confirms in held.items():
            count = len(confirms) // CONFIRM_SIZE
            some = queue.may_confirm(count, everything=everything)
            if some < count:
                self.held[queue] = confirms[some * CONFIRM_SIZE :]
            if some:
                taken.append(confirms[: some * CONFIRM_SIZE])
                self.sent.append((queue, some))
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def remember(self, queue: QueueCore, guids: Sequence[bytes]) -> bytes:
        """Remember confirmations, sent or not; return the encoded form."""
        count = len(guids)
        confirmed = queue.confirmed
        if confirmed is None and self._enabled and queue.in_session:
            confirmed = queue.confirmed = Confirmed()
            self._queues[queue] = None
        # A single message is processed with fewer calls.
        if count == 1:
            confirms = encode_confirm(queue.q_id, guids[0], queue.sub_id)
            if confirmed is not None:
                confirmed.recent.add(guids[0])
        else:
            confirms = encode_queue_confirms(queue.q_id, guids, queue.sub_id)
            if confirmed is not None:
                confirmed.add(guids, confirms)
        if confirmed is not None:
            self._count += count
            if self._count >= _CAPACITY:
                self._begin_generation()
            elif self.deadline is None:
                self.unstamped = True
        return confirms

    def index(self) -> None:
        """Look up all following messages: they may be redeliveries."""
        for queue in self._queues:
            if queue.confirmed is not None:
                queue.confirmed.index()

    def forget(self, queue: QueueCore) -> None:
        """Forget the confirmations of a queue that is closed, or opened again."""
        queue.confirmed = None
        self._queues.pop(queue, None)

    def lost(self) -> None:
        """Stop the time: the connection is lost."""
        self.take(everything=True)
        self.sent.clear()
        self.deadline = None
        self.unstamped = False

    def restored(self, now: float) -> None:
        """Start the time again: redeliveries arrive from now on."""
        self.index()
        self.deadline = now + _LIFETIME_AFTER_LOSS if self._queues else None
        self.unstamped = False

    def stamp(self, now: float) -> None:
        """Set the start of a new generation."""
        self.unstamped = False
        self.deadline = now + _LIFETIME

    def tick(self, now: float) -> None:
        """Forget old confirmations."""
        if self.deadline is not None and now >= self.deadline:
            self._begin_generation()
            if self.unstamped:
                self.stamp(now)

    def clear(self) -> None:
        """Forget everything."""
        self.changes()
        self.waiting.clear()
        self.held.clear()
        for queue in list(self._queues):
            self.forget(queue)
        self._count = 0
        self.unstamped = False
        self.deadline = None

    def _begin_generation(self) -> None:
        for queue in list(self._queues):
            if queue.confirmed is not None:
                queue.confirmed.begin_generation()
            if not queue.confirmed:
                self.forget(queue)
        self._count = 0
        self.deadline = None
        self.unstamped = bool(self._queues)


def _nothing() -> None:
    pass
