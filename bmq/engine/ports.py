# SPDX-License-Identifier: Apache-2.0
"""What the engine knows of the layer above: protocols of a few methods each.

The receiver of a subscription's messages is :class:`bmq.protocol.client.ports.Sink`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmq.engine.counting import ReceiveCounts
from bmq.errors import Error
from bmq.protocol.client.core import ClientCore
from bmq.protocol.client.events import Acked

__all__ = ["OpenQueue", "Receipts"]


class OpenQueue(Protocol):
    """A queue that was opened, or is being opened."""

    uri: str
    counts: ReceiveCounts

    @property
    def in_line(self) -> tuple[int, int]:
        """How many messages wait for the application, and their size."""
        ...

    def shut(self, error: Error | None) -> None:
        """The queue is closed: receivers end, with ``error`` if there is one."""
        ...

    def forget_delivered(self) -> None:
        """The connection is lost: messages that wait unseen will be delivered again."""
        ...


class Receipts(Protocol):
    """Gives posts their outcomes."""

    @property
    def ack(self) -> Callable[[bytes, str], object]:
        """Makes the result of an accepted post from its GUID and the queue's URI."""
        ...

    def settle(self, acked: Acked, core: ClientCore) -> None:
        """Posts have their outcomes; the core knows the error of the connection."""
        ...
