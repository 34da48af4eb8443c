# SPDX-License-Identifier: Apache-2.0
"""Retry policies: when to handle a failed message again, where it waits meanwhile, and the final action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bmq import _checks
from bmq._checks import INT32_MAX
from bmq._dead_letters import DeadLetter, Failure, GiveUp, Poison, guid_of, integer_of, origin_of
from bmq._log_limit import LogLimit
from bmq.client.message import Message
from bmq.conventions import ATTEMPTS, ERROR, ORIGIN, derived_guid
from bmq.errors import Error, ProtocolError, UsageError
from bmq.protocol.deadlines import backoff
from bmq.wire.constants import PropertyType
from bmq.wire.printable import described, error_text
from bmq.wire.properties import PropertyInput, PropertyValue

__all__ = [
    "DEFAULT_RETRY",
    "Backoff",
    "Clock",
    "LoopClock",
    "NoRetry",
    "NoRetryOn",
    "PartlyFailed",
    "Reject",
    "RetryAfter",
    "RetryPolicy",
    "attempts_so_far",
    "checked_clock",
    "is_durable",
    "post_again",
    "put_off",
]

# ---- The clock of the workers. Tests replace the clock to avoid waiting


class Clock(Protocol):
    """A clock: measures time and sleeps."""

    def time(self) -> float:
        """Return the time in seconds, from any starting point."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds on this clock.

        Cancelling the call ends the wait at once.
        """
        ...


class LoopClock:
    """The clock of the running event loop."""

    def time(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Sleep for a number of seconds. Cancelling the call ends the sleep at once."""
        await asyncio.sleep(seconds)


def checked_clock(clock: Clock | None) -> Clock | None:
    """Return the clock for pauses, or None.

    Raises:
        UsageError: the object has no ``time()`` and ``sleep()``.
    """
    if clock is not None and not (
        callable(getattr(type(clock), "time", None)) and callable(getattr(type(clock), "sleep", None))
    ):
        raise UsageError(f"clock must have the methods time and sleep, and {_checks.shown(clock)} does not")
    return clock


# ---- Exceptions for handlers to end an attempt on purpose


class Reject(Exception):
    """Raised by a handler to give up a message: no further attempt is made.

    The ``then`` of the retry policy applies at once, regardless of the attempts left: the message becomes a
    dead letter, is discarded, or by default stays in the queue. In a group, whose keys keep their order, a
    message without a dead letter or ``then="discard"`` is tried again instead, and its key waits. ::

        @app.consumer(
            "bmq://bmq.test.mem.priority/orders",
            retry=bmq.Backoff(5, then=bmq.DeadLetter(dead)),
        )
        async def ship(message: bmq.Message) -> None:
            if "OrderType" not in message.properties:
                raise bmq.Reject("no OrderType")

    Not a :class:`bmq.Error`, so that ``except bmq.Error`` in a handler does not catch the exception.

    Args:
        reason: for the log, and for ``bmq_dead_error``.
    """

    def __init__(self, reason: str = "") -> None:
        reason = _checks.text("reason", reason)
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Exception):
    """Raised by a handler to request another attempt after a number of seconds.

    The attempt does not count as a failure, and the retry policy is not involved. A handler raising this
    exception every time is called for ever, and the worker takes no further message meanwhile.

    ::

        @app.consumer(ORDERS)
        async def handle(message: bmq.Message) -> None:
            if not shop.is_open:
                raise bmq.RetryAfter(60)

    Args:
        seconds: pause before the next attempt, 0 or more.
        reason: for the log.

    Raises:
        UsageError: ``seconds`` is negative.
    """

    def __init__(self, seconds: float, reason: str = "") -> None:
        seconds, reason = _checks.seconds("seconds", seconds), _checks.text("reason", reason)
        super().__init__(seconds, reason)
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"in {self.seconds:g} s"


class PartlyFailed(Exception):
    """Raised by a handler of batches after a partial failure of the batch.

    All remaining messages are confirmed. The retry policy decides, by the error of each failed message,
    whether the message is retried in a batch of failed messages or given up. ::

        @app.batch_consumer("bmq://bmq.test.mem.priority/orders")
        async def load(orders: list[Order]) -> None:
            failed = {index: error for index, error in await insert(orders)}
            if failed:
                raise bmq.PartlyFailed(failed)

    Not a :class:`bmq.Error`, so that ``except bmq.Error`` in a handler does not catch the exception.

    Args:
        failed: exceptions by index in the handler's list, in the order in which the handler leaves the list.
    """

    def __init__(self, failed: Mapping[int, BaseException]) -> None:
        for index, error in _checks.mapping("failed", failed, "indexes to errors").items():
            _checks.integer("the index of a failed message", index)
            if not isinstance(error, BaseException):
                raise UsageError(
                    f"failed must contain an exception for each index, not {_checks.shown(error)}: "
                    "bmq.PartlyFailed({index: error})"
                )
        if not failed:
            raise UsageError("PartlyFailed needs a failed message: return from the handler if all succeeded")
        super().__init__(dict(failed))
        self.failed = dict(failed)

    def __str__(self) -> str:
        kinds = sorted({type(error).__name__ for error in self.failed.values()})
        return f"{len(self.failed)} of a batch failed: {', '.join(kinds)}"


