# SPDX-License-Identifier: Apache-2.0
"""Expressions built from Python operators."""
# ruff: noqa: E711, E712, SIM201, SIM300 - comparing with True and None, and the wrong way round, is the subject

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions import Expression, Filter, P, parse
from bmq.subscriptions._syntax import Binary, Integer, Property, String
from tests.sweeps import sweep


@sweep(
    "built, text, operators",
    [
        (P("CustomerId") == 1234, "CustomerId==1234", 2),
        (P.DestinationId == "ABC", 'DestinationId=="ABC"', 2),
        (P("a.b") != -5, "a.b!=-5", 2),
        (P.x < 1, "x<1", 2),
        (P.x <= 1, "x<=1", 2),
        (P.x >= P.y, "x>=y", 3),
        (1 < P.x, "x>1", 2),
        ((P.x == 1) & (P.y == 2), "x==1&&y==2", 5),
        ((P.x == 1) & ((P.y == 2) | (P.z == 3)), "x==1&&(y==2||z==3)", 8),
        (((P.x == 1) & (P.y == 2)) | (P.z == 3), "x==1&&y==2||z==3", 8),
        (P.x.exists(), "exists(x)", 1),
        (~P.x.exists(), "!exists(x)", 2),
        ((P.x == 1) & (P.y == 2) & (P.x == 1), "x==1&&y==2", 5),
        # Negation moves to where it costs least.
        (~(P.x == 1), "x!=1", 2),
        (~((P.x == 1) & (P.y > 2)), "x!=1||y<=2", 5),
        (~(P.x >= 1) & ~(P.y < 1), "x<1&&y>=1", 5),
        ((P.x == 1) & ~P.a.exists() & ~P.b.exists(), "x==1&&!(exists(a)||exists(b))", 7),
        # A boolean property is a condition by itself; comparing it with a literal costs nothing.
        (P.b & (P.x == 1), "b&&x==1", 4),
        (~P.b, "!b", 2),
        (P.b == True, "b", 1),
        (P.b != True, "!b", 2),
        (P.b == False, "!b", 2),
        (~(P.b == False), "b", 1),
        # Arithmetic, and where a space is needed after all.
        (P.x - 1 == 2, "x- 1==2", 3),
        (1 - P.x == 2, "1-x==2", 3),
        (P.x - (1 - P.y) == 2, "x-(1-y)==2", 5),
        (3 + P.x == 5, "3+x==5", 3),
        (-P.x == 5, "-x==5", 3),
        (10 % P.x == 1, "10%x==1", 3),
        (10 / (P.x % 3) == 5, "10/(x%3)==5", 4),
        (P.x.one_of("a", "b"), 'x=="a"||x=="b"', 5),
        ((P.x + P.y) * 2 > 1, "(x+y)*2>1", 5),
        (2 * P.x / 3 % 4 == 0, "2*x/3%4==0", 5),
        (P.x == -(2**63), "x==-9223372036854775808", 2),
        (P.text == "ä\n'`", 'text=="ä\n\'`"', 2),
    ],
    ids=str,
)
def test_filters_render_to_the_shortest_text(built: Filter, text: str, operators: int) -> None:
    assert str(built) == text
    expression = built.expression()
    assert expression == Expression(text)
    assert expression.operators == operators


@sweep("name", ["", "_x", "1x", "a-b", "a b", "größe", "x\n", "x==1||y", 'x"', "true", "false", "a\0"])
def test_names_that_an_expression_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(InvalidExpression):
        P(name)


@sweep("text", ['"', 'a"b', "back\\slash", "\\", "nul\0"])
def test_strings_without_a_literal_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidExpression, match="cannot be written in an expression: escapes are not decoded"
    ) as e:
        _ = P.x == text
    assert isinstance(e.value, UsageError)
    assert text[e.value.offset] in '"\\\0'


