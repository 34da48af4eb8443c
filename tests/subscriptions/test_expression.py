# SPDX-License-Identifier: Apache-2.0
"""Expressions as objects."""

from __future__ import annotations

import copy
import enum
import pickle

import pytest

from bmq.errors import InvalidExpression, InvalidProperty
from bmq.subscriptions import Expression, lookup, tags_of
from bmq.wire.constants import PropertyType
from bmq.wire.properties import Properties, PropertyValue, encode_properties
from tests.sweeps import sweep

TEXT = "CustomerId >= 1000 && exists(OrderType)"


def test_equal_means_the_same_text() -> None:
    assert Expression("x == 1") == Expression("x == 1")
    assert Expression("x == 1") != Expression("x==1")
    assert Expression("x == 1") == Expression("x == 1", strict=False)
    assert Expression("x == 1") != "x == 1"
    assert len({Expression("x == 1"), Expression("x == 1"), Expression("x==1")}) == 2
    assert str(Expression("x == 1")) == "x == 1"
    assert repr(Expression("x = 1", strict=False)) == "Expression('x = 1', strict=False)"


@pytest.mark.parametrize("expression", [Expression(TEXT), Expression("x = 1", strict=False)])
def test_expressions_can_be_pickled_and_copied(expression: Expression) -> None:
    expression.matches({})
    for twin in (pickle.loads(pickle.dumps(expression)), copy.deepcopy(expression)):
        assert twin == expression
        assert twin.strict == expression.strict
        assert twin.matches({"CustomerId": 1}) == expression.matches({"CustomerId": 1})


def test_not_strict_takes_any_text_as_the_broker_would() -> None:
    valid = Expression("x == 1", strict=False)
    assert valid.error is None
    assert not valid.matches({"x": 2})

    broken = Expression("x >", strict=False)
    assert broken.matches({"x": 2})
    assert broken.ast is None
    assert broken.properties == ()
    assert isinstance(broken.error, InvalidExpression)
    evaluation = broken.evaluate({})
    assert evaluation.value is True
    assert evaluation.reason.startswith(
        "the broker cannot compile this expression, and matches every message: syntax error"
    )

    with pytest.raises(InvalidExpression, match="half of a surrogate pair"):
        Expression('x == "\ud800"', strict=False)
    with pytest.raises(TypeError, match="an expression must be a str, not b"):
        Expression(b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        ("a == 1 && nope == 2", 10, "the message has no property `nope`"),
        ("s == 1", 0, "`==` compares with an integer here, and `s` has another type (s is 'foo')"),
        ("a == s", 2, "`==` compares only two integers or two strings (a is 1, s is 'foo'"),
        ("f", 0, "the whole expression must be a boolean, and `f` has another type (f is CHAR b'x')"),
        ("bin == 1", 0, "`bin` is BINARY, which an expression cannot read"),
        ("a / 0 == 1", 2, "`/` by zero"),
        ("a && a == 1", 0, "each side of `&&` must be a boolean, and `a` has another type"),
    ],
)
@pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")
def test_evaluation_reports_the_error_and_its_position(text: str, offset: int, reason: str) -> None:
    message = {"a": 1, "s": "foo", "f": PropertyValue(PropertyType.CHAR, b"x"), "bin": b"\0"}
    evaluation = Expression(text).evaluate(message)
    assert evaluation.value is None
    assert evaluation.offset == offset
    assert evaluation.reason.startswith(reason)
    assert not evaluation


class Color(enum.IntEnum):
    RED = 1


class Place(enum.StrEnum):
    HERE = "here"


def test_values_of_subclasses_evaluate_as_posted() -> None:
    message = {"c": Color.RED, "p": Place.HERE}
    assert Expression('c == 1 && p == "here"').matches(message)
    assert Expression("exists(c)").matches(message)


@sweep("value", [1.5, ["a"], {}, object()])
def test_values_that_no_property_can_have_are_refused(value: object) -> None:
    with pytest.raises(
        InvalidProperty,
        match=r"a property's value must be bool, int, str, bytes or bmq\.PropertyValue, "
        rf"not .*\({type(value).__name__}\)",
    ):
        Expression("x == 1").matches({"x": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("new", [True, False])
def test_properties_as_they_came_off_the_wire(new: bool) -> None:
    values = {
        "flag": True,
        "char": PropertyValue(PropertyType.CHAR, b"\xfe"),
        "short": PropertyValue(PropertyType.SHORT, -3),
        "text": "é",
        "bin": b"x",
    }
    properties = Properties(encode_properties(values, new=new), new=new)
    assert Expression('flag && char == -2 && short == -3 && text == "é"').matches(properties)
    assert not Expression("exists(bin)").matches(properties)
    assert Expression("exists(char)").matches(properties)
    evaluation = Expression("char == text").evaluate(properties)
    assert "char is CHAR b'\\xfe'" in evaluation.reason


def test_undecodable_properties_read_as_absent() -> None:
    area = bytearray(encode_properties({"x": 1}, new=True))
    area[6] = 0xFF  # a type that does not exist
    properties = Properties(bytes(area))
    assert lookup(properties)("x") is None
    assert not Expression("exists(x)").matches(properties)
    assert Expression("!exists(x)").matches(properties)
    assert tags_of(properties) == frozenset()
