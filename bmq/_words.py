# SPDX-License-Identifier: Apache-2.0
"""Counts, sizes and times as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bmq import _world

__all__ = ["age", "listed", "number", "several", "size"]


def number(value: float) -> str:
    """Return a count for people."""
    return f"{value:,.0f}"


def several(count: int, what: str) -> str:
    """Return a number with its noun: ``1 queue``, ``2 queues``."""
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the other ones: ``a, b and 7 more``."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {number(left)} more" if left > 0 else "")


def size(value: float) -> str:
    """Return a number of bytes for people."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def age(moment: datetime, now: datetime | None = None) -> str:
    """Return a time in the past, for people."""
    seconds = max(0.0, ((now or _world.now()) - moment).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
