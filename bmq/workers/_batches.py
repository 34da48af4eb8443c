# SPDX-License-Identifier: Apache-2.0
"""Handlers of batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, TypeAlias

from bmq import _checks
from bmq._pace import Pace
from bmq.client.consumer import Consumer
from bmq.client.dead_letters import Failure
from bmq.client.internals import handling_of
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.codecs import Shape
from bmq.errors import Undecodable, UsageError
from bmq.workers._clock import Clock, LoopClock
from bmq.workers._consume import Workers, age_of, work_on
from bmq.workers._invoker import Invoker
from bmq.workers._options import HandlerOptions
from bmq.workers._outcomes import Reject, RetryAfter
from bmq.workers._plan import Plan, Surroundings

__all__ = ["BatchHandler", "Batches", "PartlyFailed", "check_batches", "feed_batches"]

#: A function of a list of messages or a list of values, and of further parameters.
BatchHandler: TypeAlias = Callable[Concatenate[Any, ...], object]


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


def check_batches(
    max_messages: object, max_wait: object, max_unconfirmed_messages: object
) -> tuple[int, float]:
    """Return the checked bounds of batches.

    Raises:
        UsageError: a bound is out of range, or a batch could never be full.
    """
    most, wait = _checks.integer("max_messages", max_messages, 1), _checks.seconds("max_wait", max_wait)
    room = _checks.optional(_checks.integer, "max_unconfirmed_messages", max_unconfirmed_messages)
    if room is not None and room < most:
        raise UsageError(
            f"a batch of {most} messages can never fill up with max_unconfirmed_messages={room}: raise "
            "max_unconfirmed_messages to max_messages or more"
        )
    return most, wait


@dataclass(frozen=True, slots=True)
class Batches:
    """Options of batches.

    Attributes:
        max_messages: maximum number of messages in a batch.
        max_wait: seconds to wait for a full batch.
        shape: shape of the values; None if the handler takes messages.
    """

    max_messages: int
    max_wait: float
    shape: Shape[Any] | None


async def feed_batches(
    consumer: Consumer,
    plan: Plan,
    batches: Batches,
    options: HandlerOptions,
    dead_letters: Queue | None,
    around: Surroundings,
    *,
    grace: float,
    clock: Clock | None,
) -> None:
    """Call a function with batches of a consumer's messages; close the consumer at the end."""
    invoke = Invoker(plan, options.timeout, around, handling_of(consumer.queue.session))
    how = (invoke, options, dead_letters, clock or LoopClock())

    def make(consumer: Consumer, pace: Pace | None) -> Workers:
        return _BatchWorkers(consumer, *how, pace, batches=batches)

    def make_apart(consumer: Consumer, pace: Pace | None) -> Workers:
        return _BatchWorkers(consumer, *how, pace, batches=Batches(1, 0, batches.shape))

    try:
        await work_on(consumer, options, invoke.name, make, make_apart, close=True, grace=grace)
    finally:
        invoke.close()


