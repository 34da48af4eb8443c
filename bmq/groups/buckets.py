# SPDX-License-Identifier: Apache-2.0
"""The members of a group and their buckets, read from the subscriptions that a broker reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bmq.conventions import BUCKET
from bmq.wire.keys import key_bucket

if TYPE_CHECKING:
    from bmq.admin.explanation import QueueReader

__all__ = ["group_of", "words_of_key"]

# The forms of the expressions of a group: ``bmq_bucket % 16 == 3``, ``(key - 3) % 16 == 0`` and
# ``key % 16 == 0``.
_FORM = re.compile(r"(?:(\w{1,100})|\((\w{1,100}) - (\d{1,9})\)) % (\d{1,9}) == (\d{1,9})(?: && |$)")
_MOST_BUCKETS = 10_000


class _Part(NamedTuple):
    """The messages of a subscription of a member: those whose property leaves a remainder."""

    name: str
    divisor: int
    remainder: int
    reader: QueueReader


def _parts(readers: Iterable[QueueReader]) -> list[_Part]:
    found = [(_FORM.match(reader.subscription.expression), reader) for reader in readers]
    parts = [
        _Part(match[1] or match[2], int(match[4]), int(match[3] or match[5]), reader)
        for match, reader in found
        if match is not None
    ]
    return [part for part in parts if part.remainder < part.divisor <= _MOST_BUCKETS]


def group_of(readers: Iterable[QueueReader]) -> dict[str, Any] | None:
    """Return the buckets of each member, and the buckets without a member; None without a group.

    A member of an exclusive group has the expression of each of its buckets, and expressions for many buckets
    at once, with a divisor of the number of buckets.
    """
    parts = _parts(readers)
    size = max((part.divisor for part in parts), default=0)
    members: dict[str, set[int]] = {part.reader.client: set() for part in parts}
    for part in parts:
        if part.divisor == size:
            members[part.reader.client].add(part.remainder)
    for part in parts:
        of_part = range(part.remainder, size, part.divisor)
        if size % part.divisor or not members[part.reader.client].issuperset(of_part):
            return None  # members with different numbers of buckets
    if not members:
        return None
    taken = set[int]().union(*members.values())
    return {
        "size": size,
        "members": [{"name": name, "buckets": sorted(buckets)} for name, buckets in sorted(members.items())],
        "free": [bucket for bucket in range(size) if bucket not in taken],
    }


def words_of_key(readers: Iterable[QueueReader], key: str) -> Iterator[str]:
    """Which member of a group holds a key, and what the key waits for.

    Args:
        readers: the subscriptions, in the broker's order.
        key: the key: digits for a group with an integer property, or any text.
    """
    parts = _parts(readers)
    size = max((part.divisor for part in parts), default=0)
    if not size:
        yield "No group reads the queue: no client is subscribed to a bucket."
        return
    name = next(part.name for part in parts if part.divisor == size)
    try:
        bucket = (key_bucket(key) if name == BUCKET else int(key)) % size
    except ValueError:
        yield f"The group divides the messages by the integer property {name}, and {key!r} is no integer."
        return
    yield f"Key {key} is in bucket {bucket} of {size}."
    owners = [part.reader for part in parts if (part.divisor, part.remainder) == (size, bucket)]
    if not owners:
        yield "No member is subscribed to the bucket: no leader has assigned it yet."
        return
    first, *later = owners
    count = f"{first.stream.unconfirmed or 0:,}"
    yield f"{first.client} holds the bucket, and has {count} unconfirmed messages of all its buckets."
    for reader in later:
        yield (
            f"{reader.client} has the bucket next. It receives nothing before {first.client} has "
            f"confirmed its messages of the bucket, or has lost its connection. If {first.client} hangs, "
            "or its host is gone, end its process or its connection."
        )
    if not later and not first.subscription.max_messages:
        yield "The bucket changes hands: its messages wait until the new owner may receive them."
