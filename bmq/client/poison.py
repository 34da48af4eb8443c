# SPDX-License-Identifier: Apache-2.0
"""The policy for messages that no consumer can use: one for everything that bmq ships.

A producer decides what is in a message. So a message may be damaged, may be no value of the expected type, or
may carry properties that would steer a process where it must not go. Left unconfirmed, such messages fill the
limits of their consumer, and the good ones behind them are never delivered. Raised as an error, one of them
ends the consumer, and the next consumer after it. Logged one by one, they fill a disk.

So each consumer does the same with each of them, as soon as it notices: the message goes to the dead letters
where the consumer has a queue for these, else it is confirmed; the log has one line per kind and minute. A
failing *handler* is another matter: that is what retry policies are for.

Five kinds (:class:`PoisonKind`):

- *unreadable*: the payload is not what its compression says, or the properties cannot be taken apart;
- *undecodable*: no value of the type that the handler takes;
- *forged*: a property that steers bmq (its name begins with ``bmq_``) has a type or a value that bmq never
  sets;
- *misdirected*: the queue that the message names is no queue, is not allowed, or cannot be opened;
- *oversized*: the message cannot be posted again, because what has to be added does not fit.

The properties that steer are read by :func:`integer_of`, :func:`guid_of` and :func:`queue_of`, and nowhere
else: these raise :class:`Poison`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from copy import copy
from enum import Enum
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from bmq import _checks
from bmq._backoff import backoff
from bmq._log_limit import LogLimit
from bmq.client._open_queue import OpenQueue
from bmq.client.dead_letters import DeadLetter, Failure, described
from bmq.client.message import Message
from bmq.conventions import is_guid
from bmq.errors import (
    Error,
    InvalidArgument,
    InvalidPayload,
    InvalidProperty,
    InvalidURI,
    ProtocolError,
    Undecodable,
    UsageError,
)
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

#: Which queues a process may post to because a message says so: a pattern with ``*`` that is compared with
#: the whole URI, several, or a function of the URI.
Allow: TypeAlias = str | Iterable[str] | Callable[[str], bool]

# Longer texts are no queue URI: a domain and a name of 64 characters.
_LONGEST_URI: Final = 1000
# Dead letters are posted so many at a time.
_AT_ONCE: Final = 200
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class PoisonKind(Enum):
    """Why no consumer can use a message."""

    UNREADABLE = "unreadable"
    UNDECODABLE = "undecodable"
    FORGED = "forged"
    MISDIRECTED = "misdirected"
    OVERSIZED = "oversized"


class Poison(Exception):
    """A message that no consumer can use.

    Args:
        kind: the kind.
        reason: one line for a log and for ``deadletter.error``.
    """

    def __init__(self, kind: PoisonKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.args[0]}"


def unreadable(message: Message) -> Poison | None:
    """Return why a message cannot be taken apart; None if payload and properties can be read."""
    try:
        _ = message.properties.typed(), message.data
    except ProtocolError as error:
        return Poison(PoisonKind.UNREADABLE, described(error))
    return None


def poison_of(message: Message, error: BaseException) -> Poison | None:
    """Return what an error says about its message; None when it says nothing about the message itself.

    A ProtocolError that a handler raises counts only if its message cannot be read: a handler may have read
    another one.
    """
    if isinstance(error, Poison):
        return error
    if isinstance(error, Undecodable):
        reason = described(error).removeprefix("Undecodable: ")
        return unreadable(message) or Poison(PoisonKind.UNDECODABLE, reason)
    return unreadable(message) if isinstance(error, ProtocolError) else None


# ---- properties that steer


def integer_of(message: Message, name: str, low: int, high: int) -> int | None:
    """Return an integer property, None if the message does not have it.

    Raises:
        Poison: it is no integer, or out of range; or the message cannot be read.
    """
    value = _property(message, name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        return value
    raise _forged(name, value, f"an integer from {low} to {high}")


def guid_of(message: Message, name: str) -> str | None:
    """Return a property that holds a GUID, None if the message does not have it.

    Raises:
        Poison: it is no GUID; or the message cannot be read.
    """
    value = _property(message, name)
    if value is None or is_guid(value):
        return value
    raise _forged(name, value, "a GUID")


def queue_of(message: Message, name: str, allowed: Allowed) -> str | None:
    """Return a property that names a queue to post to, None if the message does not have it.

    Returns:
        The canonical URI.

    Raises:
        Poison: it is no text; it is no URI of a queue; the queue is not allowed; or the message cannot be
            read.
    """
    value = _property(message, name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _forged(name, value, "a STRING")
    if len(value) > _LONGEST_URI:
        raise Poison(PoisonKind.MISDIRECTED, f"{name} has {len(value)} characters")
    try:
        uri = QueueUri.parse(value)
    except InvalidURI as error:
        raise Poison(PoisonKind.MISDIRECTED, f"{name}: {described(error)}") from None
    if uri.app_id:
        raise Poison(PoisonKind.MISDIRECTED, f"{name} names an appId, which takes no posts: {value!r}")
    try:
        listed = allowed(uri)
    except Exception as error:  # an application's function, given what a stranger wrote
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
    return Poison(PoisonKind.FORGED, f"{name} is {expected}, not {shown} ({type(value).__name__})")


class Allowed:
    """The queues that messages may direct posts to.

    Args:
        allow: patterns or a function. None allows the queues of ``own``'s domain, and queues for replies in
            any domain: those whose name begins with ``replies.``.
        own: the queue that the messages come from.
        name: the parameter's name, for errors.

    Raises:
        InvalidArgument: ``allow`` is none of these.
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
                raise InvalidArgument(
                    f"{name} is a pattern such as 'bmq://DOMAIN/*', several, or a function of a URI, not "
                    f"{type(allow).__name__}"
                ) from None
            self._patterns = tuple(_checks.text(name, each, empty=False) for each in patterns)

    def of(self, own: QueueUri) -> Allowed:
        """Return the same for messages that come from another queue."""
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


