# SPDX-License-Identifier: Apache-2.0
"""Messages that no consumer can use, and messages given up: dead letters, and messages left in the queue.

The problem: producers control the content of messages. A message may be damaged, may not decode to the
expected type, or may carry properties directing a process to a forbidden queue. Such poison messages, left
unconfirmed, fill the limits of the consumer, and block the good messages behind. A message raised as an error
ends the consumer, and the next consumer after the redelivery. If each message is logged, the log fills the
disk.

The policy: each consumer takes a poison message out of the way on detection. The message becomes a dead
letter if the consumer has a queue for dead letters. Otherwise the message is left in the queue, unconfirmed
and outside the consumer's limits, because nobody has decided that it may be lost. The log has one line per
kind and minute. Failing *handlers* are a different matter, decided by retry policies.

The kinds (:class:`PoisonKind`):

- *unreadable*: the payload does not match its compression, or the properties cannot be parsed;
- *undecodable*: the payload cannot be decoded to the type of the handler;
- *forged*: a control property (with a name beginning with ``bmq_``) has a type or a value never set by bmq;
- *misdirected*: the queue named by the message does not exist, is not allowed, or cannot be opened;
- *oversized*: the message cannot be posted again, because the additional properties do not fit.

Only :func:`integer_of`, :func:`guid_of` and :func:`queue_of` read control properties. They raise
:class:`Poison`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from bmq import _checks, _world
from bmq._checks import INT32_MAX, INT64_MAX
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.message import Message
from bmq.client.posts import PutMessage, QueueBase
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
from bmq.errors import (
    Error,
    InvalidPayload,
    InvalidProperty,
    InvalidURI,
    PostError,
    ProtocolError,
    StateError,
    Undecodable,
    UsageError,
)
from bmq.protocol.deadlines import backoff
from bmq.wire.constants import MAX_PROPERTIES, PropertyType
from bmq.wire.printable import bounded, described, error_text, printable
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.consumer import Consumer
    from bmq.client.queue import Queue

__all__ = [
    "Allow",
    "Allowed",
    "DeadLetter",
    "Failure",
    "GiveUp",
    "Left",
    "Poison",
    "PoisonKind",
    "PutAside",
    "check_dead_letters",
    "check_elsewhere",
    "guid_of",
    "integer_of",
    "origin_of",
    "original_of",
    "poison_of",
    "queue_of",
    "short",
    "unreadable",
    "widen",
]

#: Permitted destinations named by messages: a pattern with ``*`` for the whole URI, several patterns, or a
#: function of the URI.
Allow: TypeAlias = str | Iterable[str] | Callable[[str], bool]

# Queue URIs are shorter: a domain, and a name of up to 64 characters.
_LONGEST_URI: Final = 1000
# Number of dead letters posted at a time.
_AT_ONCE: Final = 200
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_LEAVES = (
    "%s leaves messages of %s in the queue, unconfirmed: %d so far, the first is %s. The broker redelivers "
    "them once the queue is closed. %s"
)
# After this many further left messages, forget the messages confirmed meanwhile.
_LOOK_AFTER = 64
# With manual confirmation a full window is normal, and logged only after this many idle seconds.
_PATIENCE = 10.0


# ---- dead letters


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
    (:attr:`bmq.Message.raw`), including the properties. A dead letter posted to its original queue as it is,
    for instance with ``bmq move``, remains a letter of the original when it is given up.

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
                await _post_letter(failure, queue)
                return
            except PostError as error:
                if not error.retryable:
                    raise
            await pause(backoff(attempt, _FIRST_PAUSE, _LONGEST_PAUSE))


async def _post_letter(failure: Failure, queue: Queue) -> None:
    """Post a dead letter once; a letter posted twice has the same GUID."""
    message = failure.message
    data, properties = _letter_of(failure)
    guid = derived_guid(message.guid, message.queue_uri, "dead letter")
    await queue.post(data, properties=properties, guid=guid)


#: Final action for a message given up. "skip" and "leave" keep the message in the queue, unconfirmed; "skip",
#: the default everywhere, frees its slot for other messages. "discard" confirms the message, which is then
#: lost. A DeadLetter puts the message aside.
GiveUp: TypeAlias = Literal["discard", "skip", "leave"] | DeadLetter


def _letter_of(failure: Failure) -> tuple[bytes, dict[str, PropertyInput]]:
    """Return the payload and the properties of a dead letter."""
    message = failure.message
    added: dict[str, PropertyInput] = {
        DEAD_ATTEMPTS: PropertyValue(PropertyType.INT32, min(max(failure.attempt, 0), INT32_MAX)),
        DEAD_ERROR: error_text(failure.error),
        DEAD_GUID: origin_of(message),
        DEAD_QUEUE: message.queue_uri,
    }
    try:
        data, properties = message.data, message.properties.typed()
        for name in (ATTEMPTS, DEATHS, DUE, ERROR, ORIGIN):  # of its retries
            properties.pop(name, None)
    except ProtocolError as error:
        return message.raw, {**added, DEAD_RAW: bounded(str(error))}
    if not data:
        return message.raw, {**added, DEAD_RAW: "the payload is empty"}
    if (letter := _moved(properties, added)) is not None:
        return data, letter
    letter = {**properties, **added}
    if any(name.startswith(DEAD_PREFIX) for name in properties) or not legal(letter):
        letter = _with_the_rest_in_one(properties, added)
        if not legal(letter):
            return message.raw, {
                **added,
                DEAD_RAW: "the properties exceed the limits together with those of the dead letter",
            }
    return data, letter


def _moved(
    properties: dict[str, PropertyInput], added: dict[str, PropertyInput]
) -> dict[str, PropertyInput] | None:
    """Return the letter's properties for a dead letter moved to its original queue, None for other messages.

    A letter within a letter would grow with each move.
    """
    queue, guid = (getattr(properties.get(name), "value", None) for name in (DEAD_QUEUE, DEAD_GUID))
    if queue != added[DEAD_QUEUE] or not is_guid(guid):
        return None
    letter = {**properties, **added, DEAD_GUID: guid}
    return letter if legal(letter) else None


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


def origin_of(message: Message) -> str:
    """Return the original GUID of a message: ``bmq_origin`` if valid, or else the message's own."""
    try:
        origin = message.properties.get(ORIGIN)
    except ProtocolError:
        return message.guid
    return origin if is_guid(origin) else message.guid


