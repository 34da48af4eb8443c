# SPDX-License-Identifier: Apache-2.0
"""Fits a filter into the broker's limits, by rewriting and splitting."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Final

from bmq.errors import InvalidExpression
from bmq.subscriptions._diagnostics import ErrorKind, invalid, too_long, too_many_operators
from bmq.subscriptions._parser import encoded_length, parse
from bmq.subscriptions._syntax import (
    MAX_LENGTH,
    MAX_OPERATORS,
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
    unparse,
    walk,
)

# ---- Rewrites boolean trees without changing the meaning, including errors
#
# ``!(a == 1)`` becomes ``a != 1``, and ``!a && !b`` becomes ``!(a || b)``: both forms evaluate in the same
# order and stop at the same errors, but the broker counts fewer operators in the second. (``a && b`` is *not*
# ``b && a`` in this language: an absent property on the left ends the evaluation.)

_DUAL: Final[dict[Junction, Junction]] = {"&&": "||", "||": "&&"}
_MAX_NESTING: Final = 64


def dual(node: Not) -> Node | None:
    """Return the negation of a junction as the opposite junction of negations; otherwise None."""
    operand = node.operand
    if not isinstance(operand, Binary) or operand.operator not in _DUAL:
        return None
    junction = operand.operator
    return join(_DUAL[junction], [_forms(term)[1] for term in flatten(junction, operand)])


def _nesting(node: Node) -> int:
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

    Raises:
        InvalidExpression: the tree is too deep for any expression.
    """
    depth = _nesting(node)
    if depth > _MAX_NESTING:
        raise invalid(
            f"the filter is nested {depth} deep, more than any expression can be", kind=ErrorKind.TOO_COMPLEX
        )
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
    for negated, group in groupby(terms, lambda term: isinstance(term, Not)):
        run = list(group)
        result += [Not(join(inner, [_negation(term) for term in run]))] if negated else run
    return result


def _negation(node: Node) -> Node:
    return node.operand if isinstance(node, Not) else Not(node)


def _cheaper(first: Node, second: Node) -> Node:
    def cost(node: Node) -> tuple[int, int]:
        return operator_count(node), len(unparse(node))

    return first if cost(first) <= cost(second) else second


# ---- Fits a filter into the broker's limits
#
# Several subscriptions of a consumer act like *or*, and a message matching more than one is delivered once. A
# filter too large for a single expression can be split at an ``||`` at the top, or movable to the top::
#
#     (a || b || c) && d      becomes      (a || b) && d      and      c && d
#
# Subscriptions cannot act like *and*: a conjunction beyond the limits cannot be split.

#: Maximum number of subscriptions in a plan: the broker evaluates each subscription for every message.
MAX_SUBSCRIPTIONS: Final = 1000
_MAX_TEXT: Final = 1 << 20


def fits(node: Node) -> bool:
    """Whether the broker would accept a tree's shortest text as one expression."""
    return operator_count(node) <= MAX_OPERATORS and encoded_length(unparse(node)) <= MAX_LENGTH


def plan_text(text: str) -> list[str]:
    """Split the text of an expression of any size.

    Raises:
        InvalidExpression: the text has a syntax error, or cannot be split far enough.
    """
    if len(text) > _MAX_TEXT:
        raise invalid(
            f"a filter of {len(text)} characters is too long to be planned", kind=ErrorKind.TOO_LONG
        )
    ast = parse(text)
    if operator_count(ast) <= MAX_OPERATORS and encoded_length(text) <= MAX_LENGTH:
        return [text]
    return plan_tree(ast)


def plan_tree(node: Node) -> list[str]:
    """Return the texts of expressions within the limits, as few as simple splitting gives.

    Raises:
        InvalidExpression: an indivisible part exceeds a limit; the error names the limit and the remedy.
    """
    return list(dict.fromkeys(unparse(part) for part in _split(simplest(node))))


def _split(node: Node) -> list[Node]:
    if fits(node):
        return [node]
    if isinstance(node, Not):
        opened = dual(node)
        if opened is not None:
            return _split(opened)
    if isinstance(node, Binary) and node.operator == "||":
        return _pack(flatten("||", node), lambda chosen: chosen)
    if isinstance(node, Binary) and node.operator == "&&":
        terms = [_opened(term) for term in flatten("&&", node)]
        choices = [len(flatten("||", term)) for term in terms]
        widest = choices.index(max(choices))
        if choices[widest] > 1:
            before, after = terms[:widest], terms[widest + 1 :]
            return _pack(flatten("||", terms[widest]), lambda chosen: join("&&", [*before, chosen, *after]))
    raise _too_big(node)


def _opened(term: Node) -> Node:
    """Return a term of a conjunction, with ``!(a && b)`` in a divisible form."""
    opened = dual(term) if isinstance(term, Not) else None
    return opened if isinstance(opened, Binary) and opened.operator == "||" else term


def _pack(terms: list[Node], build: Callable[[Node], Node]) -> list[Node]:
    """Put as many consecutive alternatives as possible into each expression."""
    result: list[Node] = []
    chunk: list[Node] = []
    for term in terms:
        if fits(build(join("||", [*chunk, term]))):
            chunk.append(term)
            continue
        if chunk:
            result.append(build(join("||", chunk)))
            chunk = []
        if fits(build(term)):
            chunk = [term]
        else:
            result.extend(_split(build(term)))
        if len(result) > MAX_SUBSCRIPTIONS:
            raise invalid(
                f"the filter would take more than {MAX_SUBSCRIPTIONS} subscriptions; filter by a property "
                "that groups these values, or in the application",
                kind=ErrorKind.TOO_COMPLEX,
            )
    if chunk:
        result.append(build(join("||", chunk)))
    return result


_INDIVISIBLE: Final = (
    "This part cannot be split: several subscriptions are joined by *or*, never by *and*. Possible remedies: "
    "let producers set one property for these conditions; move some of them to an application subscription "
    "in the domain's configuration (the broker applies both); shorten property names; or subscribe to some "
    "of the conditions and check the rest in the application."
)


def _too_big(node: Node) -> InvalidExpression:
    text, operators = unparse(node), operator_count(node)
    if operators > MAX_OPERATORS:
        return too_many_operators(text, operators, 0, _INDIVISIBLE)
    return too_long(text, encoded_length(text), _INDIVISIBLE)
