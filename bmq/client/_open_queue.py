# SPDX-License-Identifier: Apache-2.0
"""The base of :class:`bmq.Queue`: how modules recognise a queue that the queue's own module imports."""

from __future__ import annotations

__all__ = ["OpenQueue"]


class OpenQueue:
    """Whether an object is a :class:`bmq.Queue`, for ``isinstance``; it has nothing of its own."""
