# SPDX-License-Identifier: Apache-2.0
"""Errors of invalid expressions: the broker's words, the place, the mistake, the legal alternatives."""

from __future__ import annotations

import pytest

from bmq.errors import InvalidExpression
from bmq.subscriptions import ErrorKind, Expression
from tests.sweeps import sweep


def error_of(text: str) -> InvalidExpression:
    with pytest.raises(InvalidExpression) as caught:
        Expression(text)
    return caught.value


@sweep(
    "text, column, hint",
    [
        ("x = 1", 3, "Equality is written `==`."),
        ("x === 1", 5, "Equality is written `==`, with two signs."),
        ("x => 1", 3, "Write `>=`."),
        ("x & y", 3, "And is written `&&`."),
        ("x and y", 3, "`and` is a property name here: write `&&`."),
        ("not x", 5, "`not` is a property name here: write `!`."),
        ('x in "abc"', 3, "The language has no operator `in`"),
        ("x == 'abc'", 6, "Strings need double quotes"),
        ("a-1 == 2", 2, "To subtract, write `- 1`."),
        ("größe == 1", 3, "Outside of strings only ASCII is possible"),
        ("x == 1\r\n&& y", 7, "A carriage return is not white space here"),
        ("x == 1.5", 7, "Numbers are whole"),
        ("x < y < z", 7, "Comparisons do not chain: write `a < b && b < c`"),
        ("exists(1)", 8, "exists() takes one bare property name"),
        ("((x == 1)", 10, "A closing parenthesis is missing."),
        ("x == y z", 8, "An operator is missing before the caret."),
        ("x == 9223372036854775808", 6, "Integers are 64 bits"),
        ("", 1, "The expression is empty. To receive all messages, subscribe without an expression."),
        ("x ^ 2 == 4", 3, "The language has no bit operators"),
        ("!" * 11 + "x", 11, "Split the expression at a `||` into several subscriptions"),
        ("a==1||b==2||c==3||d==4", 20, "Split the expression at a `||` into several subscriptions"),
        ("1 == 1", 1, "An expression must contain at least one property."),
        ("x == \ud800", 6, "UTF-8 cannot encode"),
    ],
)
def test_the_column_and_the_hint(text: str, column: int, hint: str) -> None:
    message = str(error_of(text))
    assert f"^ column {column}\n" in message
    assert hint in message


def test_the_caret_stands_under_the_mistake_in_any_text() -> None:
    lines = str(error_of("x == 1\n\t&& y = 2")).split("\n")
    assert lines[1] == "    x == 1␊␉&& y = 2"
    assert lines[2] == "    " + " " * 13 + "^ column 14"


def test_the_brokers_codes() -> None:
    assert {kind.name: kind.value for kind in ErrorKind} == {
        "NAME": -1,
        "TYPE": -2,
        "BINARY": -3,
        "ARITHMETIC": -4,
        "UNDEFINED": -5,
        "SYNTAX": -100,
        "NO_PROPERTIES": -101,
        "TOO_COMPLEX": -102,
        "TOO_LONG": -103,
    }
