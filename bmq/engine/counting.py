# SPDX-License-Identifier: Apache-2.0
"""What is counted of received messages: as they arrive and as they are confirmed, several at a time."""

from __future__ import annotations

from bisect import bisect_left

from bmq.protocol.client.counters import BOUNDS, Durations
from bmq.protocol.client.queue import QueueCore, QueueState
from bmq.wire.constants import PushFlags
from bmq.wire.push import DATA, FLAGS, Push

__all__ = ["Arrival", "Confirming", "ReceiveCounts", "size_of"]

#: When messages arrived, by the event loop's clock, and how many connections were lost before. Messages that
#: arrived together refer to the same one.
Arrival = tuple[float, int]

_OUT_OF_ORDER = int(PushFlags.OUT_OF_ORDER)


class ReceiveCounts:
    """What became of messages.

    Args:
        whole: counts the same for a whole of which this is a part: a consumer's queue, a queue's session.

    Attributes:
        received: messages that arrived.
        received_bytes: the size of their payloads and properties as they travelled.
        redelivered: how many of them the broker marked as out of order.
        confirmed: messages that were confirmed.
        confirmed_again: messages that were delivered again and confirmed again, unseen.
        durations: the time from a message's arrival to its confirmation.
        losses: how many connections were lost; kept up to date by the session's alone.
        pending: how many messages of each arrival are not confirmed, the oldest first; the session's alone.
    """

    __slots__ = (
        "_all",
        "_core",
        "_seen_losses",
        "_session",
        "_unconfirmed",
        "_whole",
        "confirmed",
        "confirmed_again",
        "durations",
        "losses",
        "pending",
        "received",
        "received_bytes",
        "redelivered",
    )

    def __init__(self, whole: ReceiveCounts | None = None) -> None:
        self._whole = whole
        self._core: QueueCore | None = None
        self.received = 0
        self.received_bytes = 0
        self.redelivered = 0
        self.confirmed = 0
        self.confirmed_again = 0
        self.durations = Durations()
        self.losses = 0
        self.pending: dict[Arrival, int] = {}
        self._all: tuple[ReceiveCounts, ...] = (self, *whole._all) if whole is not None else (self,)
        self._session = self._all[-1]
        # What has arrived on the connection there was after so many losses, and is not confirmed.
        self._unconfirmed = 0
        self._seen_losses = 0

    @property
    def core(self) -> QueueCore | None:
        """The queue they are of; None for a session."""
        if self._core is None and self._whole is not None:
            self._core = self._whole.core
        return self._core

    @core.setter
    def core(self, core: QueueCore) -> None:
        self._core = core

    @property
    def unconfirmed(self) -> int:
        """How many messages that arrived on the present connection are not confirmed."""
        core = self.core
        over = core is not None and core.state is QueueState.CLOSED
        return 0 if over or self._seen_losses != self._session.losses else self._unconfirmed

    def arrived(self, messages: list[Push], size: int) -> None:
        """Messages have arrived; ``size`` is that of their payloads and properties."""
        count = len(messages)
        redelivered = 0
        # Nearly always all have the same flags, or there is only one.
        all_flags = (messages[0][FLAGS],) if count == 1 else {message[FLAGS] for message in messages}
        for flags in all_flags:
            if flags & _OUT_OF_ORDER:
                redelivered += sum([message[FLAGS] == flags for message in messages])
        self.came(count, size, redelivered)

    def came(self, count: int, size: int, redelivered: int) -> None:
        """The same, of messages of which so many are marked as out of order."""
        core = self.core
        to_confirm = 0 if core is not None and core.at_most_once else count
        losses = self._session.losses
        for each in self._all:
            each.received += count
            each.received_bytes += size
            each.redelivered += redelivered
            if each._seen_losses != losses:
                each._unconfirmed, each._seen_losses = 0, losses
            each._unconfirmed += to_confirm

    def delivered(self, arrival: Arrival, count: int) -> None:
        """A session's: so many messages that are to be confirmed have arrived together."""
        pending = self.pending
        if arrival in pending:
            pending[arrival] += count
            return
        pending[arrival] = count
        if len(pending) > self._unconfirmed:
            self._tidy()

    def oldest(self) -> float | None:
        """A session's: when the oldest message arrived that is not confirmed; None if there is none."""
        self._tidy()
        for arrived, _ in self.pending:
            return arrived
        return None

    def _tidy(self) -> None:
        """Forget arrivals of which nothing is left.

        Messages that moved to another consumer count as arriving there. Messages that went back to the
        broker, or were confirmed by nothing but their GUID, have no arrival. For those, the oldest are
        forgotten first: the age may be too small then, never too large.
        """
        excess = sum(self.pending.values()) - self.unconfirmed
        while excess > 0:
            arrival = next(iter(self.pending))
            count = self.pending.pop(arrival)
            if count > excess:
                # Still the oldest: the order of the others does not matter for long.
                self.pending = {arrival: count - excess, **self.pending}
            excess -= count

    def hold(self, count: int) -> None:
        """So many more messages are here and not confirmed; fewer if it is negative."""
        losses = self._session.losses
        if self._seen_losses != losses:
            self._unconfirmed, self._seen_losses = 0, losses
        self._unconfirmed += count

    def took_over(self, count: int, size: int) -> None:
        """A consumer got messages that another one, or none, had before: its queue has counted them."""
        self.received += count
        self.received_bytes += size
        self.hold(count)

    def discarded(self, count: int) -> None:
        """Messages that had arrived, and that nobody wants, were confirmed."""
        for each in self._all:
            each.confirmed += count
            each.hold(-count)

    def again(self, count: int) -> None:
        """Messages that had been confirmed arrived, and were confirmed again."""
        for each in self._all:
            each.confirmed_again += count

    def repeated(self, count: int) -> None:
        """Messages that had arrived turned out to be here twice."""
        for each in self._all:
            each.hold(-count)

    def ended(self) -> None:
        """The queue is gone: nothing of it waits to be confirmed."""
        if self._seen_losses == self._session.losses:
            self._session.hold(-self._unconfirmed)
        self._unconfirmed = 0

    def settled(self, count: int, arrival: Arrival | None, time: float) -> None:
        """Messages that arrived together were confirmed; None if it is not known when they arrived."""
        if arrival is None:
            for each in self._all:
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
        for each in self._all:
            each.confirmed += count
            each._unconfirmed -= here
            durations = each.durations
            durations.buckets[bucket] += count
            durations.seconds += seconds * count


