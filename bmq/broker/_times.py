# SPDX-License-Identifier: Apache-2.0
"""How long messages wait in a queue and with consumers."""

from __future__ import annotations

__all__ = ["Times"]


class Times:
    """How long something took, counted over and over.

    Attributes:
        count: how often.
        seconds: all together.
        longest: the longest, in seconds.
    """

    __slots__ = ("count", "longest", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest = 0.0

    def add(self, seconds: float, count: int, longest: float) -> None:
        """Count some that took so long together."""
        self.count += count
        self.seconds += seconds
        if longest > self.longest:
            self.longest = longest
