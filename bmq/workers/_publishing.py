# SPDX-License-Identifier: Apache-2.0
"""Outputs: the results of a handler, posted to other queues before the input is confirmed.

The problem: a handler that posts and then ends can be repeated at any point. The process may die between the
acknowledgement of the output and the confirmation of the input, and the broker redelivers the input.

The order of steps: the handler returns; its outputs are encoded, posted, and acknowledged; the input is
confirmed. No output is lost, because an input with a failed output is not confirmed: the attempt has failed,
and the retry policy decides. No output is posted for a failed call, because a generator's outputs are
collected first.

Repetitions: the GUID of an output derives from the original GUID of the input, the input's queue, the
output's queue, and the number of the output. A repeated attempt posts the same GUIDs, and a broker with
deduplication stores each output once. Numbers follow the order of the results: a handler that yields other
results for the same input in a repetition defeats the deduplication.

Rejected: posting while a generator runs. A call that fails in the middle would have posted some outputs, and
the outputs of a message that becomes a dead letter could not be taken back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

from bmq import _checks
from bmq.client.attempt import Attempt, CallNext
from bmq.client.dead_letters import origin_of
from bmq.client.message import Message
from bmq.client.posts import PutMessage
from bmq.client.queue import Queue
from bmq.codecs import Codec
from bmq.conventions import derived_guid
from bmq.errors import Error, PostError, UsageError
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri
from bmq.workers._dependencies import HANDLER, GeneratedResults, problem_of_result, target_of
from bmq.workers._handlers import name_of
from bmq.workers._options import AckPolicy
from bmq.workers._outcomes import PartlyFailed
from bmq.workers._results import Results

__all__ = ["PUBLISHES", "PUBLISHING", "KeyOf", "Output", "Publisher"]

#: Returns the ordering key of an output's value.
KeyOf: TypeAlias = Callable[[Any], Key]

#: Role of a handler whose results are posted.
PUBLISHING: Final = replace(HANDLER, yields=True)
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

    def results(self, *, batch: bool, ack: AckPolicy, replies: bool) -> Results:
        """Return the conversion of the handler's results.

        Args:
            batch: whether the handler takes batches.
            ack: when the input is confirmed.
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
        if ack is not AckPolicy.ON_SUCCESS:
            raise UsageError(
                f"{name} has ack=AckPolicy.{ack.name}, and publish_to posts results before the input is "
                "confirmed: omit ack"
            )
        results = Results(self.handler, self.codec, batch=batch)
        if results.empty:
            raise UsageError(
                f"{name} returns None, and publish_to({str(self.uri)!r}) posts its results: annotate the "
                "result with its type, as in '-> Order', or omit publish_to"
            )
        if results.unknown:
            problem = problem_of_result(self.handler) or "the annotation of the result does not name a type"
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
        if self._batch:
            return await self._post_batch(attempt, call_next)
        result = await self._called(attempt, call_next)
        results: list[Any] = result if isinstance(result, GeneratedResults) else [result]
        for output, convert in self._outputs:
            items = [
                self._item(output, convert, attempt.message, each, number)
                for number, each in enumerate(results, 1)
                if each is not None
            ]
            for error in (await self._post(attempt, output, items)).values():
                raise error
        return result

    async def _called(self, attempt: Attempt, call_next: CallNext) -> Any:
        """Call the handler, whose messages say meanwhile that its result is posted: see bmq.inbox."""
        for message in attempt.messages:
            message.context[PUBLISHES] = attempt.handler
        try:
            return await call_next()
        finally:
            for message in attempt.messages:
                message.context.pop(PUBLISHES, None)

    async def _post_batch(self, attempt: Attempt, call_next: CallNext) -> Any:
        messages = attempt.messages
        try:
            result: object = await self._called(attempt, call_next)
        except PartlyFailed as error:
            raise UsageError(
                f"{attempt.handler} has raised PartlyFailed, which would lose the results of the other "
                "messages: return the exceptions in the list of results, in place of results"
            ) from error
        results = _listed(result)
        if len(results) != len(messages):
            raise UsageError(
                f"{attempt.handler} must return a list with one result for each of the {len(messages)} "
                f"messages of the batch, and None for no output; not {_checks.shown(result)}"
            )
        failed: dict[int, BaseException] = {
            index: each for index, each in enumerate(results) if isinstance(each, BaseException)
        }
        for output, convert in self._outputs:
            items: list[PutMessage] = []
            places: list[int] = []
            for index, each in enumerate(results):
                if each is None or index in failed:
                    continue
                try:
                    items.append(self._item(output, convert, messages[index], each, 1))
                    places.append(index)
                except Exception as error:
                    failed[index] = error
            for place, refused in (await self._post(attempt, output, items)).items():
                failed[places[place]] = refused
        if failed:
            raise PartlyFailed(failed)
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

    async def _post(self, attempt: Attempt, output: Output, items: list[PutMessage]) -> dict[int, Error]:
        """Post messages, and wait for all outcomes; return the errors by position."""
        if not items:
            return {}
        queue = await attempt.messages[0].consumer.queue.session.open_output(output.uri.canonical)
        if output in self._unsettled:
            # The window takes no second post with a GUID in flight.
            await queue.flush()
            self._unsettled.discard(output)
        try:
            if len(items) == 1:
                # The usual case, and the fast one: a post that is awaited alone.
                await _post_one(queue, items[0])
                return {}
            report = await queue.post_many(items)
        except PostError as error:
            return {0: error}
        except BaseException:
            self._unsettled.add(output)
            raise
        return {each.index: each.error for each in report.failures}


async def _post_one(queue: Queue, item: PutMessage) -> None:
    await queue.post(
        item.data,
        properties=item.properties,
        tags=item.tags,
        guid=item.guid,
        compression=item.compression,
        key=item.key,
        delay=item.delay,
    )


def _listed(result: object) -> Sequence[object]:
    """Return the results of a batch; empty if the handler returned no list."""
    return cast("Sequence[object]", result) if isinstance(result, Sequence) else ()
