"""Retry policies: when a message whose handler failed is handled again, and what becomes of it in the end.

BlazingMQ knows no negative acknowledgement and redelivers nothing by itself while a consumer stays. So a
retry happens here, around a message that stays unconfirmed; the worker that has it takes no other meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bmq.errors import UsageError
from bmq.workers.failure import DeadLetter, GiveUp

__all__ = ["Backoff", "ExponentialDecay", "NoRetry", "RetryPolicy"]

# Beyond this many doublings every cap is reached; a float would overflow.
_MAX_EXPONENT = 60


class RetryPolicy(Protocol):
    """Decides after each failure; write your own if none of these fits."""

    @property
    def then(self) -> GiveUp:
        """What becomes of a message that is not tried again."""
        ...

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Return how many seconds to wait before the next attempt; None to give up.

        Args:
            attempt: how often the message was tried, 1 after its first failure.
            elapsed: seconds since this worker took it.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRetry:
    """One attempt.

    Attributes:
        then: "leave", "discard", or a :class:`DeadLetter`. What is left stays unconfirmed, counts against the
            consumer's limit, and is delivered again once its queue is closed.

    Raises:
        UsageError: ``then`` is none of these.
    """

    then: GiveUp = "leave"

    def __post_init__(self) -> None:
        check_give_up(self.then)

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Give up."""
        return None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Again every so many seconds, so many times; then the next message (CMQ's *backoff retry*).

    Attributes:
        every: seconds between attempts.
        retries: attempts after the first.
        then: what becomes of the message after the last: "discard", "leave", or a :class:`DeadLetter`.

    Raises:
        UsageError: a number is negative, or ``then`` is none of these.
    """

    every: float
    retries: int = 3
    then: GiveUp = "discard"

    def __post_init__(self) -> None:
        if self.every < 0 or self.retries < 0:
            raise UsageError(f"Backoff: every={self.every} and retries={self.retries} cannot be negative")
        check_give_up(self.then)

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Return ``every``, or None after the last retry."""
        return self.every if attempt <= self.retries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDecay:
    """Again after ever longer pauses, until the message's time is over (CMQ's *exponential decay retry*).

    The worker is blocked by the message until then.

    Attributes:
        give_up_after: seconds until the message is given up, from when the worker took it: the domain's
            ``messageTtl``. The broker deletes a message then, held or not, and tells nobody.
        first: seconds before the second attempt.
        factor: how much longer each pause is than the one before.
        cap: the longest pause in seconds.
        then: what becomes of the message: "discard" (a confirmation of what the broker has deleted only frees
            the place it takes here), "leave", or a :class:`DeadLetter`.

    Raises:
        UsageError: a number is out of its range, or ``then`` is none of these.
    """

    give_up_after: float
    first: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    then: GiveUp = "discard"

    def __post_init__(self) -> None:
        if self.first <= 0 or self.factor < 1 or self.cap <= 0 or self.give_up_after < 0:
            raise UsageError(
                "ExponentialDecay: first and cap are above 0, factor is 1 or more, give_up_after is not "
                f"negative; got {self}"
            )
        check_give_up(self.then)

    def delay(self, attempt: int, elapsed: float) -> float | None:
        """Return the pause, cut so that the last attempt is made when the time is over; None after it."""
        left = self.give_up_after - elapsed
        if left <= 0:
            return None
        return min(self.first * self.factor ** min(attempt - 1, _MAX_EXPONENT), self.cap, left)


def check_give_up(then: GiveUp) -> None:
    """Raise unless this says what becomes of a message.

    Raises:
        UsageError: it does not.
    """
    if not isinstance(then, DeadLetter) and then not in ("discard", "leave"):
        raise UsageError(f'then is "discard", "leave" or a DeadLetter(queue), not {then!r}')
