# SPDX-License-Identifier: Apache-2.0
"""The use of quotas: of a queue, and of its domain."""

from __future__ import annotations

__all__ = ["use_of"]

Amount = tuple[int, int]


def use_of(queue: Amount, domain: Amount, limits: tuple[Amount, Amount]) -> tuple[float, str, bool]:
    """Return the largest share of a quota in use, whose quota this is, and whether the quota is reached.

    A broker checks before adding a message: a limit of N admits N + 1.
    """
    of_domain, of_queue = limits
    found = [
        (used / limit, name, used > limit)
        for name, have, most in (("queue", queue, of_queue), ("domain", domain, of_domain))
        for used, limit in zip(have, most, strict=True)
        if limit > 0
    ]
    return max(found, key=lambda each: (each[2], each[0]), default=(0.0, "", False))
