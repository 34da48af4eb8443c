# SPDX-License-Identifier: Apache-2.0
"""Confirmations: those that wait to be sent, and those that may be lost.

A broker acknowledges no confirmation, so a confirmation can be lost without a trace in two ways.

* The session's connection is lost. Confirmations on their way are gone with the connection.
* The primary of a cluster is lost, while the session's connection to another node or to a proxy lasts. With
  eventual consistency the primary tells the other nodes of a confirmation after it has taken the
  confirmation. The next primary delivers the message again: not marked as out of order, and on the same
  connection, so nothing but the GUID shows what happened.

Therefore every confirmation is remembered for a while, sent or not. A message that is delivered again is
confirmed again, and not handed to the application a second time.

Invariants:

* A message that was not confirmed here is always handed out.
* A memory, :class:`Confirmed`, belongs to one opening of one queue, or of one application of a fanout queue.
  A GUID that another queue or another application confirmed is unknown, and so is a GUID from before a queue
  was closed.
* A confirmation is remembered for 60 seconds of connection at least and for twice as long at most. Beyond
  65,536 confirmations the oldest half is forgotten earlier. After a lost connection the memory lasts for five
  minutes: another consumer may have received the message first.

Most messages are new, and a lookup for each would cost a tenth of receiving. Three facts spare it.

* Many confirmations of one event are kept as they were encoded, 24 bytes each. A set of GUIDs is made of them
  when one may have to be found: see :meth:`Confirmed.prepare`.
* A cluster takes far longer than 10 ms to replace its primary. While the messages of a queue arrive in large
  events and without such a pause, nothing has been lost that was not lost before the last pause. Then only
  the first message is compared, with the first ones of earlier confirmations: a broker that is faster than a
  cluster begins there.
* Nothing expires one by one. A generation is dropped as a whole.

"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from bmq.wire.confirm import CONFIRM_SIZE, confirmed_guids, encode_confirm, encode_queue_confirms

__all__ = ["Confirmations", "Confirmed"]


class _Remembered(Protocol):
    """A queue, as its confirmations know it."""

    q_id: int
    sub_id: int
    confirmed: Confirmed | None

    @property
    def in_session(self) -> bool:
        """Whether the session has it: it is not closed."""
        ...

    def __hash__(self) -> int: ...


# After a pause of so many seconds the messages of a queue may be redeliveries.
_PAUSE: Final = 0.01
# The messages of events of fewer bytes may always be redeliveries.
_SMALL: Final = 16 * 1024
# Fewer confirmations than this are not worth keeping encoded.
_FEW: Final = 64
# A generation ends after so many seconds, or when it has so many confirmations.
_LIFETIME: Final = 60.0
_CAPACITY: Final = 32_768
# How long the memory lasts after a reconnect, in seconds.
_LIFETIME_AFTER_LOSS: Final = 300.0


class Confirmed:
    """What was confirmed of one queue, in two generations.

    Attributes:
        recent: the GUIDs of the younger generation that are looked up.
        encoded: encoded confirmations of the younger generation that are not, by their first GUID.
        older: the same as ``recent`` of the older generation.
        older_encoded: the same as ``encoded`` of the older generation.
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
        """Remember confirmations; ``confirms`` is the same, encoded."""
        if len(guids) < _FEW:
            self.recent.update(guids)
        else:
            before = self.encoded.get(guids[0], b"")
            self.encoded[guids[0]] = before + confirms[-_CAPACITY * CONFIRM_SIZE :]

    def prepare(self, first: bytes, data: bytes, pause: float) -> None:
        """Have all confirmations looked up if messages that have arrived can be redeliveries.

        Args:
            first: the GUID of the first message.
            data: the event that they are in.
            pause: the seconds since other messages of the queue arrived.
        """
        if pause > _PAUSE or first in self.encoded or first in self.older_encoded or len(data) < _SMALL:
            self.index()

    def index(self) -> None:
        """Have all confirmations looked up."""
        if self.encoded:
            for first in self.encoded:
                self.recent.update(confirmed_guids(self.encoded[first]))
            self.encoded = {}
        if self.older_encoded:
            for first in self.older_encoded:
                self.older.update(confirmed_guids(self.older_encoded[first]))
            self.older_encoded = {}

    def knows_any(self, guids: Sequence[bytes]) -> bool:
        """Whether one of these messages was confirmed, as far as that is looked up."""
        if guids[0] in self.recent or guids[0] in self.older:
            return True
        return not (self.recent.isdisjoint(guids) and (not self.older or self.older.isdisjoint(guids)))

    def known(self, guids: Sequence[bytes]) -> set[bytes]:
        """Return which of these messages were confirmed, as far as that is looked up."""
        return {guid for guid in guids if guid in self.recent or guid in self.older}

    def begin_generation(self) -> None:
        """Forget the older generation."""
        self.older, self.recent = self.recent, set()
        self.older_encoded, self.encoded = self.encoded, {}


