# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus. Needs the extra ``bmq[prometheus]``.

:class:`SessionCollector` collects the statistics of sessions, for a registry of ``prometheus_client`` or as
text in Prometheus' format.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from bmq._version import install

try:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        f"bmq.prometheus needs prometheus-client, which is not installed: {install('prometheus')}",
        name=error.name,
    ) from error

from bmq import _checks, _world
from bmq.client.stats import Histogram, QueueStats, SessionStats
from bmq.errors import AckStatus, StateError, UsageError
from bmq.protocol.client.core import SessionState

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue
    from bmq.client.session import Session

T = TypeVar("T")

__all__ = ["OTHER", "SessionCollector", "Source", "exposition"]

#: The common label of queues beyond ``max_queues``.
OTHER = "other"
#: A session, or a function that returns a session; None or :class:`bmq.StateError` if there is no session.
Source: TypeAlias = "Session | Callable[[], Session | None]"

# A session, its statistics, and its queues with their statistics and whether they were closed before.
_Read: TypeAlias = "tuple[Session, SessionStats, list[tuple[Queue, QueueStats, bool]]]"

# How long the event loop of the sessions is waited for when another thread asks, in seconds.
_PATIENCE = 1.0

# Metrics by the field of the statistics: name, and description. Prometheus adds "_total" to counters.
_BY_QUEUE = {
    "posted": ("bmq_posted_messages", "Messages posted"),
    "posted_bytes": ("bmq_posted_bytes", "Bytes of payloads and properties posted"),
    "acknowledged": ("bmq_acknowledged_messages", "Posts that the broker accepted"),
    "refused": ("bmq_refused_messages", "Posts that were not accepted, by status"),
    "retransmitted": ("bmq_retransmitted_messages", "Posts sent again on another connection"),
    "unacked_messages": ("bmq_unacked_messages", "Posts without outcome"),
    "unacked_bytes": ("bmq_unacked_bytes", "Bytes of posts without outcome"),
    "buffer_full_waits": ("bmq_buffer_full_waits", "Times that posting waited for room"),
    "buffer_full_errors": ("bmq_buffer_full_errors", "Times that posting was refused for lack of room"),
    "ack_seconds": ("bmq_ack_seconds", "Time from a post to the broker's answer"),
    "received": ("bmq_received_messages", "Messages that arrived, redeliveries included"),
    "received_bytes": ("bmq_received_bytes", "Bytes of payloads and properties that arrived"),
    "redelivered": ("bmq_redelivered_messages", "Messages marked as out of order by the broker"),
    "confirmed": ("bmq_confirmed_messages", "Messages confirmed"),
    "confirmed_again": ("bmq_confirmed_again_messages", "Redeliveries confirmed again, not handed out"),
    "unmatched": ("bmq_unmatched_messages", "Messages that arrived for no consumer of the session"),
    "unconfirmed": ("bmq_unconfirmed_messages", "Messages that arrived and are not yet confirmed"),
    "buffered_messages": ("bmq_buffered_messages", "Messages that wait for the application"),
    "buffered_bytes": ("bmq_buffered_bytes", "Bytes of messages that wait for the application"),
    "confirm_seconds": ("bmq_confirm_seconds", "Time from the arrival of a message to its confirmation"),
}
_BY_SESSION = {
    "queues": ("bmq_open_queues", "Open queues"),
    "write_buffer_bytes": ("bmq_write_buffer_bytes", "Bytes not yet taken by the operating system"),
    "bytes_sent": ("bmq_network_sent_bytes", "Bytes written to connections"),
    "bytes_received": ("bmq_network_received_bytes", "Bytes read from connections"),
    "reconnects": ("bmq_reconnects", "Times that a connection was restored"),
    "seconds_disconnected": ("bmq_disconnected_seconds", "Time without a connection, after the first"),
    "repeated_subscriptions": ("bmq_repeated_subscriptions", "Subscriptions repeated for lack of messages"),
    "revived_messages": ("bmq_revived_messages", "Messages that arrived right after a repeated subscription"),
    "silent_seconds": ("bmq_silent_seconds", "Longest time of a session without data from the broker"),
    "oldest_unacked_seconds": ("bmq_oldest_unacked_seconds", "Age of the oldest post without outcome"),
    "oldest_unconfirmed_seconds": ("bmq_oldest_unconfirmed_seconds", "Age of the oldest unconfirmed message"),
}
# Of handlers, and of groups.
_NOW = {
    "blocked": ("bmq_blocked_handlers", "Handlers that handle no message before a retry or a confirmation"),
    "failing": ("bmq_failing_seconds", "Time since a handler's first failure without a later success"),
    "in_hand": ("bmq_oldest_in_hand_seconds", "Time of a handler at its oldest message, seen by scrapes"),
    "owned": ("bmq_group_buckets", "Buckets that this member of a group owns"),
    "behind": ("bmq_group_waiting_buckets", "Owned buckets that may wait for a silent former owner"),
    "silent": ("bmq_group_silent_members", "Members that are silent, as known to the group's leader"),
    "granted": ("bmq_group_granted_seconds", "Time since the group's leader answered this member"),
}

