# SPDX-License-Identifier: Apache-2.0
"""Comparison with a second evaluator, on random trees and messages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bmq.errors import InvalidExpression
from bmq.subscriptions import EvaluationFailure, Expression, lookup, parse, plan, unparse
from bmq.subscriptions._evaluator import compile_matcher, compile_tree
from bmq.subscriptions._planner import simplest
from bmq.subscriptions._syntax import (
    Binary,
    Boolean,
    Exists,
    Integer,
    Negate,
    Node,
    Not,
    Property,
    operator_count,
    property_names,
)
from tests.subscriptions.reference import outcome
from tests.subscriptions.strategies import conditions, messages, trees
from tests.sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")


def ours(node: Node, message: dict[str, Any]) -> bool | str:
    result = compile_tree(node)(lookup(message))
    return result.kind.name if isinstance(result, EvaluationFailure) else result


@given(st.one_of(trees, conditions), messages)
def test_the_compiled_function_agrees_with_the_reference(node: Node, message: dict[str, Any]) -> None:
    expected = outcome(node, message)
    assert ours(node, message) == expected
    # KeyError is as good as None for "missing".
    result = compile_tree(node)(message.__getitem__)
    assert (result.kind.name if isinstance(result, EvaluationFailure) else result) == expected


@given(st.one_of(trees, conditions), messages)
def test_a_message_read_at_once_matches_like_others(node: Node, message: dict[str, Any]) -> None:
    plain = {name: value for name, value in message.items() if type(value) in (bool, int, str)}
    assert compile_matcher(node)(plain) is (outcome(node, plain) is True)


@given(st.one_of(trees, conditions), messages)
@example(Binary("-", Property("a"), Integer(1)), {"a": 1})
@example(Binary("-", Property("a"), Binary("*", Integer(1), Property("b"))), {"a": 1, "b": 2})
@example(Negate(Integer(5)), {})
@example(Negate(Integer(-5)), {})
@example(Negate(Negate(Integer(5))), {})
@example(Binary("&&", Exists("a"), Binary("&&", Exists("b"), Exists("a"))), {"a": 1})
@example(Binary("==", Binary("==", Property("a"), Boolean(True)), Integer(1)), {"a": 1})
@example(Not(Binary("<", Property("a"), Integer(1))), {"a": 1})
def test_the_shortest_text_means_the_same(node: Node, message: dict[str, Any]) -> None:
    text = unparse(node)
    again = parse(text)
    assert outcome(again, message) == outcome(node, message)
    assert operator_count(again) == operator_count(node)
    assert property_names(again) == property_names(node)
    assert unparse(again) == text


@given(st.one_of(trees, conditions), messages)
def test_the_simplest_form_means_the_same_and_costs_no_more(node: Node, message: dict[str, Any]) -> None:
    simple = simplest(node)
    assert outcome(simple, message) == outcome(node, message)
    assert operator_count(simple) <= operator_count(node)
    negated = simplest(Not(node))
    assert outcome(negated, message) == outcome(Not(node), message)
    assert operator_count(negated) <= operator_count(node) + 1


#: Pieces of texts that are nearly expressions.
fragments = st.lists(
    st.sampled_from(
        [*'()!~-+*/%<>=&|"\\ \t\n\r._1a', "==", "!=", "&&", "||", "exists", "true", "ab", "12", "é"]
    ),
    max_size=40,
).map("".join)


def refusal(text: str) -> InvalidExpression | None:
    try:
        Expression(text)
    except InvalidExpression as error:
        return error
    return None


@given(st.one_of(fragments, st.text(max_size=140)))
@example("(" * 128)
@example("!" * 128)
@example('"' * 127)
@example("exists(" * 18)
@example("\ud800")
def test_any_text_is_an_expression_or_a_clear_error(text: str) -> None:
    error = refusal(text)
    if error is None:
        expression = Expression(text)
        assert expression.ast is not None
        assert 1 <= expression.operators <= 10
        expression.evaluate({"a": 1, "ab": "x"})
    else:
        assert error.code in ("SYNTAX", "TOO_LONG", "TOO_COMPLEX", "NO_PROPERTIES")
        assert 0 <= error.offset <= len(text)
        first, shown, caret, *_ = str(error).split("\n")
        assert first
        assert caret.strip().startswith("^ column ")
        assert caret.index("^") <= len(shown)


@sweep(
    "text, message",
    [
        ("(" * 100_000, "unexpected end of expression at offset 99999"),
        ("x || (" * 50_000, "unexpected end of expression at offset 299999"),
        ("-" * 100_000 + "x == 1", "nested 100002 deep"),
        ("(" * 100_000 + "x" + ")" * 100_000 + "||y" * 10, "^$"),
        ("x==0" + "0" * 100_000, "^$"),
        ("x==1" + "0" * 100_000, "integer overflow at offset 3"),
    ],
)
def test_texts_of_any_size_need_no_recursion(text: str, message: str) -> None:
    assert re.search(message, planned(text))


def planned(text: str) -> str:
    """Return the error of planning, or "" after a success."""
    try:
        plan(text)
    except InvalidExpression as error:
        return str(error)
    return ""


class Disguised(str):
    """Equal to an operator, and something else when written."""

    def __eq__(self, other: object) -> bool:
        return other in ("==", "+")

    def __hash__(self) -> int:
        return hash("+")

    def __format__(self, spec: str) -> str:
        return "; raise SystemExit #"


@sweep("operator", ["**", "is", "and", "", "== 1 or", "+\n    raise SystemExit\n", Disguised("+"), None, 5])
def test_operators_the_language_does_not_have_are_refused(operator: Any) -> None:
    tree = Binary(operator, Property("x"), Integer(1))
    for node in (tree, Not(tree), Binary("==", tree, Integer(1)), Binary("&&", Not(tree), tree)):
        with pytest.raises(InvalidExpression, match="has no operator"):
            compile_tree(node)
