# SPDX-License-Identifier: Apache-2.0
"""The limits and the priority of consumers, as keywords of many calls and as a single value inside."""

from __future__ import annotations

from typing import TypedDict

from bmq import _checks
from bmq.protocol.client.subscription import SubscriptionOptions

__all__ = ["DEFAULT_LIMITS", "ConsumerLimits", "checked_limits"]

#: The default limits and priority of a queue.
DEFAULT_LIMITS = SubscriptionOptions(1000, 33_554_432, 0)

# The range of the SDKs: half of the field's range, to keep sums from overflowing.
_MAX_PRIORITY = 2**30
_MIN_PRIORITY = -(2**30)


class ConsumerLimits(TypedDict, total=False):
    """The limits and the priority of a consumer; an omitted value, or None, changes nothing.

    Attributes:
        priority: a message goes to the matching consumer with the highest priority; without a value, the
            priority of the queue.
        max_unconfirmed_messages: limit of delivered messages without a confirmation; without a value, the
            limit of the queue.
        max_unconfirmed_bytes: limit of delivered bytes without a confirmation; without a value, the limit of
            the queue.
    """

    priority: int | None
    max_unconfirmed_messages: int | None
    max_unconfirmed_bytes: int | None


def checked_limits(limits: ConsumerLimits, base: SubscriptionOptions) -> SubscriptionOptions:
    """Return limits as a single value, completed from ``base``.

    Raises:
        TypeError: a keyword is unknown.
        UsageError: a value is not an integer, or out of range.
    """
    given = limits.keys() - ConsumerLimits.__annotations__.keys()
    if given:
        raise TypeError(f"unexpected keyword argument {min(given)!r}")
    priority = limits.get("priority")
    messages = limits.get("max_unconfirmed_messages")
    size = limits.get("max_unconfirmed_bytes")
    integer = _checks.integer
    return SubscriptionOptions(
        base.max_unconfirmed_messages if messages is None else integer("max_unconfirmed_messages", messages),
        base.max_unconfirmed_bytes if size is None else integer("max_unconfirmed_bytes", size),
        base.priority if priority is None else integer("priority", priority, _MIN_PRIORITY, _MAX_PRIORITY),
    )
