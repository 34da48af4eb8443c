# SPDX-License-Identifier: Apache-2.0
"""The use of quotas: of a queue, and of its domain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["limits_of", "use_of"]

Amount = tuple[int, int]


def limits_of(configuration: Mapping[str, Any]) -> tuple[Amount, Amount]:
    """Return the limits of a domain and of each of its queues, each as messages and bytes; 0 for no limit."""
    storage = _member(configuration, "storage")
    return _limits(_member(storage, "domainLimits")), _limits(_member(storage, "queueLimits"))


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


def _member(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _limits(found: Mapping[str, Any]) -> Amount:
    messages, size = found.get("messages"), found.get("bytes")
    return (messages if isinstance(messages, int) else 0, size if isinstance(size, int) else 0)
