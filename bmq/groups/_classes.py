# SPDX-License-Identifier: Apache-2.0
"""Classes: sets of buckets with a short common expression.

A class is the set of all buckets with an equal remainder modulo a divisor of the number of buckets. The
expression of a class is as short as the expression of a bucket: with 128 buckets, ``bmq_bucket % 4 == 3``
matches the messages of the buckets 3, 7, 11 and so on up to 127. Any set of buckets is a union of classes.
The union has few classes if the leader assigns buckets in the order of :func:`nested`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["Class", "classes", "members", "nested"]

#: Divisor of the number of buckets, and remainder.
Class = tuple[int, int]


@lru_cache(maxsize=64)
def _divisors(buckets: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, buckets + 1) if buckets % each == 0)


@lru_cache(maxsize=64)
def nested(buckets: int) -> tuple[int, ...]:
    """Return all buckets, ordered so that neighbours make large classes.

    Buckets with neighbouring numbers are far apart in the order, because keys with neighbouring numbers are
    often new and busy at the same time.
    """
    order = [0]
    step = 1
    while step < buckets:
        prime = next(each for each in _divisors(buckets // step) if each > 1)
        order = [bucket + part * step for bucket in order for part in range(prime)]
        step *= prime
    return tuple(order)


def members(each: Class, buckets: int) -> range:
    """Return the buckets of a class."""
    divisor, remainder = each
    return range(remainder, buckets, divisor)


def classes(wanted: Iterable[int], buckets: int) -> list[Class]:
    """Return disjoint classes with exactly the wanted buckets, the largest classes first."""
    left = set(wanted)
    found: list[Class] = []
    for divisor in _divisors(buckets):
        if not left:
            break
        for remainder in sorted({bucket % divisor for bucket in left}):
            whole = members((divisor, remainder), buckets)
            if left.issuperset(whole):
                found.append((divisor, remainder))
                left.difference_update(whole)
    return found
