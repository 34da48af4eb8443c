# SPDX-License-Identifier: Apache-2.0
"""Pauses that grow from attempt to attempt."""

from __future__ import annotations

__all__ = ["backoff"]


def backoff(attempt: int, first: float, cap: float, factor: float = 2.0) -> float:
    """Return the pause in seconds after a number of failed attempts: ``first`` after one, at most ``cap``."""
    try:
        return min(cap, first * float(factor) ** (attempt - 1))
    except OverflowError:
        return cap