class _BatchWorkers(Workers):
    """Tasks handling batches of one consumer; each task takes a single batch at a time."""

    def __init__(self, *arguments: Any, batches: Batches) -> None:
        super().__init__(*arguments)
        self._batches = batches
        self._batches_held: dict[asyncio.Task[None], list[Message]] = {}

    def _at_work(self, task: asyncio.Task[None]) -> list[Message]:
        return self._batches_held.get(task, [])

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        async for batch in self._consumer.batches(self._batches.max_messages, self._batches.max_wait):
            messages = list(batch)
            if self._left.left or self._left.skipped:
                for message in messages:
                    self._left.forget(message)
            if self._pace is not None or self._calm is not None:
                await self._paced(messages)
            self._held[task] = messages[0]
            self._batches_held[task] = messages
            self.progress.handling += len(messages)
            try:
                await self._handle_batch(messages, task)
            finally:
                self.progress.handling -= len(messages)
                del self._held[task], self._batches_held[task]
                self._in_hand.release([message for message in messages if not message.confirmed])
            if self._stopping or task in self._replaced:
                return

    async def _handle_batch(self, messages: list[Message], task: asyncio.Task[None]) -> None:
        began, attempt = self._clock.time(), 1
        if (quarantine := self.quarantine) is not None:
            marked = [message for message in messages if message.redelivered]
            took = await asyncio.gather(*(quarantine.took(each, self._rest_for_room) for each in marked))
            gone = {id(message) for message, taken in zip(marked, took, strict=True) if taken}
            messages = [message for message in messages if id(message) not in gone]
            if not messages:
                return
        values: dict[Message, Any] = {}
        unreadable: dict[Message, BaseException] = {}
        for message in messages:
            try:
                values[message] = self._batches.shape.decode(message) if self._batches.shape else message
            except Undecodable as error:
                unreadable[message] = error
        await self._failed(unreadable, len(messages), attempt, began)
        failing = 0
        try:
            while values:
                old = self._old(values, began)
                await self._failed(old, len(values), attempt - 1, began)
                values = {message: values[message] for message in values if message not in old}
                errors = await self._attempt_batch(values, attempt, task) if values else {}
                done = [message for message in values if message not in errors]
                self._consumer.queue.confirm(*done)
                self.progress.handled += len(done)
                if done and not errors:
                    self.progress.failing_since = None
                rests = await self._failed(errors, len(values), attempt, began)
                self._count_failing(len(rests) - failing)
                failing = len(rests)
                await self._thread_ends(len(errors) - failing)
                values = {message: values[message] for message in rests}
                attempt += any(not isinstance(error, RetryAfter) for error in errors.values())
                if rests:
                    await self._rest(max(rests.values()))
        finally:
            self._count_failing(-failing)

    def _old(self, messages: Iterable[Message], began: float) -> dict[Message, BaseException]:
        """Return an error for each message that has outlived its life."""
        found: dict[Message, BaseException] = {}
        if self._life is not None:
            spent = self._clock.time() - began
            for message in messages:
                error = self._outlived(spent + age_of(message, spent))
                if error is not None:
                    found[message] = error
        return found

    async def _attempt_batch(
        self, values: dict[Message, Any], attempt: int, task: asyncio.Task[None]
    ) -> dict[Message, BaseException]:
        """Call the handler; return the failed messages with errors."""
        messages, given = list(values), list(values.values())
        error = await self._called(task, messages if self._batches.shape else given, attempt, given)
        if error is None:
            return {}
        if isinstance(error, PartlyFailed):
            # The handler may have sorted its list: an index counts in the list as the handler left it.
            known = {id(value): message for message, value in values.items()}
            if len(known) < len(values) and list(map(id, given)) == list(map(id, values.values())):
                found = list(messages)  # equal values may be one object
            else:
                found = [known[id(value)] for value in given if id(value) in known]
            if len(set(found)) != len(messages):
                error = UsageError(
                    "PartlyFailed was raised after the handler had changed the values in its list"
                )
            elif wrong := [index for index in error.failed if not 0 <= index < len(found)]:
                error = UsageError(
                    f"PartlyFailed has the index {wrong}, and the batch has {len(found)} messages"
                )
            else:
                return {found[index]: each for index, each in error.failed.items()}
        return dict.fromkeys(messages, error)

    async def _failed(
        self, errors: dict[Message, BaseException], size: int, attempt: int, began: float
    ) -> dict[Message, float]:
        """Report failures, give up messages without a further attempt, and return the next retry's time."""
        rests: dict[Message, float] = {}
        together: dict[int, list[Failure]] = {}
        for message, error in errors.items():
            age = age_of(message, self._clock.time() - began)
            delay = None if message.confirmed else self._pause_after(message, error, attempt, began - age)
            self.progress.attempts_failed += 1
            self.progress.failed()
            failure = Failure(message, error, attempt, delay, self._invoke.name)
            together.setdefault(id(error), []).append(failure)
            if delay is not None:
                rests[message] = delay
        for failures in together.values():
            if len(failures) == 1:
                await self._report(failures[0])
                continue
            self._log(failures, size)
            for failure in failures:
                await self._tell(failure)
        task = asyncio.current_task()
        assert task is not None
        self._check_end(task, None)
        for failures in together.values():
            for failure in failures:
                if failure.retry_in is None:
                    self.progress.given_up += 1
                    self.progress.gone += 1
                    self.progress.given_up_in_a_row += not isinstance(failure.error, Reject)
                    await self._give_up(failure)
        return rests

    def _log(self, failures: list[Failure], size: int) -> None:
        """Log a single record for all messages of a failed batch."""
        first = failures[0]
        again = first.retry_in is not None
        self._throttle.log(
            logging.WARNING if again else logging.ERROR,
            "%s failed on %d messages of a batch of %d of %s, attempt %d; %s: %s",
            *(first.handler, len(failures), size, first.message.queue_uri, first.attempt),
            f"next attempt in {first.retry_in:g} s" if again else self._outcome(first),
            self._shown(first.error),
            exc_info=first.error if not again and self._traced(first.error) else None,
            extra={"queue": first.message.queue_uri, "attempt": first.attempt},
        )
