# SPDX-License-Identifier: Apache-2.0
"""The owner of a bucket: rendezvous hashing with weights, as priorities that a broker compares.

Every member computes a number for every bucket from its own name and the bucket; the highest number owns the
bucket. Members need not know each other. When a member joins or leaves, only its own buckets move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from bmq import _checks

__all__ = ["MAX_WEIGHT", "MIN_WEIGHT", "owners", "priority_of"]

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
MAX_BUCKETS = 512
# A plan may look at more buckets than a group may have.
_MOST_PLANNED = 1_000_000
# Priorities go up to 2**30. The upper bits are the hash; the lower bits decide between equal hashes. Without
# them, two members with the same name would share buckets message by message, out of order.
_DRAW_BITS, _TIE_BITS = 18, 12


def priority_of(member: str, bucket: int, weight: float = 1.0, tie: bytes = b"") -> int:
    """Return a member's priority for a bucket, 1 to 2**30.

    Args:
        member: name of the member.
        bucket: number of the bucket; any integer.
        weight: share relative to the other members.
        tie: distinguishes members with the same name.
    """
    member = _checks.text("member", member)
    bucket = _checks.integer("bucket", bucket, -_checks.INT64_MAX)
    weight = _checks.number("weight", weight, MIN_WEIGHT, MAX_WEIGHT)
    tie = _checks.octets("tie", tie)
    draw = _hash(b"%s/%d" % (member.encode(), bucket))
    # The hash is uniform in (0, 1). With each hash to the power of 1 / weight, a member has the highest value
    # with a probability in proportion to its weight.
    level = ((draw + 0.5) / 2**64) ** (1.0 / weight)
    upper = int(level * ((1 << _DRAW_BITS) - 1))
    lower = _hash(b"%s/%d" % (tie, bucket)) >> (64 - _TIE_BITS)
    return 1 + (upper << _TIE_BITS | lower)


def owners(members: Mapping[str, float] | Sequence[str], buckets: int = 128) -> dict[int, str]:
    """Return the owner of each bucket for these members.

    For planning: the evenness of a number of buckets, and the moves when a member joins or leaves.

    Args:
        members: names, or weights by name.
        buckets: number of buckets.
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