@given(st.text(), st.one_of(st.text(), st.integers(), st.booleans()))
def test_values_cannot_inject_expressions(name: str, value: Any) -> None:
    try:
        built = P(name) == value
    except InvalidExpression:
        return
    tree = parse(str(built))
    if isinstance(value, bool):
        assert built.expression().matches({name: value})
    else:
        literal = String(value) if isinstance(value, str) else Integer(value)
        assert tree == Binary("==", Property(name), literal)


@sweep(
    "trap, message",
    [
        (lambda: (P.a == 1) and (P.b == 2), "instead of `and`, `or` and `not`"),
        (lambda: not (P.a == 1), "a filter has no truth value here"),
        (lambda: P.a in (1, 2), r"use P.x.one_of\(...\)"),
        (lambda: P.a == 1 & P.b == 2, "put each comparison in parentheses"),
        (lambda: (P.a == 1) == (P.b == 2), "filters cannot be compared"),
        (lambda: P.a == None, r"to test for a property, use .exists\(\)"),
        (lambda: P.a == 1.5, "all numbers are integers"),
        (lambda: P.a == b"x", "an expression cannot read binary properties"),
        (lambda: P.a < True, "booleans have no order"),
        (lambda: P.a + 1 == "x", r"a\+1 is an integer and cannot be compared with 'x'"),
        (lambda: P.a // 2, "the broker rounds quotients towards zero, not down: write `/`"),
        (lambda: ~(P.a + 1), r"a\+1 is an integer, not a condition"),
        (lambda: (P.a + 1).exists(), r"exists\(\) tests a single property"),
        (lambda: P.a.one_of(), r"one_of\(\) needs at least one value"),
        (lambda: P.a.one_of([1, 2]), "a property compares with bool, int or str, not list"),
        (lambda: {P.a == 1}, "unhashable"),
    ],
)
def test_misused_python_operators_are_errors_with_the_remedy(
    trap: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        trap()


def test_a_filter_is_one_expression_or_an_error() -> None:
    three = P.x.one_of(1, 2, 3)
    assert three.expression().operators == 8
    with pytest.raises(InvalidExpression, match=r"^too many operators \(11\)"):
        P.x.one_of(1, 2, 3, 4).expression()


@sweep("built", [P.x == 1, ~(P.x.exists() & P.y), P.x + 1, P.x])
def test_filters_can_be_pickled_and_copied(built: Any) -> None:
    assert str(pickle.loads(pickle.dumps(built))) == str(built)
    assert str(copy.deepcopy(built)) == str(built)


_STEPS = st.tuples(st.sampled_from([operator.and_, operator.or_]), st.sampled_from("abcd"), st.booleans())


@given(st.lists(_STEPS, max_size=6), st.fixed_dictionaries(dict.fromkeys("abcd", st.integers(0, 1))))
@pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")
def test_filters_have_the_meaning_of_python_operators(steps: list[Any], message: dict[str, int]) -> None:
    built, expected = P.a == 1, message["a"] == 1
    for combine, name, negated in steps:
        term, value = P(name) == 1, message[name] == 1
        if negated:
            term, value = ~term, not value
        built, expected = combine(built, term), combine(expected, value)
    try:
        parts = built.plan()
    except InvalidExpression:
        reject()
    assert any(part.matches(message) for part in parts) == expected


def test_impossible_size_is_refused_at_once() -> None:
    def added(times: int) -> Any:
        return reduce(operator.add, [1] * times, P.x)

    def nested(times: int) -> Any:
        return reduce(lambda inner, _: (inner | (P.y == 1)) & (P.z == 2), range(times), P.x == 1)

    assert str(added(9) == 1) == "x" + "+1" * 9 + "==1"
    with pytest.raises(InvalidExpression, match=r"too many operators \(11\), max allowed operators: 10"):
        added(10)
    assert str(nested(2))
    with pytest.raises(InvalidExpression, match="nested 202 deep"):
        nested(100).expression()
    with pytest.raises(InvalidExpression, match="nested 202 deep"):
        reduce(lambda inner, _: ~~((inner | (P.y == 1)) & (P.z == 2)), range(100), P.x == 1).plan()
    assert str(~~~~(P.x == 1)) == "x==1"
