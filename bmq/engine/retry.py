# SPDX-License-Identifier: Apache-2.0
"""Delays between attempts to connect."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from bmq import _checks, _world
from bmq._backoff import backoff

__all__ = ["reconnect_delays"]


def reconnect_delays(
    first: float = 0.01, base: float = 0.1, factor: float = 2.0, cap: float = 1.0
) -> Iterator[float]:
    """Return delays in seconds: the first close to zero, then exponential with full jitter.

    ::

        session = await bmq.connect(broker, reconnect_delays=lambda: bmq.reconnect_delays(cap=10))

    Args:
        first: limit of the first delay. Random delays keep clients from reconnecting simultaneously.
        base: limit of the second delay.
        factor: growth of the limit from each delay to the next.
        cap: maximum of the limit. With the default, clients return soon after the broker.

    Raises:
        UsageError: a limit is not a duration, or ``factor`` is below 1.
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
