# SPDX-License-Identifier: Apache-2.0
"""Figures as text: percentiles, histograms, sparklines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["bars", "percentiles", "sparkline"]

_SPARKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return ``{"p50": ..., ..., "max": ...}``: the smallest value that this percentage does not exceed."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {
        f"p{percent:g}": ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
        for percent in _PERCENTILES
    }
    return {**found, "max": ordered[-1]}


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last ``width`` values as a line of bars; the largest has the full height."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return _SPARKS[0] * len(shown)
    return "".join(_SPARKS[min(7, int(value / top * 7.999))] for value in shown)


def bars(values: Iterable[float], width: int = 40, buckets: int = 12) -> list[tuple[float, float, int, str]]:
    """Return a histogram: lower bound, upper bound, count, and a bar.

    The buckets grow by a constant factor.
    """
    ordered = sorted(value for value in values if value > 0)
    if not ordered:
        return []
    low, high = ordered[0], ordered[-1]
    factor = (high / low) ** (1 / buckets) if high > low else 2.0
    counts = [0] * buckets
    for value in ordered:
        place = int(math.log(value / low) / math.log(factor)) if value > low else 0
        counts[min(buckets - 1, place)] += 1
    most = max(counts)
    return [
        (low * factor**place, low * factor ** (place + 1), count, _bar(count / most * width))
        for place, count in enumerate(counts)
    ]


def _bar(length: float) -> str:
    full, rest = divmod(length, 1)
    return "█" * int(full) + _EIGHTHS[int(rest * 8)].strip()
