# SPDX-License-Identifier: Apache-2.0
"""One application of a queue: the consumers, the position in the queue, and the skipped messages.

The order of work: messages to redeliver, messages put aside, messages from the application's own position up
to the queue's position, then new messages together with the queue's remaining applications. While a message
waits for redelivery, no new message is considered, even if no consumer accepts the old message: a real broker
waits as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bmq.broker._routing import NOBODY, Blocked, Routing, Subscriber
from bmq.broker._storage import MessageRecord
from bmq.subscriptions import Evaluator

if TYPE_CHECKING:
    from bmq.broker._client import SubStream
    from bmq.broker._queue import BrokerQueue

__all__ = ["AppDelivery", "Effort"]

# A message whose consumers lost their connections may be the cause ("poison"). With few delivery attempts
# left, such a message is redelivered after a delay, and after a longer delay with very few left.
_HIGH_THRESHOLD, _LOW_THRESHOLD = 4, 2
_LOW_INTERVAL, _HIGH_INTERVAL = 1.0, 3.0

_Entry = tuple[int, MessageRecord]
#: Smallest number of entries at which removing entries of deleted messages pays off.
_COMPACT_FROM = 16


def _poison_delay(message: MessageRecord, bit: int) -> float:
    """Return the seconds between redeliveries of a suspected poison message to a consumer; 0 for no delay."""
    if message.attempts is None:
        return 0.0
    left = message.attempts.get(bit)
    if left is None or left > _HIGH_THRESHOLD:
        return 0.0
    return _LOW_INTERVAL if left > _LOW_THRESHOLD else _HIGH_INTERVAL


@dataclass(slots=True, eq=False)
class Effort:
    """A count of the work done: each examined consumer, message or expression counts once.

    Attributes:
        spent: the work done so far.
        enough: the value of ``spent`` at which deliveries pause, to give the remaining clients a turn.
        unfinished: applications and queues with paused deliveries, in the order of continuation.
    """

    spent: int = 0
    enough: int = 0
    unfinished: deque[AppDelivery | BrokerQueue] = field(default_factory=deque["AppDelivery | BrokerQueue"])

    def postpone(self, paused: AppDelivery | BrokerQueue) -> None:
        """Continue an application's or a queue's deliveries later."""
        if not paused.postponed:
            paused.postponed = True
            self.unfinished.append(paused)


@dataclass(slots=True, eq=False)
class WaitingTimes:
    """How often something took how long: together, and at most, in seconds."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class WaitingMessages:
    """Messages waiting out of order, in the order of insertion.

    A message is *fresh* until the first attempt of a delivery. Afterwards the message waits until certain
    groups have room, or until the consumers change: finding a deliverable message needs no search. Deleted
    messages (confirmed, expired, purged) are skipped when reached.
    """

    __slots__ = ("_fresh", "_members", "_parked", "_serial")

    def __init__(self) -> None:
        self._serial = 0
        self._members: dict[MessageRecord, int] = {}
        self._fresh: deque[_Entry] = deque()
        self._parked: dict[Blocked, deque[_Entry]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MessageRecord]:
        """Yield the messages in order."""
        return iter(self._members)

    def add(self, message: MessageRecord) -> None:
        """Append a message for an attempt."""
        self._fresh.append(self._enter(message))

    def park(self, message: MessageRecord, blocked: Blocked) -> None:
        """Append a message after an unsuccessful attempt to deliver."""
        self._wait(self._enter(message), blocked)

    def _enter(self, message: MessageRecord) -> _Entry:
        self._serial += 1
        # Keep the order of members equal to the order of the serial numbers.
        self._members.pop(message, None)
        self._members[message] = self._serial
        return self._serial, message

    def _wait(self, entry: _Entry, blocked: Blocked) -> None:
        self._parked.setdefault(blocked, deque()).append(entry)

    def discard(self, message: MessageRecord) -> None:
        """Remove a message, if present."""
        if self._members.pop(message, None) is None:
            return
        if not self._members:
            self.clear()
            return
        kept = len(self._fresh) + sum(map(len, self._parked.values()))
        if kept > _COMPACT_FROM and kept > 2 * len(self._members):
            self._fresh = self._current(self._fresh)
            self._parked = {k: c for k, entries in self._parked.items() if (c := self._current(entries))}

    def _current(self, entries: deque[_Entry]) -> deque[_Entry]:
        members = self._members
        return deque(entry for entry in entries if members.get(entry[1]) == entry[0])

    def clear(self) -> None:
        """Remove all messages."""
        # New containers: a dictionary emptied item by item keeps the memory of the largest size.
        self._members = {}
        self._fresh = deque()
        self._parked = {}

    def wake(self) -> None:
        """Make every message fresh again, because the consumers have changed."""
        if self._members:
            self._fresh = deque((serial, message) for message, serial in self._members.items())
            self._parked.clear()

    def next(self) -> MessageRecord | None:
        """Take the first message that may be deliverable; :meth:`put_back` and :meth:`wait` return it."""
        members = self._members
        while True:
            best: deque[_Entry] | None = self._fresh or None
            for blocked, entries in self._parked.items():
                if entries and (best is None or entries[0] < best[0]) and any(g.first for g in blocked):
                    best = entries
            if best is None:
                return None
            serial, message = best.popleft()
            if members.get(message) == serial:
                return message

    def put_back(self, message: MessageRecord) -> None:
        """Return a taken message to the front."""
        self._fresh.appendleft((self._members[message], message))

    def wait(self, message: MessageRecord, blocked: Blocked) -> None:
        """Return a taken message, to wait for room in any of the groups."""
        self._wait((self._members[message], message), blocked)


