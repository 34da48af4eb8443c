# SPDX-License-Identifier: Apache-2.0
"""Failed messages: reports, and the quarantine."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from bmq._checks import INT32_MAX
from bmq._dead_letters import DeadLetter, Failure, Poison, guid_of, integer_of, poison_of
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.consumer import Consumer
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.conventions import DEATHS, ORIGIN
from bmq.errors import Error, RequestFailed
from bmq.wire.constants import PropertyType
from bmq.wire.printable import described, printable
from bmq.wire.properties import PropertyValue
from bmq.workers._handlers import BlockingCalls, own_context
from bmq.workers._options import HandlerOptions
from bmq.workers._retry import Clock, Reject, RetryAfter, post_again

__all__ = ["Died", "FailureReports", "Quarantine", "suspects_of"]

# ---- Reports of failed attempts: log lines, and the hook of the application

logger = Log("bmq.workers")

# Maximum number of error types and places to log with a traceback.
_MOST_SEEN = 256
# A handler may fail a hundred thousand times a second: number of records of each kind in so many seconds.
_MOST_RECORDS, _SECONDS = 20, 10.0

_OUTCOMES: dict[str, str] = {
    "discard": "discarded",
    "leave": "left unconfirmed",
    "skip": "skipped: the message stays in the queue, unconfirmed, and is redelivered after the queue is "
    "closed",
}


class FailureReports:
    """Reports the failed attempts of one handler.

    Args:
        name: name of the handler.
        options: the handler's options.
        clock: measures the time between log lines.
        own_blocking: logs blocking of the handler.
    """

    def __init__(self, name: str, options: HandlerOptions, clock: Clock, own_blocking: BlockingCalls) -> None:
        self._on_error = options.on_error
        self._then = options.policy.then
        self._hook_blocking = BlockingCalls(logger, f"on_error of {name}")
        self._own_blocking = own_blocking
        self._limit = LogLimit(logger, _SECONDS, clock.time, most=_MOST_RECORDS)
        self._unusable_limit = LogLimit(logger, clock=clock.time)
        # Type and place of the errors logged with a traceback.
        self._seen: set[tuple[type, tuple[str, int] | None]] = set()

    async def report(self, failures: Sequence[Failure], size: int) -> None:
        """Log the failures of one error, and call the hook for each of them.

        Args:
            failures: a failed message, or all messages of a batch that failed with the same error.
            size: number of messages in the attempt.
        """
        if len(failures) == 1:
            self._log(failures[0])
        else:
            self._log_batch(failures, size)
        if self._on_error is None:
            return
        for failure in failures:
            await own_context(self._hook_blocking)
            try:
                result = self._on_error(failure)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                self._limit.log(
                    logging.ERROR,
                    "on_error",
                    "on_error itself failed, on message %s",
                    failure.message.guid,
                    exc_info=True,
                    extra=_about(failure),
                )
        await own_context(self._own_blocking)

    def _log(self, failure: Failure) -> None:
        error, message = failure.error, failure.message
        log, about = self._limit.log, _about(failure)
        where = (failure.handler, message.guid, message.queue_uri, failure.attempt)
        if failure.retry_in is not None and isinstance(error, RetryAfter):
            text = "%s puts off message %s of %s, attempt %d; next attempt in %g s: %s"
            log(logging.INFO, "put off", text, *where, failure.retry_in, error.reason, extra=about)
        elif failure.retry_in is not None:
            text = "%s failed on message %s of %s, attempt %d; next attempt in %g s: %s"
            log(logging.WARNING, "retried", text, *where, failure.retry_in, _shown(error), extra=about)
        elif isinstance(error, Reject):
            text = "%s rejected message %s of %s, attempt %d; %s: %s"
            log(logging.WARNING, "rejected", text, *where, self._outcome(failure), error.reason, extra=about)
        elif (poison := poison_of(message, error)) is not None:
            text = "%s cannot use message %s of %s, attempt %d; %s: %s"
            self._unusable_limit.error(poison.kind, text, *where, self._outcome(failure), printable(poison))
        else:
            text = "%s failed on message %s of %s, attempt %d; %s: %s"
            outcome, trace = self._outcome(failure), self._traced(error)
            log(logging.ERROR, "failed", text, *where, outcome, _shown(error), exc_info=trace, extra=about)

    def _log_batch(self, failures: Sequence[Failure], size: int) -> None:
        first = failures[0]
        again = first.retry_in is not None
        self._limit.log(
            logging.WARNING if again else logging.ERROR,
            ("batch", again),
            "%s failed on %d messages of a batch of %d of %s, attempt %d; %s: %s",
            *(first.handler, len(failures), size, first.message.queue_uri, first.attempt),
            f"next attempt in {first.retry_in:g} s" if again else self._outcome(first),
            _shown(first.error),
            exc_info=None if again else self._traced(first.error),
            extra={"queue": first.message.queue_uri, "attempt": first.attempt},
        )

    def _traced(self, error: BaseException) -> BaseException | None:
        """Return the error if its traceback is to be logged: only for the first error of its type and line.

        The failure of a request is the answer of another service: the record names the line that sent the
        request, and the frames of the client tell nothing more.
        """
        if logger.isEnabledFor(logging.DEBUG):
            return error
        kind = type(error), _place_of(error)
        if isinstance(error, RequestFailed) or kind in self._seen or len(self._seen) >= _MOST_SEEN:
            return None
        self._seen.add(kind)
        return error

    def _outcome(self, failure: Failure) -> str:
        if failure.message.confirmed:
            return "confirmed already"
        then = self._then
        return f"to be put aside in {then.uri}" if isinstance(then, DeadLetter) else _OUTCOMES[then]


def _about(failure: Failure) -> dict[str, object]:
    """Return the extra fields of a log record."""
    message = failure.message
    return {"queue": message.queue_uri, "guid": message.guid, "attempt": failure.attempt}


def _shown(error: BaseException) -> str:
    """Return an error on one line: type, text, and the application's line at fault."""
    place = _place_of(error)
    return f"{described(error)} ({place[0]}:{place[1]})" if place is not None else described(error)


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost frame outside bmq; None if all frames are in bmq."""
    found: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("bmq", "asyncio"):
            found = os.path.basename(code.co_filename), trace.tb_lineno
        trace = trace.tb_next
    return found


# ---- Quarantine: finds messages that kill the handling process, by counts kept in the broker
#
# The problem: after the death of a process, the broker redelivers and marks its messages. The broker cannot
# know the deadly message among a thousand. Two steps find the message:
#
# 1. A marked message is not handled. The message is posted to the same queue again, with ``bmq_deaths``
#    raised by one, and afterwards confirmed. The broker has the count before the message can kill again.
# 2. Messages with ``bmq_deaths`` are suspects. A separate subscription with a limit of one message delivers
#    them. Now a dying process has a single suspect, and only this suspect's count rises.
#
# A harmless message counts a single death, is handled alone, and is finished. A deadly message counts one
# more death each time, and goes to the quarantine at the limit.
#
# Rejected: counts in memory, lost with the process; a limit of one message for all messages, at the cost of a
# round trip for each; and a marker in another queue, because the marker outlives the message.


class Died(Exception):
    """The error of a message in quarantine: processes died or lost the connection while handling it."""


def suspects_of(consumer: Consumer) -> Consumer:
    """Return a consumer for the suspects among another consumer's messages, with a limit of one message."""
    expressions = consumer.expressions
    suspected = f"exists({DEATHS})"
    if "" not in expressions:
        suspected = f"({' || '.join(f'({each})' for each in expressions)}) && {suspected}"
    return consumer.queue.subscribe(
        suspected, priority=min(consumer.options.priority + 1, INT32_MAX), max_unconfirmed_messages=1
    )


