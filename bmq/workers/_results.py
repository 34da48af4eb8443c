# SPDX-License-Identifier: Apache-2.0
"""Results of handlers as messages: replies of responders, and outputs posted to other queues."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, Concatenate, Final, Never, NoReturn, TypeAlias, Union, cast, get_args, get_origin

from bmq import _checks, _world
from bmq._checks import INT64_MAX
from bmq._dead_letters import Allow, Allowed, guid_of, integer_of, origin_of, queue_of
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import look_at
from bmq.client.attempt import Attempt, CallNext
from bmq.client.message import Message
from bmq.client.posts import PutMessage
from bmq.client.queue import Queue
from bmq.client.requests import deadline, problem_of
from bmq.codecs import Codec, Shape
from bmq.conventions import CANCEL, DEADLINE, REPLY_TO, REQUEST, REQUESTER, derived_guid
from bmq.errors import Error, InvalidPayload, QueueClosed, RequestFailed, StateError, UsageError
from bmq.wire.keys import Key
from bmq.wire.printable import described
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri
from bmq.workers._handlers import (
    ANY_STATE,
    HANDLER,
    GeneratedResults,
    HandlerPlan,
    parameters_of,
    returned_by,
    shown_type,
    target_of,
)
from bmq.workers._options import AckPolicy, HandlerOptions, is_async, name_of
from bmq.workers._retry import PartlyFailed

__all__ = ["PUBLISHES", "KeyOf", "Output", "Publisher", "Respond", "Responder", "Results"]

# ---- Results of functions as messages to post: replies of responders, outputs of handlers

_BYTES: Final = (bytes, bytearray, memoryview)
# Annotations of results that are posted unchanged.
_POSTED: Final = (*_BYTES, PutMessage)
# Annotations of results that are not encoded.
_AS_THEY_ARE: Final = (
    *_POSTED,
    NoneType,
    None,
    Any,
    object,
    NoReturn,
    Never,
    inspect.Parameter.empty,
)


class Results:
    """Converts the results of one function, by the annotation of its result.

    Args:
        function: the function.
        codec: content type or codec that encodes values; None for JSON.
        batch: whether the function returns a list with a result for each message.

    Raises:
        UsageError: no codec supports the type of the results, or the result of a batch is not a list.

    Attributes:
        of: type of the encoded values; None if the function returns only bytes.
        kinds: conversions of the kinds of results, for a description: of each class of a union, of its other
            types together, and None for payloads and whole messages.
        empty: whether the annotation of the result is None.
        unknown: whether the annotation is missing, or says nothing about the results.
        problem: why the annotation is unknown, for errors; "" for a known annotation.
    """

    def __init__(
        self, function: Callable[..., object], codec: str | Codec[Any] | None, *, batch: bool = False
    ) -> None:
        self._name = name = name_of(function)
        annotation, self.problem = returned_by(function)
        if batch:
            annotation = _item_of(
                annotation, (list, Sequence), name, "a list with one result for each message"
            )
        elif inspect.isasyncgenfunction(target_of(function)):
            iterators = (AsyncIterator, AsyncGenerator, AsyncIterable)
            annotation = _item_of(annotation, iterators, name, "an AsyncIterator of results")
        union = get_origin(annotation) in (Union, UnionType)
        parts: tuple[Any, ...] = get_args(annotation) if union else (annotation,)
        values = [each for each in parts if each not in _AS_THEY_ARE and not _is_error(each)]
        self.empty = all(each in (NoneType, None) for each in parts)
        self.unknown = not (self.empty or values or any(each in _POSTED for each in parts))
        self._bytes = not values or any(each in _BYTES for each in parts)
        self.of: Any = None
        # The classes of a union have shapes of their own: only a class has fields that are properties. All
        # other types have one shape, under the base of all classes.
        self._shapes: dict[type, Shape[Any]] = {}
        if values:
            self.of = Union[tuple(values)]  # noqa: UP007
            several = len(values) > 1
            wanted: dict[type, Any] = {each: each for each in values if several and inspect.isclass(each)}
            if others := [each for each in values if each not in wanted]:
                wanted[object] = Union[tuple(others)]  # noqa: UP007
            try:
                self._shapes = {each: Shape(of, codec or "application/json") for each, of in wanted.items()}
            except UsageError as error:
                raise UsageError(f"{name} returns {shown_type(self.of)}: {error}") from None
        self.kinds: list[Shape[Any] | None] = [*self._shapes.values()]
        if not values or any(each in _POSTED for each in parts):
            self.kinds.append(None)

    def encoded(self, result: object, properties: dict[str, PropertyInput] | None = None) -> PutMessage:
        """Return the message for a result; a :class:`bmq.PutMessage` stays unchanged.

        Args:
            result: the result, other than None.
            properties: further properties.

        Raises:
            InvalidPayload: the result has another type, or cannot be encoded.
            TypeError: the result is not bytes, and the function has no annotated type.
        """
        if isinstance(result, PutMessage):
            return result
        if self._bytes and isinstance(result, _BYTES):
            return PutMessage(cast("bytes", result), properties)
        if self.of is None:
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{self._name} must return bytes or a bmq.PutMessage, not {type(result).__name__}: annotate "
                "the result with its type to encode values, as in '-> Order'"
            )
        shape = next((self._shapes[each] for each in type(result).__mro__ if each in self._shapes), None)
        if shape is None:
            raise InvalidPayload(f"a value must be {shown_type(self.of)}, not {type(result).__name__}")
        data, own = shape.encode(result)
        return PutMessage(data, own if properties is None else own | properties)


def _item_of(annotation: Any, of: tuple[Any, ...], name: str, wanted: str) -> Any:
    """Return the type of the items of a list or an iterator; ``empty`` without an annotation.

    Raises:
        UsageError: the annotation is of another kind.
    """
    if annotation in (inspect.Parameter.empty, Any, object):
        return inspect.Parameter.empty
    if (get_origin(annotation) or annotation) not in of:
        raise UsageError(f"{name} must return {wanted}, not {shown_type(annotation)}")
    return (*get_args(annotation), inspect.Parameter.empty)[0]


def _is_error(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, BaseException)


# ---- Outputs: the results of a handler, posted to other queues before the input is confirmed
#
# The problem: a handler that posts and then ends can be repeated at any point. The process may die between
# the acknowledgement of the output and the confirmation of the input, and the broker redelivers the input.
#
# The order of steps: the handler returns; its outputs are encoded, posted, and acknowledged; the input is
# confirmed. No output is lost, because an input with a failed output is not confirmed: the attempt has
# failed, and the retry policy decides. No output is posted for a failed call, because a generator's outputs
# are collected first.
#
# Repetitions: the GUID of an output derives from the original GUID of the input, the input's queue, the
# output's queue, and the number of the output. A repeated attempt posts the same GUIDs, and a broker with
# deduplication stores each output once. Numbers follow the order of the results: a handler that yields other
# results for the same input in a repetition defeats the deduplication.
#
# Rejected: posting while a generator runs. A call that fails in the middle would have posted some outputs,
# and the outputs of a message that becomes a dead letter could not be taken back.

#: Returns the ordering key of an output's value.
KeyOf: TypeAlias = Callable[[Any], Key]

#: Key of a message's context while a handler runs whose results are posted; the value is the handler's name.
PUBLISHES: Final = "bmq.publish_to"


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A queue for the results of a handler.

    Attributes:
        handler: the handler.
        uri: URI of the queue.
        codec: encodes values; None for JSON.
        key: returns the ordering key of a value; None for outputs without a key.
        properties: further properties.
    """

    handler: Callable[..., object]
    uri: QueueUri
    codec: str | Codec[Any] | None
    key: KeyOf | None
    properties: Mapping[str, PropertyInput] | None

    def results(self, options: HandlerOptions, *, replies: bool) -> Results:
        """Return the conversion of the handler's results.

        Args:
            options: options of the handler.
            replies: whether the handler is a responder.

        Raises:
            UsageError: the handler has no results that can be posted, or its input is confirmed first.
        """
        name = name_of(self.handler)
        if replies:
            raise UsageError(
                f"{name} is a responder, and its result is the reply: post to {self.uri} in the function, or "
                "register another function with consumer"
            )
        if options.ack is not AckPolicy.ON_SUCCESS:
            raise UsageError(
                f"{name} has ack=AckPolicy.{options.ack.name}, and publish_to posts results before the input "
                "is confirmed: omit ack"
            )
        batch = options.batches is not None
        results = Results(self.handler, self.codec, batch=batch)
        if results.empty or results.unknown:
            problem = "the result is None" if results.empty else results.problem
            problem = problem or "the annotation of the result does not name a type"
            example = "list[{}]" if batch else "{}"
            if inspect.isasyncgenfunction(target_of(self.handler)):
                example = "AsyncIterator[{}]"
            examples = [f"'-> {example.format(each)}'" for each in ("Order", "bytes", "bmq.PutMessage")]
            raise UsageError(
                f"{name}: {problem}, and publish_to({str(self.uri)!r}) posts results by their type: annotate "
                f"the result with its type, as in {examples[0]}, {examples[1]} or {examples[2]}"
            )
        if self.codec is not None and results.of is None:
            raise UsageError(
                f"{name} returns no values to encode, and codec is for values: annotate the result with its "
                "type, as in '-> Order', or omit codec"
            )
        return results


