# SPDX-License-Identifier: Apache-2.0
"""The interfaces between the parts of a session, and to the layer above, as small protocols.

A queue reports to the session, and the session to its caller, without importing each other: each part
declares the methods and attributes that it uses.
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

#: Arrival of messages: time by the event loop's clock, and number of earlier lost connections. Messages that
#: arrived together share the same tuple.
Arrival: TypeAlias = tuple[float, int]
#: Delivery numbers of a list of messages, as runs of consecutive numbers: (index of the first message, its
#: number).
Places: TypeAlias = list[tuple[int, int]]


class Waiter(Protocol):
    """The caller of an operation, as a future."""

    def done(self) -> bool:
        """Whether the caller has a result, or no longer waits."""
        ...

    def set_result(self, result: None, /) -> None:
        """Report success."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Report a failure."""
        ...


class Sink(Protocol):
    """The receiver of a subscription's messages."""

    def deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Accept messages that have just arrived."""
        ...

    def deliver_columns(self, columns: PushColumns, number: int, arrival: Arrival) -> None:
        """Accept the messages of an event as columns; ``number`` is the delivery number of the first."""
        ...

    def again(self, count: int) -> None:
        """Count confirmed messages that were delivered again."""
        ...


class QueueOwner(Sink, Protocol):
    """The layer above, for one queue: it also receives the messages of unknown subscriptions."""

    def configured(self, failed: bool) -> None:
        """Handle the broker's acceptance or refusal of the subscriptions."""
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
    """The owner of queues that were never opened, and of the placeholder subscription without limits."""

    def deliver(self, messages: list[Push], places: Places, arrival: Arrival) -> None:
        """Leave messages unconfirmed: the broker delivers them again."""

    def deliver_columns(self, columns: PushColumns, number: int, arrival: Arrival) -> None:
        """Leave messages unconfirmed: the broker delivers them again."""

    def again(self, count: int) -> None:
        """Count nothing."""

    def configured(self, failed: bool) -> None:
        """No consumer depends on the answer."""


NOBODY = Nobody()
