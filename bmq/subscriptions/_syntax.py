# SPDX-License-Identifier: Apache-2.0
"""Tokens and syntax trees of expressions, and their shortest text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

# ---- The syntax tree of a subscription expression and the table of operators
#
# Every node has an ``offset``: the index of the node's token in the text (for a binary node, of the
# operator). Comparisons ignore offsets: trees of equal meaning are equal.

#: The broker's limit on one expression's text, in bytes.
MAX_LENGTH: Final = 128
#: The broker's limit on one expression's operators.
MAX_OPERATORS: Final = 10

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

BinaryOperator: TypeAlias = Literal[
    "||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"
]  # fmt: skip

#: The operators that may skip the right side.
Junction: TypeAlias = Literal["&&", "||"]

#: Precedence of binary operators; all are left-associative, except for comparisons: these do not chain.
PRECEDENCE: Final[dict[BinaryOperator, int]] = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "!=": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
}
UNARY_PRECEDENCE: Final = 7

#: The comparison with the opposite result, and with the same errors.
NEGATED: Final[dict[BinaryOperator, BinaryOperator]] = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message property: ``CustomerId``."""

    name: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the message has a readable property: ``exists(CustomerId)``."""

    name: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Integer:
    """A literal of 64 bits, sign included: ``-5``."""

    value: int
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class String:
    """A string literal; the value is the raw text between the quotes, backslashes included."""

    value: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true`` or ``false``."""

    value: bool
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Not:
    """``!operand`` (or ``~operand``)."""

    operand: Node
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Negate:
    """``-operand``, where the operand is not a plain number."""

    operand: Node
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """``left operator right``."""

    operator: BinaryOperator
    left: Node
    right: Node
    offset: int = field(default=0, compare=False)


Node: TypeAlias = Property | Exists | Integer | String | Boolean | Not | Negate | Binary


def walk(node: Node) -> Iterator[Node]:
    """Iterate over the nodes of a tree in the order of the text, without recursion."""
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, opened = stack.pop()
        if isinstance(current, Binary) and not opened:
            stack.append((current.right, False))
            stack.append((current, True))
            stack.append((current.left, False))
            continue
        yield current
        if isinstance(current, Not | Negate):
            stack.append((current.operand, False))


def flatten(junction: Junction, node: Node) -> list[Node]:
    """Return the terms joined with one junction, in order, regardless of grouping."""
    terms: list[Node] = []
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Binary) and current.operator == junction:
            stack.append(current.right)
            stack.append(current.left)
        else:
            terms.append(current)
    return terms


def join(junction: Junction, terms: list[Node]) -> Node:
    """Undo :func:`flatten`; requires at least one term."""
    node = terms[0]
    for term in terms[1:]:
        node = Binary(junction, node, term)
    return node


def property_names(node: Node) -> tuple[str, ...]:
    """Return the names of the properties in a tree, each once, in order of appearance."""
    return tuple(dict.fromkeys(n.name for n in walk(node) if isinstance(n, Property | Exists)))


def operator_count(node: Node) -> int:
    """Return the number of operators as counted by the broker, including references to properties."""
    return sum(not isinstance(n, Integer | String | Boolean) for n in walk(node))


# ---- Splits text into tokens, with the broker's peculiarities
#
# A minus sign belongs to the following digits (``a-1`` is ``a``, ``-1``). A dot is legal in a name. Escapes
# in strings are skipped but never decoded. Only space, tab and line feed are white space. Any other character
# is a separate token, the *invalid character*, refused by the parser.

#: The names of properties usable in an expression.
NAME_PATTERN: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]*")

