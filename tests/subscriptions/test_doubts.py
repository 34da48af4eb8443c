# SPDX-License-Identifier: Apache-2.0
"""Legal expressions with an almost certainly unintended meaning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings

import bmq
from bmq.subscriptions import Expression, P, parse, unparse
from bmq.subscriptions._evaluator import compile_tree
from bmq.subscriptions._lint import find_doubts
from tests.subscriptions.strategies import messages, trees
from tests.sweeps import sweep


@sweep(
    "text, offset, words",
    [
        (r'x == "a\"b"', 5, "escapes are not decoded"),
        ("x == TRUE", 5, "the literal is `true`"),
        ("x == null", 5, "exists(name)"),
        ("CustomerId == 1234 && OrderType == EXPRESS", 35, 'write `"EXPRESS"`'),
        ("exists(OrderType) && OrderType != EXPRESS_2", 34, 'write `"EXPRESS_2"`'),
        ("x + 1", 2, "the whole expression is an integer, not a condition"),
        ("x == 1 || true", 7, "this condition is never false"),
        ("!x == 1", 3, "compares a boolean with an integer"),
        ('x + 1 == "a"', 6, "compares an integer with a string"),
        ("(x == 1) == (y == 2)", 9, "conditions only with a literal true or false"),
        ("b < true", 2, "compares a value with a boolean"),
        ("x > 9223372036854775807", 2, "this comparison is never true"),
        ('x < ""', 2, "this comparison is never true"),
        ("x == x", 2, "comparison is true for every comparable value"),
        ("b || !b", 2, "this condition is never false"),
        ("x == 1 && x == 2", 7, "this condition never matches"),
        ("y == 1 || (x > 5 && x < 6)", 17, "this condition never matches"),
        ('x == 1 || x == "a"', 12, "compares an integer with a string"),
        ("x && x == 1", 7, "compares a boolean with an integer"),
        ("exists(x) && !exists(x)", 10, "this condition never matches"),
        ("x == 1 && exists(x)", 10, "test first"),
        ("x == 1 || !exists(x)", 11, "test first"),
    ],
)
@pytest.mark.statement("2.4", "2.6", "2.13")
def test_unintended_meanings_give_a_warning(text: str, offset: int, words: str) -> None:
    with pytest.warns(bmq.ExpressionWarning, match=r"\^ column") as caught:
        expression = Expression(text)
    assert len(caught) == 1
    (doubt,) = expression.doubts
    assert (doubt.offset, words in str(doubt)) == (offset, True), doubt


@sweep(
    "text",
    [
        'type == "i" && shares > 1000 || shares == "all"',
        "x == 1 || x == 2 || x == 3",
        "exists(x) && x == 1",
        "x > 1 && x > 2",
        "a * x + b > 0",
        "x == y || x == 1",
        "A == B",
        "WIDTH == HEIGHT && HEIGHT > 0 && WIDTH > 0",
        "WIDTH < HEIGHT",
        "exists(HEIGHT) && exists(WIDTH) && WIDTH == HEIGHT",
        "b == true",
    ],
)
def test_plausible_expressions_cause_no_doubt(text: str) -> None:
    assert Expression(text).doubts == ()


@settings(deadline=None)
@given(trees, messages)
def test_a_doubt_about_a_whole_expression_is_true_of_every_message(
    tree: Any, message: dict[str, Any]
) -> None:
    tree = parse(unparse(tree))
    outcome = compile_tree(tree)(message.get)
    for doubt in find_doubts(tree):
        if doubt.offset == tree.offset:
            if "never matches" in doubt.message or "never true" in doubt.message:
                assert outcome is not True
            elif "never false" in doubt.message or "is true for" in doubt.message:
                assert outcome is not False
            elif "an error, and no match" in doubt.message:
                assert not isinstance(outcome, bool)


def test_expression_warning_names_the_subscribing_line() -> None:
    async def main() -> None:
        async with bmq.broker.Broker(port=0) as broker, bmq.connect(broker.uri) as session:
            queue = await session.open_queue("bmq://bmq.test.mem.priority/doubts", read=True)
            queue.subscribe("x == 1 && x == 2")

    with pytest.warns(bmq.ExpressionWarning, match="never matches") as caught:
        bmq.run(main())
    assert caught[0].filename == __file__


def test_a_filter_built_from_properties_compares_them_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filter = P.WIDTH == P.HEIGHT
        assert str(filter.expression()) == str(filter.plan()[0]) == "WIDTH==HEIGHT"
