"""The producing side of a session: posts, their acknowledgements, and what is sent again."""

from __future__ import annotations

from collections.abc import Callable, Collection

from bmq.errors import AckStatus, QueueClosed, UsageError
from bmq.protocol.events import Outcome
from bmq.protocol.outbox import Outbox
from bmq.protocol.queue import QueueCore
from bmq.protocol.tables import QueueState
from bmq.protocol.window import Pending, Window
from bmq.wire.ack import STATUS_MASK, iter_acks
from bmq.wire.codec import new_tuple
from bmq.wire.constants import ACK_STATUS_FROM_WIRE, PutFlags
from bmq.wire.event import Event
from bmq.wire.guid import guid_to_text
from bmq.wire.put import encode_put

__all__ = ["Producer"]

# How often posts are checked for having waited too long.
_EXPIRY_INTERVAL = 1.0
# Posts to a queue in these states wait in the window,
_HOLDING = frozenset({QueueState.LOST, QueueState.REOPENING, QueueState.RESTORING})
# and leave it when the queue is in one of these.
_SENDABLE = frozenset({QueueState.OPEN, QueueState.RECONFIGURING})


class Producer:
    """Keeps every post until it has its one outcome.

    Attributes:
        window: the posts without outcome.
        deadline: when :meth:`expire` wants to be called, or None.
    """

    __slots__ = ("_outbox", "deadline", "window")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.window = Window()
        self.deadline: float | None = None

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
        if not queue.sending and (queue.closing is not None or queue.state not in _HOLDING):
            raise QueueClosed(f"queue {queue.uri} is {queue.state.value}")
        window = self.window
        entries = window.entries
        if guid in entries:
            raise UsageError(f"GUID {guid_to_text(guid)} belongs to another post that has no outcome yet")
        message = encode_put(queue.q_id, guid, data, flags, schema_id, compression)
        entries[guid] = new_tuple(Pending, (queue, message, token, tag, now))
        window.bytes += len(message)
        queue.unacked += 1
        if queue.sending:
            self._outbox.put(message)
        if self.deadline is None:
            self.deadline = now + queue.deduplication_time

    def acked(self, event: Event) -> list[Outcome]:
        """Take an ACK event; return the outcomes. GUIDs that are not (or no longer) known do not matter.

        Raises:
            ProtocolError: the event is malformed.
        """
        outcomes: list[Outcome] = []
        append = outcomes.append
        pop = self.window.entries.pop
        freed = 0
        for status, _, guid, _ in iter_acks(event.data, event.body):
            pending = pop(guid, None)
            if pending is not None:
                queue, message, token, tag, _ = pending
                freed += len(message)
                queue.unacked -= 1
                append((token, tag, guid, ACK_STATUS_FROM_WIRE[status & STATUS_MASK], queue))
        self.window.bytes -= freed
        return outcomes

    def resume(self, queues: Collection[QueueCore]) -> None:
        """Send again, in the order of posting, what has no outcome yet and belongs to these queues."""
        ready = {q for q in queues if q.writable and not q.sending and q.state in _SENDABLE}
        if not ready:
            return
        for pending in self.window:
            if pending.queue in ready:
                self._outbox.put(pending.data)
        for queue in ready:
            queue.sending = True

    def give_up(self, wanted: Callable[[Pending], bool], status: AckStatus) -> list[Outcome]:
        """End posts locally; return their outcomes."""
        outcomes: list[Outcome] = []
        for guid, pending in self.window.take(wanted):
            queue = pending.queue
            queue.unacked -= 1
            # Such a queue acknowledges on receipt and delivers at most once: there is nothing more to know.
            outcome = AckStatus.SUCCESS if queue.at_most_once else status
            outcomes.append((pending.token, pending.tag, guid, outcome, queue))
        return outcomes

    def expire(self, now: float) -> list[Outcome]:
        """Give up posts that stayed unanswered for as long as the broker recognises their GUIDs."""
        outcomes = self.give_up(lambda p: p.posted + p.queue.deduplication_time <= now, AckStatus.TIMEOUT)
        oldest = self.window.oldest()
        if oldest is None:
            self.deadline = None
        else:
            due = oldest.posted + oldest.queue.deduplication_time
            self.deadline = max(now + _EXPIRY_INTERVAL, due)
        return outcomes
