# SPDX-License-Identifier: Apache-2.0
"""Counters: updated once for a batch, as plain numbers that only grow.

Counters have scopes: a count of a consumer is also a count of the queue and of the session. One mechanism
(:class:`Counts`) serves both sides. The two sides stay two objects, because they have two owners and
different facts: posts are counted here, by outcome; received messages are counted by the engine, with the
unconfirmed messages of the present connection. A common object would give each consumer the counters of
posts, and each queue for writing the counters of received messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, Self

from bmq.errors import AckStatus

__all__ = ["BOUNDS", "Counts", "Durations", "PostCounts"]

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


class Counts:
    """Counters of a scope: a consumer, a queue or a session.

    Args:
        whole: the counters of the next larger scope, or None.

    Attributes:
        scopes: the counters to update with each count: these, and those of all larger scopes.
        durations: distribution of the durations of the counted work.
    """

    __slots__ = ("durations", "scopes")

    def __init__(self, whole: Self | None) -> None:
        self.scopes: tuple[Self, ...] = (self,) if whole is None else (self, *whole.scopes)
        self.durations = Durations()


class PostCounts(Counts):
    """The outcomes of posts, in the scopes of a queue and of its session.

    Posts without an outcome are not counted here; the window knows the number.

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
        "full_errors",
        "full_waits",
        "refused",
        "retransmitted",
        "settled",
        "settled_bytes",
    )

    def __init__(self, whole: Self | None = None) -> None:
        super().__init__(whole)
        self.settled = 0
        self.settled_bytes = 0
        self.refused: Counter[AckStatus] = Counter()
        self.retransmitted = 0
        self.full_waits = 0
        self.full_errors = 0

    def answered(self, count: int, size: int, seconds: float) -> None:
        """Count answered posts with a common time of posting."""
        bucket = bisect_left(BOUNDS, seconds)
        for each in self.scopes:
            each.settled += count
            each.settled_bytes += size
            durations = each.durations
            durations.buckets[bucket] += count
            durations.seconds += seconds * count

    def given_up(self, count: int, size: int, status: AckStatus) -> None:
        """Count posts ended without an answer."""
        for each in self.scopes:
            each.settled += count
            each.settled_bytes += size
            each.refused[status] += count

    def not_accepted(self, status: AckStatus) -> None:
        """Count an outcome other than success."""
        for each in self.scopes:
            each.refused[status] += 1

    def sent_again(self, count: int) -> None:
        """Count posts written again to another connection."""
        for each in self.scopes:
            each.retransmitted += count

    def waited(self) -> None:
        """Count a caller waiting because the window is full."""
        for each in self.scopes:
            each.full_waits += 1

    def turned_away(self) -> None:
        """Count a caller that gets an error because the window is full."""
        for each in self.scopes:
            each.full_errors += 1