# ---- what becomes of them


def check_dead_letters(queue: Queue | str, own: Queue) -> Queue:
    """Return a queue if the dead letters of another queue can be posted to it.

    Args:
        queue: the queue for dead letters; a URI is refused with a remedy.
        own: the queue that the messages come from.

    Raises:
        UsageError: it is no open queue, is not open for writing, or is the queue that the messages come from.
    """
    if isinstance(queue, str):
        raise UsageError(
            f"open the queue for dead letters first: await session.open_queue({queue[:_LONGEST_URI]!r}, "
            "write=True)"
        )
    _checks.instance("dead_letters", queue, OpenQueue, "an open bmq.Queue")
    if QueueUri.parse(queue.uri).canonical == QueueUri.parse(own.uri).canonical:
        raise UsageError(f"dead letters of {own.uri} would come back to it; name another queue for them")
    if not queue.writable:
        raise UsageError(f"queue {queue.uri} is not open for writing: open_queue(..., write=True)")
    return queue


class PutAside:
    """Gets poisonous messages out of the way, for consumers that have no retry policy.

    :meth:`take` never waits. Dead letters are posted by one task, some at a time; a message is confirmed once
    the broker has acknowledged its dead letter. While the queue for dead letters is full, messages wait here,
    unconfirmed, and count in :attr:`pending`; without such a queue nothing ever waits.

    Args:
        consumer: what took the messages, for the log and the dead letters.
        dead_letters: a queue open for writing; None confirms.
        logger: receives the lines.

    Attributes:
        taken: how many messages were put aside or confirmed.
    """

    def __init__(self, consumer: str, dead_letters: Queue | None, logger: logging.Logger) -> None:
        self._consumer = consumer
        self._letters = DeadLetter(dead_letters) if dead_letters is not None else None
        self._queue = dead_letters
        self._limit = LogLimit(logger)
        self._waiting: dict[str, Failure] = {}
        self._task: asyncio.Task[None] | None = None
        self.taken = 0

    @property
    def pending(self) -> int:
        """How many messages wait until their dead letter is acknowledged."""
        return len(self._waiting)

    def take(self, message: Message, poison: Poison) -> None:
        """Put a message aside."""
        if message.guid in self._waiting:
            return  # delivered again meanwhile
        self._limit.error(
            (poison.kind, self._letters is None),
            "%s: message %s of %s is %s",
            self._consumer,
            message.guid,
            message.queue_uri,
            f"confirmed and gone: {printable(poison)}"
            if self._letters is None
            else f"put aside in {self._letters.uri}: {printable(poison)}",
        )
        if self._letters is None:
            self.taken += 1
            message.confirm()
            return
        self._waiting[message.guid] = Failure(message, poison, 0, None, self._consumer)
        if self._task is None:
            self._task = asyncio.create_task(self._post(), name=f"dead letters of {self._consumer}")

    async def close(self, grace: float = 5.0) -> None:
        """Wait ``grace`` seconds for dead letters on their way; the other messages stay unconfirmed."""
        if self._task is not None:
            task = self._task
            await asyncio.wait([task], timeout=grace)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _post(self) -> None:
        """Post dead letters until none waits."""
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
        """Post one dead letter; return whether its message is done with."""
        assert self._letters is not None
        assert self._queue is not None
        message = failure.message
        try:
            await self._letters.post_once(failure, self._queue)
        except Error as error:
            passing = not isinstance(error, InvalidPayload | InvalidProperty)
            self._limit.error(
                (type(error), passing),
                "%s: message %s of %s could not be put aside in %s%s: %s",
                self._consumer,
                message.guid,
                message.queue_uri,
                self._letters.uri,
                ", which is tried again" if passing else " and is confirmed and gone",
                described(error),
            )
            if passing:
                self._waiting[message.guid] = self._waiting.pop(message.guid)  # others first
                return False
        self._waiting.pop(message.guid, None)
        self.taken += 1
        message.confirm()
        return True
