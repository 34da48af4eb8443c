# SPDX-License-Identifier: Apache-2.0
"""The books of sessions and brokers: sums that hold at every moment, and sums that hold at rest."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import bmq
from bmq.testing import SimulatedBroker

__all__ = ["Witness", "log_read", "unbalanced", "unsettled"]

_COUNTERS = (
    "received",
    "received_bytes",
    "redelivered",
    "confirmed",
    "confirmed_again",
    "posted",
    "posted_bytes",
    "acknowledged",
    "retransmitted",
    "buffer_full_waits",
    "buffer_full_errors",
)
_LEVELS = ("unconfirmed", "buffered_messages", "buffered_bytes", "unacked_messages", "unacked_bytes")
#: Posts that end without an answer of the broker.
_UNANSWERED = (bmq.AckStatus.TIMEOUT, bmq.AckStatus.CANCELED)


#: Errors of a program with a bug. Sessions log them, and reconnect.
_BUGS = (TypeError, AttributeError, LookupError, NameError, AssertionError, ArithmeticError, RecursionError)


class _LogReader(logging.Handler):
    """Reads the log lines of a world, and keeps lines that report a bug."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception as error:
            text = f"{record.msg!r} cannot be written with {record.args!r}: {error!r}, please report this"
        error = record.exc_info[1] if record.exc_info else None
        if "please report" in text or isinstance(error, _BUGS):
            self.wrong.append(f"{text}: {error!r}" if error else text)


@contextmanager
def log_read() -> Generator[None]:
    """Format each line of the log in place of writing the log, and check that no line reports a bug.

    Raises:
        AssertionError: a line reports a bug.
    """
    root, reader = logging.getLogger(), _LogReader()
    handlers, level, disabled = root.handlers, root.level, logging.root.manager.disable
    root.handlers = [reader]
    root.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        logging.disable(disabled)
    assert not reader.wrong, reader.wrong[:3]


class Witness(bmq.Interceptor):
    """Remembers the sessions that post and receive."""

    def __init__(self) -> None:
        # In the order of creation, which is equal in every run of a seed.
        self.sessions: WeakKeyDictionary[bmq.Session, None] = WeakKeyDictionary()

    def on_post(self, queue: bmq.Queue, posts: Sequence[Any]) -> None:
        self.sessions[queue.session] = None

    def on_receive(self, consumer: bmq.Consumer, messages: Sequence[bmq.Message]) -> None:
        self.sessions[consumer.queue.session] = None


def unbalanced(session: bmq.Session) -> list[str]:
    """Return the wrong sums of a session; these sums must hold between any two callbacks."""
    found: list[str] = []
    counts = session.stats()
    queues = [(queue, queue.stats()) for queue in session.queues]

    def demand(holds: bool, *what: object) -> None:
        if not holds:
            found.append(f"{session}: {' '.join(map(str, what))}")

    for name in _COUNTERS:
        parts = sum(getattr(each, name) for _, each in queues)
        demand(getattr(counts, name) >= parts, name, getattr(counts, name), "of open queues:", parts)
    for name in _LEVELS:
        parts = sum(getattr(each, name) for _, each in queues)
        demand(getattr(counts, name) == parts, name, getattr(counts, name), "of open queues:", parts)
    for scope, each in (("session", counts), *queues):
        refused = sum(each.refused.values())
        demand(each.posted == each.acknowledged + refused + each.unacked_messages, scope, "posts", each)
        answered = each.acknowledged + refused - sum(each.refused.get(status, 0) for status in _UNANSWERED)
        demand(each.ack_seconds.count == answered, scope, "times of outcomes", each)
        demand(bool(each.posted_bytes) == bool(each.posted), scope, "posted bytes", each)
        demand(bool(each.unacked_bytes) == bool(each.unacked_messages), scope, "unacked bytes", each)
        demand(each.unacked_bytes <= each.posted_bytes, scope, "unacked bytes", each)
        _demand_received(demand, scope, each)
    for queue, whole in queues:
        consumers = [(consumer, consumer.stats()) for consumer in queue.consumers]
        for _, each in consumers:
            _demand_received(demand, queue, each)
        buffered = sum(each.buffered_messages for _, each in consumers) + queue.unclaimed
        demand(whole.buffered_messages == buffered, queue, "buffered", whole.buffered_messages, buffered)
        demand(queue.unacked == whole.unacked_messages, queue, "unacked", queue.unacked)
    demand(counts.queues == len(queues), "queues", counts.queues, len(queues))
    _demand_health(demand, session, counts)
    return found


