# SPDX-License-Identifier: Apache-2.0
"""What the parts of a session know of each other, and of the layer above: protocols of a few methods each.

A queue reports to the session, and the session to its caller. None of them imports the other: each part names
the methods and attributes that the part uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from bmq.errors import AckStatus
    from bmq.protocol.client.counters import PostCounts
    from bmq.wire.push import Push
    from bmq.wire.push_columns import PushColumns
    from bmq.wire.uri import QueueUri

__all__ = ["NOBODY", "Arrival", "Handle", "Nobody", "Places", "PostTarget", "QueueOwner", "Sink", "Waiter"]

#: When messages arrived, by the event loop's clock, and how many connections were lost before. Messages that
#: arrived together refer to the same tuple.
Arrival: TypeAlias = tuple[float, int]
#: The delivery numbers of a list of messages, as runs that count up by one: (index of the first, its number).
Places: TypeAlias = list[tuple[int, int]]


class Waiter(Protocol):
    """The caller of an operation, as a future."""

    def done(self) -> bool:
        """Whether the caller has a result, or waits no more."""
        ...

    def set_result(self, result: None, /) -> None:
        """The operation has succeeded."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """The operation has failed."""
        ...


class Sink(Protocol):
    """The receiver of a subscription's messages."""

    def deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Take in messages that have just arrived."""
        ...

    def deliver_columns(self, columns: PushColumns, number: int, arrival: Arrival) -> None:
        """Take in the messages of an event as columns; ``number`` is the delivery number of the first."""
        ...

    def again(self, count: int) -> None:
        """Count messages that were delivered again although they were confirmed."""
        ...


class QueueOwner(Sink, Protocol):
    """The layer above, for one queue: it also receives the messages of unknown subscriptions."""

    def configured(self, failed: bool) -> None:
        """The broker has agreed to the subscriptions, or has not."""
        ...


class Handle(Protocol):
    """A queue, as its deliveries name it."""

    uri: QueueUri
    uri_text: str
    at_most_once: bool


class PostTarget(Handle, Protocol):
    """A queue, as its posts know it."""

    q_id: int
    unacked: int
    unacked_bytes: int
    answered_at: float
    deduplication_time: float
    counts: PostCounts
    writable: bool

    @property
    def sending(self) -> bool:
        """Whether posts are written at once."""
        ...

    def admit(self, count: int) -> bool:
        """Count posts; return whether to write them now."""
        ...

    def posts_answered(self, count: int, size: int, seconds: float) -> None:
        """Count posts that the broker has answered."""
        ...

    def posts_given_up(self, count: int, size: int, status: AckStatus) -> None:
        """Count posts that ended without an answer."""
        ...

    def __hash__(self) -> int: ...


class Nobody:
    """The owner of a queue that was never opened, and of the subscription that has no room."""

    def deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Leave messages unconfirmed: the broker delivers them again."""

    def deliver_columns(self, columns: PushColumns, number: int, arrival: Arrival) -> None:
        """Leave messages unconfirmed: the broker delivers them again."""

    def again(self, count: int) -> None:
        """Nothing is counted."""

    def configured(self, failed: bool) -> None:
        """No consumer depends on the answer."""


NOBODY = Nobody()