class Confirming:
    """Counts confirmations: those of messages that arrived together and are confirmed in one turn at once.

    Attributes:
        counts: whose messages are being confirmed.
        arrival: when they arrived.
        turn: the turn of the event loop in which they are confirmed, by its clock.
        count: how many were, and are not counted yet.
    """

    __slots__ = ("arrival", "count", "counts", "turn")

    def __init__(self) -> None:
        self.counts: ReceiveCounts | None = None
        self.arrival: Arrival | None = None
        self.turn: tuple[float, int] | None = None
        self.count = 0

    def begin(
        self, counts: ReceiveCounts, arrival: Arrival | None, turn: tuple[float, int], count: int = 1
    ) -> None:
        """Confirm messages of others than before."""
        if self.count:
            self.finish()
        core = counts.core
        # What is said after the end, or where nothing is kept, confirms nothing.
        if core is not None and core.state is not QueueState.CLOSED and not core.at_most_once:
            self.counts, self.arrival, self.turn, self.count = counts, arrival, turn, count
        else:
            self.counts, self.count = None, 0

    def finish(self) -> None:
        """Count what is not counted yet."""
        count, self.count = self.count, 0
        if count and self.counts is not None and self.turn is not None:
            self.counts.settled(count, self.arrival, self.turn[0])
        self.counts = self.arrival = self.turn = None


def size_of(messages: list[Push]) -> int:
    """The size of messages' payloads and properties as they travelled, in bytes."""
    return sum([len(message[DATA]) for message in messages])
