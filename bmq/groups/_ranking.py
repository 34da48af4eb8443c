# SPDX-License-Identifier: Apache-2.0
"""Who is to have a bucket: rendezvous hashing with weights, as priorities that a broker compares.

Every member draws a number for every bucket, from its own name and the bucket; the highest has it. Nobody has
to know of the others. When a member comes or goes, only the buckets that it takes or had move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from bmq import _checks

__all__ = ["MAX_WEIGHT", "MIN_WEIGHT", "owners", "priority_of"]

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_BUCKETS = 256
# A plan may look at more buckets than a group may have.
_MOST_PLANNED = 1_000_000
# Priorities go up to 2**30. The upper bits are the draw, the lower ones decide between equal draws: two
# members that have the same name by mistake would else share buckets message by message, out of order.
_DRAW_BITS, _TIE_BITS = 18, 12


def priority_of(member: str, bucket: int, weight: float = 1.0, tie: bytes = b"") -> int:
    """Return a member's priority for a bucket, 1 to 2**30.

    Args:
        member: its name.
        bucket: the bucket's number; any integer.
        weight: its share beside the others'.
        tie: what tells it apart from another member of the same name.
    """
    member = _checks.text("member", member)
    bucket = _checks.integer("bucket", bucket, -_checks.INT64_MAX)
    weight = _checks.number("weight", weight, MIN_WEIGHT, MAX_WEIGHT)
    tie = _checks.octets("tie", tie)
    draw = _hash(b"%s/%d" % (member.encode(), bucket))
    # The draw is uniform in (0, 1). The highest of several draws, each to the power of 1 / weight, is that of
    # a member with a probability in proportion to its weight.
    level = ((draw + 0.5) / 2**64) ** (1.0 / weight)
    upper = int(level * ((1 << _DRAW_BITS) - 1))
    lower = _hash(b"%s/%d" % (tie, bucket)) >> (64 - _TIE_BITS)
    return 1 + (upper << _TIE_BITS | lower)


def owners(members: Mapping[str, float] | Sequence[str], buckets: int = 16) -> dict[int, str]:
    """Return which member has each bucket while these take part.

    For planning: how even a number of buckets is, and what moves when a member comes or goes.

    Args:
        members: their names, or their weights by name.
        buckets: how many buckets there are.
    """
    buckets = _checks.integer("buckets", buckets, 1, _MOST_PLANNED)
    if isinstance(members, Mapping):
        weights: Mapping[str, float] = {
            _checks.text("a member", name): _checks.number("weight", weight, MIN_WEIGHT, MAX_WEIGHT)
            for name, weight in members.items()
        }
    else:
        weights = dict.fromkeys(_checks.texts("members", members), 1.0)
    return {
        bucket: max(weights, key=lambda name: priority_of(name, bucket, weights[name]))
        for bucket in range(buckets)
        if weights
    }


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8])
