# SPDX-License-Identifier: Apache-2.0
"""One application of a queue: the consumers, the position in the queue, and the skipped messages.

The order of work: messages to redeliver, messages put aside, messages from the application's own position up
to the queue's position, then new messages together with the queue's remaining applications. While a message
waits for redelivery, no new message is considered, even if no consumer accepts the old message: a real broker
waits as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bmq.broker._backlog import Backlog
from bmq.broker._routing import NOBODY, Routing, Subscriber
from bmq.broker._storage import MessageRecord
from bmq.broker._times import Times
from bmq.subscriptions import Evaluator

if TYPE_CHECKING:
    from bmq.broker._handle import SubStream
    from bmq.broker._queue import BrokerQueue

__all__ = ["AppDelivery", "Effort", "poison_delay"]

# A message whose consumers lost their connections may be the cause ("poison"). With few delivery attempts
# left, such a message is redelivered after a delay, and after a longer delay with very few left.
_HIGH_THRESHOLD, _LOW_THRESHOLD = 4, 2
_LOW_INTERVAL, _HIGH_INTERVAL = 1.0, 3.0


def poison_delay(message: MessageRecord, bit: int) -> float:
    """Return the seconds between redeliveries of a suspected poison message to a consumer; 0 for no delay."""
    if message.attempts is None:
        return 0.0
    left = message.attempts.get(bit)
    if left is None or left > _HIGH_THRESHOLD:
        return 0.0
    return _LOW_INTERVAL if left > _LOW_THRESHOLD else _HIGH_INTERVAL


class Effort:
    """A count of the work done: each examined consumer, message or expression counts once.

    Attributes:
        spent: the work done so far.
        enough: the value of ``spent`` at which deliveries pause, to give the remaining clients a turn.
        unfinished: applications and queues with paused deliveries, in the order of continuation.
        dropped: messages rejected by the filter of a consumer, with the consumer's stream; confirmed after
            the current deliveries.
    """

    __slots__ = ("dropped", "enough", "spent", "unfinished")

    def __init__(self) -> None:
        self.spent = self.enough = 0
        self.unfinished: deque[AppDelivery | BrokerQueue] = deque()
        self.dropped: list[tuple[AppDelivery, MessageRecord]] = []

    def postpone(self, unfinished: AppDelivery | BrokerQueue) -> None:
        """Pause an application or a queue; deliveries continue after the remaining clients had a turn."""
        if not unfinished.postponed:
            unfinished.postponed = True
            self.unfinished.append(unfinished)


class AppDelivery:
    """An application: ``__default`` of a priority or broadcast queue, or one application id of a fanout
    queue.

    Attributes:
        queue: the queue.
        app_id: the application id.
        bit: bit of the application in ``MessageRecord.pending``; 0 if the domain does not know the
            application, which then receives no messages.
        streams: readers, in the order they opened the queue.
        readers: number of times the application is open for reading.
        resume: first message not yet considered, if the application is behind the queue's position.
        redelivery: messages whose consumer has left.
        aside: messages skipped because no consumer could take the message.
        matcher: the application subscription; None if every message is for the application.
        wait_until: time of the next attempt to deliver a suspected poison message.
        postponed: whether deliveries are paused to give the remaining clients a turn.
        queue_times: times from the arrival of a message to its delivery.
        confirm_times: times from delivery to confirmation.
    """

    __slots__ = (
        "_changed",
        "_routing",
        "app_id",
        "aside",
        "bit",
        "confirm_times",
        "matcher",
        "postponed",
        "queue",
        "queue_times",
        "readers",
        "redelivery",
        "resume",
        "streams",
        "wait_until",
    )

    def __init__(self, queue: BrokerQueue, app_id: str, bit: int) -> None:
        self.queue = queue
        self.app_id = app_id
        self.bit = bit
        self.streams: dict[SubStream, None] = {}
        self.readers = 0
        self._routing = NOBODY
        self._changed = False
        self.resume: MessageRecord | None = None
        self.redelivery = Backlog()
        self.aside = Backlog()
        self.matcher: Evaluator | None = None
        self.wait_until: float | None = None
        self.postponed = False
        self.queue_times = Times()
        self.confirm_times = Times()

    @property
    def behind(self) -> bool:
        """Whether new messages must wait for older ones."""
        return self.resume is not None or len(self.redelivery) > 0 or self.postponed

    @property
    def routing(self) -> Routing[SubStream]:
        """The routing table, rebuilt if necessary."""
        if self._changed:
            self._rebuild()
        return self._routing

    def change(self) -> None:
        """Note the arrival or departure of a consumer, or a change of subscriptions.

        The routing table is rebuilt only on the next use: thousands of consumers joining or leaving together
        cost one rebuild.
        """
        self._changed = True

    @property
    def changed(self) -> bool:
        """Whether the routing table has to be rebuilt before the next use."""
        return self._changed

    def _rebuild(self) -> None:
        """Rebuild the routing table."""
        self._changed = False
        self.queue.effort.spent += len(self.streams) + len(self.redelivery) + len(self.aside)
        for stream in self.streams:
            stream.last_sent = None
            for subscriber in stream.subscribers():
                subscriber.leave()
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

    def _offer(self, backlog: Backlog, now: float) -> bool:
        """Deliver the deliverable messages of a backlog.

        Returns:
            False if a delay or the limit of work stopped the delivery; otherwise True.
        """
        bit, effort, cost = self.bit, self.queue.effort, self.routing.cost
        while (message := backlog.next()) is not None:
            if not message.pending & bit:
                backlog.discard(message)
                continue
            delay = poison_delay(message, bit)
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
            message = message.next

    def _select_slowly(
        self, message: MessageRecord, delay: float, now: float
    ) -> Subscriber[SubStream] | None:
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
            self.queue.waiting.set(self, self.wait_until)
        return None

    def _send(self, subscriber: Subscriber[SubStream], message: MessageRecord, now: float) -> None:
        stream = subscriber.stream
        if stream.take(subscriber, message, now):
            waited = now - message.arrival
            self.queue.count_pushes(self, 1, message.size, waited, waited)
            stream.last_sent = (now, message.guid)
            stream.handle.push(message, subscriber.option, out_of_order=True)

    def confirm(self, stream: SubStream, guids: Sequence[bytes], now: float) -> None:
        """Count messages as confirmed; unknown GUIDs are ignored.

        A consumer may confirm a message from elsewhere: delivered to another consumer, or delivered before a
        restart of the broker.
        """
        queue, times, bit, settle = self.queue, self.confirm_times, self.bit, stream.unconfirmed.pop
        remove = queue.remove
        for guid in guids:
            entry = settle(guid, None)
            if entry is None:
                self._confirm_of_another(guid, now)
                continue
            # Inlined, because this runs for every message.
            message, subscriber, since = entry
            subscriber.messages -= 1
            subscriber.bytes -= message.size
            queue.confirmed += 1
            held = now - since
            times.count += 1
            times.seconds += held
            if held > times.longest:
                times.longest = held
            if message.pending & bit:
                message.pending ^= bit
                if not message.pending:
                    remove(message)
            if stream.last_sent is not None and stream.last_sent[1] == guid:
                stream.last_sent = None
                if self.wait_until is not None:
                    queue.serve(self, now)
            if subscriber.full:
                self.relax(subscriber, now)

    def _confirm_of_another(self, guid: bytes, now: float) -> None:
        """Confirm a message sent to a different consumer."""
        queue = self.queue
        message = queue.store.get(guid)
        if message is None or not message.pending & self.bit:
            return
        queue.confirmed += 1
        self.drop(message)
        if self.resume is not None:
            queue.serve(self, now)

    def relax(self, subscriber: Subscriber[SubStream], now: float) -> None:
        """Let a full subscriber take part again if enough messages are confirmed."""
        if subscriber.messages <= subscriber.low_messages and subscriber.bytes <= subscriber.low_bytes:
            subscriber.full = False
            # If the consumers have changed, all groups are rebuilt before the next use.
            if self._changed or (subscriber.group is not None and subscriber.group.admit(subscriber)):
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
        if not limit:
            for message, _, _ in stream.unconfirmed.values():
                if message.attempts is not None:
                    message.attempts.pop(bit, None)
            return
        for guid, (message, _, _) in list(stream.unconfirmed.items()):
            if not message.pending & bit:
                continue
            attempts = message.attempts = message.attempts or {}
            attempts[bit] = attempts.get(bit, limit) - 1
            if attempts[bit] <= 0:
                stream.settle(guid)
                self.queue.poisoned += 1
                self.drop(message)

    def release(self, stream: SubStream) -> None:
        """Take back a consumer's unconfirmed messages, for delivery to other consumers."""
        for message, subscriber, _ in stream.unconfirmed.values():
            subscriber.messages -= 1
            subscriber.bytes -= message.size
            if message.pending & self.bit:
                self.redelivery.add(message)
        stream.unconfirmed.clear()

    def clear(self) -> None:
        """Forget the application's position and the skipped messages."""
        self.resume = None
        self.redelivery.clear()
        self.aside.clear()
