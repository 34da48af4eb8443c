# SPDX-License-Identifier: Apache-2.0
"""The engine's interfaces to the layer above, as small protocols.

The receiver of a subscription's messages is :class:`bmq.protocol.client.ports.Sink`.
"""

from __future__ import annotations

from typing import Protocol

from bmq.client.counting import ReceiveCounts
from bmq.errors import Error

__all__ = ["OpenQueue"]


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
