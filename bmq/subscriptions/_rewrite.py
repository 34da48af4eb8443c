# SPDX-License-Identifier: Apache-2.0
"""Rewrites boolean trees without changing the meaning, including errors.

``!(a == 1)`` becomes ``a != 1``, and ``!a && !b`` becomes ``!(a || b)``: both forms evaluate in the same
order and stop at the same errors, but the broker counts fewer operators in the second. (``a && b`` is *not*
``b && a`` in this language: an absent property on the left ends the evaluation.)
"""

from __future__ import annotations

from typing import Final

from bmq.subscriptions._syntax import (
    NEGATED,
    Binary,
    Boolean,
    Exists,
    Junction,
    Negate,
    Node,
    Not,
    flatten,
    join,
    operator_count,
    walk,
)
from bmq.subscriptions._unparse import unparse

__all__ = ["dual", "is_total", "nesting", "simplest"]

_DUAL: Final[dict[Junction, Junction]] = {"&&": "||", "||": "&&"}


def dual(node: Not) -> Node | None:
    """Return the negation of a junction as the opposite junction of negations; otherwise None."""
    operand = node.operand
    if not isinstance(operand, Binary) or operand.operator not in _DUAL:
        return None
    junction = operand.operator
    return join(_DUAL[junction], [simplest(Not(term)) for term in flatten(junction, operand)])


def nesting(node: Node) -> int:
    """Return the depth of a tree; a chain of one junction counts once."""
    deepest = 0
    stack: list[tuple[Node, int]] = [(node, 1)]
    while stack:
        current, depth = stack.pop()
        deepest = max(deepest, depth)
        if isinstance(current, Not | Negate):
            stack.append((current.operand, depth + 1))
        elif isinstance(current, Binary):
            for child in (current.left, current.right):
                same = isinstance(child, Binary) and child.operator == current.operator in _DUAL
                stack.append((child, depth if same else depth + 1))
    return deepest


def is_total(node: Node) -> bool:
    """Whether evaluation can never end in an error, because the tree only tests for existence."""
    return all(
        isinstance(n, Exists | Boolean | Not) or (isinstance(n, Binary) and n.operator in _DUAL)
        for n in walk(node)
    )


def simplest(node: Node) -> Node:
    """Return the form of a condition with the fewest operators, then the fewest characters.

    The node must be a condition: a whole expression, or an operand of ``&&``, ``||`` or ``!``.
    """
    return _forms(node)[0]


def _forms(node: Node) -> tuple[Node, Node]:
    """The simplest forms of a condition and of the negation."""
    match node:
        case Not(operand):
            positive, negative = _forms(operand)
            return negative, positive
        case Boolean(value):
            return node, Boolean(not value)
        case Binary("&&" | "||" as junction):
            # Drop a repeated term: whenever the second term is evaluated, the value equals the first term's.
            forms = [_forms(term) for term in dict.fromkeys(flatten(junction, node))]
            plain = join(junction, _factored(_DUAL[junction], [positive for positive, _ in forms]))
            other = join(_DUAL[junction], _factored(junction, [negative for _, negative in forms]))
            return _cheaper(plain, _negation(other)), _cheaper(_negation(plain), other)
        case Binary("==" | "!=" as operator, left, right) if isinstance(left, Boolean) or isinstance(
            right, Boolean
        ):
            # The broker makes the same replacement, and counts the operators of the original.
            literal, other = (left, right) if isinstance(left, Boolean) else (right, left)
            positive, negative = _forms(other)
            keep = isinstance(literal, Boolean) and literal.value == (operator == "==")
            return (positive, negative) if keep else (negative, positive)
        case Binary(operator, left, right, offset) if operator in NEGATED:
            return node, Binary(NEGATED[operator], left, right, offset)
        case _:
            return node, Not(node)


def _factored(inner: Junction, terms: list[Node]) -> list[Node]:
    """Replace each run of negated terms by a negation of the terms joined with the opposite junction."""
    result: list[Node] = []
    run: list[Node] = []
    for term in [*terms, None]:
        if isinstance(term, Not):
            run.append(term.operand)
            continue
        if run:
            result.append(Not(join(inner, run)))
            run = []
        if term is not None:
            result.append(term)
    return result


def _negation(node: Node) -> Node:
    return node.operand if isinstance(node, Not) else Not(node)


def _cheaper(first: Node, second: Node) -> Node:
    def cost(node: Node) -> tuple[int, int]:
        return operator_count(node), len(unparse(node))

    return first if cost(first) <= cost(second) else second
