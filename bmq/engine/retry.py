# SPDX-License-Identifier: Apache-2.0
"""How long to wait between attempts to connect."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from bmq import _checks, _world
from bmq._backoff import backoff

__all__ = ["exponential_backoff"]


def exponential_backoff(
    first: float = 0.01, base: float = 0.1, factor: float = 2.0, cap: float = 1.0
) -> Iterator[float]:
    """Return delays in seconds: the first almost nothing, then exponential with full jitter.

    Args:
        first: the first delay is at most this. Delays are random: clients do not all come back at once.
        base: the second delay is at most this.
        factor: how much this limit grows from each delay to the next.
        cap: no delay is longer. By default no client stays away much longer than its broker did.

    Raises:
        InvalidArgument: a limit is no duration, or ``factor`` is below 1.
    """
    return _delays(
        _checks.seconds("first", first),
        _checks.seconds("base", base),
        _checks.number("factor", factor, 1.0),
        _checks.seconds("cap", cap),
    )


def _delays(first: float, base: float, factor: float, cap: float) -> Iterator[float]:
    yield _world.rng().uniform(0, first)
    for attempt in count(1):
        yield _world.rng().uniform(0, backoff(attempt, base, cap, factor))
