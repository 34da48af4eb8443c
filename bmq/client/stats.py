# SPDX-License-Identifier: Apache-2.0
"""Statistics of sessions, queues and consumers, as frozen snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import ref

from bmq import _checks
from bmq._logging import Log
from bmq._loop import weakly
from bmq.client.counting import ReceiveCounts
from bmq.errors import AckStatus, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.counters import BOUNDS, Durations, PostCounts
from bmq.protocol.client.events import Connected, Disconnected, SessionEvent

if TYPE_CHECKING:
    from bmq.client.connection import Connection
    from bmq.client.session import Session
    from bmq.protocol.client.queue import QueueCore

__all__ = [
    "ConsumerStats",
    "Histogram",
    "QueueStats",
    "SessionStats",
    "StatsLog",
    "consumer_stats",
    "queue_stats",
    "session_stats",
    "stats_line",
]

logger = Log("bmq.stats", later=True)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distribution of durations, in buckets fixed within a minor release.

    ``after - before`` has the durations between two snapshots.

    Attributes:
        bounds: upper bounds of the buckets in seconds, ascending; each bound belongs to its bucket.
        counts: number of durations in each bucket; the last one counts durations above all bounds.
        sum: sum of all durations, in seconds.
    """

    bounds: tuple[float, ...] = BOUNDS
    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    sum: float = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean duration in seconds; None without durations."""
        count = self.count
        return self.sum / count if count else None

    def quantile(self, q: float) -> float | None:
        """Estimate the quantile ``q`` of all durations.

        Durations are assumed to be spread evenly within a bucket. Durations above the last bound count as the
        last bound.

        Args:
            q: fraction from 0 to 1; 0.5 for the median.

        Returns:
            Seconds; None without durations.

        Raises:
            UsageError: ``q`` is out of range.
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


# Kinds of fields. Counters only grow, also over reconnects, and are subtracted. Levels describe the present;
# the later value is kept.
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
    """Common operations of all statistics."""

    __slots__ = ()

    def __sub__(self, earlier: Self) -> Self:
        """Return the counts since an earlier snapshot; levels are as in this snapshot."""
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
class _Received(_Stats):
    """The receiving side of every scope: consumer, queue and session.

    Attributes:
        received: messages that arrived, counted at each delivery. A message moved from a closed consumer is
            counted by both consumers, and once by the queue and by the session.
        received_bytes: bytes of their payloads and properties, as transmitted.
        redelivered: received messages marked as out of order by the broker; see
            :attr:`bmq.Message.redelivered`.
        confirmed: confirmed messages. Confirmations by ``discard_unmatched`` or by a GUID count for the queue
            and the session.
        confirmed_again: confirmed messages delivered again by the broker. These messages were confirmed once
            more, without being handed out, and appear in no other counter.
        unconfirmed: unconfirmed messages from the present connection, in line or with the application. A
            confirmation by a GUID alone does not change this level.
        buffered_messages: messages waiting for the application.
        buffered_bytes: bytes of these messages.
        confirm_seconds: time from the arrival of a message to its confirmation, in seconds.
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
class _Exchanged(_Received):
    """Both sides, in the scopes that also post: queue and session.

    Attributes:
        unmatched: received messages without a matching consumer: the consumer had closed, or the queue was
            not open. The broker keeps all other messages that match no subscription, and sends none of them.
        posted: messages accepted for posting, though perhaps not yet sent.
        posted_bytes: bytes of their payloads and properties, as transmitted.
        acknowledged: accepted posts.
        refused: posts without an acceptance, by status. ``TIMEOUT`` and ``CANCELED`` count posts given up
            without an answer.
        retransmitted: posts sent again after the loss of a connection.
        unacked_messages: posts without an outcome.
        unacked_bytes: bytes of their payloads and properties, as transmitted, which occupy this much memory.
        buffer_full_waits: number of times ``post`` or ``post_many`` waited because the session's window of
            unacknowledged posts was full, or the connection was too slow.
        buffer_full_errors: number of times ``post_nowait`` raised :class:`bmq.BufferFull`.
        ack_seconds: time from a post to the broker's answer, also for refusals, in seconds.
    """

    unmatched: int = _counter()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats(_Received):
    """Counters and levels of a consumer.

    ``unconfirmed``, ``buffered_messages`` and ``buffered_bytes`` are levels. All other fields are counters,
    which only grow, also over reconnects. ``after - before`` has the counts between two snapshots.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(_Exchanged):
    """Counters and levels of a queue, for posted and received messages.

    ``unacked_messages``, ``unacked_bytes``, ``unconfirmed``, ``buffered_messages`` and ``buffered_bytes`` are
    levels. All other fields are counters, which only grow, also over reconnects. ``after - before`` has the
    counts between two snapshots.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats(_Exchanged):
    """Counters and levels of a session: the sums of all its queues, including closed queues.

    ``state``, ``queues``, ``unacked_messages``, ``unacked_bytes``, ``unconfirmed``, ``buffered_messages``,
    ``buffered_bytes``, ``write_buffer_bytes`` and the three ages are levels. All other fields are counters,
    which only grow, also over reconnects. ``after - before`` has the counts between two snapshots.

    Attributes:
        state: state of the session.
        queues: number of open queues.
        write_buffer_bytes: bytes waiting for the operating system.
        bytes_sent: all bytes sent, without TLS overhead.
        bytes_received: all bytes received, without TLS overhead.
        reconnects: number of restored connections.
        seconds_disconnected: time without a connection, after the first connection, in seconds.
        repeated_subscriptions: number of times a queue's subscriptions were sent again because no messages
            arrived.
        revived_messages: messages arriving right after repeated subscriptions.
        silent_seconds: time since the last byte from the broker; see :class:`bmq.health.Health`.
        oldest_unacked_seconds: age of the oldest post without an outcome, or None.
        oldest_unconfirmed_seconds: time since the arrival of the oldest unconfirmed message, or None. See
            :class:`bmq.health.Health`.
    """

    state: SessionState = field(metadata=_NOW)
    queues: int = _now()
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
    """Return a snapshot of a consumer's statistics."""
    return ConsumerStats(**_receiving(counts, buffered))


