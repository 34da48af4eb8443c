# SPDX-License-Identifier: Apache-2.0
"""The decisions of retry policies: when to retry, and when to give up."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bmq
from bmq.workers import RetryPolicy
from tests.sweeps import sweep


def pauses(policy: RetryPolicy, limit: int = 1000) -> list[float]:
    """The pauses between attempts of a handler that fails at once, every time."""
    found: list[float] = []
    for attempt in count(1):
        delay = policy.delay(attempt, sum(found), RuntimeError())
        if delay is None:
            return found
        found.append(delay)
        assert len(found) < limit
    raise AssertionError


def test_no_retry_lists_errors_that_can_never_succeed() -> None:
    for no_retry in (LookupError, (TypeError, LookupError), lambda error: isinstance(error, LookupError)):
        policy = bmq.Backoff(5.0, no_retry=no_retry)
        assert policy.delay(1, 0, KeyError()) is None
        assert policy.delay(1, 0, OSError()) is not None
    for nonsense in ("ValueError", (ValueError, "x"), int, None):
        with pytest.raises(bmq.UsageError, match="no_retry must be an exception type"):
            bmq.Backoff(5.0, no_retry=nonsense)  # type: ignore[arg-type]


def test_backoff_without_a_number_grows_up_to_its_cap_until_the_age_limit() -> None:
    policy = bmq.Backoff(1, retries=None, factor=2, cap=8, give_up_after=40)
    assert pauses(policy) == [1, 2, 4, 8, 8, 8, 8, pytest.approx(0.6)], "a hundredth of the limit is left"
    assert policy.then == "skip"


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


@sweep(
    "make",
    [
        lambda: bmq.Backoff(-1),
        lambda: bmq.Backoff(1, retries=-1),
        lambda: bmq.Backoff(1, factor=0.5),
        lambda: bmq.Backoff(1, cap=0),
        lambda: bmq.Backoff(1, then="drop"),  # type: ignore[arg-type]
        lambda: bmq.NoRetry(then=None),  # type: ignore[arg-type]
        lambda: bmq.Backoff(1, give_up_after=-1),
        lambda: bmq.Backoff(1, durable=True, blocks=True),
    ],
)
def test_invalid_policies_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(bmq.UsageError):
        make()
