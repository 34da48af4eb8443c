# SPDX-License-Identifier: Apache-2.0
"""Counters of received messages, updated in groups on arrival and on confirmation."""

from __future__ import annotations

from bisect import bisect_left
from threading import get_ident
from typing import Self

from bmq.protocol.client.counters import BOUNDS, Counts
from bmq.protocol.client.ports import Arrival
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.constants import PushFlags
from bmq.wire.push import DATA, FLAGS, Push

__all__ = ["Confirming", "ReceiveCounts", "distinct", "size_of"]

_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)


class ReceiveCounts(Counts):
    """The counters of received messages, in the scopes of a consumer, a queue and a session.

    Args:
        whole: counters of the next level: a consumer's queue, a queue's session.

    Attributes:
        core: queue of the counters; None for a session, and before the opening.
        received: arrived messages.
        received_bytes: size of the received payloads and properties, as transmitted.
        redelivered: received messages marked as out of order by the broker.
        confirmed: confirmed messages.
        confirmed_again: redelivered messages, confirmed again without a call of the application.
        unmatched: messages without a matching consumer in the session; not counted for consumers.
        durations: time from a message's arrival to its confirmation.
        losses: number of lost connections; maintained by the session's counters only.
        pending: number of unconfirmed messages of each arrival, the oldest first; session only.
    """

    __slots__ = (
        "_seen_losses",
        "_session",
        "_unconfirmed",
        "confirmed",
        "confirmed_again",
        "core",
        "losses",
        "pending",
        "received",
        "received_bytes",
        "redelivered",
        "unmatched",
    )

    def __init__(self, whole: Self | None = None) -> None:
        super().__init__(whole)
        self.core: QueueCore | None = None if whole is None else whole.core
        self.received = 0
        self.received_bytes = 0
        self.redelivered = 0
        self.confirmed = 0
        self.confirmed_again = 0
        self.unmatched = 0
        self.losses = 0
        self.pending: dict[Arrival, int] = {}
        self._session = self.scopes[-1]
        # Number of unconfirmed messages from the connection after a number of losses.
        self._unconfirmed = 0
        self._seen_losses = 0

    @property
    def unconfirmed(self) -> int:
        """Number of unconfirmed messages from the present connection."""
        core = self.core
        over = core is not None and core.state is QueueState.CLOSED
        return 0 if over or self._seen_losses != self._session.losses else self._unconfirmed

    def arrived(self, messages: list[Push], size: int) -> None:
        """Count arrived messages; ``size`` is the size of all payloads and properties."""
        count = len(messages)
        redelivered = 0
        # Almost always all messages have the same flags, or the message is alone.
        all_flags = (messages[0][FLAGS],) if count == 1 else {message[FLAGS] for message in messages}
        for flags in all_flags:
            if flags & _OUT_OF_ORDER:
                redelivered += sum([message[FLAGS] == flags for message in messages])
        self.came(count, size, redelivered)

    def came(self, count: int, size: int, redelivered: int) -> None:
        """Count arrived messages, of which ``redelivered`` are marked as out of order."""
        core = self.core
        to_confirm = 0 if core is not None and core.at_most_once else count
        losses = self._session.losses
        for each in self.scopes:
            each.received += count
            each.received_bytes += size
            each.redelivered += redelivered
            if each._seen_losses != losses:
                each._unconfirmed, each._seen_losses = 0, losses
            each._unconfirmed += to_confirm

    def delivered(self, arrival: Arrival, count: int) -> None:
        """Count messages with a common arrival, awaiting confirmation. Session only."""
        pending = self.pending
        if arrival in pending:
            pending[arrival] += count
            return
        pending[arrival] = count
        if len(pending) > self._unconfirmed:
            self._tidy()

    def oldest(self) -> float | None:
        """Return the arrival of the oldest unconfirmed message, or None. Session only."""
        self._tidy()
        for arrived, _ in self.pending:
            return arrived
        return None

    def _tidy(self) -> None:
        """Forget arrivals without unconfirmed messages.

        Messages moved to another consumer count as new arrivals. Messages returned to the broker, or
        confirmed by a GUID alone, have no arrival. In their place, the oldest arrivals are forgotten first:
        the age may become too small, but never too large.
        """
        excess = sum(self.pending.values()) - self.unconfirmed
        while excess > 0:
            arrival = next(iter(self.pending))
            count = self.pending.pop(arrival)
            if count > excess:
                # Still the oldest: the order of the rest is rarely relevant.
                self.pending = {arrival: count - excess, **self.pending}
            excess -= count

    def hold(self, count: int) -> None:
        """Count more unconfirmed messages; fewer if negative."""
        losses = self._session.losses
        if self._seen_losses != losses:
            self._unconfirmed, self._seen_losses = 0, losses
        self._unconfirmed += count

    def took_over(self, count: int, size: int) -> None:
        """Count messages moved here after the arrival, and already counted by the queue."""
        self.received += count
        self.received_bytes += size
        self.hold(count)

    def discarded(self, count: int) -> None:
        """Count arrived messages, confirmed for lack of a matching consumer."""
        for each in self.scopes:
            each.confirmed += count
            each.hold(-count)

    def again(self, count: int) -> None:
        """Count confirmed messages, redelivered and confirmed again."""
        for each in self.scopes:
            each.confirmed_again += count

    def match_nobody(self, count: int) -> None:
        """Count messages without a matching consumer."""
        for each in self.scopes:
            each.unmatched += count

    def repeated(self, count: int) -> None:
        """Correct the counts for arrived messages already here."""
        for each in self.scopes:
            each.hold(-count)

    def ended(self) -> None:
        """End the counters of a closed queue: no message awaits confirmation."""
        if self._seen_losses == self._session.losses:
            self._session.hold(-self._unconfirmed)
        self._unconfirmed = 0

    def settled(self, count: int, arrival: Arrival | None, time: float) -> None:
        """Count confirmed messages with a common arrival; ``arrival`` is None if unknown."""
        if arrival is None:
            for each in self.scopes:
                each.confirmed += count
            return
        arrived, losses = arrival
        seconds = time - arrived
        if seconds < 0.0:
            seconds = 0.0  # the clock stands still within a turn
        bucket = bisect_left(BOUNDS, seconds)
        here = count if losses == self._session.losses else 0
        pending = self._session.pending
        if arrival in pending:
            if pending[arrival] > count:
                pending[arrival] -= count
            else:
                del pending[arrival]
        for each in self.scopes:
            each.confirmed += count
            each._unconfirmed -= here
            durations = each.durations
            durations.buckets[bucket] += count
            durations.seconds += seconds * count


