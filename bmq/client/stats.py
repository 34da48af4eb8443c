# SPDX-License-Identifier: Apache-2.0
"""Statistics: what a session, a queue and a consumer have done, as frozen snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self, cast

from bmq import _checks
from bmq.engine.counting import ReceiveCounts
from bmq.errors import AckStatus, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.counters import BOUNDS, Durations, PostCounts

if TYPE_CHECKING:
    from bmq.client._end import QueueEnd
    from bmq.engine.driver import Driver
    from bmq.protocol.client.queue import QueueCore

__all__ = [
    "ConsumerStats",
    "Histogram",
    "QueueStats",
    "SessionStats",
    "consumer_stats",
    "queue_stats",
    "session_stats",
]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long things took, in buckets that are the same in every version of a minor release.

    ``after - before`` is what was counted between two of them.

    Attributes:
        bounds: the buckets' upper bounds in seconds, ascending; a bound belongs to its bucket.
        counts: how many there are in each bucket, and, last, how many were longer than every bound.
        sum: the sum of all durations, in seconds.
    """

    bounds: tuple[float, ...] = BOUNDS
    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean duration in seconds; None if there was none."""
        count = self.count
        return self.sum / count if count else None

    def quantile(self, q: float) -> float | None:
        """Estimate the duration that a part ``q`` of all does not exceed.

        Within a bucket durations are taken to be spread evenly; what is longer than the last bound counts as
        that long.

        Args:
            q: from 0 to 1: 0.5 for the median.

        Returns:
            Seconds; None if there was no duration.

        Raises:
            UsageError: ``q`` is out of its range.
        """
        q = _checks.number("q", q, 0.0, 1.0)
        wanted = q * self.count
        if not self.count:
            return None
        below = 0.0
        before = 0
        for bound, count, until in zip(self.bounds, self.counts, accumulate(self.counts), strict=False):
            if count and until >= wanted:
                return below + (bound - below) * max(0.0, wanted - before) / count
            below, before = bound, until
        return self.bounds[-1]

    def __sub__(self, earlier: Histogram) -> Histogram:
        if self.bounds != earlier.bounds:
            raise UsageError("histograms with different buckets cannot be subtracted")
        counts = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return replace(self, counts=counts, sum=self.sum - earlier.sum)


# What a field is. Counters only grow, also over reconnects, and are subtracted; of the others, which say how
# it is now, the later value stands.
_NOW = {"counter": False}
_COUNTER = {"counter": True}


def _counter() -> int:
    return field(default=0, metadata=_COUNTER)


def _seconds() -> float:
    return field(default=0.0, metadata=_COUNTER)


def _by_status() -> Mapping[AckStatus, int]:
    return field(default_factory=dict[AckStatus, int], metadata=_COUNTER)


def _now() -> int:
    return field(default=0, metadata=_NOW)


def _age() -> float | None:
    return field(default=None, metadata=_NOW)


class _Stats:
    """What all statistics can do."""

    __slots__ = ()

    def __sub__(self, earlier: Self) -> Self:
        """Return what was counted since; what says how it is now is as in this one."""
        changes = {
            each.name: _difference(getattr(self, each.name), getattr(earlier, each.name))
            for each in fields(self)  # type: ignore[arg-type]
            if each.metadata["counter"]
        }
        return replace(self, **changes)  # type: ignore[type-var]


def _difference(now: Any, before: Any) -> Any:
    if isinstance(now, Mapping):
        counts = cast("Mapping[AckStatus, int]", now)
        left = {key: count - before.get(key, 0) for key, count in counts.items()}
        return {key: count for key, count in left.items() if count}
    return now - before


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats(_Stats):
    """What one consumer has received.

    Everything but ``unconfirmed``, ``buffered_messages`` and ``buffered_bytes``, which say how it is now,
    only grows, also over reconnects. ``after - before`` is what was counted between two of them.

    Attributes:
        received: messages that arrived for it, each time they were delivered. One that moved here from a
            consumer that was closed is counted by both, and once by the queue.
        received_bytes: the bytes of their payloads and properties as they travelled.
        redelivered: how many of them the broker marked as out of order; see :attr:`bmq.Message.redelivered`.
        confirmed: messages that were confirmed.
        confirmed_again: messages that the broker delivered again although they were confirmed. They were
            confirmed once more and not handed out; no other count has them.
        unconfirmed: messages that arrived on the present connection and are not confirmed: those that wait
            for the application, and those it has.
        buffered_messages: how many messages wait for the application.
        buffered_bytes: the bytes of them.
        confirm_seconds: the time from the arrival of a message to its confirmation, in seconds.
    """

    received: int = _counter()
    received_bytes: int = _counter()
    redelivered: int = _counter()
    confirmed: int = _counter()
    confirmed_again: int = _counter()
    unconfirmed: int = _now()
    buffered_messages: int = _now()
    buffered_bytes: int = _now()
    confirm_seconds: Histogram = field(default_factory=Histogram, metadata=_COUNTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(_Stats):
    """What was posted to a queue and received from it.

    Everything but ``unacked_messages``, ``unacked_bytes``, ``unconfirmed``, ``buffered_messages`` and
    ``buffered_bytes``, which say how it is now, only grows, also over reconnects. ``after - before`` is what
    was counted between two of them.

    Attributes:
        posted: messages that were posted: they are accepted by the queue, though perhaps not sent yet.
        posted_bytes: the bytes of their payloads and properties as they travel.
        acknowledged: posts that the broker accepted.
        refused: posts that were not accepted, by status. ``TIMEOUT`` and ``CANCELED`` are those that were
            given up without an answer.
        retransmitted: posts that were written to a connection that was lost, and again to another one.
        unacked_messages: posts without outcome.
        unacked_bytes: the bytes of them.
        buffer_full_waits: how often ``post`` or ``post_many`` waited because the session's window of posts
            without outcome was full, or the connection did not keep up.
        buffer_full_errors: how often ``post_nowait`` raised :class:`bmq.BufferFull`.
        ack_seconds: the time from a post to the broker's answer, also when it refuses, in seconds.
        received: messages that arrived, each time they were delivered.
        received_bytes: the bytes of their payloads and properties as they travelled.
        redelivered: how many of them the broker marked as out of order; see :attr:`bmq.Message.redelivered`.
        confirmed: messages that were confirmed, also unseen or by a GUID.
        confirmed_again: messages that the broker delivered again although they were confirmed. They were
            confirmed once more and not handed out; no other count has them.
        unconfirmed: messages that arrived on the present connection and are not confirmed; a confirmation by
            nothing but a GUID changes nothing here.
        buffered_messages: how many messages wait for the application.
        buffered_bytes: the bytes of them.
        confirm_seconds: the time from the arrival of a message to its confirmation, in seconds.
    """

    posted: int = _counter()
    posted_bytes: int = _counter()
    acknowledged: int = _counter()
    refused: Mapping[AckStatus, int] = _by_status()
    retransmitted: int = _counter()
    unacked_messages: int = _now()
    unacked_bytes: int = _now()
    buffer_full_waits: int = _counter()
    buffer_full_errors: int = _counter()
    ack_seconds: Histogram = field(default_factory=Histogram, metadata=_COUNTER)
    received: int = _counter()
    received_bytes: int = _counter()
    redelivered: int = _counter()
    confirmed: int = _counter()
    confirmed_again: int = _counter()
    unconfirmed: int = _now()
    buffered_messages: int = _now()
    buffered_bytes: int = _now()
    confirm_seconds: Histogram = field(default_factory=Histogram, metadata=_COUNTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats(_Stats):
    """What a session holds and has done, all of its queues together, closed ones included.

    ``state``, ``queues``, ``unacked_messages``, ``unacked_bytes``, ``unconfirmed``, ``buffered_messages``,
    ``buffered_bytes``, ``write_buffer_bytes`` and the three ages say how it is now. Everything else only
    grows, also over reconnects. ``after - before`` is what was counted between two of them.

    Attributes:
        state: the session's state.
        queues: how many queues are open.
        posted: messages that were posted: they are accepted by a queue, though perhaps not sent yet.
        posted_bytes: the bytes of their payloads and properties as they travel.
        acknowledged: posts that the broker accepted.
        refused: posts that were not accepted, by status. ``TIMEOUT`` and ``CANCELED`` are those that were
            given up without an answer.
        retransmitted: posts that were written to a connection that was lost, and again to another one.
        unacked_messages: posts without outcome.
        unacked_bytes: the size of their payloads and properties as they travel; they take this much memory.
        buffer_full_waits: how often ``post`` or ``post_many`` waited because the window of posts without
            outcome was full, or the connection did not keep up.
        buffer_full_errors: how often ``post_nowait`` raised :class:`bmq.BufferFull`.
        ack_seconds: the time from a post to the broker's answer, also when it refuses, in seconds.
        received: messages that arrived, each time they were delivered.
        received_bytes: the bytes of their payloads and properties as they travelled.
        redelivered: how many of them the broker marked as out of order; see :attr:`bmq.Message.redelivered`.
        confirmed: messages that were confirmed, also unseen or by a GUID.
        confirmed_again: messages that the broker delivered again although they were confirmed. They were
            confirmed once more and not handed out; no other count has them.
        unconfirmed: messages that arrived on the present connection and are not confirmed.
        buffered_messages: received messages that wait for the application.
        buffered_bytes: the bytes of them.
        confirm_seconds: the time from the arrival of a message to its confirmation, in seconds.
        write_buffer_bytes: what waits to be taken by the operating system.
        bytes_sent: all bytes that went out, without TLS.
        bytes_received: all bytes that came in, without TLS.
        reconnects: how often the connection was restored.
        seconds_disconnected: how long there was no connection, after the first one.
        repeated_subscriptions: how often queues' subscriptions were repeated, because nothing came.
        revived_messages: how many messages came right after that.
        silent_seconds: the time since the last byte from the broker; see :class:`bmq.Health`.
        oldest_unacked_seconds: the age of the oldest post without outcome; None if there is none.
        oldest_unconfirmed_seconds: the time since the oldest unconfirmed message arrived; None if there is
            none. See :class:`bmq.Health`.
    """

    state: SessionState = field(metadata=_NOW)
    queues: int = _now()
    posted: int = _counter()
    posted_bytes: int = _counter()
    acknowledged: int = _counter()
    refused: Mapping[AckStatus, int] = _by_status()
    retransmitted: int = _counter()
    unacked_messages: int = _now()
    unacked_bytes: int = _now()
    buffer_full_waits: int = _counter()
    buffer_full_errors: int = _counter()
    ack_seconds: Histogram = field(default_factory=Histogram, metadata=_COUNTER)
    received: int = _counter()
    received_bytes: int = _counter()
    redelivered: int = _counter()
    confirmed: int = _counter()
    confirmed_again: int = _counter()
    unconfirmed: int = _now()
    buffered_messages: int = _now()
    buffered_bytes: int = _now()
    confirm_seconds: Histogram = field(default_factory=Histogram, metadata=_COUNTER)
    write_buffer_bytes: int = _now()
    bytes_sent: int = _counter()
    bytes_received: int = _counter()
    reconnects: int = _counter()
    seconds_disconnected: float = _seconds()
    repeated_subscriptions: int = _counter()
    revived_messages: int = _counter()
    silent_seconds: float | None = _age()
    oldest_unacked_seconds: float | None = _age()
    oldest_unconfirmed_seconds: float | None = _age()


def _snapshot(durations: Durations) -> Histogram:
    return Histogram(BOUNDS, tuple(durations.buckets), durations.seconds)


def _posting(counts: PostCounts, unacked: int, unacked_bytes: int) -> dict[str, Any]:
    return {
        "posted": counts.settled + unacked,
        "posted_bytes": counts.settled_bytes + unacked_bytes,
        "acknowledged": counts.settled - counts.refused.total(),
        "refused": dict(counts.refused),
        "retransmitted": counts.retransmitted,
        "unacked_messages": unacked,
        "unacked_bytes": unacked_bytes,
        "buffer_full_waits": counts.full_waits,
        "buffer_full_errors": counts.full_errors,
        "ack_seconds": _snapshot(counts.durations),
    }


def _receiving(counts: ReceiveCounts, buffered: tuple[int, int]) -> dict[str, Any]:
    return {
        "received": counts.received,
        "received_bytes": counts.received_bytes,
        "redelivered": counts.redelivered,
        "confirmed": counts.confirmed,
        "confirmed_again": counts.confirmed_again,
        "unconfirmed": counts.unconfirmed,
        "buffered_messages": buffered[0],
        "buffered_bytes": buffered[1],
        "confirm_seconds": _snapshot(counts.durations),
    }


def consumer_stats(counts: ReceiveCounts, buffered: tuple[int, int]) -> ConsumerStats:
    """Return a snapshot of a consumer."""
    return ConsumerStats(**_receiving(counts, buffered))


def queue_stats(core: QueueCore, counts: ReceiveCounts, buffered: tuple[int, int]) -> QueueStats:
    """Return a snapshot of a queue."""
    return QueueStats(
        **_posting(core.counts, core.unacked, core.unacked_bytes), **_receiving(counts, buffered)
    )


def session_stats(driver: Driver[QueueEnd]) -> SessionStats:
    """Return a snapshot of a session."""
    connection, posts = driver.connection, driver.core.posts
    repeated, revived = driver.core.repeated
    waiting = [queue.in_line for queue in driver.queues.values()]
    return SessionStats(
        state=driver.core.state,
        queues=len(driver.open_queues),
        **_posting(posts.counts, len(posts), posts.bytes),
        **_receiving(driver.received, (sum(count for count, _ in waiting), sum(size for _, size in waiting))),
        write_buffer_bytes=connection.write_buffer_size,
        bytes_sent=connection.bytes_sent,
        bytes_received=connection.bytes_received,
        reconnects=driver.dialer.reconnects,
        seconds_disconnected=driver.seconds_disconnected,
        repeated_subscriptions=repeated,
        revived_messages=revived,
        **driver.ages(),
    )
