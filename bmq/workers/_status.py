# SPDX-License-Identifier: Apache-2.0
"""Status of subscribers: a state and counts for each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

from bmq import _checks, _world
from bmq.client.consumer import Consumer
from bmq.client.health import HandlerReport, Trouble
from bmq.protocol.client.core import SessionState

if TYPE_CHECKING:
    from bmq.workers._workers import Workers

__all__ = [
    "Progress",
    "Statuses",
    "SubscriberState",
    "SubscriberStatus",
    "expect",
    "status",
    "watched",
    "workers_of",
]


# Messages in a row without a success that make a trouble, and seconds without a success that make it serious.
_IN_A_ROW: Final = 3
_SERIOUS_AFTER: Final = 5.0
# Seconds until failures are forgotten if no message follows.
_MEMORY: Final = 60.0


class SubscriberState(Enum):
    """The state of a subscriber.

    Attributes:
        JOINING: the handler does not get messages yet: the app starts, or the member of a group has no answer
            of the leader, or does not hold all of its buckets yet.
        ACTIVE: messages are handled on arrival.
        FAILING: the last finished message was given up, or a failed message waits for the next attempt.
            Further messages are handled meanwhile.
        BLOCKED: no message is handled before a retry or a confirmation. Either all workers wait: for the next
            attempt, for a thread beyond the deadline, or for capacity in the queue for dead letters; or
            unhandled messages fill the limits.
        STALLED: the session is connected, but the broker is silent, or does not answer a post or a request.
            :meth:`bmq.Session.health` has the cause.
        LOST: the connection is lost. Unconfirmed messages are redelivered, here or to other consumers.
        CLOSED: the subscriber receives no more messages.
    """

    JOINING = "joining"
    ACTIVE = "active"
    FAILING = "failing"
    BLOCKED = "blocked"
    STALLED = "stalled"
    LOST = "connection lost"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Progress:
    """Counts of the workers of one consumer.

    Attributes:
        handler: name of the handler.
        workers: number of workers.
        handled: messages that the handler has finished.
        attempts_failed: unsuccessful attempts.
        given_up: messages without a further attempt.
        handling: messages in the hands of a worker.
        hung: workers with a thread still running after the deadline.
        joining_since: since when the handler gets no messages of its group; None if it gets them.
        failing_since: time of the first failure since the latest success, if any.
        failed_at: time of the latest failure.
        gone: messages finished without a success since ``failing_since``.
        given_up_in_a_row: messages given up since ``failing_since``, and not by the decision of a handler.
        hung_since: since when a thread runs after the deadline.
    """

    handler: str
    workers: int = 0
    handled: int = 0
    attempts_failed: int = 0
    given_up: int = 0
    handling: int = 0
    hung: int = 0
    joining_since: datetime | None = None
    failing_since: datetime | None = None
    failed_at: datetime = field(default_factory=lambda: _world.now())
    gone: int = 0
    given_up_in_a_row: int = 0
    hung_since: datetime = field(default_factory=lambda: _world.now())

    def failed(self) -> None:
        """Note a failed attempt."""
        self.failed_at = _world.now()
        if self.failing_since is None:
            self.failing_since = self.failed_at
            self.gone = self.given_up_in_a_row = 0


def workers_of(consumer: Consumer) -> Workers | None:
    """Return the workers of a consumer, past or present, if any."""
    return cast("Workers | None", consumer._buffer.workers)


def expect(consumer: Consumer, handler: str) -> None:
    """Count the session as not ready while the consumer has no workers."""
    trouble = Trouble(f"{handler} of {consumer.queue.uri} does not run", _world.now(), True)
    consumer.queue.session._connection.health.handlers[consumer] = lambda: HandlerReport(trouble)


@contextmanager
def watched(consumer: Consumer, workers: Workers) -> Generator[None]:
    """Show the workers of a consumer in its status, and inside the block in the health of the session."""
    consumer._buffer.workers = workers
    handlers = consumer.queue.session._connection.health.handlers
    before = handlers.pop(consumer, None)
    handlers[consumer] = lambda: _report(consumer, workers)
    try:
        yield
    finally:
        del handlers[consumer]
        if before is not None:
            handlers[consumer] = before


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """Status of one subscriber.

    Attributes:
        queue: URI of the queue.
        subscription: expressions of the subscription, joined by ``|``; "" for all messages.
        handler: name of the handler; "" for a consumer without workers.
        state: state of the subscriber.
        waiting: arrived messages not yet taken by a worker.
        unconfirmed: arrived messages without a confirmation, including ``waiting``.
        limit: maximum number of unconfirmed messages.
        handling: messages in the hands of a handler, or waiting for the next attempt.
        failing: messages in ``handling`` with a failed attempt.
        left: messages finished without a confirmation: left or skipped.
        handled: messages handled successfully.
        attempts_failed: unsuccessful attempts.
        given_up: messages given up: left in the queue, put aside or discarded.
        hung: workers blocked by a thread still running after the deadline.
    """

    queue: str
    subscription: str
    handler: str
    state: SubscriberState
    waiting: int
    unconfirmed: int
    limit: int
    handling: int = 0
    failing: int = 0
    left: int = 0
    handled: int = 0
    attempts_failed: int = 0
    given_up: int = 0
    hung: int = 0


class Statuses(tuple[SubscriberStatus, ...]):
    """The statuses of several subscribers; as text, a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [tuple(_COLUMNS), *(tuple(str(cell(each)) for cell in _COLUMNS.values()) for each in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        return "\n".join(
            "  ".join(
                cell.ljust(width) if index < _TEXTS else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


_COLUMNS: dict[str, Callable[[SubscriberStatus], object]] = {
    "subscriber": lambda each: each.handler or each.queue,
    "subscription": lambda each: each.subscription or "(everything)",
    "status": lambda each: each.state.value,
    "waiting": attrgetter("waiting"),
    "unconfirmed": attrgetter("unconfirmed"),
    "failing": attrgetter("failing"),
    "left": attrgetter("left"),
    "handled": attrgetter("handled"),
    "given up": attrgetter("given_up"),
}
_TEXTS = 3


def status(*consumers: Consumer) -> Statuses:
    """Return the status of consumers, with or without workers.

    ::

        print(bmq.workers.status(*queue.consumers))

    For a consumer without workers, the status has the unconfirmed messages, but no failures.
    """
    for each in consumers:
        _checks.choice("a consumer", each, Consumer)
    return Statuses(_status(each, workers_of(each)) for each in consumers)


# The attributes that are those of Progress.
_COUNTS = ("handler", "handling", "handled", "attempts_failed", "given_up", "hung")
_LOST = frozenset({SessionState.STARTING, SessionState.RECONNECTING, SessionState.DRAINING_LOST})


def _status(consumer: Consumer, workers: Workers | None) -> SubscriberStatus:
    state, _ = _judged(consumer, workers)
    if state is not SubscriberState.BLOCKED and consumer.queue.session._connection.core.stalled:
        state = SubscriberState.STALLED
    if consumer.queue.session.state in _LOST:
        state = SubscriberState.LOST
    if consumer.closed or consumer.queue.closed:
        state = SubscriberState.CLOSED
    progress = workers.progress if workers is not None else Progress("")
    return SubscriberStatus(
        queue=consumer.queue.uri,
        subscription=" | ".join(filter(None, consumer.expressions)),
        state=state,
        waiting=consumer.buffered,
        unconfirmed=consumer.stats().unconfirmed,
        limit=consumer.options.max_unconfirmed_messages,
        failing=workers.failing if workers is not None else 0,
        left=workers._left.count if workers is not None else 0,
        **{name: getattr(progress, name) for name in _COUNTS},
    )


def _report(consumer: Consumer, workers: Workers) -> HandlerReport:
    state, trouble = _judged(consumer, workers)
    since = workers.progress.failing_since
    failing = (_world.now() - since).total_seconds() if since is not None else 0.0
    return HandlerReport(trouble, state is SubscriberState.BLOCKED, max(failing, 0.0), workers.oldest)


def _judged(consumer: Consumer, workers: Workers | None) -> tuple[SubscriberState, Trouble | None]:
    """Return the state of a connected subscriber, and the reason why no work gets done, if any.

    ``status()`` shows the state, and the health of the session the reason.
    """
    if workers is None:
        if consumer in consumer.queue.session._connection.health.handlers:
            return SubscriberState.JOINING, None  # see expect()
        full = consumer.stats().unconfirmed >= consumer.options.max_unconfirmed_messages > 0
        return SubscriberState.BLOCKED if full else SubscriberState.ACTIVE, None
    progress, now = workers.progress, _world.now()
    name = f"{progress.handler} of {consumer.queue.uri}"
    if workers._group is None or workers._group.stats().settled:
        progress.joining_since = None
    else:
        progress.joining_since = progress.joining_since or now
        what = f"{name} waits for its buckets"
        return SubscriberState.JOINING, Trouble(what, progress.joining_since, True)
    failing = workers.failing
    since, idle = progress.failing_since, not (progress.handling or failing or consumer.buffered)
    if since is not None and idle and (now - progress.failed_at).total_seconds() > _MEMORY:
        since = progress.failing_since = None
    blocked = workers.blocked
    state = SubscriberState.BLOCKED if blocked else SubscriberState.ACTIVE
    if not blocked and (failing or (since is not None and progress.gone)):
        state = SubscriberState.FAILING
    if since is not None and progress.given_up_in_a_row >= _IN_A_ROW:
        what = f"the latest {progress.given_up_in_a_row:,} messages of {name} were given up"
        return state, Trouble(what, since, True)
    if progress.hung:
        what = (
            f"{progress.hung} of {progress.workers} workers of {progress.handler} take no messages: "
            "their threads still run after the deadline"
        )
        long = (now - progress.hung_since).total_seconds() >= _SERIOUS_AFTER
        return state, Trouble(what, progress.hung_since, blocked and long)
    if since is not None:
        long = (now - since).total_seconds() >= _SERIOUS_AFTER
        if blocked:
            return state, Trouble(f"{name} is blocked: no attempt succeeds", since, long)
        if progress.gone + failing >= _IN_A_ROW:
            return state, Trouble(f"every attempt of {name} fails", since, long)
    return state, None
