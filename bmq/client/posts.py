# SPDX-License-Identifier: Apache-2.0
"""Messages to post: their checks, and the outcomes of posts."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bmq import _checks, _world
from bmq.conventions import BUCKET, DESTINATION, DUE
from bmq.errors import AckStatus, Error, InvalidPayload, InvalidProperty, PostError, UsageError
from bmq.protocol.client.events import Acked
from bmq.protocol.client.queue import QueueCore
from bmq.wire.constants import MAX_APPLICATION_DATA, Compression, PropertyType
from bmq.wire.guid import guid_to_text
from bmq.wire.keys import Key, key_bucket
from bmq.wire.properties import PropertyInput, PropertyValue

if TYPE_CHECKING:
    from bmq.client.interceptors import InterceptedPost
    from bmq.protocol.client.core import ClientCore

__all__ = [
    "NO_TAGS",
    "Ack",
    "FailedPost",
    "GuidsOf",
    "OutgoingMessage",
    "PostFuture",
    "PostGroup",
    "PostReport",
    "PutMessage",
    "QueueBase",
    "as_bytes",
    "attach_report",
    "check_items",
    "checked_properties",
    "completed",
    "delayed",
    "fail",
    "settle",
    "wrong_size",
]

# The note of an exception that ended a ``post_many``.
_POSTED_BEFORE = "Earlier messages were posted: the attribute report has the outcomes."

# Statuses from the client itself: no answer arrived.
_UNANSWERED = frozenset({AckStatus.TIMEOUT, AckStatus.CANCELED})
_REASONS = {
    AckStatus.UNKNOWN: "the broker gave no reason, and may have stored the message",
    AckStatus.LIMIT_MESSAGES: "the queue or its domain has reached its limit of messages",
    AckStatus.LIMIT_BYTES: "the queue or its domain has reached its limit of bytes",
    AckStatus.STORAGE_FAILURE: "the broker could not store the message",
    AckStatus.NOT_READY: "the broker is not ready",
    AckStatus.INVALID_ARGUMENT: "the message could not be encoded and was not sent; the log has the error",
    AckStatus.TIMEOUT: "no answer arrived within the time for which the broker recognises the GUID",
    AckStatus.CANCELED: (
        "the queue or session was closed before an answer arrived; the broker may have stored the message"
    ),
}
#: The default of ``tags``: posts with this very tuple have no tags, and skip all work for tags.
NO_TAGS: tuple[str, ...] = ()
# The year 5138: a larger number must be in milliseconds.
_FOREVER = 1e11

#: Function deriving GUIDs from content: takes application data, returns an array of 16 bytes for each.
GuidsOf = Callable[[list[bytes]], Any]


@dataclass(slots=True)
class PutMessage:
    """A message to post with :meth:`bmq.Queue.post_many`.

    The class is mutable: creating a frozen object takes longer than posting the message. Changes after
    ``post_many`` has taken the item have no effect.

    ::

        report = await queue.post_many(
            [
                bmq.PutMessage(b"one", {"CustomerId": 7}),
                bmq.PutMessage(b"two", delay=60),
            ]
        )

    Attributes:
        data: payload, 1 byte to 64 MiB.
        properties: values by name.
        guid: GUID to use instead of a generated one, 32 upper-case hexadecimal digits, as in
            :attr:`Message.guid`. Within the deduplication window, the broker drops a second message with the
            same GUID. Use equal GUIDs only for equal messages.
        tags: tags for selection by a :class:`bmq.TagFilter`; each tag becomes a property.
        compression: compression of the payload; None for the queue's default.
        key: ordering key, as for :meth:`bmq.Queue.post`.
        delay: seconds until the message is due, as for :meth:`bmq.Queue.post`.
    """

    data: bytes | bytearray | memoryview
    properties: Mapping[str, PropertyInput] | None = None
    guid: str | None = None
    tags: Iterable[str] = ()
    compression: Compression | None = None
    key: Key | None = None
    delay: float | None = None


class Ack:
    """The broker's acceptance of a message, stored now, or earlier under the same GUID.

    ::

        ack = await queue.post(b"...")
        print(ack.guid)

    Attributes:
        status: always SUCCESS; other outcomes raise :class:`bmq.PostError`.
        queue_uri: URI of the queue.
    """

    __slots__ = ("_guid", "queue_uri")

    status = AckStatus.SUCCESS

    def __init__(self, guid: bytes, queue_uri: str) -> None:
        self._guid = guid
        self.queue_uri = queue_uri

    @property
    def guid(self) -> str:
        """The GUID of the message: 32 upper-case hexadecimal digits."""
        return guid_to_text(self._guid)

    def __repr__(self) -> str:
        return f"Ack(guid={self.guid!r}, queue_uri={self.queue_uri!r})"


PostFuture = asyncio.Future[Ack]


@dataclass(frozen=True, slots=True)
class FailedPost:
    """A message of :meth:`bmq.Queue.post_many` that was not accepted.

    ::

        report = await queue.post_many(payloads)
        for failed in report.failures:
            print(failed.index, failed.error)

    Attributes:
        index: position among the items, from 0.
        error: reason for the failure.
    """

    index: int
    error: PostError


@dataclass(slots=True)
class PostReport:
    """The outcomes of :meth:`bmq.Queue.post_many`.

    ::

        report = await queue.post_many(payloads)
        report.raise_for_failures()
        print(report.acknowledged)

    Attributes:
        posted: number of posted messages.
        acknowledged: number of accepted messages.
        bytes: total size of the payloads.
        failures: messages without an acceptance, in the order of the outcomes.
    """

    posted: int = 0
    acknowledged: int = 0
    bytes: int = 0
    failures: list[FailedPost] = field(default_factory=list["FailedPost"])

    def raise_for_failures(self) -> PostReport:
        """Raise the first failure, if any; otherwise return the report.

        Raises:
            PostError: a message was not accepted.
        """
        if self.failures:
            raise self.failures[0].error
        return self


def attach_report(error: Exception, report: PostReport) -> None:
    """Set the attribute ``report`` of the exception that ended a ``post_many``: the outcomes so far."""
    try:
        setattr(error, "report", report)  # noqa: B010 - the exception may have any type
        if report.posted and _POSTED_BEFORE not in getattr(error, "__notes__", ()):
            error.add_note(_POSTED_BEFORE)
    except Exception:  # a type of the application, without room for it
        pass


class QueueBase:
    """Base class of :class:`bmq.Queue`: modules that a queue imports on first use recognise a queue by it."""


class OutgoingMessage:
    """An outgoing message, as seen by interceptors before the encoding.

    Attributes:
        data: payload.
        properties: values by name, including tags. Interceptors may add, change or remove properties; the
            message is encoded with the result.
        guid: GUID of the message: 32 upper-case hexadecimal digits.
    """

    __slots__ = ("data", "guid", "properties")

    def __init__(self, data: bytes, properties: dict[str, PropertyInput], guid: str) -> None:
        self.data = data
        self.properties = properties
        self.guid = guid

    def __repr__(self) -> str:
        return f"<bmq.OutgoingMessage {self.guid}, {len(self.data)} bytes>"


# payloads and properties


def completed(
    properties: Mapping[str, PropertyInput] | None, tags: Iterable[str], key: Key | None
) -> Mapping[str, PropertyInput] | None:
    """Return properties, extended by tags and the bucket of a key."""
    from bmq.subscriptions import tag_properties

    added: dict[str, PropertyInput] = dict(tag_properties(tags))
    if key is not None:
        added[BUCKET] = key_bucket(key)
    return {**checked_properties(properties), **added} if added else properties


def checked_properties(properties: Mapping[str, PropertyInput] | None) -> Mapping[str, PropertyInput]:
    """Return properties; an empty mapping for None. Names and values are checked during encoding.

    Raises:
        InvalidProperty: the value is not a mapping.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidProperty(
            f"properties must be a mapping of names to values, not {_checks.shown(properties)}"
        )
    return properties


