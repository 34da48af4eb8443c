# SPDX-License-Identifier: Apache-2.0
"""Retry policies: when to handle a failed message again, and the final action.

BlazingMQ has no negative acknowledgement, and redelivers nothing while the consumer stays connected. The
worker retries the message instead. Meanwhile the message stays unconfirmed, and the worker takes no further
message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from bmq import _checks
from bmq._backoff import backoff
from bmq.client.dead_letters import DeadLetter, GiveUp
from bmq.errors import ProtocolError, UsageError

__all__ = ["DEFAULT_RETRY", "Backoff", "NoRetry", "NoRetryOn", "RetryPolicy"]

# Time between the last attempt and the age limit: this part of the limit, and this number of seconds at most.
_PART_BEFORE, _SECONDS_BEFORE = 0.01, 1.0

#: Exceptions without a further attempt: a type, a tuple of types, or a function of the exception.
NoRetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


class RetryPolicy(Protocol):
    """Decides after each failure. Applications can write their own policies."""

    @property
    def then(self) -> GiveUp:
        """The final action for a message given up."""
        ...

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return the seconds until the next attempt; None to give up.

        Args:
            attempt: number of failures of the message so far; 1 after the first failure.
            elapsed: age of the message in seconds, since the post time if present
                (:func:`bmq.conventions.with_post_time`), or else since the arrival at this worker.
            error: exception of the handler; a TimeoutError if the handler exceeded its deadline.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRetry:
    """One attempt.

    ::

        @app.consumer(ORDERS, retry=bmq.NoRetry(then="discard"))
        async def handle(message: bmq.Message) -> None: ...

    Attributes:
        then: final action: "skip", "leave", "discard", or a :class:`DeadLetter`. "skip", the default, leaves
            the message in the queue, unconfirmed and outside the worker's limits. "leave" leaves the message
            inside the limits; limits full of such messages stop delivery. In both cases the broker delivers
            the message again once the queue is closed. "discard" confirms the message, which is then lost.

    Raises:
        UsageError: ``then`` has another value.
    """

    then: GiveUp = "skip"

    def __post_init__(self) -> None:
        check_give_up(self.then)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Give up."""
        return None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Retry with pauses: a number of times, up to an age, or both.

    With ``factor=1`` all pauses are equal (CMQ's *backoff retry*); with ``factor=2`` each pause is twice the
    previous one (with ``retries=None`` and ``blocks=True``, CMQ's *exponential decay retry*)::

        bmq.Backoff(every=5, retries=3)
        bmq.Backoff(every=1, factor=2, cap=60, retries=None, give_up_after=300)

    Attributes:
        every: seconds before the second attempt, and before each further attempt unless ``factor`` is set.
        retries: number of attempts after the first; None for no limit.
        then: final action after the last attempt, as for :class:`NoRetry`; "skip" leaves the message in the
            queue.
        factor: ratio of each pause to the previous pause.
        cap: the longest pause in seconds.
        give_up_after: maximum age of the message in seconds, usually the domain's ``messageTtl``: the broker
            silently deletes older messages, delivered or not. No attempt begins later, not even the first
            one; with ``retries=None`` the last pause is shortened to end just before the limit. The age
            counts from the post time, if present (:func:`bmq.conventions.with_post_time`), or else from the
            arrival at the worker. None for no limit.
        no_retry: exceptions after which the message is given up at once, because retries are pointless: a
            type, a tuple of types, or a function of the exception.
        durable: whether to post the message to the delay queue (see :attr:`bmq.Queue.delay_queue_uri`) and
            confirm the original, instead of holding the message in the worker. The pause survives the worker,
            other messages are handled meanwhile, and any worker may make the next attempt. The order of
            messages is lost. A mover must run; an :class:`bmq.App` with a durable policy runs one.
        blocks: whether new messages wait as long as failed ones are retried. Failed messages are retried side
            by side, up to the handler's ``concurrency``. Not for durable retries, and not for handlers with a
            key, where later messages of the key wait anyway.

    Raises:
        UsageError: a number is out of range, ``then`` or ``no_retry`` has another type, or a durable policy
            blocks.
    """

    every: float
    retries: int | None = 3
    then: GiveUp = "skip"
    factor: float = 1.0
    cap: float = 3600.0
    give_up_after: float | None = None
    no_retry: NoRetryOn = ()
    durable: bool = False
    blocks: bool = False

    def __post_init__(self) -> None:
        _set(
            self,
            every=_checks.seconds("every", self.every),
            retries=_checks.optional(_checks.integer, "retries", self.retries),
            factor=_checks.number("factor", self.factor, 1.0),
            cap=_checks.seconds("cap", self.cap, positive=True),
            give_up_after=_checks.timeout(self.give_up_after, "give_up_after"),
            durable=_checks.boolean("durable", self.durable),
            blocks=_checks.boolean("blocks", self.blocks),
        )
        if self.durable and self.blocks:
            raise UsageError("a durable retry waits in the delay queue and blocks nothing: omit blocks")
        check_give_up(self.then)
        check_no_retry(self.no_retry)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return the pause; None after the last retry, at the age limit, or if retries are pointless."""
        if (self.retries is not None and attempt > self.retries) or never(self.no_retry, error):
            return None
        pause = self.every if self.factor == 1 else backoff(attempt, self.every, self.cap, self.factor)
        if self.give_up_after is None:
            return pause
        left = self.give_up_after - elapsed
        if self.retries is None:
            # The attempt is to begin before the limit, although no pause ends exactly on time.
            left -= min(self.give_up_after * _PART_BEFORE, _SECONDS_BEFORE)
            pause = min(pause, left)
        return pause if left > 0 and pause <= left else None


def _set(policy: object, **values: object) -> None:
    """Set the checked values of a frozen policy."""
    for name, value in values.items():
        object.__setattr__(policy, name, value)


def check_give_up(then: GiveUp) -> None:
    """Check the value of ``then``.

    Raises:
        UsageError: the value is of another kind.
    """
    known = isinstance(then, str) and str.__str__(then) in ("discard", "leave", "skip")
    if not known and not isinstance(then, DeadLetter):
        raise UsageError(
            f'then must be "discard", "skip", "leave" or a DeadLetter(queue), not {_checks.shown(then)}'
        )


def check_no_retry(no_retry: object) -> None:
    """Check the value of ``no_retry``.

    Raises:
        UsageError: the value is of another kind.
    """
    given: Any = no_retry
    if isinstance(no_retry, tuple):
        good = all(_is_exception(kind) for kind in cast("tuple[object, ...]", no_retry))
    else:
        good = _is_exception(no_retry) if isinstance(no_retry, type) else callable(no_retry)
    if not good:
        raise UsageError(
            "no_retry must be an exception type, a tuple of them, or a function of an exception, not "
            f"{_checks.shown(given)}"
        )
    if not isinstance(no_retry, type | tuple):
        _checks.function("no_retry", no_retry, 1, plain=True)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def never(no_retry: NoRetryOn, error: BaseException) -> bool:
    """Whether another attempt is pointless after this error."""
    if isinstance(no_retry, type | tuple):
        return isinstance(error, no_retry)
    return no_retry(error)


# Errors bound to recur with the same message: the message is malformed, or the handler has a bug.
_SAME_AGAIN = (ValueError, TypeError, LookupError, AttributeError, ProtocolError)


def same_again(error: BaseException) -> bool:
    """Whether another attempt would fail in the same way. Any other error may be an outage."""
    return isinstance(error, _SAME_AGAIN)


#: The default policy. No message is lost: the policy gives up without confirming.
DEFAULT_RETRY = Backoff(every=1.0, factor=2.0, retries=4, no_retry=same_again)
