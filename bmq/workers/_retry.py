# SPDX-License-Identifier: Apache-2.0
"""Retry policies: when a message whose handler failed is handled again, and what becomes of it in the end.

BlazingMQ knows no negative acknowledgement and redelivers nothing by itself while a consumer stays. So a
retry happens here, around a message that stays unconfirmed; the worker that has it takes no other meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from bmq import _checks
from bmq._backoff import backoff
from bmq.client.dead_letters import DeadLetter, GiveUp
from bmq.errors import ProtocolError, StateError, UsageError

__all__ = ["DEFAULT_RETRY", "Backoff", "ExponentialDecay", "NoRetry", "NoRetryOn", "RetryPolicy"]

#: Exceptions after which no further attempt is made: a type, several, or a function that is asked.
NoRetryOn: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


class RetryPolicy(Protocol):
    """Decides after each failure; write your own if none of these fits."""

    @property
    def then(self) -> GiveUp:
        """What becomes of a message that is not tried again."""
        ...

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return how many seconds to wait before the next attempt; None to give up.

        Args:
            attempt: how often the handler has failed on the message, 1 after its first failure.
            elapsed: the message's age in seconds: since it was posted, if it has a post time
                (:func:`bmq.conventions.with_post_time`), else since this worker took it.
            error: what the handler raised; a TimeoutError when it missed its deadline.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRetry:
    """One attempt.

    Attributes:
        then: "leave", "skip", "discard", or a :class:`DeadLetter`. "leave" keeps the message unconfirmed and
            inside the window; a window full of such messages stops delivery. "skip" keeps the message
            unconfirmed beside the window. Both are delivered again once the queue is closed.

    Raises:
        UsageError: ``then`` is none of these.
    """

    then: GiveUp = "leave"

    def __post_init__(self) -> None:
        check_give_up(self.then)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Give up."""
        return None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Try again after fixed pauses, a number of times; then go on (CMQ's *backoff retry*).

    Attributes:
        every: seconds before the second attempt, and between all others unless ``factor`` says otherwise.
        retries: attempts after the first.
        then: what becomes of the message after the last: "discard", "skip", "leave", or a
            :class:`DeadLetter`.
        factor: how much longer each pause is than the one before.
        cap: the longest pause in seconds.
        give_up_after: the age in seconds that no attempt is made beyond, counted as by
            :class:`ExponentialDecay`: the domain's ``messageTtl``. None for no such limit.
        no_retry: what can never succeed: exceptions after which the message is given up at once. A type,
            several of them, or a function that takes the exception.
        durable: post the message to the delay queue of its queue (see :attr:`bmq.Queue.delay_queue_uri`) and
            confirm it, instead of holding it here: the pause survives the worker, other messages go on, and
            any worker may make the next attempt. The order of messages is given up. A mover has to pass it
            on, which an :class:`bmq.App` with such a policy brings.

    Raises:
        UsageError: a number is out of its range, ``then`` or ``no_retry`` is none of these.
    """

    every: float
    retries: int = 3
    then: GiveUp = "discard"
    factor: float = 1.0
    cap: float = 3600.0
    give_up_after: float | None = None
    no_retry: NoRetryOn = ()
    durable: bool = False

    def __post_init__(self) -> None:
        _set(
            self,
            every=_checks.seconds("every", self.every),
            retries=_checks.integer("retries", self.retries),
            factor=_checks.number("factor", self.factor, 1.0),
            cap=_checks.seconds("cap", self.cap, positive=True),
            give_up_after=_checks.timeout(self.give_up_after, "give_up_after"),
            durable=_checks.boolean("durable", self.durable),
        )
        check_give_up(self.then)
        check_no_retry(self.no_retry)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return the pause; None after the last retry, at the end of its life, and where none can succeed."""
        if attempt > self.retries or never(self.no_retry, error):
            return None
        pause = self.every if self.factor == 1 else backoff(attempt, self.every, self.cap, self.factor)
        if self.give_up_after is not None and elapsed + pause > self.give_up_after:
            return None
        return pause


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDecay:
    """Try again after ever longer pauses, until the message's time is over (CMQ's *exponential decay retry*).

    The worker is blocked by the message until then.

    Attributes:
        give_up_after: the age in seconds at which the message is given up: the domain's ``messageTtl``. The
            broker deletes a message then, delivered or not, and tells nobody. The age is counted from its
            post time if it has one (:func:`bmq.conventions.with_post_time`), else from when the worker
            took it.
        first: seconds before the second attempt.
        factor: how much longer each pause is than the one before.
        cap: the longest pause in seconds.
        then: what becomes of the message: "discard" (a confirmation of what the broker has deleted only frees
            the place it takes here), "skip", "leave", or a :class:`DeadLetter`.
        no_retry: what can never succeed, as for :class:`Backoff`.

    Raises:
        UsageError: a number is out of its range, ``then`` or ``no_retry`` is none of these.
    """

    give_up_after: float
    first: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    then: GiveUp = "discard"
    no_retry: NoRetryOn = ()

    def __post_init__(self) -> None:
        _set(
            self,
            give_up_after=_checks.seconds("give_up_after", self.give_up_after),
            first=_checks.seconds("first", self.first, positive=True),
            factor=_checks.number("factor", self.factor, 1.0),
            cap=_checks.seconds("cap", self.cap, positive=True),
        )
        check_give_up(self.then)
        check_no_retry(self.no_retry)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return the pause, cut so that the last attempt is made when the time is over; None after it."""
        left = self.give_up_after - elapsed
        if left <= 0 or never(self.no_retry, error):
            return None
        return min(backoff(attempt, self.first, self.cap, self.factor), left)


def _set(policy: object, **values: object) -> None:
    """Give a frozen policy its checked values."""
    for name, value in values.items():
        object.__setattr__(policy, name, value)


def check_give_up(then: GiveUp) -> None:
    """Check that this says what becomes of a message.

    Raises:
        UsageError: it does not.
    """
    known = isinstance(then, str) and str.__str__(then) in ("discard", "leave", "skip")
    if not known and not isinstance(then, DeadLetter):
        raise UsageError(
            f'then is "discard", "skip", "leave" or a DeadLetter(queue), not {_checks.shown(then)}'
        )


def check_no_retry(no_retry: object) -> None:
    """Check that this says after which exceptions there is no further attempt.

    Raises:
        UsageError: it does not.
    """
    given: Any = no_retry
    if isinstance(no_retry, tuple):
        good = all(_is_exception(kind) for kind in cast("tuple[object, ...]", no_retry))
    else:
        good = _is_exception(no_retry) if isinstance(no_retry, type) else callable(no_retry)
    if not good:
        raise UsageError(
            "no_retry is an exception type, a tuple of them, or a function of an exception, not "
            f"{_checks.shown(given)}"
        )
    if not isinstance(no_retry, type | tuple):
        _checks.function("no_retry", no_retry, 1, plain=True)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def never(no_retry: NoRetryOn, error: BaseException) -> bool:
    """Whether there is no point in another attempt after this error."""
    if isinstance(no_retry, type | tuple):
        return isinstance(error, no_retry)
    return no_retry(error)


# Errors that the same message causes again: it is malformed, or the handler has a bug.
_SAME_AGAIN = (ValueError, TypeError, LookupError, AttributeError, UsageError, ProtocolError)


def same_again(error: BaseException) -> bool:
    """Whether another attempt would fail in the same way; any other error may be an outage."""
    return isinstance(error, _SAME_AGAIN) and not isinstance(error, StateError)


#: The policy where none is given. It loses nothing: it gives up without confirming.
DEFAULT_RETRY = Backoff(every=1.0, factor=2.0, retries=4, then="skip", no_retry=same_again)