_COUNTERS = {
    each.name for stats in (QueueStats, SessionStats) for each in fields(stats) if each.metadata["counter"]
}


class SessionCollector(Collector):
    """Collects the statistics of sessions, in sum and by queue.

    ::

        collector = SessionCollector()
        app = bmq.App(..., health="127.0.0.1:8080", metrics=collector.exposition)
        collector.add(lambda: app.session)

    or, with a registry and a server of ``prometheus_client``::

        async with bmq.connect(...) as session:
            prometheus_client.REGISTRY.register(SessionCollector(session))

    Counters only grow: the counts of closed sessions and queues are kept. The first ``max_queues`` queues
    keep the label ``queue`` with their URI permanently. All further queues share ``queue="other"``, and so do
    counts of queues that were opened and closed between two collections.

    A call from another thread, such as the server of ``prometheus_client``, reads the values in the event
    loop of the collector's creation or last use. If the event loop does not answer within a second, the
    previous values are returned.

    Args:
        sessions: sessions, or functions that return a session.
        max_queues: number of queues with a label.

    Raises:
        UsageError: ``max_queues`` is negative.
    """

    def __init__(self, *sessions: Source, max_queues: int = 50) -> None:
        self._max_queues = _checks.integer("max_queues", max_queues)
        self._sources: list[Source] = []
        # Held during a collection: the threads of an app may collect at the same time.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[Session, SessionStats] = {}
        self._queues: dict[Queue, tuple[str, QueueStats]] = {}
        # By queue and name, the values of its handlers and groups. By consumer, the oldest message in hand,
        # and when it was seen.
        self._now: dict[str, dict[str, float]] = {}
        self._in_hand: WeakKeyDictionary[Consumer, tuple[object, float]] = WeakKeyDictionary()
        self._total = _Counters()
        self._other = _Counters()
        self._labels: dict[str, _Counters] = {}
        self._last: list[Metric] = []
        for session in sessions:
            self.add(session)
        self._remember_loop()

    def add(self, session: Source) -> None:
        """Add a session to the collection.

        Args:
            session: a session, forgotten when closed; or a function, called for each collection.
        """
        from bmq.client.session import Session

        if not isinstance(session, Session):
            _checks.function("session", session, 0, plain=True)
        self._sources.append(session)

    def describe(self) -> Iterable[Metric]:
        """Return no description, so that registering reads no session."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the present metrics.

        Raises:
            UsageError: called from a thread, without a known event loop.
        """
        if self._remember_loop():
            return self._collect()
        loop = self._loop
        if loop is None:
            raise UsageError(
                "a SessionCollector for another thread must be created in the event loop of its sessions"
            )
        answer: Future[list[Metric]] = Future()
        try:
            loop.call_soon_threadsafe(_complete, answer, self._collect)
            return answer.result(_PATIENCE)
        except TimeoutError:
            answer.cancel()
        except RuntimeError:
            if not loop.is_closed():
                raise
        return self._last

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format; for ``bmq.App(metrics=...)``.

        Raises:
            UsageError: asked by a thread, and no event loop is known.
        """
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def _remember_loop(self) -> bool:
        """Whether the caller runs in an event loop."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def _collect(self) -> list[Metric]:
        with self._lock:
            self._count()
            levels: dict[str, Counter[str]] = {}
            for label, stats in self._queues.values():
                own = levels.setdefault(label, Counter())
                own.update({name: getattr(stats, name) for name in _BY_QUEUE if name not in _COUNTERS})
            labels = dict(self._labels)
            if self._other.values or OTHER in levels:
                labels[OTHER] = self._other
            now = {uri: values for uri, values in self._now.items() if uri in self._labels}
            states = Counter(stats.state for stats in self._sessions.values())
            by_state = {each.name.lower(): states[each] for each in SessionState if each.name != "CLOSED"}
            self._last = [
                *(_family(name, *how, labels, levels) for name, how in _BY_QUEUE.items()),
                *(self._of_sessions(name, *how) for name, how in _BY_SESSION.items()),
                _gauge("bmq_sessions", "Sessions by state", by_state, "state"),
                *(
                    _gauge(*how, {uri: values[name] for uri, values in now.items() if name in values})
                    for name, how in _NOW.items()
                ),
            ]
            return self._last

    def _count(self) -> None:
        """Add the counts since the last collection."""
        found = map(_session_of, self._sources)
        sessions = {session: None for session in found if session is not None}
        for session, stats, queues in self._read({**self._sessions, **sessions}):
            parts = self._count_queues(queues)
            before = self._sessions.get(session)
            change = stats if before is None else stats - before
            self._total.add(change)
            self._other.add_rest(change, parts)
            self._sessions[session] = stats
            if stats.state is SessionState.CLOSED:
                del self._sessions[session]
                self._sources = [each for each in self._sources if each is not session]

    def _read(self, sessions: Iterable[Session]) -> list[_Read]:
        """Read the statistics of sessions, each in its own event loop.

        The sessions of a loop that does not answer in time are left out: their previous values count.
        """
        self._now = {}
        here = asyncio.get_running_loop()
        loops: dict[asyncio.AbstractEventLoop, list[Session]] = {}
        for session in sessions:
            loops.setdefault(session._connection.loop, []).append(session)
        answers: list[Future[list[_Read]]] = []
        for loop, some in loops.items():
            answer: Future[list[_Read]] = Future()
            answers.append(answer)
            read = partial(_complete, answer, partial(self._read_here, some))
            try:
                if loop is not here:
                    loop.call_soon_threadsafe(read)
                    continue
            except RuntimeError:  # the loop is closed
                pass
            read()
        found: list[_Read] = []
        until = _world.monotonic() + _PATIENCE
        for answer in answers:
            try:
                found += answer.result(max(until - _world.monotonic(), 0))
            except TimeoutError:
                answer.cancel()
        return found

    def _read_here(self, sessions: list[Session]) -> list[_Read]:
        """Read the statistics of sessions of the running event loop."""
        found: list[_Read] = []
        for session in sessions:
            self._read_handlers(session)
            known = [queue for queue in list(self._queues) if queue.session is session]
            queues = [
                (queue, queue.stats(), queue.closed) for queue in dict.fromkeys([*known, *session.queues])
            ]
            found.append((session, session.stats(), queues))
            for queue, _, closed in queues:
                group = None if closed or queue._member is None else queue._member()
                if group is not None:
                    stats = group.stats()
                    self._now.setdefault(queue.uri, {}).update(
                        owned=stats.owned, behind=stats.behind, silent=stats.silent
                    )
                    if stats.granted is not None:
                        self._now[queue.uri]["granted"] = stats.granted
        return found

    def _read_handlers(self, session: Session) -> None:
        """Read the state of all handlers."""
        now = _world.monotonic()
        for consumer, handler in list(session._connection.health.handlers.items()):
            how = handler()
            message, seen = self._in_hand.get(consumer, (None, now))
            seen = seen if how.oldest is message else now
            self._in_hand[consumer] = how.oldest, seen
            values = self._now.setdefault(consumer.queue.uri, {})
            values["blocked"] = values.get("blocked", 0) + how.blocked
            values["failing"] = max(values.get("failing", 0.0), how.failing_seconds)
            age = now - seen if how.oldest is not None else 0.0
            values["in_hand"] = max(values.get("in_hand", 0.0), age)

    def _count_queues(self, queues: list[tuple[Queue, QueueStats, bool]]) -> list[QueueStats]:
        """Add the counts of a session's queues; return the counts of queues with labels."""
        parts: list[QueueStats] = []
        for queue, stats, closed in queues:
            label, before = self._queues.get(queue, (None, None))
            label = label or self._label(queue.uri)
            self._queues[queue] = label, stats
            if label != OTHER:
                parts.append(stats if before is None else stats - before)
                self._labels[label].add(parts[-1])
            if closed:
                del self._queues[queue]
        return parts

    def _label(self, uri: str) -> str:
        if uri in self._labels:
            return uri
        if len(self._labels) >= self._max_queues:
            return OTHER
        self._labels[uri] = _Counters()
        return uri

    def _of_sessions(self, name: str, metric: str, what: str) -> Metric:
        if name in _COUNTERS:
            return CounterMetricFamily(metric, what, value=self._total.values.get(name, 0))
        values = [getattr(stats, name) or 0 for stats in self._sessions.values()]
        value = max(values, default=0) if name.endswith("_seconds") else sum(values)
        return GaugeMetricFamily(metric, what, value=value)


