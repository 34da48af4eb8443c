# SPDX-License-Identifier: Apache-2.0
"""The members of a consumer group and their buckets, read from the expressions of the subscriptions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bmq.admin.explanation import Reader

__all__ = ["group_of"]

# The forms of bmq.groups: ``bmq_bucket % 16 == 3``, ``(key - 3) % 16 == 0`` and ``key % 16 == 0``.
_BUCKET = re.compile(r"(?:(\w{1,100})|\((\w{1,100}) - (\d{1,9})\)) % (\d{1,9}) == (\d{1,9})(?: && |$)")
_MOST_BUCKETS = 10_000


def group_of(readers: Iterable[Reader]) -> dict[str, Any] | None:
    """Return the buckets of each member, and the buckets without a member; None without a group."""
    members: dict[str, dict[int, None]] = {}
    sizes: dict[int, None] = {}
    for reader in readers:
        match = _BUCKET.match(reader.subscription.expression)
        if match is None:
            continue
        buckets = int(match[4])
        bucket = int(match[3] or match[5])
        if bucket < buckets <= _MOST_BUCKETS:
            sizes[buckets] = None
            members.setdefault(reader.client, {})[bucket] = None
    if len(sizes) != 1:
        return None
    (size,) = sizes
    taken = {bucket: None for buckets in members.values() for bucket in buckets}
    return {
        "size": size,
        "members": [{"name": name, "buckets": sorted(buckets)} for name, buckets in sorted(members.items())],
        "free": [bucket for bucket in range(size) if bucket not in taken],
    }
