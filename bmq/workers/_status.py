# SPDX-License-Identifier: Apache-2.0
"""How subscribers are doing: one word for each, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast

from bmq import _checks
from bmq.client.consumer import Consumer, line_of
from bmq.protocol.client.core import SessionState

__all__ = ["Progress", "Statuses", "SubscriberState", "SubscriberStatus", "status", "tell"]


class SubscriberState(Enum):
    """How a subscriber is doing.

    Attributes:
        ACTIVE: it takes what comes.
        FAILING: the last message it was done with was given up, or one has failed and is to be tried again;
            others are handled meanwhile.
        BLOCKED: nothing moves before a message is tried again, or is confirmed: all workers wait for their
            next attempt, for a thread that goes on after its deadline, or for room in the queue for dead
            letters; or the limits are full of messages that nobody handles.
        STALLED: the session is connected, and the broker is silent, or does not answer a post or a request;
            :meth:`bmq.Session.health` says which.
        LOST: there is no connection; what it had is delivered again, here or to others.
        CLOSED: it gets nothing any more.
    """

    ACTIVE = "active"
    FAILING = "failing"
    BLOCKED = "blocked"
    STALLED = "stalled"
    LOST = "connection lost"
    CLOSED = "closed"


class Progress:
    """What the workers of one consumer have done, and are at.

    Attributes:
        handler: its name.
        workers: how many there are.
        handled: messages that the handler has returned from.
        attempts_failed: attempts that did not succeed.
        given_up: messages that are not tried again.
        handling: messages that a worker has.
        failing: of these, those that have failed and are tried again.
        parked: of those, messages that wait for their next attempt and keep no worker.
        stuck: workers that wait for room in the queue for dead letters.
        hung: workers whose thread goes on after its deadline.
        failed_last: the last message that a worker was done with was given up.
    """

    __slots__ = (
        "attempts_failed",
        "failed_last",
        "failing",
        "given_up",
        "handled",
        "handler",
        "handling",
        "hung",
        "parked",
        "stuck",
        "workers",
    )

    def __init__(self, handler: str, workers: int) -> None:
        self.handler = handler
        self.workers = workers
        self.handled = self.attempts_failed = self.given_up = 0
        self.handling = self.failing = self.parked = self.stuck = self.hung = 0
        self.failed_last = False


class Worker(Protocol):
    """What is known of the workers of one consumer."""

    @property
    def progress(self) -> Progress:
        """What they have done."""
        ...

    @property
    def left(self) -> int:
        """How many messages they have left in the queue, unconfirmed."""
        ...

    @property
    def full(self) -> bool:
        """Whether what they have left fills the limits."""
        ...


def tell(consumer: Consumer, worker: Worker) -> None:
    """Note who handles a consumer's messages."""
    line_of(consumer).workers = worker


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """How one subscriber is doing.

    Attributes:
        queue: the URI of its queue.
        subscription: its expressions, joined by ``|``; "" for everything.
        handler: the name of its handler; "" for a consumer that no worker feeds from.
        state: in one word.
        waiting: messages that have arrived and that nobody has looked at yet.
        unconfirmed: messages that have arrived and are not confirmed, those that wait included.
        limit: how many messages it may have unconfirmed.
        handling: messages that its handler has now, or that wait for their next attempt.
        failing: those of ``handling`` that have failed before.
        left: messages that are done with and not confirmed: left or skipped.
        handled: messages that were handled.
        attempts_failed: attempts that did not succeed.
        given_up: messages that were given up, put aside or discarded.
        hung: workers that take nothing, because their thread goes on after its deadline.
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
        rows = [_HEAD, *[_row(each) for each in self]]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        rows.insert(1, tuple("-" * width for width in widths))
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < _TEXTS else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


_HEAD = (
    "subscriber",
    "subscription",
    "status",
    "waiting",
    "unconfirmed",
    "failing",
    "left",
    "handled",
    "given up",
)
_TEXTS = 3


def _row(status: SubscriberStatus) -> tuple[str, ...]:
    numbers = (
        status.waiting,
        status.unconfirmed,
        status.failing,
        status.left,
        status.handled,
        status.given_up,
    )
    name = status.handler or status.queue
    return (name, status.subscription or "(everything)", status.state.value, *map(str, numbers))


def status(*consumers: Consumer) -> Statuses:
    """Say how consumers are doing: those that :func:`bmq.consume` or an app feeds from, and any others.

    ::

        print(bmq.workers.status(*queue.consumers))

    Of a consumer that is not fed from, it is known how much is unconfirmed, not whether anything fails.
    """
    for each in consumers:
        _checks.choice("a consumer", each, Consumer)
    return Statuses(_status(each, cast("Worker | None", line_of(each).workers)) for each in consumers)


_LOST = frozenset({SessionState.STARTING, SessionState.RECONNECTING, SessionState.DRAINING_LOST})


def _status(consumer: Consumer, worker: Worker | None) -> SubscriberStatus:
    state = _working(consumer, worker)
    if state is not SubscriberState.BLOCKED and line_of(consumer).end.driver.core.stalled:
        state = SubscriberState.STALLED
    if consumer.queue.session.state in _LOST:
        state = SubscriberState.LOST
    if consumer.closed or consumer.queue.closed:
        state = SubscriberState.CLOSED
    progress = worker.progress if worker is not None else Progress("", 0)
    return SubscriberStatus(
        queue=consumer.queue.uri,
        subscription=" | ".join(filter(None, consumer.expressions)),
        handler=progress.handler,
        state=state,
        waiting=consumer.buffered,
        unconfirmed=consumer.stats().unconfirmed,
        limit=consumer.options.max_unconfirmed_messages,
        handling=progress.handling,
        failing=progress.failing,
        left=worker.left if worker is not None else 0,
        handled=progress.handled,
        attempts_failed=progress.attempts_failed,
        given_up=progress.given_up,
        hung=progress.hung,
    )


def _working(consumer: Consumer, worker: Worker | None) -> SubscriberState:
    """The state while there is a connection."""
    if worker is None:
        full = consumer.stats().unconfirmed >= consumer.options.max_unconfirmed_messages > 0
        return SubscriberState.BLOCKED if full else SubscriberState.ACTIVE
    progress = worker.progress
    if worker.full or progress.failing - progress.parked + progress.stuck >= progress.workers:
        return SubscriberState.BLOCKED
    failing = progress.failing or progress.failed_last
    return SubscriberState.FAILING if failing else SubscriberState.ACTIVE
