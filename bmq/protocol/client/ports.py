# SPDX-License-Identifier: Apache-2.0
"""The interfaces between the parts of a session, and to the layer above, as small protocols.

Queues report to the session, and the session to the caller, without importing each other: each part declares
the methods and attributes that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from bmq.errors import AckStatus
    from bmq.protocol.client.counters import PostCounts
    from bmq.wire.push import Push
    from bmq.wire.uri import QueueUri

__all__ = [
    "NOBODY",
    "Arrival",
    "Columns",
    "Handle",
    "Nobody",
    "PostTarget",
    "QueueOwner",
    "Sink",
    "Waiter",
]

#: Arrival of messages: time by the event loop's clock, and number of earlier lost connections. Messages with
#: a common arrival share the same tuple.
Arrival: TypeAlias = tuple[float, int]


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


class Columns(Protocol):
    """A PUSH event that :attr:`bmq.protocol.client.core.ClientCore.read_columns` has read as columns."""

    @property
    def guids(self) -> Any:
        """Array of the GUIDs."""
        ...

    @property
    def count(self) -> int:
        """Number of messages."""
        ...

    def routes(self) -> Iterable[tuple[int, tuple[int, ...], Columns]]:
        """Return qId, subscription ids and messages of each part of the event."""
        ...

    def pushes(self) -> Iterator[Push]:
        """Iterate over the messages."""
        ...


class Sink(Protocol):
    """The receiver of a subscription's messages."""

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages with their delivery numbers. The list belongs to the receiver."""
        ...

    def deliver_columns(self, columns: Columns, number: int, arrival: Arrival) -> None:
        """Accept the messages of an event as columns; ``number`` is the delivery number of the first."""
        ...

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""
        ...


class QueueOwner(Sink, Protocol):
    """The layer above, for one queue: also receives the messages of unknown subscriptions."""

    def configured(self, failed: bool) -> None:
        """Handle the broker's acceptance or refusal of the subscriptions."""
        ...


class Handle(Protocol):
    """A queue, as named by deliveries."""

    uri: QueueUri
    uri_text: str
    at_most_once: bool


class PostTarget(Handle, Protocol):
    """A queue, as known to its posts."""

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
        """Count answered posts."""
        ...

    def posts_given_up(self, count: int, size: int, status: AckStatus) -> None:
        """Count posts ended without an answer."""
        ...

    def __hash__(self) -> int: ...


class Nobody:
    """The owner of queues never opened, and of the placeholder subscription without limits."""

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Leave messages unconfirmed, to be delivered again by the broker."""

    def deliver_columns(self, columns: Columns, number: int, arrival: Arrival) -> None:
        """Leave messages unconfirmed, to be delivered again by the broker."""

    def again(self, count: int) -> None:
        """Count nothing."""

    def configured(self, failed: bool) -> None:
        """No consumer depends on the answer."""


NOBODY = Nobody()
