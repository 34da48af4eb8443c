# SPDX-License-Identifier: Apache-2.0
"""The expressions of the buckets of a group, and of classes of buckets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bmq
from bmq.groups import key_bucket

# How keys are divided is shown for many keys, which is too slow through a broker.
from bmq.groups._bundles import classes, members
from bmq.groups._expressions import (
    bucket_expression,
    compiled,
    keyless_expression,
    unselected_expressions,
    unusable_expressions,
)
from bmq.groups._protocol import nested
from tests.sweeps import sweep

BUCKETS = st.integers(1, 16)
WANTED = st.integers(1, 520).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1))))
#: Differences overflow for the few lowest numbers; a broker's arithmetic wraps around.
NUMBERS = st.integers(-(2**63) + 64, 2**63 - 1)


@settings(max_examples=25)
@given(BUCKETS, NUMBERS)
def test_a_number_is_in_the_bucket_of_its_remainder(buckets: int, number: int) -> None:
    matching = [
        bucket
        for bucket in range(buckets)
        if bmq.Expression(bucket_expression("k", buckets, bucket, None)).matches({"k": number})
    ]
    assert matching == [number % buckets]  # which is never negative in Python
    assert not bmq.Expression(keyless_expression("k", None)).matches({"k": number})


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(-(2**63), -(2**63) + 64))
def test_powers_of_two_have_no_exception(buckets: int, number: int) -> None:
    for bucket in range(buckets):
        expression = bmq.Expression(bucket_expression("k", buckets, bucket, None))
        assert expression.matches({"k": number}) == (bucket == number % buckets)


@settings(max_examples=25)
@given(BUCKETS, st.text())
def test_a_key_is_in_one_bucket(buckets: int, key: str) -> None:
    bucket = key_bucket(key.encode("utf-8", "surrogatepass"))
    matching = [
        each
        for each in range(buckets)
        if bmq.Expression(bucket_expression(None, buckets, each, None)).matches({"bmq_bucket": bucket})
    ]
    assert matching == [bucket % buckets]


class TestWithASelector:
    def test_bucket_and_expression_must_both_match(self) -> None:
        text = bucket_expression("k", 16, 3, 'country == "DE" || country == "AT"')
        expression = bmq.Expression(text)
        assert expression.matches({"k": 19, "country": "AT"})
        assert not expression.matches({"k": 20, "country": "AT"})
        assert not expression.matches({"k": 19, "country": "FR"})

    def test_room_for_five_operators_beside_an_integer_key(self) -> None:
        bucket_expression("k", 16, 3, "a == 1 && b == 2")
        with pytest.raises(bmq.InvalidExpression, match=r"bucket takes 4 of the 10 possible operators"):
            bucket_expression("k", 16, 3, "a == 1 && b == 2 && c")

    def test_a_filter_of_several_expressions_is_refused(self) -> None:
        tags = bmq.TagFilter(any_of=[f"t{number}" for number in range(7)])
        with pytest.raises(bmq.InvalidExpression, match="must fit into one expression"):
            bucket_expression("k", 16, 3, tags)


@sweep("key", ["a b", "", "1st", "a + b", '"k"'])
def test_a_key_is_the_name_of_a_property(key: str) -> None:
    with pytest.raises(bmq.InvalidExpression, match="bucket of the key"):
        keyless_expression(key, None)


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text(max_size=5), st.binary(max_size=5), st.none()
)


KEYS, SELECTORS = st.sampled_from([None, "k"]), st.sampled_from([None, "vip"])


@settings(max_examples=60)
@given(KEYS, st.integers(1, 24), VALUES, SELECTORS, st.booleans())
def test_every_message_is_taken_exactly_once(
    key: str | None, buckets: int, value: Any, expression: str | None, vip: bool
) -> None:
    properties = {"vip": vip} if value is None else {"vip": vip, key or "bmq_bucket": value}
    texts = [bucket_expression(key, buckets, bucket, expression) for bucket in range(buckets)]
    texts.append(keyless_expression(key, expression))
    unusable = unusable_expressions(key, buckets, expression)
    wanted = not expression or vip
    low = unusable.pop("a number too low", None)
    matching = sum(bmq.Expression(text).matches(properties) for text in texts)
    matching += sum(expression.matches(properties) for expression in unusable.values())
    if low is not None and low.matches(properties):
        assert value < -(2**63) + buckets  # overflow: a bucket takes the number, or this check does
        assert wanted
    else:
        assert matching == wanted


@pytest.mark.parametrize("expression", ["exists(a)", "exists(a) && !exists(b)"])
def test_the_complement_of_an_expression_is_exact_if_it_exists(expression: str) -> None:
    rest = unselected_expressions(expression)
    assert rest
    for properties in ({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}):
        matching = sum(each.matches(properties) for each in rest if each is not None)
        assert matching == (not bmq.Expression(expression).matches(properties))


@given(WANTED)
def test_classes_have_exactly_the_wanted_buckets(drawn: tuple[int, set[int]]) -> None:
    buckets, wanted = drawn
    found = classes(wanted, buckets)
    covered = [bucket for each in found for bucket in members(each, buckets)]
    assert sorted(covered) == sorted(wanted)
    assert all(buckets % divisor == 0 and remainder < divisor for divisor, remainder in found)
    sizes = [len(members(each, buckets)) for each in found]
    assert sizes == sorted(sizes, reverse=True)


@sweep("buckets", [1, 2, 7, 12, 100, 128, 512])
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
