# SPDX-License-Identifier: Apache-2.0
"""Classes of buckets, and their expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.groups._bundles import classes, members
from bmq.groups._expressions import bucket_expression, compiled
from bmq.groups._protocol import nested


@given(st.integers(1, 520).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_classes_have_exactly_the_wanted_buckets(drawn: tuple[int, set[int]]) -> None:
    buckets, wanted = drawn
    found = classes(wanted, buckets)
    covered = [bucket for each in found for bucket in members(each, buckets)]
    assert sorted(covered) == sorted(wanted)
    assert all(buckets % divisor == 0 and remainder < divisor for divisor, remainder in found)
    sizes = [len(members(each, buckets)) for each in found]
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 520).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_no_larger_class_is_left_out(drawn: tuple[int, set[int]]) -> None:
    buckets, wanted = drawn
    found = classes(wanted, buckets)
    for divisor, remainder in found:
        for larger in range(1, divisor):
            if divisor % larger == 0 and buckets % larger == 0:
                assert not wanted.issuperset(members((larger, remainder % larger), buckets))


@pytest.mark.parametrize("buckets", [1, 2, 7, 12, 100, 128, 512])
def test_neighbours_in_order_make_large_classes(buckets: int) -> None:
    order = nested(buckets)
    assert sorted(order) == list(range(buckets))
    for size in (size for size in range(1, buckets + 1) if buckets % size == 0):
        if size & (size - 1) == 0 and buckets & (buckets - 1) == 0:
            runs = [order[first : first + size] for first in range(0, buckets, size)]
            assert all(len(classes(run, buckets)) == 1 for run in runs)


def test_equal_shares_of_a_power_of_two_are_single_classes() -> None:
    order = nested(128)
    shares = [order[first : first + 16] for first in range(0, 128, 16)]
    assert [len(classes(share, 128)) for share in shares] == [1] * 8
    thirds = [order[128 * i // 3 : 128 * (i + 1) // 3] for i in range(3)]
    assert max(len(classes(third, 128)) for third in thirds) <= 7


@given(
    st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
    st.data(),
)
def test_the_expression_of_a_class_matches_like_those_of_its_buckets(
    key: int, divisor: int, data: st.DataObject
) -> None:
    remainder = data.draw(st.integers(0, divisor - 1))
    together = compiled(bucket_expression("k", divisor, remainder, None)).matches({"k": key})
    single = (compiled(bucket_expression("k", 128, each, None)) for each in range(remainder, 128, divisor))
    assert together == any(each.matches({"k": key}) for each in single)
    if key >= 0:
        convention = compiled(bucket_expression(None, divisor, remainder, None))
        assert convention.matches({"bmq_bucket": key}) == together