# ---- Retry policies: when to handle a failed message again, and the final action
#
# BlazingMQ has no negative acknowledgement, and redelivers nothing while the consumer stays connected. The
# worker retries the message instead. Meanwhile the message stays unconfirmed, and the worker takes no further
# message.

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
        for name, value in (
            ("every", _checks.seconds("every", self.every)),
            ("retries", _checks.optional(_checks.integer, "retries", self.retries)),
            ("factor", _checks.number("factor", self.factor, 1.0)),
            ("cap", _checks.seconds("cap", self.cap, positive=True)),
            ("give_up_after", _checks.timeout(self.give_up_after, "give_up_after")),
            ("durable", _checks.boolean("durable", self.durable)),
            ("blocks", _checks.boolean("blocks", self.blocks)),
        ):
            object.__setattr__(self, name, value)
        if self.durable and self.blocks:
            raise UsageError("a durable retry waits in the delay queue and blocks nothing: omit blocks")
        check_give_up(self.then)
        if callable(self.no_retry) and not isinstance(self.no_retry, type):
            _checks.function("no_retry", self.no_retry, 1, plain=True)
        else:
            _checks.exceptions("no_retry", self.no_retry)

    def delay(self, attempt: int, elapsed: float, error: BaseException) -> float | None:
        """Return the pause; None after the last retry, at the age limit, or if retries are pointless."""
        if self.retries is not None and attempt > self.retries:
            return None
        never = self.no_retry
        if isinstance(error, never) if isinstance(never, type | tuple) else never(error):
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


# Errors bound to recur with the same message: the message is malformed, or the handler has a bug.
_SAME_AGAIN = (ValueError, TypeError, LookupError, AttributeError, ProtocolError)


def same_again(error: BaseException) -> bool:
    """Whether another attempt would fail in the same way. Any other error may be an outage."""
    return isinstance(error, _SAME_AGAIN)


#: The default policy. No message is lost: the policy gives up without confirming.
DEFAULT_RETRY = Backoff(every=1.0, factor=2.0, retries=4, no_retry=same_again)


# ---- Durable retries: the message waits in the delay queue until the next attempt


def is_durable(policy: RetryPolicy) -> bool:
    """Whether messages wait in the broker between attempts."""
    return bool(getattr(policy, "durable", False))


def attempts_so_far(message: Message, policy: RetryPolicy) -> int:
    """Return the number of attempts before a message came back.

    A delayed message has several properties that agree. The number is trusted up to the policy's number of
    retries. A number without the other properties, as a producer might set it, is ignored.
    """
    try:
        attempts = integer_of(message, ATTEMPTS, 1, INT32_MAX)
        if attempts is None or guid_of(message, ORIGIN) is None or ERROR not in message.properties:
            return 0
    except Poison:
        return 0
    most: int | None = getattr(policy, "retries", None)
    return attempts if most is None else min(attempts, int(most))


async def post_again(
    message: Message, added: dict[str, PropertyInput], *names: str, delay: float | None = None
) -> None:
    """Post a message to its queue again; a repeated call posts the same message.

    Args:
        message: the message.
        added: further properties.
        names: tell repeated posts of a message apart.
        delay: seconds until the queue receives the message; None to post it at once.
    """
    properties = {**message.properties.typed(), **added, ORIGIN: origin_of(message)}
    output = await message.consumer.queue.session.open_output(message.queue_uri)
    guid = derived_guid(message.guid, message.queue_uri, *names)
    await output.post(message.data, properties=properties, guid=guid, delay=delay)


async def put_off(failure: Failure, log: LogLimit) -> bool:
    """Post a message to the delay queue, due at its next attempt, and confirm the message.

    Returns:
        True if the message was posted and confirmed. If False, the message is still here, and the log has the
        reason.

    After a cancellation the message may or may not be in the delay queue; a repeated call posts the same
    message.
    """
    message = failure.message
    tried = failure.attempt - isinstance(failure.error, RetryAfter)
    try:
        added: dict[str, PropertyInput] = {
            ATTEMPTS: PropertyValue(PropertyType.INT32, tried),
            ERROR: error_text(failure.error),
        }
        await post_again(message, added, "attempt", str(failure.attempt), delay=failure.retry_in)
    except Error as error:
        log.warning(
            ("put off", type(error)),
            "message %s of %s cannot wait in %s, and waits in the worker for its next attempt: %s",
            message.guid,
            message.queue_uri,
            message.consumer.queue.delay_queue_uri,
            described(error),
        )
        return False
    message.confirm()
    return True