def exposition(*sessions: Source, max_queues: int = 50) -> bytes:
    """Return the metrics of sessions once, in Prometheus' text format.

    For repeated scrapes use a :class:`SessionCollector`, which keeps the counts of closed queues.

    Args:
        sessions: sessions, or functions that return a session.
        max_queues: number of queues with a label.

    Raises:
        UsageError: called outside of an event loop.
    """
    return SessionCollector(*sessions, max_queues=max_queues).exposition()


class _Counters:
    """Sums of counters, by field of the statistics."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def add(self, stats: SessionStats | QueueStats) -> None:
        """Add all counters of the statistics."""
        for each in fields(stats):
            if each.metadata["counter"]:
                self._add(each.name, getattr(stats, each.name))

    def add_rest(self, whole: SessionStats, parts: list[QueueStats]) -> None:
        """Add the part of a session's counts beyond its queues, if any."""
        rest: dict[str, Any] = {}
        for name in [name for name in _BY_QUEUE if name in _COUNTERS]:
            rest[name] = getattr(whole, name)
            for part in parts:
                rest[name] = _plus(rest[name], getattr(part, name), -1)
        if any(value.count if isinstance(value, Histogram) else value for value in rest.values()):
            for name, value in rest.items():
                self._add(name, value)

    def _add(self, name: str, more: Any) -> None:
        now = self.values.get(name)
        self.values[name] = more if now is None else _plus(now, more)


