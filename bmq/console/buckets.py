# SPDX-License-Identifier: Apache-2.0
"""The members of a consumer group and their buckets, read from the expressions of the subscriptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bmq.admin.explanation import BUCKET_FORM, QueueReader

__all__ = ["group_of"]

_MOST_BUCKETS = 10_000


def group_of(readers: Iterable[QueueReader]) -> dict[str, Any] | None:
    """Return the buckets of each member, and the buckets without a member; None without a group.

    A member of an exclusive group has the expression of each of its buckets, and expressions for many buckets
    at once, with a divisor of the number of buckets.
    """
    found: dict[str, dict[tuple[int, int], None]] = {}
    for reader in readers:
        match = BUCKET_FORM.match(reader.subscription.expression)
        if match is None:
            continue
        divisor = int(match[4])
        remainder = int(match[3] or match[5])
        if remainder < divisor <= _MOST_BUCKETS:
            found.setdefault(reader.client, {})[divisor, remainder] = None
    size = max((divisor for each in found.values() for divisor, _ in each), default=0)
    members: dict[str, set[int]] = {}
    for name, each in found.items():
        buckets = members[name] = {remainder for divisor, remainder in each if divisor == size}
        for divisor, remainder in each:
            if size % divisor or not buckets.issuperset(range(remainder, size, divisor)):
                return None  # members with different numbers of buckets
    if not members:
        return None
    taken = set[int]().union(*members.values())
    return {
        "size": size,
        "members": [{"name": name, "buckets": sorted(buckets)} for name, buckets in sorted(members.items())],
        "free": [bucket for bucket in range(size) if bucket not in taken],
    }
