# SPDX-License-Identifier: Apache-2.0
"""Messages to post, and the outcomes of posts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bmq.errors import AckStatus, PostError
from bmq.wire.constants import Compression
from bmq.wire.guid import guid_to_text
from bmq.wire.keys import Key
from bmq.wire.properties import PropertyInput

__all__ = ["Ack", "FailedPost", "GuidsOf", "OutgoingMessage", "PostReport", "PutMessage"]

_POSTED_BEFORE = "Earlier messages were posted: the attribute report has the outcomes."

#: Function deriving GUIDs from content: takes application data, returns an array of 16 bytes for each.
GuidsOf = Callable[[list[bytes]], Any]


@dataclass(slots=True)
class PutMessage:
    """A message to post with :meth:`bmq.Queue.post_many`.

    The class is mutable: creating a frozen object takes longer than posting the message. Changes after
    ``post_many`` has taken the item have no effect.

    ::

        report = await queue.post_many(
            [bmq.PutMessage(b"one", {"CustomerId": 7}), bmq.PutMessage(b"two", delay=60)]
        )

    Attributes:
        data: payload, 1 byte to 64 MiB.
        properties: values by name.
        guid: GUID to use in place of a generated one, 32 upper-case hexadecimal digits, as in
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
