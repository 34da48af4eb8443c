# SPDX-License-Identifier: Apache-2.0
"""What is counted on each path, and in which unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MEASURES", "Measure"]


@dataclass(frozen=True)
class Measure:
    """A kind of cost.

    Attributes:
        unit: what is counted.
        whole: whether the count is that of all messages of the path, and one more is a regression. Otherwise
            the count is that of one message, and three hundredths more are none.
    """

    unit: str
    whole: bool = False


MEASURES: Final = {
    "calls": Measure("function calls a message"),
    "allocations": Measure("new blocks of memory a message, as seen between two calls"),
    "left": Measure("blocks of memory that a message leaves behind"),
    "writes": Measure("writes to the transport, for all messages of the path", whole=True),
    "callbacks": Measure("callbacks of the event loop, for all messages of the path", whole=True),
    "timers": Measure("timers set, for all messages of the path", whole=True),
    "live_timers": Measure("timers of the session that wait at the end", whole=True),
}
