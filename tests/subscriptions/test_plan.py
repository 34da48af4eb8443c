# SPDX-License-Identifier: Apache-2.0
"""Filters too large for one expression."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, reject

from bmq.errors import InvalidExpression
from bmq.subscriptions import (
    CmqTags,
    Expression,
    ExpressionInput,
    P,
    TagFilter,
    parse,
    plan,
    subscriptions_for,
    unparse,
)
from bmq.subscriptions._syntax import Node
from tests.subscriptions.reference import outcome
from tests.subscriptions.strategies import conditions, messages
from tests.sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")


def texts(selector: Any) -> list[str]:
    return [expression.text for expression in plan(selector)]


@sweep(
    "selector, expected",
    [
        # What fits stays as it was written.
        ("x == 1", ["x == 1"]),
        (Expression("x =", strict=False), ["x ="]),
        (P.x == 1, ["x==1"]),
        # The broker's own example of too many operators.
        ("a==1||b==2||c==3||d==4", ["a==1||b==2||c==3", "d==4"]),
        (P.x.one_of(*range(1, 8)), ["x==1||x==2||x==3", "x==4||x==5||x==6", "x==7"]),
        # An alternative inside a conjunction is distributed.
        (P.x.one_of(1, 2, 3) & (P.y == 4), ["(x==1||x==2)&&y==4", "x==3&&y==4"]),
        (
            (P.a == 1) & P.x.one_of(1, 2) & P.y.one_of(3, 4),
            ["a==1&&x==1&&y==3", "a==1&&x==1&&y==4", "a==1&&x==2&&y==3", "a==1&&x==2&&y==4"],
        ),
        # The negation of a conjunction is an alternative.
        ("!(a==1&&b==2&&c==3&&d==4)", ["a!=1||b!=2||c!=3", "d!=4"]),
        ("x==0 && !(a==1&&b==2&&c==3)", ["x==0&&(a!=1||b!=2)", "x==0&&c!=3"]),
        # Too many operators as written, but not in the simplest form.
        ("!(a==1)&&!(b==2)&&!(c==3)", ["a!=1&&b!=2&&c!=3"]),
        # Too long as written, but not without the spaces.
        ("x == 1" + " " * 130, ["x==1"]),
        # Too long, though not too complex.
        (P.x.one_of("a" * 50, "b" * 50, "c" * 50), [f'x=="{"a" * 50}"||x=="{"b" * 50}"', f'x=="{"c" * 50}"']),
        # The limit is one of bytes: of these characters each has two.
        (P.x.one_of("é" * 30, "ü" * 30, "ß" * 20), [f'x=="{"é" * 30}"', f'x=="{"ü" * 30}"||x=="{"ß" * 20}"']),
        (f'x=="{"é" * 30}" || x=="{"ü" * 30}"', [f'x=="{"é" * 30}"', f'x=="{"ü" * 30}"']),
    ],
    ids=str,
)
def test_filters_are_split_into_the_expected_parts(selector: Any, expected: list[str]) -> None:
    assert texts(selector) == expected


@sweep(
    "selector, code, limit, culprit",
    [
        (
            (P.a == 1) & (P.b == 2) & (P.c == 3) & (P.d == 4),
            "TOO_COMPLEX",
            "too many operators (11), max allowed operators: 10",
            "a==1&&b==2&&c==3&&d==4",
        ),
        (
            ~(P.a.exists() | P.b.exists() | P.c.exists() | P.d.exists() | P.e.exists() | P.f.exists()),
            "TOO_COMPLEX",
            "too many operators (17), max allowed operators: 10",
            "!exists(a)&&!exists(b)&&!exists(c)&&!exists(d)&&!exists(e)&&!exists(f)",
        ),
        (P.x == "a" * 130, "TOO_LONG", "expression is too long (135), max allowed length: 128", 'x=="aaa'),
        (
            (P.x == "a" * 70) & (P.y == "b" * 70),
            "TOO_LONG",
            "expression is too long (152), max allowed length: 128",
            'x=="aaa',
        ),
    ],
    ids=str,
)
def test_unsplittable_filter_names_limit_and_remedy(
    selector: Any, code: str, limit: str, culprit: str
) -> None:
    with pytest.raises(InvalidExpression) as caught:
        plan(selector)
    lines = str(caught.value).split("\n")
    assert lines[0] == limit
    assert caught.value.expression.startswith(culprit)
    assert "cannot be split" in lines[3]
    assert "application subscription" in lines[3]
    assert caught.value.code == code


def test_an_oversized_plan_is_refused() -> None:
    with pytest.raises(InvalidExpression, match="more than 1000 subscriptions"):
        plan(P.x.one_of(*range(4000)))
    with pytest.raises(InvalidExpression, match="a filter of 2000000 characters is too long to be planned"):
        plan("x" * 2_000_000)


@sweep(
    "given, expected",
    [
        (None, [None]),
        ("x == 1", [Expression("x == 1")]),
        (Expression("x =", strict=False), [Expression("x =", strict=False)]),
        (P.x.one_of(1, 2, 3, 4), [Expression("x==1||x==2||x==3"), Expression("x==4")]),
        (TagFilter(), [None]),
        (CmqTags("a"), [Expression("exists(t.a)")]),
    ],
    ids=str,
)
def test_any_input_becomes_subscriptions(given: ExpressionInput, expected: list[Expression | None]) -> None:
    assert subscriptions_for(given) == expected


def parts_of(node: Node) -> list[Expression]:
    try:
        return plan(unparse(node))
    except InvalidExpression:
        reject()


@given(conditions, messages)
def test_plan_matches_the_same_messages_as_the_filter(node: Node, message: dict[str, Any]) -> None:
    check(node, message)


def check(node: Node, message: dict[str, Any]) -> None:
    parts = parts_of(node)
    expected = outcome(parse(unparse(node)), message)
    matched = [part for part in parts if part.matches(message)]
    if isinstance(expected, bool):
        assert bool(matched) == expected
    elif len(parts) == 1:
        assert not matched
    else:
        # The whole ends in an error; a part that does not may still match, as one subscription among several.
        assert all(outcome(parse(part.text), message) is True for part in matched)