def _plus(a: Any, b: Any, sign: int = 1) -> Any:
    """Return the sum of two counters of one field, or with ``sign=-1`` the difference."""
    if isinstance(a, Histogram):
        counts = tuple(one + sign * other for one, other in zip(a.counts, b.counts, strict=True))
        # Never below 0 by rounding: Prometheus takes a falling counter for a restart.
        return Histogram(a.bounds, counts, max(0.0, a.sum + sign * b.sum) if any(counts) else 0.0)
    if isinstance(a, Mapping):
        one, other = Counter(cast("Mapping[AckStatus, int]", a)), Counter(cast("Mapping[AckStatus, int]", b))
        return dict(one + other if sign > 0 else one - other)
    return a + sign * b


def _session_of(source: Source) -> Session | None:
    if not callable(source):
        return source
    try:
        session = source()
    except StateError:
        return None
    # The counts of a closed session were added when the closing was noticed.
    return None if session is None or session.state is SessionState.CLOSED else session


def _complete(answer: Future[T], function: Callable[[], T]) -> None:
    """Answer with the result of a function, unless nobody waits any more."""
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)


def _gauge(metric: str, what: str, values: Mapping[str, float], label: str = "queue") -> Metric:
    family = GaugeMetricFamily(metric, what, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _family(
    name: str, metric: str, what: str, labels: dict[str, _Counters], levels: dict[str, Counter[str]]
) -> Metric:
    """Return a metric of all queues."""
    if name in ("ack_seconds", "confirm_seconds"):
        histograms = HistogramMetricFamily(metric, what, labels=["queue"])
        for queue, counters in labels.items():
            value: Histogram = counters.values.get(name, Histogram())
            bounds = [*map(str, value.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(value.counts), strict=True))
            histograms.add_metric([queue], buckets, max(0.0, value.sum))
        return histograms
    if name == "refused":
        refused = CounterMetricFamily(metric, what, labels=["queue", "status"])
        for queue, counters in labels.items():
            by_status: Mapping[AckStatus, int] = counters.values.get(name, {})
            for status, count in by_status.items():
                refused.add_metric([queue, status.name], count)
        return refused
    if name not in _COUNTERS:
        return _gauge(metric, what, {queue: levels.get(queue, Counter())[name] for queue in labels})
    family = CounterMetricFamily(metric, what, labels=["queue"])
    for queue, counters in labels.items():
        family.add_metric([queue], counters.values.get(name, 0))
    return family
