# SPDX-License-Identifier: Apache-2.0
"""Delayed posts: properties and destination."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from bmq import _checks, _world
from bmq.conventions import DESTINATION, DUE
from bmq.errors import UsageError
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyInput, PropertyValue

__all__ = ["delayed"]


def delayed(
    properties: Mapping[str, PropertyInput] | None,
    delay: float | None,
    not_before: datetime | float | None,
    destination: str | None,
    longest: float | None,
) -> dict[str, PropertyInput]:
    """Return the properties of a delayed message.

    Args:
        properties: message's own properties.
        delay: delay in seconds.
        not_before: due time, in place of a delay.
        destination: next queue of the message; None if the message stays in its queue.
        longest: maximum delay in seconds.

    Raises:
        UsageError: both times are given, or the time is not legal or too far in the future.
    """
    now = _world.time()
    if delay is not None and not_before is not None:
        raise UsageError("delay and not_before exclude each other: give one of the two")
    if delay is not None:
        delay = _checks.number("delay", delay, 0.0, _FOREVER, unit="seconds")
        due, wait = now + delay, delay
    elif isinstance(not_before, datetime):
        if not_before.tzinfo is None:
            raise UsageError(
                f"not_before={not_before!r} has no time zone: give datetime.now(UTC) + timedelta(...), or "
                "seconds since 1970"
            )
        due = not_before.timestamp()
        wait = due - now
    else:
        assert not_before is not None
        not_before = _checks.number(
            "not_before", not_before, 0.0, _FOREVER, unit="seconds since 1970", otherwise=" or a datetime,"
        )
        due, wait = not_before, not_before - now
    if longest is not None and wait > longest:
        raise UsageError(
            f"the delay of {wait:g} s is above longest_delay={longest:g}: the broker may delete the "
            "message before the due time. Shorten the delay, or raise the domain's messageTtl and "
            "longest_delay"
        )
    # Rounded up: never early.
    added: dict[str, PropertyInput] = {DUE: PropertyValue(PropertyType.INT64, -int(-due * 1000 // 1))}
    if destination is not None:
        added[DESTINATION] = destination
    return {**(properties or {}), **added}


# The year 5138: a larger number must be in milliseconds.
_FOREVER = 1e11