@dataclass(slots=True, eq=False)
class AppDelivery:
    """An application: ``__default``, or one application id of a fanout queue.

    Attributes:
        queue: the queue.
        app_id: the application id.
        bit: bit of the application in ``MessageRecord.pending``; 0 if the domain does not know the
            application, which then receives no messages.
        changed: whether consumers or their subscriptions have changed. The routing table is rebuilt on the
            next use: thousands of consumers joining or leaving together cost one rebuild.
        streams: readers, in the order they opened the queue.
        resume: first message not yet considered, if the application is behind the queue's position.
        redelivery: messages whose consumer has left.
        aside: messages skipped because no consumer could take the message.
        matcher: the application subscription; None if every message is for the application.
        wait_until: time of the next attempt to deliver a suspected poison message.
        postponed: whether deliveries are paused to give the remaining clients a turn.
        queue_times: times from the arrival of a message to its delivery.
        confirm_times: times from delivery to confirmation.
    """

    queue: BrokerQueue
    app_id: str
    bit: int = 0
    changed: bool = False
    streams: dict[SubStream, None] = field(default_factory=dict["SubStream", None])
    resume: MessageRecord | None = None
    redelivery: WaitingMessages = field(default_factory=WaitingMessages)
    aside: WaitingMessages = field(default_factory=WaitingMessages)
    matcher: Evaluator | None = None
    wait_until: float | None = None
    postponed: bool = False
    queue_times: WaitingTimes = field(default_factory=WaitingTimes)
    confirm_times: WaitingTimes = field(default_factory=WaitingTimes)
    _routing: Routing = NOBODY

    @property
    def readers(self) -> int:
        """Number of openings for reading."""
        return sum(stream.readers for stream in self.streams)

    @property
    def behind(self) -> bool:
        """Whether new messages must wait for older ones."""
        return self.resume is not None or len(self.redelivery) > 0 or self.postponed

    @property
    def routing(self) -> Routing:
        """The routing table, rebuilt if necessary."""
        if self.changed:
            self._rebuild()
        return self._routing

    def _rebuild(self) -> None:
        self.changed = False
        self.queue.effort.spent += len(self.streams) + len(self.redelivery) + len(self.aside)
        for stream in self.streams:
            stream.last_sent = None
            for subscriber in stream.subscribers.values():
                subscriber.group = None
        self._routing = Routing(self.streams) if self.streams else NOBODY
        for stream in self.streams:
            stream.forget_subscribers()
        self.redelivery.wake()
        self.aside.wake()
        self.wait_until = None

    def deliver(self, now: float) -> None:
        """Deliver waiting messages while consumers have room; pause to give the remaining clients a turn."""
        if self.postponed:
            return
        self.wait_until = None
        if not self.bit or not (self.behind or self.aside) or not self.routing.groups:
            return
        if self._offer(self.redelivery, now):
            self._offer(self.aside, now)
        if not self.redelivery and self.resume is not None and not self.postponed:
            self._catch_up(self.resume, now)

    def _offer(self, backlog: WaitingMessages, now: float) -> bool:
        """Deliver messages of a backlog, until the limit of time or work is reached.

        Returns:
            False if a delay or the limit of work stopped the delivery; otherwise True.
        """
        bit, effort, cost = self.bit, self.queue.effort, self.routing.cost
        while (message := backlog.next()) is not None:
            if not message.pending & bit:
                backlog.discard(message)
                continue
            delay = _poison_delay(message, bit)
            if delay:
                chosen = self._select_slowly(message, delay, now)
                if chosen is None:
                    backlog.put_back(message)
                    return False
            else:
                selected = self.routing.select(message)
                if selected is None:
                    backlog.put_back(message)
                    return True
                effort.spent += cost
                if isinstance(selected, tuple):
                    backlog.wait(message, selected)
                    if effort.spent > effort.enough:
                        effort.postpone(self)
                        return False
                    continue
                chosen = selected
            backlog.discard(message)
            self._send(chosen, message, now)
        return True

    def _catch_up(self, message: MessageRecord | None, now: float) -> None:
        """Deliver from this application's position up to the queue's position."""
        bit, position = self.bit, self.queue.position
        effort, cost = self.queue.effort, self.routing.cost
        self.resume = None
        while message is not None and message is not position:
            following = message.next
            if message.pending & bit:
                if cost and effort.spent > effort.enough:
                    self.resume = message
                    effort.postpone(self)
                    return
                effort.spent += cost
                selected = self.routing.select(message)
                if selected is None:
                    self.resume = message
                    return
                if isinstance(selected, tuple):
                    self.aside.park(message, selected)
                else:
                    self._send(selected, message, now)
            message = following

    def _select_slowly(self, message: MessageRecord, delay: float, now: float) -> Subscriber | None:
        """Return a consumer without a redelivered message in the last ``delay`` seconds."""
        wait: float | None = None
        for subscriber in self.routing.candidates(message):
            last = subscriber.stream.last_sent
            left = 0.0 if last is None else last[0] + delay - now
            if left <= 0:
                return subscriber
            wait = left if wait is None else min(wait, left)
        if wait is not None:
            self.wait_until = now + wait
            self.queue.deadlines.set(self, self.wait_until)
        return None

    def _send(self, subscriber: Subscriber, message: MessageRecord, now: float) -> None:
        stream = subscriber.stream
        if stream.take(subscriber, message, now):
            self.queue.count_push(self, message, now - message.arrival)
            stream.last_sent = (now, message.guid)
            stream.handle.push(message, subscriber.option, out_of_order=True)

    def confirm(self, stream: SubStream, guids: Sequence[bytes], now: float) -> None:
        """Count messages as confirmed; unknown GUIDs are ignored.

        A consumer may confirm a message from elsewhere: delivered to another consumer, or delivered before a
        restart of the broker.
        """
        queue, bit = self.queue, self.bit
        for guid in guids:
            entry = stream.unconfirmed.pop(guid, None)
            if entry is None:
                self._confirm_of_another(guid, now)
                continue
            message, subscriber, since = entry
            subscriber.messages -= 1
            subscriber.size -= message.size
            queue.counts.confirmed += 1
            queue.counts.held_seconds += now - since
            self.confirm_times.add(now - since)
            if message.pending & bit:
                message.pending ^= bit
                if not message.pending:
                    queue.remove(message)
            if stream.last_sent is not None and stream.last_sent[1] == guid:
                stream.last_sent = None
                if self.wait_until is not None:
                    queue.serve(self, now)
            if subscriber.full:
                self.readmit(subscriber, now)

    def _confirm_of_another(self, guid: bytes, now: float) -> None:
        """Confirm a message sent to a different consumer."""
        queue = self.queue
        message = queue.store.messages.get(guid)
        if message is None or not message.pending & self.bit:
            return
        queue.counts.confirmed += 1
        self.drop(message)
        if self.resume is not None:
            queue.serve(self, now)

    def readmit(self, subscriber: Subscriber, now: float) -> None:
        """Let a full subscriber take part again if enough messages are confirmed."""
        # If the consumers have changed, all groups are rebuilt before the next use.
        if subscriber.recover() and (
            self.changed or (subscriber.group is not None and subscriber.group.admit(subscriber))
        ):
            self.queue.serve(self, now)

    def drop(self, message: MessageRecord) -> None:
        """Stop delivering a message to this application; delete the message if no application needs it."""
        if message.pending & self.bit:
            message.pending ^= self.bit
            self.redelivery.discard(message)
            self.aside.discard(message)
            if not message.pending:
                self.queue.remove(message)

    def reject(self, stream: SubStream) -> None:
        """Use up a delivery attempt of each message of a lost client; drop messages without attempts left."""
        limit, bit = self.queue.domain.config.max_delivery_attempts, self.bit
        for guid, (message, subscriber, _) in list(stream.unconfirmed.items()):
            if not limit:
                if message.attempts is not None:
                    message.attempts.pop(bit, None)
                continue
            if not message.pending & bit:
                continue
            attempts = message.attempts = message.attempts or {}
            attempts[bit] = attempts.get(bit, limit) - 1
            if attempts[bit] <= 0:
                del stream.unconfirmed[guid]
                subscriber.messages -= 1
                subscriber.size -= message.size
                self.queue.counts.poisoned += 1
                self.drop(message)

    def release(self, stream: SubStream) -> None:
        """Take back a consumer's unconfirmed messages, for delivery to other consumers."""
        for message, subscriber, _ in stream.unconfirmed.values():
            subscriber.messages -= 1
            subscriber.size -= message.size
            if message.pending & self.bit:
                self.redelivery.add(message)
        stream.unconfirmed.clear()

    def clear(self) -> None:
        """Forget the application's position and the skipped messages."""
        self.resume = None
        self.redelivery.clear()
        self.aside.clear()
