# SPDX-License-Identifier: Apache-2.0
"""Pauses that grow from attempt to attempt."""

from __future__ import annotations

__all__ = ["backoff"]


def backoff(attempt: int, first: float, cap: float, factor: float = 2.0) -> float:
    """Return how many seconds to wait after some failed attempts: ``first`` after one, ``cap`` at most."""
    try:
        return min(cap, first * float(factor) ** (attempt - 1))
    except OverflowError:
        return cap
