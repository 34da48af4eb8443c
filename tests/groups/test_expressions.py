# SPDX-License-Identifier: Apache-2.0
"""The expressions of the buckets of a group, and of classes of buckets.

How keys are divided is shown for many keys, which is too slow through a broker.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bmq
from bmq.groups import key_bucket
from bmq.groups._bundles import classes, members
from bmq.groups._expressions import bucket_expression, other_expressions, unselected_expressions
from bmq.groups._protocol import nested
from tests.sweeps import sweep

BUCKETS = st.integers(1, 16)
LOWEST = st.integers(-(2**63), -(2**63) + 64)
KEYS = LOWEST | st.integers(-300, 300) | st.integers(-(2**63), 2**63 - 1)


def matching(key: str | None, buckets: int, value: int) -> list[int]:
    """Return the buckets whose expressions match a message."""
    properties = {key or "bmq_bucket": value}
    return [
        each for each in range(buckets) if bucket_expression(key, buckets, each, None).matches(properties)
    ]


@settings(max_examples=40)
@given(BUCKETS, KEYS, st.text())
def test_a_message_is_in_the_bucket_of_the_remainder_of_its_key(buckets: int, key: int, text: str) -> None:
    if buckets & (buckets - 1) == 0 or key > -(2**63) + 64:  # differences of the lowest numbers overflow
        assert matching("k", buckets, key) == [key % buckets]  # never negative in Python
    bucket = key_bucket(text.encode("utf-8", "surrogatepass"))
    assert matching(None, buckets, bucket) == [bucket % buckets]


def test_bucket_and_expression_must_both_match() -> None:
    expression = bucket_expression("k", 16, 3, 'country == "DE" || country == "AT"')
    assert expression.matches({"k": 19, "country": "AT"})
    assert not expression.matches({"k": 20, "country": "AT"})
    assert not expression.matches({"k": 19, "country": "FR"})


def test_an_expression_without_room_beside_the_bucket_is_refused() -> None:
    bucket_expression("k", 16, 3, "a == 1 && b == 2")
    with pytest.raises(bmq.InvalidExpression, match=r"bucket takes 4 of the 10 possible operators"):
        bucket_expression("k", 16, 3, "a == 1 && b == 2 && c")
    tags = bmq.TagFilter(any_of=[f"t{number}" for number in range(7)])
    with pytest.raises(bmq.InvalidExpression, match="must fit into one expression"):
        bucket_expression("k", 16, 3, tags)


@sweep("key", ["a b", "", "1st", "a + b", '"k"'])
def test_a_key_is_the_name_of_a_property(key: str) -> None:
    with pytest.raises(bmq.InvalidExpression, match="bucket of the key"):
        other_expressions(key, 16, None)


NAMES, SELECTORS = st.sampled_from([None, "k"]), st.sampled_from([None, "vip"])
VALUES = KEYS | st.booleans() | st.text(max_size=5) | st.binary(max_size=5) | st.none()


@settings(max_examples=60)
@given(
    st.sampled_from([None, "k"]), st.integers(1, 24), VALUES, st.sampled_from([None, "vip"]), st.booleans()
)
def test_every_message_is_taken_exactly_once(
    key: str | None, buckets: int, value: Any, expression: str | None, vip: bool
) -> None:
    properties = {"vip": vip} if value is None else {"vip": vip, key or "bmq_bucket": value}
    others = other_expressions(key, buckets, expression)
    low = others.pop("a number too low", None)
    taken = [*(bucket_expression(key, buckets, bucket, expression) for bucket in range(buckets))]
    taken += others.values()
    wanted = not expression or vip
    if low is not None and low.matches(properties):
        assert value < -(2**63) + buckets  # overflow: a bucket takes the number, or this expression does
        assert wanted
    else:
        assert sum(each.matches(properties) for each in taken) == wanted


@sweep("expression", ["exists(a)", "exists(a) && !exists(b)"])
def test_the_complement_of_an_expression_is_exact_if_it_exists(expression: str) -> None:
    rest = unselected_expressions(expression)
    assert rest
    for properties in ({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}):
        found = sum(each.matches(properties) for each in rest if each is not None)
        assert found == (not bmq.Expression(expression).matches(properties))


# classes


@given(st.integers(1, 520).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_classes_have_exactly_the_wanted_buckets(drawn: tuple[int, set[int]]) -> None:
    buckets, wanted = drawn
    found = classes(wanted, buckets)
    assert sorted(bucket for each in found for bucket in members(each, buckets)) == sorted(wanted)
    assert all(buckets % divisor == 0 and remainder < divisor for divisor, remainder in found)
    sizes = [len(members(each, buckets)) for each in found]
    assert sizes == sorted(sizes, reverse=True)


@sweep("buckets", [1, 2, 7, 12, 100, 128, 512])
def test_neighbours_in_order_make_large_classes(buckets: int) -> None:
    order = nested(buckets)
    assert sorted(order) == list(range(buckets))
    for size in (1 << power for power in range(10) if buckets & (buckets - 1) == 0):
        runs = [order[first : first + size] for first in range(0, buckets, size)]
        assert all(len(classes(run, buckets)) == 1 for run in runs)
    thirds = [order[buckets * part // 3 : buckets * (part + 1) // 3] for part in range(3)]
    assert buckets != 128 or max(len(classes(third, buckets)) for third in thirds) <= 7


@given(KEYS, st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]), st.data())
def test_the_expression_of_a_class_matches_like_those_of_its_buckets(
    key: int, divisor: int, data: st.DataObject
) -> None:
    remainder = data.draw(st.integers(0, divisor - 1))
    wanted = key % 128 in range(remainder, 128, divisor)
    assert bucket_expression("k", divisor, remainder, None).matches({"k": key}) == wanted
    if key >= 0:
        assert bucket_expression(None, divisor, remainder, None).matches({"bmq_bucket": key}) == wanted
