# SPDX-License-Identifier: Apache-2.0
"""One application of a queue: the consumers, the position in the queue, and the skipped messages.

The order of work: messages to redeliver, messages put aside, messages from the application's own position up
to the queue's position, then new messages together with the queue's remaining applications. While a message
waits for redelivery, no new message is considered, even if no consumer accepts the old message: a real broker
waits as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bmq.broker._routing import NOBODY, Blocked, Routing, Subscriber
from bmq.broker._storage import MessageRecord

if TYPE_CHECKING:
    from bmq.broker._client import SubStream
    from bmq.broker._queue import BrokerQueue

__all__ = ["AppDelivery"]

# A message whose consumers lost their connections may be the cause ("poison"). With few delivery attempts
# left, such a message is redelivered after a delay, and after a longer delay with very few left.
_HIGH_THRESHOLD, _LOW_THRESHOLD = 4, 2
_LOW_INTERVAL, _HIGH_INTERVAL = 1.0, 3.0

#: Messages that wait for the same, in order, with their numbers.
_Place = OrderedDict[MessageRecord, int]


def _poison_delay(message: MessageRecord, bit: int) -> float:
    """Return the seconds between redeliveries of a suspected poison message to a consumer; 0 for no delay."""
    left = (message.attempts or {}).get(bit, math.inf)
    if left > _HIGH_THRESHOLD:
        return 0.0
    return _LOW_INTERVAL if left > _LOW_THRESHOLD else _HIGH_INTERVAL


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
    groups have room, or until the consumers change: finding a deliverable message needs no search.
    """

    __slots__ = ("_fresh", "_parked", "_places", "_serial")

    def __init__(self) -> None:
        self._serial = 0
        self.clear()

    def clear(self) -> None:
        """Remove all messages."""
        # New containers: a dictionary emptied item by item keeps the memory of the largest size.
        self._places: dict[MessageRecord, _Place] = {}
        self._fresh: _Place = OrderedDict()
        self._parked: dict[Blocked, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[MessageRecord]:
        """Yield the messages in order."""
        return iter(self._places)

    def add(self, message: MessageRecord) -> None:
        """Append a message for an attempt."""
        self._serial += 1
        self._fresh[message] = self._serial
        self._places[message] = self._fresh

    def discard(self, message: MessageRecord) -> None:
        """Remove a message, if present."""
        place = self._places.pop(message, None)
        if place is not None:
            del place[message]
            if not self._places:
                self.clear()

    def wake(self) -> None:
        """Make every message fresh again, because the consumers have changed."""
        self._fresh = OrderedDict((message, place[message]) for message, place in self._places.items())
        self._places = dict.fromkeys(self._places, self._fresh)
        self._parked.clear()

    def first(self) -> MessageRecord | None:
        """Return the first message that may be deliverable."""
        found: MessageRecord | None = None
        lowest = math.inf
        open_places = [place for blocked, place in self._parked.items() if any(g.first for g in blocked)]
        for place in (self._fresh, *open_places):
            message = next(iter(place), None)
            if message is not None and place[message] < lowest:
                found, lowest = message, place[message]
        return found

    def retry(self, message: MessageRecord) -> None:
        """Try the first message again at the next delivery."""
        self._fresh[message] = self._places[message].pop(message)
        self._fresh.move_to_end(message, last=False)
        self._places[message] = self._fresh

    def wait(self, message: MessageRecord, blocked: Blocked) -> None:
        """Let a message wait for room in any of the groups; a new message is appended."""
        if message not in self._places:
            self.add(message)
        serial = self._places[message].pop(message)
        place = self._places[message] = self._parked.setdefault(blocked, OrderedDict())
        place[message] = serial


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
        return self.resume is not None or len(self.redelivery) > 0

    @property
    def routing(self) -> Routing:
        """The routing table, rebuilt if necessary."""
        if self.changed:
            self._rebuild()
        return self._routing

    def _rebuild(self) -> None:
        self.changed = False
        self.queue.node.effort += len(self.streams) + len(self.redelivery) + len(self.aside)
        for stream in self.streams:
            stream.last_sent = None
            for subscriber in stream.subscribers.values():
                subscriber.group = None
        self._routing = Routing(self.streams) if self.streams else NOBODY
        for stream in self.streams:
            stream.forget_subscribers()
        self.redelivery.wake()
        self.aside.wake()

    def deliver(self, now: float) -> None:
        """Deliver waiting messages while consumers have room; pause to give the remaining clients a turn."""
        self.queue.node.deadlines.discard(self)
        if not self.bit or not (self.behind or self.aside) or not self.routing.groups:
            return
        if self._offer(self.redelivery, now):
            self._offer(self.aside, now)
        if not self.redelivery and self.resume is not None:
            self._catch_up(self.resume, now)

    def _offer(self, backlog: WaitingMessages, now: float) -> bool:
        """Deliver messages of a backlog, until the limit of time or work is reached.

        Returns:
            False if a delay or the limit of work stopped the delivery; otherwise True.
        """
        node, cost = self.queue.node, self.routing.cost
        while (message := backlog.first()) is not None:
            delay = _poison_delay(message, self.bit)
            selected = self._select_slowly(message, delay, now) if delay else self.routing.select(message)
            if selected is None:
                backlog.retry(message)
                return not delay
            node.effort += cost
            if isinstance(selected, tuple):
                backlog.wait(message, selected)
                if node.effort > node.enough:
                    node.pause(self.queue, self)
                    return False
            else:
                backlog.discard(message)
                self._send(selected, message, now)
        return True

    def _catch_up(self, message: MessageRecord | None, now: float) -> None:
        """Deliver from this application's position up to the queue's position."""
        bit, position = self.bit, self.queue.position
        node, cost = self.queue.node, self.routing.cost
        self.resume = None
        while message is not None and message is not position:
            following = message.next
            if message.pending & bit:
                if cost and node.effort > node.enough:
                    self.resume = message
                    node.pause(self.queue, self)
                    return
                node.effort += cost
                selected = self.routing.select(message)
                if selected is None:
                    self.resume = message
                    return
                if isinstance(selected, tuple):
                    self.aside.wait(message, selected)
                else:
                    self._send(selected, message, now)
            message = following

    def _select_slowly(self, message: MessageRecord, delay: float, now: float) -> Subscriber | None:
        """Return a consumer without a redelivered message in the last ``delay`` seconds."""
        waits: list[float] = []
        for subscriber in self.routing.candidates(message):
            last = subscriber.stream.last_sent
            left = 0.0 if last is None else last[0] + delay - now
            if left <= 0:
                return subscriber
            waits.append(left)
        if waits:
            self.queue.node.deadlines.set(self, now + min(waits))
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
        queue = self.queue
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
            self.drop(message)
            if stream.last_sent is not None and stream.last_sent[1] == guid:
                stream.last_sent = None
                if self in queue.node.deadlines:
                    queue.serve(self, now)
            if subscriber.full and subscriber.recover():
                queue.serve(self, now)

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

    def drop(self, message: MessageRecord) -> None:
        """Stop delivering a message to this application; delete the message if no application needs it."""
        if message.pending & self.bit:
            message.pending ^= self.bit
            self.redelivery.discard(message)
            self.aside.discard(message)
            if not message.pending:
                self.queue.remove(message)

    def leave(self, stream: SubStream, *, lost: bool) -> None:
        """Remove a consumer; its unconfirmed messages go to the remaining consumers.

        Args:
            stream: the consumer.
            lost: whether the connection broke: each message then loses a delivery attempt, and is dropped
                without attempts left.
        """
        del self.streams[stream]
        self.changed, self._routing = True, NOBODY  # the present table would keep the consumer in memory
        for message, _, _ in stream.unconfirmed.values():
            if message.pending & self.bit:
                if lost and self._poisonous(message):
                    self.queue.counts.poisoned += 1
                    self.drop(message)
                else:
                    self.redelivery.add(message)
        stream.clear()

    def _poisonous(self, message: MessageRecord) -> bool:
        """Use up a delivery attempt; return whether none is left."""
        limit = self.queue.domain.config.max_delivery_attempts
        if not limit:
            message.attempts = None
            return False
        attempts = message.attempts = message.attempts or {}
        attempts[self.bit] = attempts.get(self.bit, limit) - 1
        return attempts[self.bit] <= 0

    def clear(self) -> None:
        """Forget the application's position and the skipped messages."""
        self.resume = None
        self.redelivery.clear()
        self.aside.clear()