# ---- the way back from a dead letter


def original_of(letter: Message, queue: str | None = None) -> tuple[str, PutMessage]:
    """Return the destination and the original message of a dead letter.

    Payload and properties are those of the original, with one more property: ``bmq_origin``, the GUID of the
    original, by which an inbox knows a message that was handled before. The GUID derives from the GUID of the
    dead letter, so that a message restored twice within the broker's deduplication window is stored once. ::

        uri, original = bmq.workers.original_of(letter)
        (await (await session.open_output(uri)).post_many([original])).raise_for_failures()
        letter.confirm()

    Args:
        letter: message that a :class:`bmq.DeadLetter` has put aside.
        queue: destination instead of the original queue.

    Raises:
        UsageError: the message is not a dead letter, or cannot be posted in its original form.
        ProtocolError: the message cannot be parsed.
    """
    properties = _checks.choice("letter", letter, Message).properties
    if queue is not None:
        QueueUri.parse(queue)
    origin = properties.get(DEAD_QUEUE)
    if not isinstance(origin, str):
        raise UsageError(f"message {letter.guid} is not a dead letter: it has no {DEAD_QUEUE}")
    raw = properties.get(DEAD_RAW)
    if raw is not None:
        raise UsageError(
            f"dead letter {letter.guid} has an unreadable original, which cannot be posted again: {raw!s}"
        )
    if queue is None and "?id=" in origin:
        raise UsageError(
            f"dead letter {letter.guid} belongs to application {origin} alone: a post to this queue would "
            "reach all applications; name another queue"
        )
    uri = queue if queue is not None else origin
    restored = {n: v for n, v in properties.typed().items() if not n.startswith(DEAD_PREFIX)}
    for name, value in _rest(properties.get(DEAD_PROPERTIES)):
        if len(restored) < MAX_PROPERTIES and legal({name: value}):
            restored[name] = value
    first = properties.get(DEAD_GUID)
    if is_guid(first) and len(restored) < MAX_PROPERTIES:
        restored[ORIGIN] = first
    return uri, PutMessage(letter.data, restored or None, derived_guid(letter.guid, uri, "back"))


