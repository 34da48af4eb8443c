# SPDX-License-Identifier: Apache-2.0
"""The expressions of a group."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bmq
from bmq.groups import key_bucket
from bmq.groups._expressions import bucket_expression, keyless_expression

BUCKETS = st.integers(1, 16)
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

    def test_room_for_six_beside_the_bucket_property(self) -> None:
        bucket_expression(None, 16, 3, "a == 1 && !(b == 2)")
        with pytest.raises(bmq.InvalidExpression, match=r"bucket takes 3 of the 10 possible operators"):
            bucket_expression(None, 16, 3, "a == 1 && b == 2 && c")

    def test_a_filter_of_several_expressions_is_refused(self) -> None:
        tags = bmq.TagFilter(any_of=[f"t{number}" for number in range(7)])
        with pytest.raises(bmq.InvalidExpression, match="must fit into one expression"):
            bucket_expression("k", 16, 3, tags)

    def test_messages_without_a_key_are_filtered_too(self) -> None:
        expression = bmq.Expression(keyless_expression(None, "vip"))
        assert expression.matches({"vip": True})
        assert not expression.matches({"vip": False})
        assert not expression.matches({"vip": True, "bmq_bucket": 1})


@pytest.mark.parametrize("key", ["a b", "", "1st", "a + b", '"k"'])
def test_a_key_is_the_name_of_a_property(key: str) -> None:
    with pytest.raises(bmq.InvalidExpression, match="bucket of the key"):
        keyless_expression(key, None)
