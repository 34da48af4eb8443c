# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""Throughput and lag over time, as an SVG that follows the reader's colour scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

WIDTH, LEFT, RIGHT, HEIGHT = 760, 66, 14, 150
STYLE = """
 text{fill:#24292f;font:12px sans-serif} .dim{fill:#6e7781} .grid{stroke:#d0d7de}
 .down{fill:#d1242f;opacity:.13} .dead{fill:#d1242f}
 .posted{fill:none;stroke:#4b7bec;stroke-width:2} .key{fill:#4b7bec}
 .done{fill:#20a37a;opacity:.75} .lag{fill:#e0a030;opacity:.75}
 @media (prefers-color-scheme: dark){
  text{fill:#e6edf3} .dim{fill:#9da7b3} .grid{stroke:#3d444d} .dead{fill:#ff7b72}
 }
"""


class Sample(NamedTuple):
    """The numbers of one moment.

    Attributes:
        at: seconds since the beginning.
        posted: messages acknowledged by the broker so far.
        waiting: messages acknowledged and not confirmed.
    """

    at: float
    posted: int
    waiting: int

    @property
    def done(self) -> int:
        """Messages read, and confirmed after the commit of their batch."""
        return max(0, self.posted - self.waiting)


def rates(samples: Sequence[Sample], number: Callable[[Sample], int], step: float = 1.0) -> list[float]:
    """The growth of a number in each step of the given seconds, per second."""
    grown = [0.0] * max(1, math.ceil(samples[-1].at / step))
    for before, after in pairwise(samples):
        grown[min(len(grown) - 1, int(after.at / step))] += number(after) - number(before)
    return [each / step for each in grown]


def ticks(most: float, about: int) -> list[float]:
    """Round numbers from 0 to the greatest or beyond."""
    step = 10 ** math.floor(math.log10(max(most, 1) / about))
    step *= next(each for each in (1, 2, 5, 10) if each * step * about >= most)
    return [step * number for number in range(math.ceil(max(most, 1) / step) + 1)]


class Panel:
    """A plot over time."""

    def __init__(self, top: int, name: str, most: float, seconds: float, step: float) -> None:
        self._top = top
        self._name = name
        self._ticks = ticks(most, 4)
        self._seconds = seconds
        self._step = step

    def x(self, at: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * min(at / self._seconds, 1), 1)

    def y(self, value: float) -> float:
        return round(self._top + HEIGHT * (1 - value / self._ticks[-1]), 1)

    def frame(self) -> Iterator[str]:
        yield f'<text x="{LEFT}" y="{self._top - 12}">{self._name}</text>'
        for tick in self._ticks:
            yield f'<path class="grid" d="M{LEFT},{self.y(tick)}H{WIDTH - RIGHT}"/>'
            at = f'x="{LEFT - 8}" y="{self.y(tick) + 4}" text-anchor="end"'
            yield f'<text class="dim" {at}>{tick:,.0f}</text>'

    def bars(self, kind: str, values: Sequence[float]) -> Iterator[str]:
        for number, value in enumerate(values):
            left, right = self.x(number * self._step), self.x((number + 1) * self._step)
            size = f'width="{max(right - left - 1, 0.5):.1f}" height="{self.y(0) - self.y(value):.1f}"'
            yield f'<rect class="{kind}" x="{left}" y="{self.y(value)}" {size}/>'

    def steps(self, kind: str, values: Sequence[float]) -> str:
        line = "".join(
            f"H{self.x(number * self._step)}V{self.y(value)}" for number, value in enumerate(values)
        )
        return f'<path class="{kind}" d="M{LEFT},{self.y(0)}{line}H{self.x(self._seconds)}"/>'

    def area(self, kind: str, values: Sequence[tuple[float, float]]) -> str:
        line = "".join(f"L{self.x(at)},{self.y(value)}" for at, value in values)
        return f'<path class="{kind}" d="M{self.x(values[0][0])},{self.y(0)}{line}V{self.y(0)}z"/>'

    def band(self, kind: str, first: float, last: float) -> str:
        size = f'width="{self.x(last) - self.x(first):.1f}" height="{HEIGHT}"'
        return f'<rect class="{kind}" x="{self.x(first)}" y="{self._top}" {size}/>'


def picture(samples: Sequence[Sample], down: Sequence[tuple[float, float]]) -> str:
    """Draw two panels: messages a second in and out, and waiting messages.

    Args:
        samples: at least one sample, in order.
        down: intervals without a driver, in seconds.
    """
    seconds = max(samples[-1].at, 1)
    step = math.ceil(seconds / 100)
    posted = rates(samples, lambda each: each.posted, step)
    done = rates(samples, lambda each: each.done, step)
    rate = Panel(62, "messages a second", max(posted + done), seconds, step)
    lag = Panel(262, "messages that wait: the lag", max(each.waiting for each in samples), seconds, step)
    below = 262 + HEIGHT + 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below + 26}" role="img" '
        'aria-label="Messages a second into and out of the queue, and how many wait in it, over time">',
        f"<style>{STYLE}</style>",
        f'<rect class="key" x="{LEFT}" y="14" width="14" height="3"/>',
        f'<text x="{LEFT + 20}" y="20">posted to the queue</text>',
        f'<rect class="done" x="{LEFT + 180}" y="9" width="14" height="12"/>',
        f'<text x="{LEFT + 200}" y="20">read by the pipeline, committed and confirmed</text>',
        *rate.frame(),
        *rate.bars("done", done),
        rate.steps("posted", posted),
        *lag.frame(),
        lag.area("lag", [(each.at, each.waiting) for each in samples]),
    ]
    for first, last in down:
        parts += [rate.band("down", first, last), lag.band("down", first, last)]
        middle = min(max(rate.x((first + last) / 2), LEFT + 100), WIDTH - 100)
        at = f'x="{middle:.1f}" y="232" text-anchor="middle"'
        parts.append(f'<text class="dead" {at}>driver killed, started again</text>')
    parts += [
        f'<text class="dim" x="{lag.x(tick)}" y="{below}" text-anchor="middle">{tick:,.0f} s</text>'
        for tick in ticks(seconds, 8)
        if tick <= seconds
    ]
    return "\n".join([*parts, "</svg>", ""])