def as_bytes(payload: object) -> bytes:
    """Return a payload as bytes.

    Raises:
        InvalidPayload: the value is not bytes.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return _checks.octets("payload", payload)  # pyright: ignore[reportUnknownArgumentType]
    hint = "; encode the text first: text.encode()" if isinstance(payload, str) else ""
    raise InvalidPayload(f"a payload must be bytes, not {type(payload).__name__}{hint}")


def wrong_size(size: int) -> InvalidPayload:
    """Return the error for a payload with an impossible size."""
    if not size:
        return InvalidPayload("the payload is empty; BlazingMQ messages have at least one byte")
    return InvalidPayload(
        f"the payload has {size:,} bytes; a message has at most {MAX_APPLICATION_DATA:,} (64 MiB)"
    )


def check_items(items: object) -> None:
    """Check the items of a ``post_many``.

    Raises:
        UsageError: the value is not an iterable, or is a single payload.
    """
    given: Any = items
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise UsageError(
            "items must be an iterable of payloads and bmq.PutMessage, as in [b'...'], not "
            f"{_checks.shown(items)}"
        )


def delayed(
    properties: Mapping[str, PropertyInput] | None,
    delay: float | None,
    not_before: datetime | float | None,
    destination: str | None,
    longest: float | None,
) -> dict[str, PropertyInput]:
    """Return the properties of a delayed message.

    Args:
        properties: message's own properties.
        delay: delay in seconds.
        not_before: due time, instead of a delay.
        destination: next queue of the message; None if the message stays in its queue.
        longest: maximum delay in seconds.

    Raises:
        UsageError: both times are given, or the time is not legal or too far in the future.
    """
    now = _world.time()
    if delay is not None and not_before is not None:
        raise UsageError("delay and not_before exclude each other: give one of the two")
    if delay is not None:
        delay = _checks.number("delay", delay, 0.0, _FOREVER, unit="seconds")
        due, wait = now + delay, delay
    elif isinstance(not_before, datetime):
        if not_before.tzinfo is None:
            raise UsageError(
                f"not_before={not_before!r} has no time zone: give datetime.now(UTC) + timedelta(...), or "
                "seconds since 1970"
            )
        due = not_before.timestamp()
        wait = due - now
    else:
        assert not_before is not None
        not_before = _checks.number(
            "not_before", not_before, 0.0, _FOREVER, unit="seconds since 1970", otherwise=" or a datetime,"
        )
        due, wait = not_before, not_before - now
    if longest is not None and wait > longest:
        raise UsageError(
            f"the delay of {wait:g} s is above longest_delay={longest:g}: the broker may delete the "
            "message before the due time. Shorten the delay, or raise the domain's messageTtl and "
            "longest_delay"
        )
    # Rounded up: never early.
    added: dict[str, PropertyInput] = {DUE: PropertyValue(PropertyType.INT64, -int(-due * 1000 // 1))}
    if destination is not None:
        added[DESTINATION] = destination
    return {**(properties or {}), **added}


# outcomes


class PostGroup:
    """The receiver of the outcomes of posts in a group: the number of accepted posts, and each failure."""

    __slots__ = ()

    @abstractmethod
    def accepted(self, count: int) -> None:
        """Count acknowledged posts."""

    @abstractmethod
    def failed(self, index: int, error: PostError) -> None:
        """Record a post without an acceptance."""


def fail(post: PostFuture | InterceptedPost, error: PostError) -> None:
    """Report a post without an acceptance."""
    post.set_exception(error)
    if error.status is AckStatus.CANCELED and isinstance(post, asyncio.Future):
        # The log has the number of these posts once. Without this call, asyncio would log each of them.
        post.exception()


def settle(acked: Acked, core: ClientCore) -> None:
    """Pass outcomes to the future of each post, and count them for each ``post_many``.

    The core knows the error of the connection.
    """
    # A token is a future, an InterceptedPost or a PostGroup. A call of cast() for each post takes time.
    outcomes: list[Any] = acked.outcomes
    for token, tag, guid, status, queue in outcomes:
        if status is AckStatus.SUCCESS:
            # Posts with a common outcome are counted below.
            if not token.done():
                token.set_result(Ack(guid, queue.uri_text))
            continue
        # A post given up on a live connection has another cause.
        dead = status is AckStatus.TIMEOUT or not core.connected
        error = _post_error(guid, status, queue, core.trouble if dead else None, acked.strange)
        if isinstance(token, PostGroup):
            token.failed(tag, error)
        elif not token.done():
            fail(token, error)
    accepted: list[Any] = acked.accepted
    for several, count in accepted:
        several.accepted(count)


def _post_error(
    guid: bytes,
    status: AckStatus,
    queue: QueueCore,
    trouble: Error | None = None,
    strange: Mapping[bytes, int] | None = None,
) -> PostError:
    """Return the error for a rejected post.

    Args:
        guid: GUID of the post.
        status: outcome of the post.
        queue: destination of the post.
        trouble: error of the connection, for posts without an answer.
        strange: the broker's numbers for unknown statuses, by GUID.
    """
    text = guid_to_text(guid)
    why = _REASONS.get(status, "the broker gave no reason")
    cause = trouble if status in _UNANSWERED else None
    if cause is not None:
        why += f"; {cause}"
    elif strange is not None and guid in strange:
        why = f"the broker answered with status {strange[guid]}, which this version of bmq does not know"
    error = PostError(
        f"message {text} to {queue.uri} was not accepted: {why} ({status.name})",
        status=status,
        guid=text,
        queue_uri=str(queue.uri),
    )
    error.__cause__ = cause
    return error
