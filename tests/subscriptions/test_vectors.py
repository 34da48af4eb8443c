# SPDX-License-Identifier: Apache-2.0
"""The language, case by case: the broker's own test drivers, and a real broker's answers."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.errors import InvalidExpression
from bmq.subscriptions import ErrorKind, Expression
from bmq.wire.constants import PropertyType
from bmq.wire.properties import PropertyValue
from tests.sweeps import sweep
from tests.transcripts import probes

INT64_MIN = -(2**63)

pytestmark = pytest.mark.filterwarnings("ignore::bmq.errors.ExpressionWarning")

MESSAGE: dict[str, Any] = {
    "b_true": True,
    "b_false": False,
    "i_0": 0,
    "i_1": 1,
    "i_2": 2,
    "i_42": 42,
    "i_neg1": -1,
    "i64_42": PropertyValue(PropertyType.INT64, 42),
    "i64_min": PropertyValue(PropertyType.INT64, INT64_MIN),
    "s_foo": "foo",
    "s_e": "",
    "exists": 42,
    "c_A": PropertyValue(PropertyType.CHAR, b"A"),
    "a.b": 5,
    "bin": b"\x01",
    "q3": 'a"b',
    "q4": 'a\\"b',
}

OVERLONG = "expression is too long (130), max allowed length: 128"
NO_PROPERTIES = "expression does not use any properties"


def too_many(count: int) -> str:
    return f"too many operators ({count}), max allowed operators: 10"


#: (number, text, code, first line of the message)
REFUSED = [
    (1, "", "SYNTAX", "syntax error, unexpected end of expression at offset 0"),
    (3, "42 @", "SYNTAX", "syntax error, unexpected invalid character at offset 3"),
    (4, "!" * 11 + "x", "TOO_COMPLEX", too_many(12)),
    (6, "true && true", "NO_PROPERTIES", NO_PROPERTIES),
    (8, "b_true" + " " * 124, "TOO_LONG", OVERLONG),
    (10, "val = 42", "SYNTAX", "syntax error, unexpected invalid character at offset 4"),
    (16, "x < y < z", "SYNTAX", "syntax error, unexpected < at offset 6"),
    (19, "i_0 != 9223372036854775808", "SYNTAX", "integer overflow at offset 7"),
    (22, "x -99999999999999999999", "SYNTAX", "syntax error, unexpected overflow at offset 2"),
    (23, "i_1-2 == -1", "SYNTAX", "syntax error, unexpected integer at offset 3"),
    (30, "x x", "SYNTAX", "syntax error, unexpected property at offset 2"),
    (34, "&&", "SYNTAX", "syntax error, unexpected AND at offset 0"),
    (37, "_x > 0", "SYNTAX", "syntax error, unexpected invalid character at offset 0"),
    (40, "exists()", "SYNTAX", "syntax error, unexpected ), expecting property or exists at offset 7"),
    (
        41,
        'exists("a")',
        "SYNTAX",
        "syntax error, unexpected string, expecting property or exists at offset 7",
    ),
    (42, "exists(a", "SYNTAX", "syntax error, unexpected end of expression, expecting ) at offset 7"),
    (45, "||".join(f"exists({name})" for name in "abcdef"), "TOO_COMPLEX", too_many(11)),
    (48, "b_true\r&& b_true", "SYNTAX", "syntax error, unexpected invalid character at offset 6"),
    (50, 's_foo == "foo', "SYNTAX", "syntax error, unexpected invalid character at offset 9"),
]

NAME, TYPE, ARITHMETIC = ErrorKind.NAME, ErrorKind.TYPE, ErrorKind.ARITHMETIC

#: (number, text, True, False or the kind of error)
EVALUATED: list[tuple[int, str, bool | ErrorKind]] = [
    (5, "!" * 9 + "b_true", False),
    (9, "b_true" + " " * 122, True),
    (9, "b_true\t&&\n i_1==1", True),
    (18, "i_1 < i_2 == i_0", TYPE),
    (20, "i_0 != -9223372036854775808", True),
    (24, "i_1 - 2 == -1", True),
    (25, "i_1 --2 == 3", True),
    (26, "- 5 < i_0", True),
    (28, "-i_42 == -42", True),
    (39, "a.b > 4", True),
    (43, "exists (i_42)", True),
    (44, "exists(a)||exists(b)||exists(c)||exists(d)||exists(i_1)", True),
    (51, 's_foo == "foo"', True),
    (52, 's_foo < "zig"', True),
    (53, 's_e == ""', True),
    (54, r'q3 == "a\"b"', False),
    (55, r'q4 == "a\"b"', True),
    (56, "s_foo == 42", TYPE),
    (58, "b_true || s_foo == 42", True),
    (59, "b_false || s_foo == 42", TYPE),
    (60, "b_true == b_false", TYPE),
    (61, "b_true == true", True),
    (62, "b_true < true", TYPE),
    (63, "i_1 == true", TYPE),
    (64, "!b_true == false", True),
    (65, "!i_1", TYPE),
    (66, "i_1", TYPE),
    (67, "nope", NAME),
    (68, "b_false && nope", False),
    (68, "nope && b_false", NAME),
    (69, "exists(nope)", False),
    (70, "!exists(nope) || nope > 41", True),
    (71, "exists(nope) && nope > 41", False),
    (72, "exists == 42", True),
    (73, "i_42 / i_0 == 0", ARITHMETIC),
    (74, "i64_min / i_neg1 == 0", ARITHMETIC),
    (75, "-i_42 / 5 == -8", True),
    (75, "-i_42 % 5 == -2", True),
    (76, "i_42 == 042", True),
    (77, "i64_42 == i_42", True),
    (81, "~b_true", False),
    (81, "~~b_true", True),
    (82, "TRUE || b_true", NAME),
    (83, "c_A == 65", True),
    (84, 'bin == "x"', TYPE),
    (84, "exists(bin)", False),
    # `== true` is replaced by its other side before anything is evaluated.
    (86, "(i_42 == true) == 42", True),
    (86, "(i_42 == false) == 42", TYPE),
    (86, "nope == bin", NAME),
    (86, 's_foo + s_foo == "foofoo"', TYPE),
    (86, "b_true + i_1 == 2", TYPE),
    (86, "s_foo || b_true", TYPE),
    (85, "9223372036854775807 + i_1 < 0", True),
]


def ids(vector: tuple[Any, ...]) -> str:
    return f"{vector[0]}: {vector[1]}"[:60]


@sweep("vector", REFUSED, ids=ids)
@pytest.mark.statement("2.8")
def test_invalid_vectors_are_refused_with_the_brokers_message(vector: tuple[int, str, str, str]) -> None:
    _, text, code, message = vector
    with pytest.raises(InvalidExpression) as caught:
        Expression(text)
    assert str(caught.value).split("\n")[0] == message
    assert caught.value.code == code
    assert caught.value.expression == text
    # The broker delivers every message for it.
    expression = Expression(text, strict=False)
    assert expression.matches(MESSAGE)
    assert expression.matches(None)
    assert expression.error is not None


@sweep("vector", EVALUATED, ids=ids)
@pytest.mark.statement("1.2", "1.20", "2.1", "2.3", "2.5", "2.7", "2.9", "2.10", "2.15")
def test_vectors_evaluate_as_recorded(vector: tuple[int, str, bool | ErrorKind]) -> None:
    _, text, expected = vector
    check(Expression(text), MESSAGE, expected)


@sweep(
    "text, properties, expected",
    [
        ("a*x+b>0", {"a": 2, "x": 3, "b": -5}, True),
        ("a*x+b>0", {"a": 2, "x": 3, "b": -6}, False),
        ("a+b*x == 7", {"a": 1, "b": 2, "x": 3}, True),
        ("(a+b)*x == 9", {"a": 1, "b": 2, "x": 3}, True),
        ("a-b-c == 5", {"a": 10, "b": 3, "c": 2}, True),
        ("a-(b-c) == 9", {"a": 10, "b": 3, "c": 2}, True),
        ("a/b*c == 6", {"a": 7, "b": 2, "c": 2}, True),
        ("!ok && ok || !ok", {"ok": False}, True),
        ("a || b && c", {"a": True, "b": False, "c": False}, True),
        ("(a || b) && c", {"a": True, "b": False, "c": False}, False),
        ("x + 1 < y == true", {"x": 1, "y": 4}, True),
        ("x == 1 && y == 2 || z == 3", {"x": 0, "y": 2, "z": 3}, True),
    ],
)
@pytest.mark.statement("2.11")
def test_precedence_and_associativity_are_those_of_c(
    text: str, properties: dict[str, Any], expected: bool
) -> None:
    check(Expression(text), properties, expected)


def check(expression: Expression, properties: dict[str, Any], expected: bool | ErrorKind) -> None:
    evaluation = expression.evaluate(properties)
    if isinstance(expected, ErrorKind):
        assert (evaluation.value, evaluation.error) == (None, expected)
        assert evaluation.reason
    else:
        assert (evaluation.value, evaluation.error) == (expected, None)
    assert expression.matches(properties) is (expected is True)
    assert bool(evaluation) is (expected is True)


@sweep(
    "text, operators, references",
    [
        ("exists(x)", 1, ("x",)),
        ("!x", 2, ("x",)),
        ("-x == 1", 3, ("x",)),
        ("x == -1", 2, ("x",)),
        ("x == true", 2, ("x",)),
        ("(((x)))", 1, ("x",)),
        ("x == x", 3, ("x",)),
        ('b == "x" && exists(a)', 4, ("b", "a")),
    ],
)
def test_operators_as_the_broker_counts_them(text: str, operators: int, references: tuple[str, ...]) -> None:
    expression = Expression(text)
    assert expression.operators == operators
    assert expression.properties == references


_FROM_BYTES = {
    PropertyType.BOOL: lambda raw: raw == b"\1",
    PropertyType.CHAR: lambda raw: PropertyValue(PropertyType.CHAR, raw),
    PropertyType.STRING: lambda raw: raw.decode(),
    PropertyType.BINARY: lambda raw: raw,
}


@sweep("probe", probes()["expressions"], ids=lambda probe: f"{probe[0]} {probe[1]}")
@pytest.mark.statement("2.6")
def test_results_equal_those_of_a_real_broker(probe: tuple[str, dict[str, tuple[int, str]], bool]) -> None:
    text, wire, delivered = probe
    properties: dict[str, Any] = {}
    for name, (kind, hexadecimal) in wire.items():
        raw = bytes.fromhex(hexadecimal)
        convert = _FROM_BYTES.get(PropertyType(kind), lambda raw: int.from_bytes(raw, "big", signed=True))
        properties[name] = convert(raw)
    assert Expression(text, strict=False).matches(properties) is delivered


@sweep(
    "smaller, larger",
    [
        ("", "a"),
        ("Z", "a"),
        ("a", "é"),
        ("\ue000", "\U00010000"),  # UTF-16 would sort these the other way round
        ("é", "\udcff"),  # the raw byte 0xff, as a property's undecodable byte reads
        ("\udc80", "é"),  # the raw byte 0x80 sorts before the bytes c3 a9
    ],
)
def test_strings_compare_by_their_bytes(smaller: str, larger: str) -> None:
    check(Expression("x < y"), {"x": smaller, "y": larger}, True)
    check(Expression(f'x < "{larger}"'), {"x": smaller}, True)
    check(Expression(f'"{smaller}" < x'), {"x": larger}, True)
    check(Expression(f'x == "{larger}"'), {"x": smaller}, False)


@pytest.mark.statement("2.2")
def test_limits_count_bytes_not_characters() -> None:
    assert Expression(f'x== "{"é" * 61}"').matches({"x": "é" * 61})
    with pytest.raises(InvalidExpression, match=r"^expression is too long \(129\)"):
        Expression(f'x == "{"é" * 61}"')
    # An offset in the message counts bytes as well, as the broker's does; the attribute indexes the text.
    with pytest.raises(InvalidExpression, match=r"unexpected property at offset 12\n") as caught:
        Expression('x == "éé" y')
    assert caught.value.offset == 10
