# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of a queue, as the protocol sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bmq.protocol.client.ports import Sink

__all__ = ["Numbered", "SubscriptionCore", "SubscriptionOptions"]


class SubscriptionOptions(NamedTuple):
    """The limits and the priority of a subscription.

    Attributes:
        max_unconfirmed_messages: largest number of unconfirmed messages.
        max_unconfirmed_bytes: largest number of bytes of unconfirmed messages.
        priority: consumer priority; the broker serves the highest first.
    """

    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int
    priority: int


@dataclass(slots=True, eq=False)
class SubscriptionCore:
    """A subscription of a queue; never moved to another queue.

    Attributes:
        expression: text of the expression; "" selects every message.
        options: limits and priority.
        owner: receiver of the messages.
        context: an object of the caller, opaque to the core.
        columns: whether to deliver messages as columns, see
            :class:`bmq.protocol.client.events.PushedColumns`.
    """

    expression: str
    options: SubscriptionOptions
    owner: Sink
    context: object = None
    columns: bool = False


#: Subscriptions with their sIds in one configuration.
Numbered: TypeAlias = list[tuple[int, SubscriptionCore]]