class Publisher:
    """The middleware that posts the results of one handler.

    Args:
        outputs: the queues, with the conversion of results.
        batch: whether the handler takes batches.
    """

    def __init__(self, outputs: Sequence[tuple[Output, Results]], *, batch: bool) -> None:
        self._outputs = outputs
        self._batch = batch
        # Outputs with a post_many that was cancelled, perhaps with posts in flight.
        self._unsettled: set[Output] = set()

    async def __call__(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Call the handler, and post its results.

        Returns:
            The result of the handler, once all outputs are acknowledged.

        Raises:
            PostError: an output was not accepted.
            InvalidPayload, InvalidProperty, TypeError: an output cannot be posted.
            PartlyFailed: outputs of some messages of a batch failed.
            BaseException: any exception of the handler.

        After a cancellation, outputs may or may not be posted.
        """
        messages, batch = attempt.messages, self._batch
        result = await self._called(attempt, call_next)
        failed: dict[int, BaseException] = {}
        if batch:
            results = self._one_each(attempt, result)
            failed = {place: each for place, each in enumerate(results) if isinstance(each, BaseException)}
            rows = [(message, 1, each) for message, each in zip(messages, results, strict=True)]
        else:
            results = result if isinstance(result, GeneratedResults) else [result]
            rows = [(messages[0], number, each) for number, each in enumerate(results, 1)]
        for output, convert in self._outputs:
            items: dict[int, PutMessage] = {}
            for place, (message, number, each) in enumerate(rows):
                if each is None or place in failed:
                    continue
                try:
                    items[place] = self._item(output, convert, message, each, number)
                except Exception as error:
                    if not batch:
                        raise
                    failed[place] = error
            failed |= await self._post(attempt, output, items)
            if failed and not batch:
                raise failed[min(failed)]
        if failed:
            raise PartlyFailed(failed)
        return result

    async def _called(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Call the handler, whose messages say meanwhile that its result is posted: see bmq.inbox."""
        for message in attempt.messages:
            message.context[PUBLISHES] = attempt.handler
        try:
            return await call_next()
        except PartlyFailed as error:
            if not self._batch:
                raise
            raise UsageError(
                f"{attempt.handler} has raised PartlyFailed, which would lose the results of the other "
                "messages: return the exceptions in the list of results, instead of results"
            ) from error
        finally:
            for message in attempt.messages:
                message.context.pop(PUBLISHES, None)

    def _one_each(self, attempt: Attempt, result: Any) -> Sequence[Any]:
        """Return the results of a batch, one for each message.

        Raises:
            UsageError: the handler has returned another number of results, or something else.
        """
        count = len(attempt.messages)
        results: Sequence[Any] = result if isinstance(cast("object", result), Sequence) else ()
        if len(results) != count:
            raise UsageError(
                f"{attempt.handler} must return a list with one result for each of the {count} "
                f"messages of the batch, and None for no output; not {_checks.shown(result)}"
            )
        return results

    def _item(
        self, output: Output, convert: Results, message: Message, result: object, number: int
    ) -> PutMessage:
        """Return the message of a result."""
        item = convert.encoded(result, None if output.properties is None else dict(output.properties))
        if item is not result and output.key is not None:
            item.key = output.key(result)
        if item.guid is None:
            uri = output.uri.canonical
            guid = derived_guid(origin_of(message), message.queue_uri, uri, "output", str(number))
            if item is result:
                item = replace(item, guid=guid)
            else:
                item.guid = guid
        return item

    async def _post(self, attempt: Attempt, output: Output, items: dict[int, PutMessage]) -> dict[int, Error]:
        """Post messages, and wait for all outcomes; return the errors by the keys of ``items``."""
        if not items:
            return {}
        queue = await attempt.messages[0].consumer.queue.session.open_output(output.uri.canonical)
        if output in self._unsettled:
            # The window takes no second post with a GUID in flight.
            await queue.flush()
            self._unsettled.discard(output)
        try:
            report = await queue.post_many(items.values())
        except BaseException:
            self._unsettled.add(output)
            raise
        places = list(items)
        return {places[each.index]: each.error for each in report.failures}


# ---- Responders: handlers whose result is posted to the requester

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
        self._allowed = Allowed(allow)
        self._log = LogLimit(logger)
        self._name = name_of(function)
        # By queue and GUID: requests of two queues may have the same GUID.
        self._running: dict[tuple[str, str], asyncio.Timeout] = {}
        self._outputs: OrderedDict[Queue, None] = OrderedDict()
        self._cancelled: OrderedDict[tuple[str, str], None] = OrderedDict()

    def _plan(self, state: object) -> HandlerPlan:
        """Return the checked function.

        Args:
            state: class of the app's state, as for :class:`HandlerPlan`.

        Raises:
            UsageError: the function or a dependency cannot be called, or the requests cannot be decoded.
        """
        plan = HandlerPlan(self.function, state=state)
        if self._codec is not None and plan.shape is not None:
            plan.shape = Shape(plan.shape.of, self._codec)
        elif self._codec is not None and self._results.of is None:
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
            self._cancel((message.queue_uri, cancelled))
            return
        request = message.queue_uri, message.guid
        to = queue_of(message, REPLY_TO, self._allowed)
        until = integer_of(message, DEADLINE, 0, INT64_MAX)
        if self._cancelled.pop(request, self) is None:
            return
        seconds = min(until / 1000 - _world.time(), _LONGEST) if until is not None else None
        if seconds is not None and seconds <= 0:
            logger.info(
                "request %s of %s arrived after its deadline",
                message.guid,
                message.queue_uri,
                extra={"queue": message.queue_uri, "guid": message.guid},
            )
            return
        answers = to is not None
        limit = self._running[request] = asyncio.timeout(seconds)
        if seconds is not None:
            deadline.set(_world.time() + seconds)
        try:
            reply = await self._respond(message, call_next, limit, answers)
        finally:
            del self._running[request]
        await self._answer(message, to, reply)

    def _cancel(self, request: tuple[str, str]) -> None:
        if limit := self._running.get(request):
            if not limit.expired():
                limit.reschedule(_AT_ONCE)
            return
        self._cancelled[request] = None
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
                result = await call_next()
                return PutMessage(_DONE) if result is None else self._results.encoded(result)
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
        guid = derived_guid(message.guid, message.queue_uri, to, "reply")
        session = message.consumer.queue.session
        refused = False
        while True:
            try:
                output = await session._open_named(to)
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
            session = oldest.session
            session._connection.keep(session._close_named(oldest)).add_done_callback(look_at)
