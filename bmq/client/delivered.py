# SPDX-License-Identifier: Apache-2.0
"""The base class of :class:`bmq.Message`, for the modules below the public objects."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from bmq.client.counting import ReceiveCounts, distinct
from bmq.protocol.client.ports import Arrival
from bmq.wire.push import Push

__all__ = ["Delivered", "arrival_of", "arrived_anew", "counts_of", "is_stale", "push_of"]


class Delivered:
    """Base class of :class:`bmq.Message`.

    Attributes:
        confirmed: whether the application has confirmed the message.
    """

    __slots__ = ("_arrival", "_push", "confirmed")

    confirmed: bool
    _push: Push
    _arrival: Arrival


#: Accessors for the modules of the client: the PUSH message, the arrival, the counters of the consumer, and
#: whether the connection was lost.
push_of: Callable[[Delivered], Push] = attrgetter("_push")
arrival_of: Callable[[Delivered], Arrival] = attrgetter("_arrival")
counts_of: Callable[[Delivered], ReceiveCounts] = attrgetter("_line.counts")
is_stale: Callable[[Delivered], bool] = attrgetter("stale")


def arrived_anew(message: Delivered, arrival: Arrival) -> None:
    """Count a message as arrived again: both deliveries share the message's outcome."""
    setattr(message, "_arrival", distinct(arrival))  # noqa: B010
