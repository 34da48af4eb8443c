# SPDX-License-Identifier: Apache-2.0
"""The owners of buckets."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from bmq.groups import owners, priority_of
from bmq.groups._ranking import MAX_WEIGHT, MIN_WEIGHT

NAMES = [f"member-{number}" for number in range(8)]
MANY = 4000


def test_priorities_are_legal_and_above_those_of_ordinary_consumers() -> None:
    for weight in (MIN_WEIGHT, 0.5, 1.0, 7.0, MAX_WEIGHT):
        drawn = [priority_of(name, bucket, weight, b"x") for name in NAMES for bucket in range(200)]
        assert min(drawn) >= 1
        assert max(drawn) <= 2**30


def test_members_share_evenly() -> None:
    counts = Counter(owners(NAMES, MANY).values())
    assert set(counts) == set(NAMES)
    assert all(abs(count - MANY / 8) < 0.2 * MANY / 8 for count in counts.values())


def test_weights_are_shares() -> None:
    weights = {"small": 1.0, "big": 3.0, "tiny": 0.25, "bigger": 6.0}
    counts = Counter(owners(weights, MANY).values())
    total = sum(weights.values())
    for name, weight in weights.items():
        assert counts[name] == pytest.approx(MANY * weight / total, rel=0.2)


def test_a_joining_member_takes_buckets_only_for_itself() -> None:
    for before, after in pairwise([NAMES[:count] for count in range(1, 9)]):
        old, new = owners(before, MANY), owners(after, MANY)
        moved = {bucket for bucket in old if old[bucket] != new[bucket]}
        assert {new[bucket] for bucket in moved} == {after[-1]}
        assert len(moved) == pytest.approx(MANY / len(after), rel=0.2)


def test_two_members_of_one_name_have_different_priorities() -> None:
    """Else the broker would give them messages in turn, and order would be gone."""
    one = [priority_of("twin", bucket, tie=b"1") for bucket in range(64)]
    two = [priority_of("twin", bucket, tie=b"2") for bucket in range(64)]
    assert all(a != b for a, b in zip(one, two, strict=True))
    # Beside others they count as one.
    rank = priority_of("other", 5)
    assert (priority_of("twin", 5, tie=b"1") > rank) == (priority_of("twin", 5, tie=b"2") > rank)


def test_group_without_members_has_no_owners() -> None:
    assert owners([]) == {}
