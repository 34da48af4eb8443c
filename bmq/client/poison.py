# SPDX-License-Identifier: Apache-2.0
"""A common policy for poison messages: messages unusable for any consumer.

The problem: producers control the content of messages. A message may be damaged, may not decode to the
expected type, or may carry properties directing a process to a forbidden queue. Poison messages left
unconfirmed fill the limits of the consumer, and block the good messages behind. A message raised as an error
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
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from bmq import _checks
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq.client.dead_letters import DeadLetter, Failure, described
from bmq.client.left import Left
from bmq.client.message import Message
from bmq.client.posts import QueueBase
from bmq.conventions import is_guid
from bmq.errors import (
    Error,
    InvalidPayload,
    InvalidProperty,
    InvalidURI,
    ProtocolError,
    Undecodable,
    UsageError,
)
from bmq.protocol.deadlines import backoff
from bmq.wire.printable import printable
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.queue import Queue

__all__ = [
    "Allow",
    "Allowed",
    "Poison",
    "PoisonKind",
    "PutAside",
    "check_dead_letters",
    "guid_of",
    "integer_of",
    "poison_of",
    "queue_of",
    "unreadable",
]

#: Permitted destinations named by messages: a pattern with ``*`` for the whole URI, several patterns, or a
#: function of the URI.
Allow: TypeAlias = str | Iterable[str] | Callable[[str], bool]

# Queue URIs are shorter: a domain, and a name of up to 64 characters.
_LONGEST_URI: Final = 1000
# Number of dead letters posted at a time.
_AT_ONCE: Final = 200
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


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
        listed = allowed(uri)
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
        allow: patterns, or a function. By default the queues of ``own``'s domain, and in any domain the
            queues for replies (named ``replies.*``).
        own: source queue of the messages.
        name: name of the argument, for errors.

    Raises:
        UsageError: ``allow`` has another type.
    """

    def __init__(self, allow: Allow | None, own: QueueUri, name: str = "allow") -> None:
        self._own = own
        self._function: Callable[[str], bool] | None = None
        self._patterns: tuple[str, ...] | None = None
        if allow is None:
            return
        if isinstance(allow, str):
            self._patterns = (_checks.text(name, allow, empty=False),)
        elif callable(allow):
            self._function = allow
        else:
            try:
                patterns = list(allow)
            except TypeError:
                raise UsageError(
                    f"{name} must be a pattern such as 'bmq://DOMAIN/*', several, or a function of a URI, "
                    f"not {type(allow).__name__}"
                ) from None
            self._patterns = tuple(_checks.text(name, each, empty=False) for each in patterns)

    def of(self, own: QueueUri) -> Allowed:
        """Return the same rule for messages of another queue."""
        other = copy(self)
        other._own = own
        return other

    def __call__(self, uri: QueueUri) -> bool:
        """Whether a message may name this queue."""
        if self._function is not None:
            return bool(self._function(uri.canonical))
        if self._patterns is not None:
            return any(fnmatchcase(uri.canonical, pattern) for pattern in self._patterns)
        same = uri.domain == self._own.domain and uri.tier == self._own.tier
        return same or uri.queue.startswith("replies.")


# ---- putting messages aside


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
    if QueueUri.parse(queue.uri).canonical == QueueUri.parse(own.uri).canonical:
        raise UsageError(f"dead letters of {own.uri} would return to it; name another queue for them")
    if not queue.writable:
        raise UsageError(f"queue {queue.uri} is not open for writing: open_queue(..., write=True)")
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
        self._letters = DeadLetter(dead_letters) if dead_letters is not None else None
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
        if self._letters is not None:
            outcome = f"put aside in {self._letters.uri}"
        self._limit.error(
            (poison.kind, outcome),
            "%s: message %s of %s is %s: %s",
            self._name,
            message.guid,
            message.queue_uri,
            outcome,
            printable(poison),
        )
        if self._letters is None:
            if self._discard:
                self.taken += 1
                message.confirm()
            else:
                self._skip(message)
            return
        self._waiting[message.guid] = Failure(message, poison, 0, None, self._name)
        if self._task is None:
            self._task = asyncio.create_task(self._post(), name=f"dead letters of {self._name}")

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

    async def _post(self) -> None:
        """Post dead letters until no messages wait."""
        assert self._queue is not None
        refused = 0
        try:
            while self._waiting and not self._queue.closed:
                batch = list(islice(self._waiting.values(), _AT_ONCE))
                results = await asyncio.gather(*map(self._posted, batch))
                refused = 0 if any(results) else refused + 1
                if refused:
                    await asyncio.sleep(backoff(refused, _FIRST_PAUSE, _LONGEST_PAUSE))
        finally:
            self._task = None

    async def _posted(self, failure: Failure) -> bool:
        """Post a dead letter; return whether the message is finished."""
        assert self._letters is not None
        assert self._queue is not None
        message = failure.message
        try:
            await self._letters.post_once(failure, self._queue)
        except Error as error:
            passing = not isinstance(error, InvalidPayload | InvalidProperty)
            self._limit.error(
                (type(error), passing),
                "%s: message %s of %s could not be put aside in %s, and %s: %s",
                self._name,
                message.guid,
                message.queue_uri,
                self._letters.uri,
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