class Quarantine:
    """Counts the deaths of messages, and moves messages with too many deaths to the quarantine.

    Args:
        letters: posts to the quarantine, with an open queue.
        after: number of deaths.
        handler: name of the handler.
    """

    def __init__(self, letters: DeadLetter, after: int, handler: str) -> None:
        self._letters = letters
        self._after = after
        self._handler = handler
        self._log = LogLimit(logger)

    async def took(self, message: Message, pause: Callable[[float], Awaitable[None]]) -> bool:
        """Count a death of a redelivered message; return False if the message is to be handled nevertheless.

        After a cancellation the message may or may not be posted; a repeated call posts the same message.
        """
        try:
            count = self._deaths(message) + 1
            if count >= self._after:
                await self._put_aside(message, count, pause)
            else:
                await self._again(message, count)
        except (Error, Poison) as error:
            self._log.warning(
                type(error).__name__,
                "message %s of %s was redelivered, and its number of deaths could not be recorded; the "
                "message is handled: %s",
                message.guid,
                message.queue_uri,
                described(error),
            )
            return False
        message.confirm()
        return True

    def _deaths(self, message: Message) -> int:
        """Return the deaths so far. A count set by a producer is capped one below the limit."""
        deaths = integer_of(message, DEATHS, 1, INT32_MAX)
        if deaths is None or guid_of(message, ORIGIN) is None:
            return 0
        return min(deaths, self._after - 1)

    async def _again(self, message: Message, count: int) -> None:
        deaths = PropertyValue(PropertyType.INT32, count)
        await post_again(message, {DEATHS: deaths}, "death", str(count))
        self._log.warning(
            "suspect",
            "message %s of %s was being handled when a process died or lost its connection, %d times so "
            "far. The message was posted again, and is now handled alone",
            message.guid,
            message.queue_uri,
            count,
        )

    async def _put_aside(
        self, message: Message, count: int, pause: Callable[[float], Awaitable[None]]
    ) -> None:
        died = Died(f"{count} processes died or lost their connection while handling it")
        failure = Failure(message, died, count, None, self._handler)
        await self._letters.post(failure, cast("Queue", self._letters.queue), pause)
        self._log.error(
            "quarantine",
            "message %s of %s is in quarantine in %s: %s",
            message.guid,
            message.queue_uri,
            self._letters.uri,
            died,
        )