class Confirmations:
    """What a session has confirmed.

    Args:
        enabled: whether confirmations are remembered once they are sent.

    Attributes:
        waiting: the GUIDs that are to be confirmed with the next event, by queue.
        deadline: when :meth:`tick` has to be called, or None.
        unstamped: whether :meth:`stamp` has to be called, because a generation has begun.
    """

    __slots__ = ("_count", "_enabled", "_queues", "deadline", "unstamped", "waiting")

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self.waiting: dict[_Remembered, list[bytes]] = {}
        # The queues that have a memory.
        self._queues: dict[_Remembered, None] = {}
        # How many confirmations the younger generation has, of all queues.
        self._count = 0
        self.deadline: float | None = None
        self.unstamped = False

    def add(self, queue: _Remembered, guids: Sequence[bytes]) -> None:
        """Confirm messages with the next event."""
        self.waiting.setdefault(queue, []).extend(guids)

    def take(self) -> bytes:
        """Return the waiting confirmations, encoded, and remember them; there must be one."""
        waiting, self.waiting = self.waiting, {}
        queue, guids = waiting.popitem()
        last = self.remember(queue, guids)
        if not waiting:
            return last
        return b"".join([*(self.remember(queue, guids) for queue, guids in waiting.items()), last])

    def remember(self, queue: _Remembered, guids: Sequence[bytes]) -> bytes:
        """Remember confirmations, sent or not; return them encoded."""
        count = len(guids)
        confirmed = queue.confirmed
        if confirmed is None and self._enabled and queue.in_session:
            confirmed = queue.confirmed = Confirmed()
            self._queues[queue] = None
        # One message at a time is spared some calls.
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
        """Look up all messages that come next: they may be redeliveries."""
        for queue in self._queues:
            if queue.confirmed is not None:
                queue.confirmed.index()

    def forget(self, queue: _Remembered) -> None:
        """The queue is closed, or opened anew: what was confirmed before means nothing."""
        queue.confirmed = None
        self._queues.pop(queue, None)

    def lost(self) -> None:
        """The connection is gone: time does not count until it is restored."""
        if self.waiting:
            self.take()
        self.deadline = None
        self.unstamped = False

    def restored(self, now: float) -> None:
        """There is a connection again: redeliveries come from now on."""
        self.index()
        self.deadline = now + _LIFETIME_AFTER_LOSS if self._queues else None
        self.unstamped = False

    def stamp(self, now: float) -> None:
        """A generation has begun."""
        self.unstamped = False
        self.deadline = now + _LIFETIME

    def tick(self, now: float) -> None:
        """Forget what is old enough."""
        if self.deadline is not None and now >= self.deadline:
            self._begin_generation()
            if self.unstamped:
                self.stamp(now)

    def clear(self) -> None:
        """Forget everything."""
        self.waiting.clear()
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
