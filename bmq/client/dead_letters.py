# SPDX-License-Identifier: Apache-2.0
"""Failed attempts, and the queue where failed messages are put aside."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from bmq._checks import INT32_MAX
from bmq.client.message import Message
from bmq.client.posts import QueueBase
from bmq.conventions import (
    ATTEMPTS,
    DEAD_ATTEMPTS,
    DEAD_ERROR,
    DEAD_GUID,
    DEAD_PREFIX,
    DEAD_PROPERTIES,
    DEAD_QUEUE,
    DEAD_RAW,
    DEATHS,
    DUE,
    ERROR,
    ORIGIN,
    derived_guid,
    is_guid,
)
from bmq.errors import PostError, ProtocolError, UsageError
from bmq.protocol.deadlines import backoff
from bmq.wire.constants import MAX_PROPERTIES, PropertyType
from bmq.wire.printable import printable
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.queue import Queue

__all__ = [
    "DeadLetter",
    "Failure",
    "GiveUp",
    "bounded",
    "described",
    "error_text",
    "legal",
    "letter_of",
    "origin_of",
    "provenance",
]

_MAX_ERROR_TEXT: Final = 1000
_MAX_LINE: Final = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt to handle a message.

    Attributes:
        message: message, unconfirmed unless the handler or ``ON_RECEIPT`` confirmed it.
        error: exception of the handler, including :class:`bmq.Reject` and :class:`bmq.RetryAfter`; a
            TimeoutError if the handler exceeded the deadline.
        attempt: number of the attempt, from 1; attempts ended by RetryAfter do not count.
        retry_in: seconds until the next attempt; None after the last attempt.
        handler: name of the handler.
    """

    message: Message
    error: BaseException
    attempt: int
    retry_in: float | None
    handler: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Put a message aside in another queue when it is given up.

    The payload and the properties are posted to ``queue``, with further properties about the failure. The
    message is confirmed once the broker has acknowledged the dead letter. The further properties:

    - ``bmq_dead_attempts`` (INT32): number of attempts;
    - ``bmq_dead_error`` (STRING): type and text of the last error, at most 1,000 characters;
    - ``bmq_dead_guid`` (STRING): GUID of the message; after durable retries, its original GUID;
    - ``bmq_dead_queue`` (STRING): URI of the message's queue, with ``?id=`` if present.

    The GUID of the dead letter derives from the last two: a repeated post within the broker's deduplication
    window is stored once.

    Messages that cannot be posted in this form become dead letters, too, with one more property.
    ``bmq_dead_properties`` (STRING) is a JSON list of ``[name, type, value]`` for the properties that cannot
    be posted: those with an illegal name, those without space in the letter, and those whose name begins with
    ``bmq_dead_``. Values of type CHAR or BINARY are in Base64. ``bmq_dead_raw`` (STRING) is the reason why a
    message could not be parsed; in this case the payload of the letter has all delivered bytes
    (:attr:`bmq.Message.raw`), including the properties.

    ::

        dead = bmq.DeadLetter("bmq://bmq.test.mem.priority/orders.dead")
        retry = bmq.Backoff(every=5, retries=3, then=dead)

    Attributes:
        queue: a URI, opened by :class:`bmq.App` and :func:`bmq.consume`; or a queue open for writing.

    Raises:
        InvalidURI: the queue is neither a queue nor a URI.
    """

    queue: Queue | str

    def __post_init__(self) -> None:
        if not isinstance(self.queue, QueueBase):
            QueueUri.parse(self.queue)

    @property
    def uri(self) -> str:
        """The queue's URI."""
        return self.queue if isinstance(self.queue, str) else self.queue.uri

    async def post(self, failure: Failure, queue: Queue, pause: Callable[[float], Awaitable[None]]) -> None:
        """Post the message to ``queue``, and wait for the acknowledgement.

        Retries, after pauses of 1 to 60 seconds, as long as the status of the refusal is retryable (for
        example, a full queue).

        Args:
            failure: the message and its error.
            queue: queue for dead letters.
            pause: function sleeping for a number of seconds.

        Raises:
            PostError: the broker refused permanently.
            UsageError: the queue is closed, or message and reason together exceed 64 MiB.

        After a cancellation, the dead letter may or may not be posted.
        """
        for attempt in count(1):
            try:
                await self.post_once(failure, queue)
                return
            except PostError as error:
                if not error.retryable:
                    raise
            await pause(backoff(attempt, _FIRST_PAUSE, _LONGEST_PAUSE))

    async def post_once(self, failure: Failure, queue: Queue) -> None:
        """Post the message to ``queue``, and wait for the acknowledgement.

        Args:
            failure: the message and its error.
            queue: queue for dead letters.

        Raises:
            PostError: the broker refused.
            UsageError: the queue is closed, or message and reason together exceed 64 MiB.

        After a cancellation, the dead letter may or may not be posted.
        """
        message = failure.message
        data, properties = letter_of(failure)
        guid = derived_guid(message.guid, message.queue_uri, "dead letter")
        await queue.post(data, properties=properties, guid=guid)


