# SPDX-License-Identifier: Apache-2.0
"""The interfaces to the layers above: a caller, a consumer, and a reader of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from bmq.wire.push import Push

__all__ = [
    "NULL_OWNER",
    "Arrival",
    "Columns",
    "QueueOwner",
    "Sink",
]

#: Arrival of messages: time by the event loop's clock, and number of earlier lost connections. Messages with
#: a common arrival share the same tuple.
Arrival: TypeAlias = tuple[float, int]


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


class Sink:
    """The receiver of a subscription's messages."""

    __slots__ = ()

    def deliver(self, pushes: list[Push], numbers: Sequence[int], arrival: Arrival) -> None:
        """Accept newly arrived messages with their delivery numbers. The list belongs to the receiver.

        Messages that are not confirmed stay with the broker.
        """

    def deliver_columns(self, columns: Columns, number: int, arrival: Arrival) -> None:
        """Accept the messages of an event as columns; ``number`` is the delivery number of the first."""
        self.deliver(list(columns.pushes()), range(number, number + columns.count), arrival)

    def again(self, count: int) -> None:
        """Count redelivered confirmed messages."""


class QueueOwner(Sink):
    """The layer above, for one queue: also receives the messages of unknown subscriptions."""

    __slots__ = ()

    def configured(self, failed: bool) -> None:
        """Handle the broker's acceptance or refusal of the subscriptions."""


#: The owner of queues never opened, and of the placeholder subscription without limits.
NULL_OWNER = QueueOwner()