# Refuse a NUL inside a string, although accepted by the broker's scanner: the broker cuts the literal at the
# NUL, one character too early. A literal of a single NUL ends the broker's process.
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n]+)
      | (?P<word>[a-zA-Z][a-zA-Z0-9_.]*)
      | (?P<integer>-?[0-9]+)
      | (?P<string>"(?:[^"\\\0]|\\[^\n\0])*")
      | (?P<symbol>\|\||&&|==|!=|<=|>=|[()!~+\-*/%<>])
      | (?P<invalid>.)""",
    re.VERBOSE | re.DOTALL,
)

END: Final = "end of expression"

#: The broker's names of tokens, if different from the text.
KIND: Final[dict[str, str]] = {"~": "!", "==": "=", "!=": "<>", "||": "OR", "&&": "AND"}
_KEYWORDS: Final = frozenset({"true", "false", "exists"})
_INT64_DIGITS: Final = 19


class Token(NamedTuple):
    """A token: the broker's name for the kind, the text, and the index into the expression."""

    kind: str
    text: str
    offset: int


def integer_value(digits: str) -> int | None:
    """Return the value of an integer token (decimal, leading zeros allowed); None outside 64 bits."""
    # Strip zeros and check the length first, because int() refuses very long texts.
    magnitude = digits.lstrip("-").lstrip("0") or "0"
    if len(magnitude) > _INT64_DIGITS:
        return None
    value = -int(magnitude) if digits[0] == "-" else int(magnitude)
    return value if INT64_MIN <= value <= INT64_MAX else None


def scan(text: str) -> list[Token]:
    """Split a text into tokens; the last token is always :data:`END`.

    END's offset is the broker's position of an unexpected end: the last character or token before the end.
    """
    tokens: list[Token] = []
    last = 0
    for match in _TOKEN.finditer(text):
        group, lexeme, last = match.lastgroup, match.group(), match.start()
        if group == "space":
            last = match.end() - 1
            continue
        if group == "word":
            kind = lexeme if lexeme in _KEYWORDS else "property"
        elif group == "integer":
            kind = "overflow" if integer_value(lexeme) is None else "integer"
        elif group == "string":
            kind = "string"
        elif group == "symbol":
            kind = KIND.get(lexeme, lexeme)
        else:
            kind = "invalid character"
        tokens.append(Token(kind, lexeme, last))
    tokens.append(Token(END, "", last))
    return tokens


# ---- Converts a syntax tree to the shortest text with the same meaning

_PRIMARY_PRECEDENCE: Final = UNARY_PRECEDENCE + 1
_LEADING_DIGIT: Final = re.compile(r"[0-9]")


def unparse(node: Node) -> str:
    """Return the shortest text of a tree, without unnecessary parentheses and spaces.

    Parsing the text gives a tree with the same meaning: ``a && (b && c)`` becomes ``a && b && c``, evaluated
    in the same order.
    """
    return _text(node)


def _precedence(node: Node) -> int:
    if isinstance(node, Binary):
        return PRECEDENCE[node.operator]
    return UNARY_PRECEDENCE if isinstance(node, Not | Negate) else _PRIMARY_PRECEDENCE


def _text(node: Node) -> str:
    match node:
        case Property(name):
            return name
        case Exists(name):
            return f"exists({name})"
        case Integer(value):
            return str(value)
        case String(value):
            return f'"{value}"'
        case Boolean(value):
            return "true" if value else "false"
        case Not(operand):
            return "!" + _operand(operand, UNARY_PRECEDENCE)
        case Negate(operand):
            return _after_minus(_operand(operand, UNARY_PRECEDENCE))
        case Binary("&&" | "||" as junction):
            # The meaning is the same regardless of grouping, and chains can be long.
            level = PRECEDENCE[junction]
            return junction.join(_operand(term, level) for term in flatten(junction, node))
        case Binary(operator, left, right):
            level = PRECEDENCE[operator]
            left_text = _operand(left, level + 1 if operator in NEGATED else level)
            right_text = _operand(right, level + 1)
            return left_text + (_after_minus(right_text) if operator == "-" else operator + right_text)


def _operand(node: Node, at_least: int) -> str:
    text = _text(node)
    return text if _precedence(node) >= at_least else f"({text})"


def _after_minus(text: str) -> str:
    # Without the space, the minus sign would become part of the number.
    return f"- {text}" if _LEADING_DIGIT.match(text) else f"-{text}"
