# SPDX-License-Identifier: Apache-2.0
"""What is counted: a batch at a time, into plain numbers that only grow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from bmq.errors import AckStatus

__all__ = ["BOUNDS", "Durations", "PostCounts"]

#: The buckets durations are counted in, by their upper bounds, in seconds. A bound belongs to its bucket;
#: what is longer than the last one has a bucket of its own.
BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


class Durations:
    """How long things took.

    Attributes:
        buckets: how many took how long: one number for each of :data:`BOUNDS`, and one for what took longer.
        seconds: all together.
    """

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, count: int) -> None:
        """Count things that took the same time."""
        self.buckets[bisect_left(BOUNDS, seconds)] += count
        self.seconds += seconds * count


class PostCounts:
    """What became of posts.

    What has no outcome yet is not counted here: who holds it knows how much that is.

    Args:
        whole: counts the same for all of a session.

    Attributes:
        settled: posts that have their outcome.
        settled_bytes: the size of their payloads and properties as they travelled.
        refused: those that were not accepted, by status.
        retransmitted: posts that were written to a connection, and again to another one.
        full_waits: how often posting waited for room in the window.
        full_errors: how often a post was turned away because there was none.
        durations: the time from a post to the broker's answer.
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
        """The broker has answered posts that were made at the same time."""
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
        """Posts ended here, without an answer."""
        self.settled += count
        self.settled_bytes += size
        self.refused[status] += count
        if self.whole is not None:
            self.whole.given_up(count, size, status)

    def not_accepted(self, status: AckStatus) -> None:
        """One of the answers was not what the caller hoped for."""
        self.refused[status] += 1
        if self.whole is not None:
            self.whole.not_accepted(status)

    def sent_again(self, count: int) -> None:
        """Posts were written again, to another connection."""
        self.retransmitted += count
        if self.whole is not None:
            self.whole.sent_again(count)

    def waited(self) -> None:
        """The window was full, and a caller waits."""
        self.full_waits += 1
        if self.whole is not None:
            self.whole.waited()

    def turned_away(self) -> None:
        """The window was full, and a caller got an error."""
        self.full_errors += 1
        if self.whole is not None:
            self.whole.turned_away()
