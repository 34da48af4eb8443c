# SPDX-License-Identifier: Apache-2.0
"""Converts a syntax tree to the shortest text with the same meaning."""

from __future__ import annotations

import re
from typing import Final

from bmq.subscriptions._syntax import (
    NEGATED,
    PRECEDENCE,
    UNARY_PRECEDENCE,
    Binary,
    Boolean,
    Exists,
    Integer,
    Negate,
    Node,
    Not,
    Property,
    String,
    flatten,
)

__all__ = ["unparse"]

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
