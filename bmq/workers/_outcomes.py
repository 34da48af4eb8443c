# SPDX-License-Identifier: Apache-2.0
"""Exceptions for handlers to end an attempt on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from bmq import _checks
from bmq.errors import UsageError

__all__ = ["PartlyFailed", "Reject", "RetryAfter"]


class Reject(Exception):
    """Raised by a handler to give up a message: no further attempt is made.

    The ``then`` of the retry policy applies at once, regardless of the attempts left: the message becomes a
    dead letter, is discarded, or by default stays in the queue. In a group, whose keys keep their order, a
    message without a dead letter or ``then="discard"`` is tried again instead, and its key waits. ::

        @app.consumer("bmq://bmq.test.mem.priority/orders", retry=bmq.Backoff(5, then=bmq.DeadLetter(dead)))
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
