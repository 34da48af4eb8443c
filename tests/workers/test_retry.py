# SPDX-License-Identifier: Apache-2.0
"""The decisions of retry policies at their limits, and refused policies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bmq
from tests.sweeps import sweep


@given(st.floats(0.5, 60), st.floats(1, 10), st.floats(0.5, 600), st.floats(0, 1000), st.integers(1, 10**6))
def test_backoff_never_exceeds_the_age_limit(
    first: float, factor: float, cap: float, give_up_after: float, attempt: int
) -> None:
    policy = bmq.Backoff(first, retries=None, factor=factor, cap=cap, give_up_after=give_up_after)
    for elapsed in (0.0, give_up_after / 2, give_up_after, give_up_after + 1):
        delay = policy.delay(attempt, elapsed, RuntimeError())
        if elapsed >= give_up_after:
            assert delay is None
        else:
            assert delay is not None
            assert 0 < delay <= give_up_after - elapsed
            assert factor == 1 or delay <= cap


def test_backoff_with_a_number_makes_no_attempt_beyond_the_age_limit() -> None:
    policy = bmq.Backoff(every=1, retries=9, give_up_after=2)
    assert [policy.delay(1, elapsed, OSError()) for elapsed in (0, 1, 1.1, 5)] == [1, 1, None, None]


@sweep(
    "make, why",
    [
        (lambda: bmq.Backoff(-1), "every"),
        (lambda: bmq.Backoff(1, retries=-1), "retries"),
        (lambda: bmq.Backoff(1, factor=0.5), "factor"),
        (lambda: bmq.Backoff(1, cap=0), "cap"),
        (lambda: bmq.Backoff(1, then="drop"), "then"),  # type: ignore[arg-type]
        (lambda: bmq.NoRetry(then=None), "then"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, give_up_after=-1), "give_up_after"),
        (lambda: bmq.Backoff(1, durable=True, blocks=True), "omit blocks"),
        (lambda: bmq.Backoff(1, no_retry="ValueError"), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, no_retry=(ValueError, "x")), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, no_retry=int), "no_retry must be an exception type"),  # type: ignore[arg-type]
        (lambda: bmq.Backoff(1, no_retry=None), "no_retry must be an exception type"),  # type: ignore[arg-type]
    ],
)
def test_invalid_policies_are_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(bmq.UsageError, match=why):
        make()