def queue_stats(core: QueueCore, counts: ReceiveCounts, buffered: tuple[int, int]) -> QueueStats:
    """Return a snapshot of a queue's statistics."""
    return QueueStats(
        **_posting(core.counts, core.unacked, core.unacked_bytes),
        **_receiving(counts, buffered),
        unmatched=counts.unmatched,
    )


def session_stats(connection: Connection) -> SessionStats:
    """Return a snapshot of a session's statistics."""
    posts = connection.core.posts
    repeated, revived = connection.core.repeated
    waiting = [queue._buffered for queue in connection.queues.values()]
    buffered = sum(count for count, _ in waiting), sum(size for _, size in waiting)
    return SessionStats(
        state=connection.core.state,
        queues=len(connection.open_queues),
        **_posting(posts.counts, len(posts), posts.bytes),
        **_receiving(connection.received, buffered),
        unmatched=connection.received.unmatched,
        write_buffer_bytes=connection.write_buffer_size,
        bytes_sent=connection.bytes_sent,
        bytes_received=connection.bytes_received,
        reconnects=connection.dialer.reconnects,
        seconds_disconnected=connection.seconds_disconnected,
        repeated_subscriptions=repeated,
        revived_messages=revived,
        **connection.ages(),
    )


def stats_line(stats: SessionStats) -> str:
    """Return statistics as one line; names and order stay within a minor release."""
    ack = stats.ack_seconds.quantile(0.5)
    values: dict[str, object] = {
        "queues": stats.queues,
        "posted": stats.posted,
        "acknowledged": stats.acknowledged,
        "refused": sum(stats.refused.values()),
        "retransmitted": stats.retransmitted,
        "unacked": stats.unacked_messages,
        "received": stats.received,
        "confirmed": stats.confirmed,
        "redelivered": stats.redelivered,
        "unconfirmed": stats.unconfirmed,
        "buffered": stats.buffered_messages,
        "bytes_sent": stats.bytes_sent,
        "bytes_received": stats.bytes_received,
        "reconnects": stats.reconnects,
        "seconds_disconnected": f"{stats.seconds_disconnected:.3f}",
        "ack_seconds_p50": "-" if ack is None else f"{ack:.6f}",
    }
    return " ".join(f"{name}={value}" for name, value in values.items())


class StatsLog:
    """Logs the statistics of one session. Keeps neither the session nor its event loop alive.

    Args:
        session: the session.
        every: seconds between two lines.
        on_event: the application's callback for session events.
    """

    def __init__(
        self, session: Session, every: float, on_event: Callable[[SessionEvent], None] | None
    ) -> None:
        self._session = ref(session)
        self._every = every
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, event: SessionEvent) -> None:
        """Begin at the first connection, and end with the session."""
        if isinstance(event, Connected) and self._timer is None:
            self._wait()
        elif isinstance(event, Disconnected):
            if self._timer is not None:
                self._timer.cancel()
            self._log("final statistics")
        if self._on_event is not None:
            self._on_event(event)

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._every, weakly(self._next))

    def _next(self) -> None:
        """Log a line, and wait for the next."""
        if self._log("statistics"):
            self._wait()

    def _log(self, what: str) -> bool:
        session = self._session()
        if session is None:
            return False
        stats, address = session.stats(), session.address
        logger.info(
            "%s of the session with %s: %s",
            what,
            address,
            stats_line(stats),
            extra={"broker": address, "statistics": stats},
        )
        return True