class Confirming:
    """Collects confirmations in groups: messages with a common arrival, confirmed in the same turn.

    A group is open while its GUIDs are pending in the protocol. Confirming a further message then takes a
    comparison and an append, because all other conditions are those of the first message::

        if confirming.open is arrival and get_ident() == confirming.thread:
            confirming.guids.append(guid)

    Each arrival belongs to a single consumer.

    Attributes:
        open: arrival of the messages of the open group; None without an open group.
        guids: the pending GUIDs of the queue, to be extended while the group is open.
        thread: thread of the open group, which is the event loop's.
    """

    __slots__ = ("_arrival", "_count", "_counts", "_start", "_turn", "guids", "open", "thread")

    def __init__(self) -> None:
        self.open: Arrival | None = None
        self.guids: list[bytes] = []
        self.thread = 0
        self._counts: ReceiveCounts | None = None
        self._arrival: Arrival | None = None
        self._turn: tuple[float, int] | None = None
        # Confirmations of the present group not counted yet, without those appended to the open group: these
        # follow the given number of older GUIDs.
        self._count = 0
        self._start = 0

    def add(
        self,
        counts: ReceiveCounts,
        arrival: Arrival | None,
        turn: tuple[float, int],
        count: int = 1,
        pending: list[bytes] | None = None,
    ) -> None:
        """Count confirmations; messages with other counters or another arrival begin a group.

        Args:
            counts: counters of the messages.
            arrival: arrival of the messages; None if unknown.
            turn: turn of the event loop.
            count: number of confirmations.
            pending: the pending GUIDs of the queue, including these, to open the group; otherwise None.
        """
        if self.open is not None:
            self.close()
        if self._arrival is not arrival or self._turn is not turn or self._counts is not counts:
            if self._count:
                self._settle()
            core = counts.core
            # After the end, and for queues without stored messages, a confirmation has no effect.
            if core is None or core.state is QueueState.CLOSED or core.at_most_once:
                self._counts = None
                return
            self._counts, self._arrival, self._turn = counts, arrival, turn
        self._count += count
        if pending is not None:
            self.open, self.guids, self._start, self.thread = arrival, pending, len(pending), get_ident()

    def close(self) -> None:
        """Close the group, if open: its GUIDs are being sent, other GUIDs follow, or the turn is over."""
        if self.open is not None:
            self._count += len(self.guids) - self._start
            self.open, self.guids = None, []

    def finish(self) -> None:
        """Count the present group."""
        self.close()
        if self._count:
            self._settle()

    def _settle(self) -> None:
        count, self._count = self._count, 0
        if self._counts is not None and self._turn is not None:
            self._counts.settled(count, self._arrival, self._turn[0])


def distinct(arrival: Arrival) -> Arrival:
    """Return an equal arrival for another consumer: each arrival belongs to a single one."""
    time, losses = arrival
    return time, losses


def size_of(messages: list[Push]) -> int:
    """Return the size of messages' payloads and properties as transmitted, in bytes."""
    return sum([len(message[DATA]) for message in messages])