def _rest(text: object) -> list[tuple[str, PropertyInput]]:
    """Return the properties that could not be posted with the dead letter."""
    if not isinstance(text, str):
        return []
    found: list[tuple[str, PropertyInput]] = []
    try:
        for name, kind, value in cast("list[Any]", json.loads(text)):
            number = PropertyType[kind]
            raw = number in (PropertyType.CHAR, PropertyType.BINARY)
            found.append((str(name), PropertyValue(number, base64.b64decode(value) if raw else value)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # another program's property
    return found


# ---- poison


class PoisonKind(Enum):
    """Reasons why no consumer can use a message."""

    UNREADABLE = "unreadable"
    UNDECODABLE = "undecodable"
    FORGED = "forged"
    MISDIRECTED = "misdirected"
    OVERSIZED = "oversized"


class Poison(Exception):
    """A message unusable for any consumer.

    Args:
        kind: kind.
        reason: one line for the log and for the dead letter.
    """

    def __init__(self, kind: PoisonKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.args[0]}"


def unreadable(message: Message) -> Poison | None:
    """Return the reason why a message cannot be parsed; None if payload and properties are readable."""
    try:
        _ = message.properties.typed(), message.data
    except ProtocolError as error:
        return Poison(PoisonKind.UNREADABLE, described(error))
    return None


def poison_of(message: Message, error: BaseException) -> Poison | None:
    """Return the poison indicated by an error; None if the error is not about the message.

    A ProtocolError of a handler counts only if the handler's message is unreadable: the handler may have read
    another message.
    """
    if isinstance(error, Poison):
        return error
    if isinstance(error, Undecodable):
        reason = described(error).removeprefix("Undecodable: ")
        return unreadable(message) or Poison(PoisonKind.UNDECODABLE, reason)
    return unreadable(message) if isinstance(error, ProtocolError) else None


# ---- control properties


def integer_of(message: Message, name: str, low: int, high: int) -> int | None:
    """Return an integer property; None if the message does not have the property.

    Raises:
        Poison: the value is not an integer, or out of range; or the message is unreadable.
    """
    value = _property(message, name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        return value
    raise _forged(name, value, f"an integer from {low} to {high}")


def guid_of(message: Message, name: str) -> str | None:
    """Return a property with a GUID; None if the message does not have the property.

    Raises:
        Poison: the value is not a GUID; or the message is unreadable.
    """
    value = _property(message, name)
    if value is None or is_guid(value):
        return value
    raise _forged(name, value, "a GUID")


def queue_of(message: Message, name: str, allowed: Allowed) -> str | None:
    """Return a property with the URI of a destination; None if the message does not have the property.

    Returns:
        The canonical URI.

    Raises:
        Poison: the value is not a string, or not the URI of a queue; the queue is not allowed; or the message
            is unreadable.
    """
    value = _property(message, name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _forged(name, value, "a STRING")
    if len(value) > _LONGEST_URI:
        raise Poison(
            PoisonKind.MISDIRECTED, f"{name} has {len(value)} characters, more than a queue's URI can have"
        )
    try:
        uri = QueueUri.parse(value)
    except InvalidURI as error:
        raise Poison(PoisonKind.MISDIRECTED, f"{name}: {described(error)}") from None
    if uri.app_id:
        raise Poison(
            PoisonKind.MISDIRECTED,
            f"{name} names an application, and posts go to a queue without ?id=: {value!r}",
        )
    try:
        listed = allowed(uri, QueueUri.parse(message.queue_uri))
    except Exception as error:  # an application's function, called with a producer's input
        raise Poison(PoisonKind.MISDIRECTED, f"allow= failed on {value!r}: {described(error)}") from error
    if not listed:
        raise Poison(PoisonKind.MISDIRECTED, f"{name} names a queue that allow= does not list: {value!r}")
    return uri.canonical


def _property(message: Message, name: str) -> object:
    try:
        return message.properties.get(name)
    except ProtocolError as error:
        raise Poison(PoisonKind.UNREADABLE, described(error)) from None


def _forged(name: str, value: object, expected: str) -> Poison:
    shown = ascii(value if not isinstance(value, str | bytes) else value[:40])
    return Poison(PoisonKind.FORGED, f"{name} must be {expected}, not {shown} ({type(value).__name__})")


class Allowed:
    """The queues to which messages may direct posts.

    Args:
        allow: patterns, or a function. By default the queues of the messages' own domain, and in any domain
            the queues for replies (named ``replies.*``).

    Raises:
        UsageError: ``allow`` has another type.
    """

    def __init__(self, allow: Allow | None) -> None:
        self._function: Callable[[str], bool] | None = None
        self._patterns: tuple[str, ...] | None = None
        if isinstance(allow, str):
            self._patterns = (_checks.text("allow", allow, empty=False),)
        elif callable(allow):
            self._function = allow
        elif allow is not None:
            what = "patterns such as 'bmq://DOMAIN/*', a pattern, or a function of a URI"
            patterns: list[str] = _checks.items("allow", allow, what)
            self._patterns = tuple(_checks.text("allow", each, empty=False) for each in patterns)

    def __call__(self, uri: QueueUri, own: QueueUri) -> bool:
        """Whether a message of the queue ``own`` may name this queue."""
        if self._function is not None:
            return bool(self._function(uri.canonical))
        if self._patterns is not None:
            return any(fnmatchcase(uri.canonical, pattern) for pattern in self._patterns)
        same = uri.domain == own.domain and uri.tier == own.tier
        return same or uri.queue.startswith("replies.")


# ---- messages left in the queue


async def widen(consumer: Consumer, usual: tuple[int, int], count: int, size: int) -> None:
    """Raise the limits of a consumer by messages that stay unconfirmed.

    The limits grow by twice the needed size: thousands of messages take few requests.

    Args:
        consumer: an open consumer.
        usual: the limits without such messages, in messages and bytes.
        count: number of such messages, once for every expression of the consumer.
        size: bytes of such messages, once for every expression.

    Raises:
        ConfigureQueueError, RequestTimeout, StateError: as for :meth:`bmq.Consumer.configure`.
    """
    await consumer.configure(
        max_unconfirmed_messages=min(usual[0] + 2 * count, INT32_MAX),
        max_unconfirmed_bytes=min(usual[1] + 2 * size, INT64_MAX),
    )


def short(consumer: Consumer, usual: tuple[int, int], count: int, size: int) -> bool:
    """Whether messages that stay unconfirmed leave at most half of the usual limits; see :func:`widen`."""
    options = consumer.options
    room, space = options.max_unconfirmed_messages - count, options.max_unconfirmed_bytes - size
    return (room * 2 <= usual[0] and options.max_unconfirmed_messages < INT32_MAX) or (
        space * 2 <= usual[1] and options.max_unconfirmed_bytes < INT64_MAX
    )


class Left:
    """Messages of one consumer left unconfirmed.

    The number of messages left without a decision of the application is logged: at the first one, afterwards
    at most once a minute, and at the end.

    Args:
        consumer: an open consumer.
        name: name of the handler or the service, for the log.
        logger: receives the log lines.
        remedy: how an application decides about such messages, for the log.
        sleep: measures the time without arrivals.
        now: a monotonic clock in seconds, for the rate of log lines.

    Attributes:
        skipped: sizes of skipped messages by GUID; the limits include the sum.
        left: all further left messages by GUID.
    """

    def __init__(
        self,
        consumer: Consumer,
        name: str,
        logger: Log,
        remedy: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = _world.monotonic,
    ) -> None:
        self._consumer = consumer
        self._in_hand = consumer.queue._subscriptions.in_hand
        self._name = name
        self._logger = logger
        self._remedy = remedy
        self._sleep = sleep
        self._limit = LogLimit(logger, clock=now)
        options = consumer.options
        self._usual = options.max_unconfirmed_messages, options.max_unconfirmed_bytes
        self.skipped: dict[str, int] = {}
        self.left: dict[str, Message] = {}
        self._size = 0
        self._look_again_at = _LOOK_AFTER
        self._watching: asyncio.Task[None] | None = None
        self._widening: asyncio.Task[None] | None = None
        self._told = False
        self._reported = 0

    @property
    def count(self) -> int:
        """Number of left and skipped messages without a confirmation."""
        self._drop_confirmed()
        return len(self.skipped) + len(self.left)

    @property
    def fills_limits(self) -> bool:
        """Whether left messages fill the limits, which stops the delivery."""
        self._drop_confirmed()
        return self._full()

    def forget(self, message: Message) -> None:
        """Stop counting a redelivered message: a handler receives the message anew."""
        guid = message.guid
        self._size -= self.skipped.pop(guid, 0)
        if self.left.pop(guid, None) is not None:
            self._size -= len(message.raw)

    def skip(self, message: Message) -> None:
        """Leave a message outside the limits: raise the limits by the skipped messages, in the background."""
        self.forget(message)
        self._in_hand.release((message,))
        self.skipped[message.guid] = len(message.raw)
        self._size += len(message.raw)
        self._report()
        if self._widening is None and short(self._consumer, self._usual, *self._usage()):
            self._widening = asyncio.create_task(self._widen(), name=f"limits of {self._name}")

    def leave(self, message: Message) -> None:
        """Leave a message inside the limits; log once when left messages fill the limits."""
        self._in_hand.release((message,))
        self._keep(message)
        self._report()
        self._tell_if_full()

    def wait_for(self, message: Message) -> None:
        """Leave a message for a later confirmation; log once when the limits stay full.

        With manual confirmation, full limits are normal for a short time and not logged. The message stays in
        hand.
        """
        self._keep(message)
        if not self._told and self._watching is None and self._full():
            self._watching = asyncio.create_task(self._watch(), name=f"{self._name} standing still")

    def close(self) -> None:
        """Stop watching and raising the limits, and log the number of messages left since the last line."""
        for task in (self._watching, self._widening):
            if task is not None:
                task.cancel()
        if len(self.skipped) > self._reported:
            self._logger.warning(_LEAVES, *self._about(), extra={"queue": self._consumer.queue.uri})

    def _report(self) -> None:
        """Log the number of left messages, not each of them."""
        if self._limit.warning("left", _LEAVES, *self._about()):
            self._reported = len(self.skipped)

    def _about(self) -> tuple[object, ...]:
        return (
            self._name,
            self._consumer.queue.uri,
            len(self.skipped) + len(self.left),
            next(iter(self.skipped or self.left)),
            self._remedy,
        )

    async def _widen(self) -> None:
        """Raise the limits until half of the usual limits is free of left messages."""
        try:
            while short(self._consumer, self._usual, *self._usage()):
                await widen(self._consumer, self._usual, *self._usage())
        except StateError:
            pass  # closed: no message arrives
        except Error as error:
            self._logger.warning(
                "could not raise the limits by the messages that %s has skipped: %s",
                self._name,
                error,
                extra={"queue": self._consumer.queue.uri},
            )
            self._tell_if_full()
        finally:
            self._widening = None

    async def _watch(self) -> None:
        while self._full() and not self._told:
            newest = next(reversed(self.left), None)
            await self._sleep(_PATIENCE)
            self._drop_confirmed()
            if newest == next(reversed(self.left), None):
                self._tell_if_full()
        self._watching = None

    def _keep(self, message: Message) -> None:
        self.left[message.guid] = message
        self._size += len(message.raw)
        if len(self.left) >= self._look_again_at:
            self._drop_confirmed()

    def _drop_confirmed(self) -> None:
        for guid in [guid for guid, message in self.left.items() if message.confirmed]:
            self._size -= len(self.left.pop(guid).raw)
        self._look_again_at = 2 * len(self.left) + _LOOK_AFTER

    def _usage(self) -> tuple[int, int]:
        """Return number and bytes; a filter of several expressions divides the limits among its expressions.

        All left messages may belong to a single expression, so each message counts once for every expression.
        """
        parts = len(self._consumer.expressions)
        return (len(self.skipped) + len(self.left)) * parts, self._size * parts

    def _full(self) -> bool:
        options, (count, size) = self._consumer.options, self._usage()
        return count >= options.max_unconfirmed_messages or size >= options.max_unconfirmed_bytes

    def _tell_if_full(self) -> None:
        if self._told or not self._full() or not self.fills_limits:
            return
        self._told = True
        options = self._consumer.options
        self._logger.warning(
            "%s is blocked: unconfirmed messages of %s fill its limits (%d messages, %d bytes). No more "
            "messages arrive until some are confirmed, or until the queue is closed and they are "
            "redelivered, as after a restart. then=bmq.DeadLetter(...) puts aside messages that cannot be"
            " handled",
            self._name,
            self._consumer.queue.uri,
            options.max_unconfirmed_messages,
            options.max_unconfirmed_bytes,
            extra={"queue": self._consumer.queue.uri},
        )


# ---- putting messages aside


def check_elsewhere(uri: QueueUri, letters: Queue | str) -> None:
    """Check that messages of a queue can be put aside in another queue.

    Raises:
        UsageError: the messages would return to the queue, or cannot be posted.
    """
    other = QueueUri.parse(letters.uri if isinstance(letters, QueueBase) else letters)
    if other.app_id:
        raise UsageError(f"dead letters are posted to a queue, not to an application of it: {other}")
    if other.canonical == uri.canonical:
        raise UsageError(f"dead letters of {uri} would return to it; name another queue for them")
    if isinstance(letters, QueueBase) and not letters.writable:
        raise UsageError(f"queue {other} is not open for writing: open_queue(..., write=True)")


def check_dead_letters(queue: Queue | str, own: Queue) -> Queue:
    """Check that dead letters of a queue can be posted to another queue; return the latter.

    Args:
        queue: queue for dead letters; a URI is refused with a remedy.
        own: source queue of the messages.

    Raises:
        UsageError: the object is not an open queue, is not open for writing, or is the source queue.
    """
    if isinstance(queue, str):
        raise UsageError(
            f"open the queue for dead letters first: await session.open_queue({queue[:_LONGEST_URI]!r}, "
            "write=True)"
        )
    _checks.instance("dead_letters", queue, QueueBase, "an open bmq.Queue")
    check_elsewhere(QueueUri.parse(own.uri), queue)
    return queue


class PutAside:
    """Puts poison messages aside, for consumers without a retry policy.

    :meth:`take` never waits. One task posts dead letters, several at a time. A message is confirmed after the
    acknowledgement of its dead letter. While the queue for dead letters is full, messages wait, unconfirmed,
    and count in :attr:`pending`. Without a queue for dead letters, and if a message is too large for a dead
    letter, the message stays in the queue, outside the limits of its consumer.

    Args:
        name: source of the messages, for the log and the dead letters. All messages have one consumer.
        dead_letters: queue open for writing, or None.
        logger: receives the log lines.
        discard: whether to confirm messages without a queue for dead letters.

    Attributes:
        taken: number of messages put aside, left in the queue or discarded.
    """

    def __init__(self, name: str, dead_letters: Queue | None, logger: Log, *, discard: bool = False) -> None:
        self._name = name
        self._queue = dead_letters
        self._logger = logger
        self._limit = LogLimit(logger)
        self._discard = discard
        self._left: Left | None = None
        self._waiting: dict[str, Failure] = {}
        self._task: asyncio.Task[None] | None = None
        self.taken = 0

    @property
    def pending(self) -> int:
        """Number of messages waiting for the acknowledgement of a dead letter."""
        return len(self._waiting)

    def take(self, message: Message, poison: Poison) -> None:
        """Put a message aside."""
        if message.guid in self._waiting:
            return  # redelivered meanwhile
        outcome = "discarded" if self._discard else "left in the queue, unconfirmed"
        if self._queue is not None:
            outcome = f"put aside in {self._queue.uri}"
        self._limit.error(
            (poison.kind, outcome),
            "%s: message %s of %s is %s: %s",
            self._name,
            message.guid,
            message.queue_uri,
            outcome,
            printable(poison),
        )
        if self._queue is not None:
            self._waiting[message.guid] = Failure(message, poison, 0, None, self._name)
            if self._task is None:
                self._task = asyncio.create_task(
                    self._post(self._queue), name=f"dead letters of {self._name}"
                )
        elif self._discard:
            self.taken += 1
            message.confirm()
        else:
            self._skip(message)

    async def close(self, grace: float = 5.0) -> None:
        """Wait up to ``grace`` seconds for pending dead letters; the remaining messages stay unconfirmed."""
        if self._task is not None:
            task = self._task
            await asyncio.wait([task], timeout=grace)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self._left is not None:
            self._left.close()

    def _skip(self, message: Message) -> None:
        """Leave a message in the queue."""
        if self._left is None:
            remedy = "dead_letters= names a queue to put such messages aside"
            self._left = Left(message.consumer, self._name, self._logger, remedy)
        self.taken += message.guid not in self._left.skipped
        self._left.skip(message)

    async def _post(self, queue: Queue) -> None:
        """Post dead letters until no messages wait."""
        refused = 0
        try:
            while self._waiting and not queue.closed:
                batch = list(islice(self._waiting.values(), _AT_ONCE))
                results = await asyncio.gather(*(self._posted(failure, queue) for failure in batch))
                refused = 0 if any(results) else refused + 1
                if refused:
                    await asyncio.sleep(backoff(refused, _FIRST_PAUSE, _LONGEST_PAUSE))
        finally:
            self._task = None

    async def _posted(self, failure: Failure, queue: Queue) -> bool:
        """Post a dead letter; return whether the message is finished."""
        message = failure.message
        try:
            await _post_letter(failure, queue)
        except Error as error:
            passing = not isinstance(error, InvalidPayload | InvalidProperty)
            self._limit.error(
                (type(error), passing),
                "%s: message %s of %s could not be put aside in %s, and %s: %s",
                self._name,
                message.guid,
                message.queue_uri,
                queue.uri,
                "will be tried again" if passing else "stays in the queue, unconfirmed",
                described(error),
            )
            if passing:
                self._waiting[message.guid] = self._waiting.pop(message.guid)  # further messages first
                return False
            self._skip(message)
        else:
            self.taken += 1
            message.confirm()
        self._waiting.pop(message.guid, None)
        return True
