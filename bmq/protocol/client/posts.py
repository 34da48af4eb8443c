# SPDX-License-Identifier: Apache-2.0
"""The window of unacknowledged posts: accepted, sent, sent again, and ended exactly once each.

The problem: a post must end in exactly one outcome, although the acknowledgement can be late, out of order,
repeated, or lost with the connection. The window may hold a hundred thousand posts, and every post passes
through here twice: the cost of each post counts.

Invariants:

- The window alone owns the bytes of posts. A reconnect resends from here, in the order of posting, with the
  same GUIDs: the broker's deduplication stores each message once.
- A post leaves the window together with the outcome. Acknowledgements of unknown GUIDs are ignored: a
  repeated acknowledgement has no effect.
- No post waits longer than the broker recognises the GUID: resending an older post could store the message
  twice. The shortest deduplication time of any queue counts.
- An unencodable post ends alone; the surrounding posts are sent.

Posts of one call form a batch, with the same time of posting, queue and token. An entry holds only bytes and
numbers, and refers to its batch by number: the garbage collector stops tracking such a tuple. Single posts
of one turn of the event loop to one queue also form a batch, and each entry holds its own token: a batch for
each post would take a third of the memory of a small post. Two shortcuts avoid work for each post, with the
same outcomes:

- Acceptances of one batch are counted during reading, and reported as a number (:attr:`Acked.accepted`).
- Posts encoded as one event (:class:`EncodedBatch`) have no entries. A broker nearly always acknowledges the
  posts to a queue in order, so the expected acknowledgements are known in advance: received and expected
  bytes are compared by the thousand. Refusals, and acknowledgements out of order, are processed singly.

Rejected designs: a window entry with references to the token and batch object, which the garbage collector
visits again and again in a deep window; a flush that looks at the posts of all queues at each acknowledgement
(now :meth:`PostWindow.first_batch` continues from the previous search).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn

from bmq.errors import AckStatus, UsageError
from bmq.protocol.client.counters import PostCounts
from bmq.protocol.client.events import Acked, Outcome
from bmq.protocol.client.outbox import OutputBuffer
from bmq.wire.ack import ACK_GUID, ACK_SIZE, STATUS_MASK, iter_acks, read_ack_header
from bmq.wire.constants import ACK_STATUS_FROM_WIRE, UNKNOWN_ACK_NUMBERS, EventType, PutFlags
from bmq.wire.event import HEADER_SIZE, Event, pack_event_header
from bmq.wire.guid import guid_to_text
from bmq.wire.put import Outgoing, PutEvent

if TYPE_CHECKING:
    from bmq.protocol.client.queue import QueueCore

__all__ = ["Batch", "EncodedBatch", "Entry", "PostWindow"]

#: An unacknowledged post: the message, ready to be sent again; the number of the batch; and the index among
#: the token's posts, or the token itself in a batch of single posts. The garbage collector stops tracking a
#: tuple of only bytes and numbers at first sight, and a deep window costs no collections.
Entry = tuple[Outgoing, int, Any]

# Interval between checks for overdue posts, in seconds.
_EXPIRY_INTERVAL = 1.0

_guid_of = itemgetter(0)
_data_of = itemgetter(1)
_SUCCESS = AckStatus.SUCCESS
_UNKNOWN = AckStatus.UNKNOWN
# The token of a batch whose entries hold their own tokens.
_ITS_OWN = object()


class Batch:
    """Posts of one call, or single posts with the same queue and time.

    Attributes:
        queue: target queue.
        token: caller's handle, returned unchanged with each outcome; for single posts a constant, and each
            entry holds the handle.
        posted: time of posting.
        left: number of posts without an outcome.
        sent: whether the posts were written to a connection.
    """

    __slots__ = ("left", "posted", "queue", "sent", "token")

    def __init__(self, queue: QueueCore, token: object, posted: float, left: int, sent: bool) -> None:
        self.queue = queue
        self.token = token
        self.posted = posted
        self.left = left
        self.sent = sent


class EncodedBatch(Batch):
    """Posts of one call, encoded as a whole PUT event: a row for each post.

    Attributes:
        size: size in bytes of the application data.
        tag: index of the first post among the token's posts.
    """

    __slots__ = ("_acks", "_ends", "_event", "_next", "_overtook", "size", "tag")

    def __init__(
        self, queue: QueueCore, event: PutEvent, token: object, posted: float, sent: bool, tag: int
    ) -> None:
        super().__init__(queue, token, posted, len(event.ends), sent)
        self.tag = tag
        self._event, self._ends, self._acks, self.size = event
        # The first row without an outcome, and the later rows with an outcome.
        self._next = 0
        self._overtook: set[int] = set()

    def take_accepted(self, acks: bytes, at: int) -> int:
        """Take the acknowledgements from ``at`` on that accept the next rows; return their number."""
        first = self._next * ACK_SIZE
        stop = min(self._overtook) * ACK_SIZE if self._overtook else len(self._acks)
        most = min(stop - first, len(acks) - at)
        if most <= 0 or acks[at : at + ACK_SIZE] != self._acks[first : first + ACK_SIZE]:
            return 0
        same = most // ACK_SIZE
        if acks[at : at + most] != self._acks[first : first + most]:
            least = 1  # At least this many rows are equal, and fewer than ``same``.
            while same - least > 1:
                half = (least + same) // 2
                begin, end = least * ACK_SIZE, half * ACK_SIZE
                if acks[at + begin : at + end] == self._acks[first + begin : first + end]:
                    least = half
                else:
                    same = half
            same = least
        self._advance(same)
        return same

    def take(self, guid: bytes) -> int | None:
        """Return the row with a GUID, and record the outcome; None if no row with this GUID waits."""
        at = self._acks.find(guid, self._next * ACK_SIZE)
        while at >= 0:
            row, inside = divmod(at, ACK_SIZE)
            if inside == ACK_GUID and row not in self._overtook:
                if row == self._next:
                    self._advance(1)
                else:
                    self._overtook.add(row)
                return row
            at = self._acks.find(guid, at + 1)
        return None

    def _advance(self, count: int) -> None:
        self._next += count
        while self._next in self._overtook:
            self._overtook.remove(self._next)
            self._next += 1

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """The rows without an outcome, with their GUIDs."""
        for row in range(self._next, len(self._ends)):
            if row not in self._overtook:
                at = row * ACK_SIZE + ACK_GUID
                yield row, self._acks[at : at + 16]

    def event(self) -> bytes:
        """Return an event of the rows without an outcome; the original event if no row has an outcome."""
        if not self._next and not self._overtook:
            return self._event
        begins = (HEADER_SIZE, *self._ends)
        if not self._overtook:
            pieces = [self._event[begins[self._next] :]]
        else:
            pieces = [self._event[begins[row] : begins[row + 1]] for row, _ in self.rows()]
        size = HEADER_SIZE + sum(map(len, pieces))
        return b"".join((pack_event_header(size, EventType.PUT), *pieces))


class PostWindow:
    """The window: every post without an outcome, by GUID, in the order of posting.

    The window is the only owner of the posts' bytes: a reconnect resends from here.

    Args:
        outbox: receives posts to send.
        max_messages: number of posts at which the window is full.
        max_bytes: bytes of application data at which the window is full.
        patience: seconds from the first post into an empty window to the first check of posts; None disables
            the check.

    Attributes:
        bytes: size in bytes of the application data of all posts in the window.
        counts: numbers of other outcomes.
        deadline: time to call :meth:`expire`, or None.
        entries: the posts, by GUID, in the order of posting; for reading only.
        batches: the batches of these posts, by number; for reading only.
        last_batch: number of the latest batch; for reading only.
    """

    __slots__ = (
        "_encoded",
        "_encoded_posts",
        "_first",
        "_max_bytes",
        "_max_messages",
        "_outbox",
        "_shortest",
        "batches",
        "bytes",
        "counts",
        "deadline",
        "entries",
        "last_batch",
    )

    def __init__(
        self, outbox: OutputBuffer, max_messages: int, max_bytes: int, patience: float | None = None
    ) -> None:
        self._outbox = outbox
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.entries: dict[bytes, Entry] = {}
        self.batches: dict[int, Batch] = {}
        self.last_batch = 0
        # The encoded ones of the batches, and the number of their posts without an outcome.
        self._encoded: dict[int, EncodedBatch] = {}
        self._encoded_posts = 0
        self.bytes = 0
        self.counts = PostCounts()
        self.deadline: float | None = None
        # The shortest deduplication time of the open queues, in seconds.
        self._shortest: float | None = None
        # The time from a post into an empty window to the deadline, in seconds.
        self._first = patience

    def __len__(self) -> int:
        return len(self.entries) + self._encoded_posts

    @property
    def has_room(self) -> bool:
        """Whether the window accepts another post."""
        return len(self.entries) + self._encoded_posts < self._max_messages and self.bytes < self._max_bytes

    def oldest(self, queue: QueueCore | None = None) -> float | None:
        """Return the time of the oldest post, of all queues or of one; None without posts."""
        for batch in self.batches.values():
            if queue is None or batch.queue is queue:
                return batch.posted
        return None

    def waiting(self) -> dict[QueueCore, float]:
        """Return the time of the oldest post of each queue with posts."""
        found: dict[QueueCore, float] = {}
        left = len(self)
        for batch in self.batches.values():
            if batch.queue not in found:
                found[batch.queue] = batch.posted
                left -= batch.queue.unacked
                if left <= 0:
                    break
        return found

    def first_batch(self, queue: QueueCore, at_least: int | None = None) -> int:
        """Return the number of the oldest batch of a queue with posts in the window.

        Args:
            queue: the queue.
            at_least: a lower bound from an earlier call. The search begins at this bound: many searches
                together look at each batch once.

        Returns:
            A number beyond :attr:`last_batch` if the queue has no posts in the window.
        """
        batches = self.batches
        if at_least is None:
            found = (number for number, batch in batches.items() if batch.queue is queue)
            return next(found, self.last_batch + 1)
        while at_least <= self.last_batch:
            batch = batches.get(at_least)
            if batch is not None and batch.queue is queue:
                break
            at_least += 1
        return at_least

    # accepting

    def _watch(self, now: float) -> None:
        """Set the deadline for a post into a window without a deadline."""
        if self._first is not None:
            self.deadline = now + self._first

    def post(
        self,
        queue: QueueCore,
        guid: bytes,
        data: bytes,
        token: object,
        now: float,
        flags: int = PutFlags.ACK_REQUESTED,
        schema_id: int = 0,
        compression: int = 0,
    ) -> None:
        """Accept a post. Each post ends in exactly one outcome. The limits of the window are not checked.

        Args:
            queue: target queue.
            guid: the message's GUID.
            data: the application data as transmitted.
            token: caller's handle, returned unchanged with the outcome.
            now: the time.
            flags: flags of the PUT message; must include ACK_REQUESTED.
            schema_id: of the PUT message.
            compression: of the PUT message.

        Raises:
            QueueClosed, UsageError, StateError: the queue accepts no posts.
            UsageError: the GUID is already in the window.
        """
        if guid in self.entries:
            raise _known(guid)
        sending = queue.admit(1)
        message = guid, data, flags, schema_id, compression
        number = self.last_batch
        batch = self.batches.get(number)
        if (
            batch is not None
            and batch.posted == now
            and batch.token is _ITS_OWN
            and batch.queue is queue
            and batch.sent is sending
        ):
            batch.left += 1
        else:
            self.last_batch = number = number + 1
            self.batches[number] = Batch(queue, _ITS_OWN, now, 1, sending)
        self.entries[guid] = message, number, token
        size = len(data)
        self.bytes += size
        queue.unacked_bytes += size
        if sending:
            self._outbox.put(queue.q_id, message)
        if self.deadline is None:
            self._watch(now)

    def seal(self) -> None:
        """Let no later post join the latest batch: a caller waits for the posts until now."""
        self.last_batch += 1

    def post_many(
        self, queue: QueueCore, messages: list[Outgoing], token: object, now: float, tag: int = 0
    ) -> None:
        """Accept posts, in order, each as :meth:`post` does, at a lower cost.

        Args:
            queue: target queue.
            messages: the messages; the flags of each must include ACK_REQUESTED. The list must not be changed
                afterwards.
            token: caller's handle, returned with the outcomes; acceptances are reported as a number.
            now: the time.
            tag: index of the first post among the token's posts; the other posts follow.

        Raises:
            QueueClosed, UsageError, StateError: the queue accepts no posts.
            UsageError: a GUID is already in the window. Earlier messages are posted.
        """
        number = self.last_batch + 1
        entries: Iterator[Entry] = zip(messages, repeat(number), count(tag), strict=False)
        added = dict(zip(map(_guid_of, messages), entries, strict=False))
        if len(added) < len(messages) or not self.entries.keys().isdisjoint(added):
            self._refuse_known(queue, messages, token, now, tag)
        sending = queue.admit(len(messages))
        if not messages:
            return
        self.last_batch = number
        self.batches[number] = Batch(queue, token, now, len(messages), sending)
        self.entries.update(added)
        size = sum(map(len, map(_data_of, messages)))
        self.bytes += size
        queue.unacked_bytes += size
        if sending:
            self._outbox.put_many(queue.q_id, messages)
        if self.deadline is None:
            self._watch(now)

    def post_event(self, queue: QueueCore, event: PutEvent, token: object, now: float, tag: int = 0) -> None:
        """Accept the posts of a whole event, each as :meth:`post` does, without work for each post.

        A GUID may already be in the window, because a broker acknowledges each post.

        Args:
            queue: target queue, with its qId in the event.
            event: the posts.
            token: caller's handle, returned with the outcomes; acceptances are reported as a number.
            now: the time.
            tag: index of the first post among the token's posts; the other posts follow.

        Raises:
            QueueClosed, UsageError, StateError: the queue accepts no posts.
        """
        count = len(event.ends)
        sending = queue.admit(count)
        self.last_batch = number = self.last_batch + 1
        self.batches[number] = self._encoded[number] = EncodedBatch(queue, event, token, now, sending, tag)
        self._encoded_posts += count
        self.bytes += event.size
        queue.unacked_bytes += event.size
        if sending:
            self._outbox.event(event.event)
        if self.deadline is None:
            self._watch(now)

    def _refuse_known(
        self, queue: QueueCore, messages: list[Outgoing], token: object, now: float, tag: int
    ) -> NoReturn:
        seen: set[bytes] = set()
        for i, (guid, *_) in enumerate(messages):
            if guid in seen or guid in self.entries:
                self.post_many(queue, messages[:i], token, now, tag)
                raise _known(guid)
            seen.add(guid)
        raise AssertionError("no GUID is known")

    # ending

    def acked(self, event: Event, now: float) -> Acked:
        """Process an ACK event; return the outcomes. Unknown GUIDs are ignored.

        Args:
            event: the event.
            now: the time.

        Raises:
            ProtocolError: the event is malformed.
        """
        acked = Acked([], [], {})
        outcomes, accepted = acked.outcomes, acked.accepted
        acks: Iterable[tuple[int, bytes]] = iter_acks(event.data, event.body)
        encoded = bool(self._encoded)
        if encoded:
            known = self._accept_rows(event, acked, now)
            if known is None:
                return acked
            acks = islice(acks, known, None)
        batches, pop = self.batches, self.entries.pop
        # Posts of one call are nearly always acknowledged together. Acceptances of the same batch as before
        # are only counted; outcomes of a queue are counted together by the time of posting.
        queue: QueueCore | None = None
        posted = 0.0
        last = count = freed = same = 0
        for status, guid in acks:
            entry = pop(guid, None)
            if entry is None:
                if encoded:
                    self._settle_row(guid, status, acked, now)
                continue
            message, number, tag = entry
            if number == last and not status:
                same += 1
                freed += len(message[1])
                continue
            if same:
                accepted.append((self._leave(last, same).token, same))
                count += same
                last = same = 0
            batch = batches[number]
            if batch.queue is not queue or batch.posted != posted:
                if queue is not None:
                    queue.answered_at = now
                    queue.posts_answered(count, freed, now - posted)
                    self.bytes -= freed
                queue, posted, count, freed = batch.queue, batch.posted, 0, 0
            freed += len(message[1])
            outcome = ACK_STATUS_FROM_WIRE[status & STATUS_MASK]
            alone = batch.token is _ITS_OWN
            if not alone and outcome is _SUCCESS:
                last, same = number, 1
                continue
            count += 1
            batch.left -= 1
            if not batch.left:
                del batches[number]
            if outcome is not _SUCCESS:
                batch.queue.counts.not_accepted(outcome)
                if outcome is _UNKNOWN:
                    _note_unknown_status(acked, guid, status)
            if alone:
                outcomes.append((tag, 0, guid, outcome, batch.queue))
            else:
                outcomes.append((batch.token, tag, guid, outcome, batch.queue))
        if same:
            accepted.append((self._leave(last, same).token, same))
        if queue is not None:
            queue.answered_at = now
            queue.posts_answered(count + same, freed, now - posted)
            self.bytes -= freed
        return acked

    def _leave(self, number: int, count: int) -> Batch:
        """Take posts with an outcome out of their batch."""
        batch = self.batches[number]
        batch.left -= count
        if not batch.left:
            del self.batches[number]
        return batch

    def _accept_rows(self, event: Event, acked: Acked, now: float) -> int | None:
        """Process the first acknowledgements, if they accept the next encoded posts.

        Returns:
            Their number; None if these are all.
        """
        at, stride = read_ack_header(event.data, event.body)
        total = 0
        while stride == ACK_SIZE:
            for number, batch in self._encoded.items():
                if count := batch.take_accepted(event.data, at):
                    self._leave_encoded(number, batch, count, now)
                    acked.accepted.append((batch.token, count))
                    at += count * ACK_SIZE
                    total += count
                    break
            else:
                break
        return total if at < len(event.data) else None

    def _settle_row(self, guid: bytes, wire_status: int, acked: Acked, now: float) -> None:
        """Process the acknowledgement of one encoded post."""
        status: AckStatus = ACK_STATUS_FROM_WIRE[wire_status & STATUS_MASK]
        for number, batch in self._encoded.items():
            row = batch.take(guid)
            if row is not None:
                self._leave_encoded(number, batch, 1, now)
                if status is _SUCCESS:
                    acked.accepted.append((batch.token, 1))
                else:
                    batch.queue.counts.not_accepted(status)
                    _note_unknown_status(acked, guid, wire_status)
                    acked.outcomes.append((batch.token, batch.tag + row, guid, status, batch.queue))
                return

    def _leave_encoded(self, number: int, batch: EncodedBatch, count: int, now: float) -> None:
        self._leave(number, count)
        self._encoded_posts -= count
        # The bytes of an encoded batch are freed with the last post.
        freed = 0
        if not batch.left:
            freed = batch.size
            del self._encoded[number]
        self.bytes -= freed
        batch.queue.answered_at = now
        batch.queue.posts_answered(count, freed, now - batch.posted)

    def lost(self) -> list[Outcome]:
        """The connection is lost: end the posts to queues whose broker would not recognise them as repeated.

        Call it while the queues are still open.
        """
        return self._end(
            lambda batch: batch.queue.sending and batch.queue.deduplication_time <= 0, AckStatus.TIMEOUT
        )

    def expire(self, now: float) -> list[Outcome]:
        """End posts unacknowledged for as long as the broker recognises GUIDs."""
        outcomes = self._end(
            lambda batch: 0 < batch.queue.deduplication_time <= now - batch.posted, AckStatus.TIMEOUT
        )
        oldest = self.oldest()
        if oldest is None or self._shortest is None:
            self.deadline = None
        else:
            self.deadline = max(now + _EXPIRY_INTERVAL, oldest + self._shortest)
        return outcomes

    def unsendable(self, message: Outgoing) -> list[Outcome]:
        """End an unencodable post, without an effect on further posts."""
        guid, data, *_ = message
        entry = self.entries.get(guid)
        if entry is None or entry[0] is not message:
            return []
        _, number, tag = self.entries.pop(guid)
        batch = self._leave(number, 1)
        self.bytes -= len(data)
        batch.queue.posts_given_up(1, len(data), AckStatus.INVALID_ARGUMENT)
        return [_outcome(batch, tag, guid, AckStatus.INVALID_ARGUMENT)]

    def cancel(self, queue: QueueCore) -> list[Outcome]:
        """End the posts of a closed queue."""
        return self._end(lambda batch: batch.queue is queue, AckStatus.CANCELED) if queue.unacked else []

    def cancel_all(self) -> list[Outcome]:
        """End every post: the session is over."""
        self.deadline = None
        return self._end(lambda _: True, AckStatus.CANCELED)

    def _end(self, wanted: Callable[[Batch], bool], status: AckStatus) -> list[Outcome]:
        batches = {number: batch for number, batch in self.batches.items() if wanted(batch)}
        if not batches:
            return []
        outcomes: list[Outcome] = []
        sizes = dict.fromkeys(batches, 0)
        for message, number, tag in self.entries.values():
            if number in batches:
                batch = batches[number]
                outcomes.append(_outcome(batch, tag, message[0], status))
                sizes[number] += len(message[1])
        for _, _, guid, _, _ in outcomes:
            del self.entries[guid]
        for number, batch in batches.items():
            del self.batches[number]
            if isinstance(batch, EncodedBatch):
                del self._encoded[number]
                self._encoded_posts -= batch.left
                sizes[number] = batch.size
                outcomes += [
                    (batch.token, batch.tag + row, guid, status, batch.queue) for row, guid in batch.rows()
                ]
            batch.queue.posts_given_up(batch.left, sizes[number], status)
            self.bytes -= sizes[number]
        return outcomes

    # queues

    def opened(self, queue: QueueCore) -> None:
        """Process the opening of a queue: the deduplication time may shorten the maximum wait of posts."""
        time = queue.deduplication_time
        if queue.writable and time > 0 and (self._shortest is None or time < self._shortest):
            self._shortest = time
            self._first = time if self._first is None else min(time, self._first)
            oldest = self.oldest()
            if oldest is not None:
                self.deadline = oldest + time

    def send_again(self, queues: Collection[QueueCore]) -> None:
        """Send again, in the order of posting, the posts of these queues without an outcome."""
        if not any(queue.unacked for queue in queues):
            return
        messages: dict[int, list[Outgoing]] = {}
        for message, number, _ in self.entries.values():
            messages.setdefault(number, []).append(message)
        for number, batch in self.batches.items():
            if batch.queue not in queues:
                continue
            if isinstance(batch, EncodedBatch):
                self._outbox.event(batch.event())
            for message in messages.get(number, ()):
                self._outbox.put(batch.queue.q_id, message)
            if batch.sent:
                batch.queue.counts.sent_again(batch.left)
            batch.sent = True


def _outcome(batch: Batch, tag: Any, guid: bytes, status: AckStatus) -> Outcome:
    """Return the outcome of an entry, from its batch and its last item."""
    if batch.token is _ITS_OWN:
        return tag, 0, guid, status, batch.queue
    return batch.token, tag, guid, status, batch.queue


def _note_unknown_status(acked: Acked, guid: bytes, status: int) -> None:
    """Keep the number of a status unknown to this version."""
    if status & STATUS_MASK in UNKNOWN_ACK_NUMBERS:
        acked.strange[guid] = status & STATUS_MASK


def _known(guid: bytes) -> UsageError:
    return UsageError(f"GUID {guid_to_text(guid)} belongs to another post that has no outcome yet")
