# SPDX-License-Identifier: Apache-2.0
"""Checks whether the broker would compile an expression, in the broker's order of checks."""

from __future__ import annotations

from typing import NamedTuple

from bmq.subscriptions._diagnostics import no_properties, nul, too_long, too_many_operators, unencodable
from bmq.subscriptions._parser import parse
from bmq.subscriptions._syntax import (
    MAX_LENGTH,
    MAX_OPERATORS,
    Boolean,
    Integer,
    Node,
    String,
    property_names,
    walk,
)

__all__ = ["Checked", "check", "check_sendable", "encoded_length"]


class Checked(NamedTuple):
    """A valid expression: tree, number of operators as counted by the broker, and used names."""

    ast: Node
    operators: int
    properties: tuple[str, ...]


def encoded_length(text: str) -> int:
    """Return the size of a text in bytes as sent.

    Raises:
        InvalidExpression: the text has a lone surrogate, which cannot be encoded.
    """
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise unencodable(text, error.start) from None


def check_sendable(text: str) -> None:
    """Check that the broker would read the same text as this client, and survive the reading.

    JSON text is UTF-8: a surrogate would arrive as U+FFFD and change the expression. A literal of a single
    NUL ends the process of a broker.

    Raises:
        InvalidExpression: the text has a lone surrogate or a NUL.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise unencodable(text, error.start) from None
    if "\0" in text:
        raise nul(text, text.index("\0"))


def check(text: str) -> Checked:
    """Check whether the broker would compile a text.

    The checks: length, syntax, operators, at least one property. The broker's fifth check, at most ten
    references to properties, cannot fail here, because each reference counts as an operator too.

    Raises:
        InvalidExpression: the broker could not compile the text, and would then deliver every message; or a
            string literal contains a NUL, where the broker would cut the literal.
    """
    size = encoded_length(text)
    if size > MAX_LENGTH:
        raise too_long(text, size)
    ast = parse(text)
    operators = [node for node in walk(ast) if not isinstance(node, Integer | String | Boolean)]
    if len(operators) > MAX_OPERATORS:
        raise too_many_operators(text, len(operators), operators[MAX_OPERATORS].offset)
    names = property_names(ast)
    if not names:
        raise no_properties(text)
    return Checked(ast, len(operators), names)
