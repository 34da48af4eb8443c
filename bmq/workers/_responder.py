# SPDX-License-Identifier: Apache-2.0
"""Responders: handlers whose result is posted to the requester."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, TypeAlias

from bmq import _world
from bmq._checks import INT64_MAX
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.attempt import Attempt, CallNext
from bmq.client.dead_letters import described
from bmq.client.message import Message
from bmq.client.poison import Allow, Allowed, guid_of, integer_of, queue_of
from bmq.client.posts import PutMessage
from bmq.client.problem import problem_of
from bmq.client.queue import Queue
from bmq.client.requests import deadline
from bmq.codecs import Codec
from bmq.conventions import CANCEL, DEADLINE, REPLY_TO, REQUEST, REQUESTER, derived_guid
from bmq.errors import Error, QueueClosed, RequestFailed, StateError, UsageError
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri
from bmq.workers._dependencies import ANY_STATE, HANDLER, HandlerPlan, parameters_of, planned
from bmq.workers._handlers import is_async, name_of
from bmq.workers._results import Results

__all__ = ["Respond", "Responder"]

logger = Log("bmq.workers")

#: Function of a responder. Returns the value of the reply, its payload, the whole reply, or None.
Respond: TypeAlias = Callable[Concatenate[Any, ...], Awaitable[object]]

# Maximum number of remembered cancellations of requests still to arrive.
_REMEMBERED = 10_000
# Maximum number of open queues for replies.
_OPEN = 500
_DONE = b"\0"
# Maximum deadline in seconds: event loops do not accept delays of any length.
_LONGEST = 30 * 86400.0
# Deadline of a request that its requester has cancelled, in seconds of the event loop's clock.
_AT_ONCE = -1.0


class Responder:
    """A handler for requests: posts the result, or the exception, of a function to the requester.

    For :func:`bmq.consume`; :meth:`bmq.App.responder` creates one, too. Each request is answered at most
    once, and afterwards confirmed. An expired request is confirmed without a call. The function is cancelled
    at the deadline, and when the requester cancels the request. If the function raises an exception, the
    request cannot be decoded, or the result cannot be posted, the requester receives a
    :class:`bmq.RequestFailed`. A message without ``bmq_reply_to`` is handled like a message of any other
    handler: there is no reply, and the retry policy decides about an exception.

    Three kinds of requests are not handled: malformed requests, requests with forged ``bmq_`` properties, and
    requests naming a reply queue outside ``allow``. The retry policy's ``then`` decides about these: they
    become dead letters, are discarded, or by default stay in the queue, unconfirmed.

    Args:
        function: an ``async def`` with the parameters of a handler. Returns the reply: a value of the
            annotated type, bytes, None for an empty reply, or a :class:`bmq.PutMessage`, for its data and
            properties only.
        allow: permitted queues for replies: patterns like ``bmq://DOMAIN/replies.*``, or a function of the
            URI. By default all queues in the requests' own domain, and queues of any domain with names
            beginning with ``replies.``.
        codec: content type or :class:`bmq.Codec` that encodes the values of replies, and decodes requests
            without a content type; None for JSON.

    Raises:
        UsageError: the function is not async, no codec supports the type of the replies, or ``allow`` is of
            another type.

    Attributes:
        function: the function.
    """

    def __init__(
        self,
        function: Respond,
        *,
        allow: Allow | None = None,
        codec: str | Codec[Any] | None = None,
    ) -> None:
        parameters_of(function, HANDLER, ANY_STATE)  # raises if a call would not run the function
        if not is_async(function):
            raise UsageError(f"a responder belongs in the event loop: make {name_of(function)} 'async def'")
        self.function = function
        self._codec = codec
        self._results = Results(function, codec)
        self._allow = Allowed(allow, QueueUri("d", "q"))
        self._allowed: dict[str, Allowed] = {}
        self._log = LogLimit(logger)
        self._name = name_of(function)
        self._running: dict[str, asyncio.Timeout] = {}
        self._outputs: OrderedDict[Queue, None] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()
        self._cancelled: OrderedDict[str, None] = OrderedDict()

    def _plan(self, state: object) -> HandlerPlan:
        """Return the checked function.

        Args:
            state: class of the app's state, as for :func:`planned`.

        Raises:
            UsageError: the function or a dependency cannot be called, or the requests cannot be decoded.
        """
        plan = planned(self.function, state=state)
        if self._codec is None:
            return plan
        if plan.shape is not None:
            return planned(self.function, self._codec, state=state)
        if self._results.of is None:
            raise UsageError(
                f"{self._name} takes messages and returns bytes, and codec is for values: annotate the "
                "request or the result with its type, or omit codec"
            )
        return plan

    async def _handle(self, attempt: Attempt, call_next: CallNext) -> None:
        """Handle a request, or the cancellation of a request; the middleware nearest to the function.

        Raises:
            Poison: the message is neither a request nor a cancellation.
        """
        message = attempt.message
        cancelled = guid_of(message, CANCEL)
        if cancelled is not None:
            self._cancel(cancelled)
            return
        guid = message.guid
        to = queue_of(message, REPLY_TO, self._allowed_of(message))
        until = integer_of(message, DEADLINE, 0, INT64_MAX)
        if self._cancelled.pop(guid, self) is None:
            return
        seconds = min(until / 1000 - _world.time(), _LONGEST) if until is not None else None
        if seconds is not None and seconds <= 0:
            logger.info(
                "request %s of %s arrived after its deadline", guid, message.queue_uri, extra=_about(message)
            )
            return
        answers = to is not None
        limit = self._running[guid] = asyncio.timeout(seconds)
        if seconds is not None:
            deadline.set(_world.time() + seconds)
        try:
            reply = await self._respond(message, call_next, limit, answers)
        finally:
            del self._running[guid]
        await self._answer(message, to, reply)

    def _allowed_of(self, message: Message) -> Allowed:
        uri = message.queue_uri
        if (allowed := self._allowed.get(uri)) is None:
            allowed = self._allowed[uri] = self._allow.of(QueueUri.parse(uri))
        return allowed

    def _cancel(self, guid: str) -> None:
        if limit := self._running.get(guid):
            if not limit.expired():
                limit.reschedule(_AT_ONCE)
            return
        self._cancelled[guid] = None
        if len(self._cancelled) > _REMEMBERED:
            self._cancelled.popitem(last=False)

    async def _respond(
        self, message: Message, call_next: CallNext, limit: asyncio.Timeout, answers: bool
    ) -> PutMessage | None:
        """Call the function and return the reply; None if the requester has stopped waiting.

        ``answers`` is False if no requester waits; errors are then raised.
        """
        task = asyncio.current_task()
        assert task is not None
        try:
            async with limit:
                return self._reply(await call_next())
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            # An awaited task was cancelled elsewhere.
            if not answers:
                raise StateError(f"a task awaited by {self._name} was cancelled") from error
            return self._failed(message, error)
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                if limit.when() != _AT_ONCE:
                    self._log.warning(
                        "deadline", "%s did not finish %s by its deadline", self._name, message.guid
                    )
                return None
            if not answers:
                raise
            return self._failed(message, error)

    def _reply(self, result: object) -> PutMessage:
        """Return the reply for a result of the function."""
        return PutMessage(_DONE) if result is None else self._results.encoded(result)

    def _failed(self, message: Message, error: BaseException) -> PutMessage:
        """Return the reply for an error."""
        self._log.log(
            # A problem that the function chose is an answer.
            logging.INFO if isinstance(error, RequestFailed) else logging.WARNING,
            type(error).__name__,
            "%s failed on request %s of %s: %s",
            self._name,
            message.guid,
            message.queue_uri,
            described(error),
        )
        return problem_of(error)

    async def _answer(self, message: Message, to: str | None, reply: PutMessage | None) -> None:
        """Post the reply. If no reply can be posted at all, the request times out."""
        if reply is None or to is None:
            return
        added: dict[str, PropertyInput] = {REQUEST: message.guid}
        if (requester := message.properties.get(REQUESTER)) is not None:
            added[REQUESTER] = requester
        guid = derived_guid(message.guid, to, "reply")
        session = message.consumer.queue.session
        refused = False
        while True:
            try:
                output = await session.open_output(to)
                self._used(output)
                properties = {**(reply.properties or {}), **added}
                await output.post(reply.data, properties=properties, guid=guid)
                return
            except QueueClosed as error:
                if message.consumer.queue.closed:
                    self._unanswered(message, error)
                    return
            except (TypeError, ValueError) as error:
                if refused:
                    self._unanswered(message, error)
                    return
                refused, reply = True, self._failed(message, error)
            except Error as error:
                self._unanswered(message, error)
                return

    def _unanswered(self, message: Message, error: BaseException) -> None:
        self._log.warning(
            ("unanswered", type(error)),
            "request %s could not be answered: %s",
            message.guid,
            described(error),
        )

    def _used(self, output: Queue) -> None:
        """Close the least recently used queue for replies, if too many are open."""
        self._outputs[output] = None
        self._outputs.move_to_end(output)
        if len(self._outputs) > _OPEN:
            oldest, _ = self._outputs.popitem(last=False)
            closing = asyncio.ensure_future(oldest.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.info("a queue for replies was not closed cleanly: %s", error)


def _about(message: Message) -> dict[str, str]:
    """Return the extra fields of a log record."""
    return {"queue": message.queue_uri, "guid": message.guid}
