"""The producing side of a session: posts, their acknowledgements, and what is sent again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import itemgetter
from typing import NoReturn

from bmq.errors import AckStatus, QueueClosed, UsageError
from bmq.protocol.client.events import Outcome
from bmq.protocol.client.outbox import Outbox
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.tables import QueueState
from bmq.protocol.client.window import Entry, Lot, Window
from bmq.wire.ack import STATUS_MASK, iter_acks
from bmq.wire.constants import ACK_STATUS_FROM_WIRE, PutFlags
from bmq.wire.event import Event
from bmq.wire.guid import guid_to_text
from bmq.wire.put import Outgoing

__all__ = ["Producer"]

# How often posts are checked for having waited too long.
_EXPIRY_INTERVAL = 1.0
# Posts to a queue in these states are accepted, and wait in the window until they can be sent,
_ACCEPTING = frozenset(
    {
        QueueState.OPEN,
        QueueState.RECONFIGURING,
        QueueState.LOST,
        QueueState.REOPENING,
        QueueState.RESTORING,
    }
)
# which is when the queue is in one of these.
_SENDABLE = frozenset({QueueState.OPEN, QueueState.RECONFIGURING})


_data_of = itemgetter(1)


class Producer:
    """Owns the window: accepts posts, sends them, sends them again, and ends each of them exactly once.

    Attributes:
        window: the posts without outcome.
        deadline: when :meth:`expire` wants to be called, or None.
    """

    __slots__ = ("_outbox", "_shortest", "deadline", "window")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.window = Window()
        self.deadline: float | None = None
        # The shortest time for which a broker said to recognise GUIDs.
        self._shortest: float | None = None

    def post(
        self,
        queue: QueueCore,
        guid: bytes,
        data: bytes,
        token: object,
        now: float,
        tag: int = 0,
        flags: int = PutFlags.ACK_REQUESTED,
        schema_id: int = 0,
        compression: int = 0,
    ) -> None:
        """Accept a post: from here on it ends in exactly one outcome.

        Args:
            queue: where to.
            guid: the message's GUID.
            data: the application data as it travels.
            token: whom the outcome is for.
            now: the time.
            tag: which of the token's posts it is.
            flags: of the PUT message; ACK_REQUESTED must be among them.
            schema_id: of the PUT message.
            compression: of the PUT message.

        Raises:
            QueueClosed: the queue is not open.
            UsageError: the GUID is already in the window.
        """
        sending = queue.sending
        if not sending:
            self._check_accepting(queue)
        window = self.window
        if guid in window.entries:
            raise UsageError(f"GUID {guid_to_text(guid)} belongs to another post that has no outcome yet")
        message = guid, data, flags, schema_id, compression
        window.last = number = window.last + 1
        window.lots[number] = Lot(queue, token, now, 1)
        window.entries[guid] = message, number, tag
        window.bytes += len(data)
        queue.unacked += 1
        if sending:
            self._outbox.put(queue.q_id, message)
        if self.deadline is None and self._shortest is not None:
            self.deadline = now + self._shortest

    def post_many(
        self, queue: QueueCore, messages: list[Outgoing], token: object, now: float, tag: int = 0
    ) -> None:
        """Accept posts, in order, as :meth:`post` does one: what can be paid once is paid once.

        Args:
            queue: where to.
            messages: what; ACK_REQUESTED must be among the flags of each. The list is given away.
            token: whom the outcomes are for.
            now: the time.
            tag: which of the token's posts is the first of these; the others follow.

        Raises:
            QueueClosed: the queue is not open.
            UsageError: a GUID is already in the window. The messages before it are posted.
        """
        sending = queue.sending
        if not sending:
            self._check_accepting(queue)
        if not messages:
            return
        window = self.window
        number = window.last + 1
        added: dict[bytes, Entry] = {}
        each = tag
        for message in messages:
            added[message[0]] = message, number, each
            each += 1
        if len(added) < len(messages) or not window.entries.keys().isdisjoint(added):
            self._refuse_known(queue, messages, token, now, tag)
        window.last = number
        window.lots[number] = Lot(queue, token, now, len(messages))
        window.entries.update(added)
        window.bytes += sum(map(len, map(_data_of, messages)))
        queue.unacked += len(messages)
        if sending:
            self._outbox.put_many(queue.q_id, messages)
        if self.deadline is None and self._shortest is not None:
            self.deadline = now + self._shortest

    def _check_accepting(self, queue: QueueCore) -> None:
        if queue.state not in _ACCEPTING or queue.closing is not None or not queue.writable:
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")

    def _refuse_known(
        self, queue: QueueCore, messages: list[Outgoing], token: object, now: float, tag: int
    ) -> NoReturn:
        seen: set[bytes] = set()
        for i, (guid, *_) in enumerate(messages):
            if guid in seen or guid in self.window:
                self.post_many(queue, messages[:i], token, now, tag)
                raise UsageError(f"GUID {guid_to_text(guid)} belongs to another post that has no outcome yet")
            seen.add(guid)
        raise AssertionError("no GUID is known")

    def acked(self, event: Event) -> list[Outcome]:
        """Take an ACK event; return the outcomes. GUIDs that are not (or no longer) known do not matter.

        Raises:
            ProtocolError: the event is malformed.
        """
        outcomes: list[Outcome] = []
        append = outcomes.append
        lots, pop = self.window.lots, self.window.entries.pop
        freed = 0
        for status, _, guid, _ in iter_acks(event.data, event.body):
            entry = pop(guid, None)
            if entry is not None:
                message, number, tag = entry
                freed += len(message[1])
                lot = lots[number]
                lot.left -= 1
                if not lot.left:
                    del lots[number]
                queue, token = lot.queue, lot.token
                queue.unacked -= 1
                append((token, tag, guid, ACK_STATUS_FROM_WIRE[status & STATUS_MASK], queue))
        self.window.bytes -= freed
        return outcomes

    def opened(self, queue: QueueCore) -> None:
        """A queue is open: what its broker said of it may shorten the time that posts can wait."""
        time = queue.deduplication_time
        if queue.writable and time > 0 and (self._shortest is None or time < self._shortest):
            self._shortest = time
            oldest = self.window.oldest()
            if oldest is not None:
                self.deadline = oldest + time

    def resume(self, queues: Collection[QueueCore]) -> None:
        """Send again, in the order of posting, what has no outcome yet and belongs to these queues."""
        ready = {
            queue for queue in queues if queue.writable and not queue.sending and queue.state in _SENDABLE
        }
        if not ready:
            return
        put = self._outbox.put
        for queue, message in self.window:
            if queue in ready:
                put(queue.q_id, message)
        for queue in ready:
            queue.sending = True

    def lost(self) -> list[Outcome]:
        """The connection is gone: posts that the broker would not recognise when sent again end here."""
        return self._end(lambda of: of.queue.sending and of.queue.deduplication_time <= 0, AckStatus.TIMEOUT)

    def expire(self, now: float) -> list[Outcome]:
        """Give up posts that stayed unanswered for as long as the broker recognises their GUIDs."""
        outcomes = self._end(lambda of: 0 < of.queue.deduplication_time <= now - of.posted, AckStatus.TIMEOUT)
        oldest = self.window.oldest()
        if oldest is None or self._shortest is None:
            self.deadline = None
        else:
            self.deadline = max(now + _EXPIRY_INTERVAL, oldest + self._shortest)
        return outcomes

    def cancel(self, queue: QueueCore) -> list[Outcome]:
        """The queue is closed: its posts end here."""
        return self._end(lambda of: of.queue is queue, AckStatus.CANCELED) if queue.unacked else []

    def cancel_all(self) -> list[Outcome]:
        """The session is over: every post ends here."""
        self.deadline = None
        return self._end(lambda _: True, AckStatus.CANCELED)

    def _end(self, wanted: Callable[[Lot], bool], status: AckStatus) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for lot, tag, guid in self.window.take(wanted):
            queue = lot.queue
            queue.unacked -= 1
            outcomes.append((lot.token, tag, guid, status, queue))
        return outcomes