def _demand_received(demand: Any, scope: object, each: Any) -> None:
    demand(each.confirm_seconds.count <= each.confirmed, scope, "times of confirmations", each)
    demand(bool(each.received_bytes) == bool(each.received), scope, "received bytes", each)
    demand(bool(each.buffered_bytes) == bool(each.buffered_messages), scope, "buffered bytes", each)
    demand(each.buffered_bytes <= each.received_bytes, scope, "buffered bytes", each)
    demand(each.redelivered <= each.received, scope, "redelivered", each)
    demand(0 <= each.unconfirmed <= each.received, scope, "unconfirmed", each)


def _demand_health(demand: Any, session: bmq.Session, counts: bmq.stats.SessionStats) -> None:
    health = session.health()
    serious = [trouble for trouble in health.troubles if trouble.serious]
    demand(health.ready == (not serious), "health", health)
    demand(health.degraded == (health.ready and bool(health.troubles)), "health", health)
    demand(not health.ready or session.state is not bmq.SessionState.RECONNECTING, "health", health)
    demand((health.oldest_unacked_seconds is None) == (not counts.unacked_messages), "oldest post", health)
    for age in (health.silent_seconds, health.oldest_unacked_seconds, health.oldest_unconfirmed_seconds):
        demand(age is None or age >= 0, "ages", health)
    demand(counts.unconfirmed or health.oldest_unconfirmed_seconds is None, "oldest message", health)


def unsettled(broker: SimulatedBroker, sessions: Iterable[bmq.Session]) -> list[str]:
    """Return the wrong sums at rest, without a message, request or confirmation under way."""
    found: list[str] = []
    living = list(sessions)
    delivered: dict[str, int] = {}
    for session in living:
        found += unbalanced(session)
        if session.state is bmq.SessionState.STARTED and session.health().troubles:
            found.append(f"{session} is {session.health()}")
        for queue in session.queues:
            plain = queue.uri.partition("?")[0]
            delivered[plain] = delivered.get(plain, 0) + queue.stats().unconfirmed
    usage: dict[str, list[int]] = {}
    for uri in broker.broker.queues:
        queue = broker.broker.queues[uri]
        stored = {each.guid: each for each in queue.messages}
        size = sum(each.size for each in stored.values())
        held = usage.setdefault(queue.domain, [0, 0])
        held[0], held[1] = held[0] + len(stored), held[1] + size
        counts = queue.stats()
        if (counts.messages, counts.bytes, queue.bytes) != (len(stored), size, size):
            found.append(f"{uri} counts {counts.messages} messages of {queue.bytes} bytes, has {len(stored)}")
        if counts.posted < len(stored) or counts.posted_bytes < size:
            found.append(f"{uri} stores more than was posted: {counts}")
        for name, app in queue.apps.items():
            if not stored.keys() >= {*app.unconfirmed, *app.redelivery, *app.put_aside}:
                found.append(f"{uri} keeps deleted messages for {name}")
        if queue.unconfirmed < delivered.get(uri, 0):
            found.append(f"{uri}: {delivered[uri]} messages are at hand, {queue.unconfirmed} delivered")
        if counts.posted_bytes < counts.posted or counts.pushed_bytes < counts.pushed:
            found.append(f"{uri} counts fewer bytes than messages")
        if queue.mode != "broadcast" and counts.pushed < counts.confirmed:
            found.append(f"{uri} counts more confirmations than deliveries")
    for uri in broker.broker.queues:
        domain = broker.broker.queues[uri]._queue.domain
        meter = domain.usage
        if [meter.messages, meter.bytes] != usage[domain.config.name]:
            found.append(
                f"{domain.config.name} counts {meter.messages} messages of {meter.bytes} bytes, has "
                f"{usage[domain.config.name]}"
            )
    return found
