# SPDX-License-Identifier: Apache-2.0
"""Counters: updated once for a batch, as plain numbers that only grow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from bmq.errors import AckStatus

__all__ = ["BOUNDS", "Durations", "PostCounts"]

#: Upper bounds of the buckets for durations, in seconds, inclusive. Longer durations have a separate bucket.
BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Durations:
    """A distribution of durations.

    Attributes:
        buckets: number of durations for each of :data:`BOUNDS`, and of longer durations.
        seconds: sum of all durations.
    """

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, count: int) -> None:
        """Count several equal durations."""
        self.buckets[bisect_left(BOUNDS, seconds)] += count
        self.seconds += seconds * count


class PostCounts:
    """The outcomes of posts.

    Posts without an outcome are not counted here; the window knows the number.

    Args:
        whole: the same counters for the whole session.

    Attributes:
        settled: number of posts with an outcome.
        settled_bytes: size of the settled payloads and properties as transmitted.
        refused: numbers of posts without an acceptance, by status.
        retransmitted: number of posts written again to another connection.
        full_waits: number of times a caller waited for room in the window.
        full_errors: number of times a caller got an error because the window was full.
        durations: times from a post to the broker's answer.
    """

    __slots__ = (
        "durations",
        "full_errors",
        "full_waits",
        "refused",
        "retransmitted",
        "settled",
        "settled_bytes",
        "whole",
    )

    def __init__(self, whole: PostCounts | None = None) -> None:
        self.whole = whole
        self.settled = 0
        self.settled_bytes = 0
        self.refused: Counter[AckStatus] = Counter()
        self.retransmitted = 0
        self.full_waits = 0
        self.full_errors = 0
        self.durations = Durations()

    def answered(self, count: int, size: int, seconds: float) -> None:
        """Count answered posts with a common time of posting."""
        bucket = bisect_left(BOUNDS, seconds)
        each: PostCounts | None = self
        while each is not None:
            each.settled += count
            each.settled_bytes += size
            durations = each.durations
            durations.buckets[bucket] += count
            durations.seconds += seconds * count
            each = each.whole

    def given_up(self, count: int, size: int, status: AckStatus) -> None:
        """Count posts ended without an answer."""
        self.settled += count
        self.settled_bytes += size
        self.refused[status] += count
        if self.whole is not None:
            self.whole.given_up(count, size, status)

    def not_accepted(self, status: AckStatus) -> None:
        """Count an outcome other than success."""
        self.refused[status] += 1
        if self.whole is not None:
            self.whole.not_accepted(status)

    def sent_again(self, count: int) -> None:
        """Count posts written again to another connection."""
        self.retransmitted += count
        if self.whole is not None:
            self.whole.sent_again(count)

    def waited(self) -> None:
        """Count a caller waiting because the window is full."""
        self.full_waits += 1
        if self.whole is not None:
            self.whole.waited()

    def turned_away(self) -> None:
        """Count a caller that gets an error because the window is full."""
        self.full_errors += 1
        if self.whole is not None:
            self.whole.turned_away()
