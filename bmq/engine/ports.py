# SPDX-License-Identifier: Apache-2.0
"""The engine's interfaces to the layer above, as small protocols.

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
    """An open queue, or a queue being opened."""

    uri: str
    counts: ReceiveCounts

    @property
    def in_line(self) -> tuple[int, int]:
        """Number and size of the messages waiting for the application."""
        ...

    def shut(self, error: Error | None) -> None:
        """End the receivers of a closed queue, with ``error`` if not None."""
        ...

    def forget_delivered(self) -> None:
        """Drop messages in line after the loss of the connection: the broker redelivers them."""
        ...


class Receipts(Protocol):
    """Distributes the outcomes of posts."""

    @property
    def ack(self) -> Callable[[bytes, str], object]:
        """Function creating the result of an accepted post from the GUID and the queue's URI."""
        ...

    def settle(self, acked: Acked, core: ClientCore) -> None:
        """Process outcomes of posts; the core has the error of the connection."""
        ...
