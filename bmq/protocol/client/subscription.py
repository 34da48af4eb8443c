# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of a queue, as the protocol sees them."""

from __future__ import annotations

from typing import TypeAlias

from bmq.protocol.client.ports import Sink

__all__ = ["Numbered", "SubscriptionCore", "SubscriptionOptions"]


class SubscriptionOptions:
    """The limits and the priority of a subscription.

    Attributes:
        max_unconfirmed_messages: largest number of unconfirmed messages.
        max_unconfirmed_bytes: largest number of bytes of unconfirmed messages.
        priority: consumer priority; the broker serves the highest first.
    """

    __slots__ = ("max_unconfirmed_bytes", "max_unconfirmed_messages", "priority")

    def __init__(self, max_unconfirmed_messages: int, max_unconfirmed_bytes: int, priority: int) -> None:
        self.max_unconfirmed_messages = max_unconfirmed_messages
        self.max_unconfirmed_bytes = max_unconfirmed_bytes
        self.priority = priority


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

    __slots__ = ("columns", "context", "expression", "options", "owner")

    def __init__(
        self, expression: str, options: SubscriptionOptions, owner: Sink, context: object = None
    ) -> None:
        self.columns = False
        self.expression = expression
        self.options = options
        self.owner = owner
        self.context = context


#: Subscriptions with their sIds in one configuration.
Numbered: TypeAlias = list[tuple[int, SubscriptionCore]]