#: Final action for a message given up. "skip" and "leave" keep the message in the queue, unconfirmed; "skip",
#: the default everywhere, frees its slot for other messages. "discard" confirms the message, which is then
#: lost. A DeadLetter puts the message aside.
GiveUp: TypeAlias = Literal["discard", "skip", "leave"] | DeadLetter


def letter_of(failure: Failure) -> tuple[bytes, dict[str, PropertyInput]]:
    """Return the payload and the properties of a dead letter."""
    message, added = failure.message, provenance(failure)
    try:
        data, properties = message.data, message.properties.typed()
        for name in (ATTEMPTS, DEATHS, DUE, ERROR, ORIGIN):  # of its retries
            properties.pop(name, None)
    except ProtocolError as error:
        return message.raw, {**added, DEAD_RAW: bounded(str(error))}
    if not data:
        return message.raw, {**added, DEAD_RAW: "the payload is empty"}
    letter = {**properties, **added}
    if any(name.startswith(DEAD_PREFIX) for name in properties) or not legal(letter):
        letter = _with_the_rest_in_one(properties, added)
        if not legal(letter):
            return message.raw, {
                **added,
                DEAD_RAW: "the properties exceed the limits together with those of the dead letter",
            }
    return data, letter


def legal(properties: Mapping[str, PropertyInput]) -> bool:
    """Whether properties can be posted."""
    try:
        encode_properties(properties, new=True)
    except UsageError:
        return False
    return True


def _with_the_rest_in_one(
    properties: Mapping[str, PropertyInput], added: dict[str, PropertyInput]
) -> dict[str, PropertyInput]:
    """Move properties unsuitable for posting into a single suitable property."""
    room = MAX_PROPERTIES - len(added) - 1
    letter: dict[str, PropertyInput] = {}
    rest: list[tuple[str, str, object]] = []
    for name, value in properties.items():
        if name.startswith(DEAD_PREFIX) or len(letter) == room or not legal({name: value}):
            assert isinstance(value, PropertyValue)
            plain = base64.b64encode(value.value).decode() if isinstance(value.value, bytes) else value.value
            rest.append((name, value.type.name, plain))
        else:
            letter[name] = value
    return {**letter, **added, DEAD_PROPERTIES: json.dumps(rest)}


def provenance(failure: Failure) -> dict[str, PropertyInput]:
    """Return the origin and the error of a dead letter, as properties."""
    return {
        DEAD_ATTEMPTS: PropertyValue(PropertyType.INT32, min(max(failure.attempt, 0), INT32_MAX)),
        DEAD_ERROR: error_text(failure.error),
        DEAD_GUID: origin_of(failure.message),
        DEAD_QUEUE: failure.message.queue_uri,
    }


def origin_of(message: Message) -> str:
    """Return the original GUID of a message: ``bmq_origin`` if valid, or else the message's own."""
    try:
        origin = message.properties.get(ORIGIN)
    except ProtocolError:
        return message.guid
    return origin if is_guid(origin) else message.guid


def bounded(text: str, most: int = _MAX_ERROR_TEXT) -> str:
    """Return a text shortened to ``most`` characters, as a STRING property can hold."""
    return text[:most].encode("utf-8", "replace").decode()


def error_text(error: BaseException) -> str:
    """Return type and text of an error, at most 1,000 characters, as a property can hold."""
    return bounded(f"{type(error).__name__}: {_text(error)}")


def described(error: BaseException) -> str:
    """Return type and text of an error on one line of about 300 characters, for a log."""
    text = " ".join(_text(error)[: 4 * _MAX_LINE].split())
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, _MAX_LINE)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an application's exception with a broken __str__
        return "(str() of the error failed)"
