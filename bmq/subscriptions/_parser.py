# SPDX-License-Identifier: Apache-2.0
"""Tokens to a syntax tree, and the broker's checks of an expression."""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn, cast

from bmq import _checks
from bmq.errors import UsageError
from bmq.subscriptions._diagnostics import (
    ErrorKind,
    Problem,
    invalid,
    syntax_error,
    too_long,
    too_many_operators,
    unsendable,
)
from bmq.subscriptions._syntax import (
    END,
    KIND,
    MAX_LENGTH,
    MAX_OPERATORS,
    NEGATED,
    PRECEDENCE,
    UNARY_PRECEDENCE,
    Binary,
    BinaryOperator,
    Boolean,
    Exists,
    Integer,
    Negate,
    Node,
    Not,
    Property,
    String,
    Token,
    integer_value,
    property_names,
    scan,
    walk,
)

# ---- Tokens to a syntax tree
#
# An operator-precedence parser with an explicit stack instead of recursion: no nesting can exhaust Python's
# stack. The parser stops at exactly the same token as the broker's parser.


class _Pending(NamedTuple):
    """An operator, or an opening parenthesis (precedence 0), waiting for the right side."""

    precedence: int
    token: Token


_BINARY: Final[dict[str, BinaryOperator]] = {KIND.get(text, text): text for text in PRECEDENCE}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = scan(text)
        self._position = 0
        self._operands: list[Node] = []
        self._pending: list[_Pending] = []

    def parse(self) -> Node:
        while True:
            while not self._operand():
                pass
            if self._operator():
                return self._operands.pop()

    def _operand(self) -> bool:
        """Process a token where an operand may begin; return True when the operand is complete."""
        token = self._take()
        kind = token.kind
        if kind in ("property", "string", "integer", "true", "false", "exists"):
            self._operands.append(self._primary(token))
            return True
        if kind == "overflow":
            raise syntax_error(self._text, self._problem("overflow", literal=True))
        if kind in ("!", "-"):
            self._pending.append(_Pending(UNARY_PRECEDENCE, token))
        elif kind == "(":
            self._pending.append(_Pending(0, token))
        else:
            self._refuse("operand")
        return False

    def _primary(self, token: Token) -> Node:
        kind, text, offset = token
        if kind == "integer":
            return Integer(cast("int", integer_value(text)), offset)
        if kind == "string":
            return String(text[1:-1], offset)
        if kind in ("true", "false"):
            return Boolean(kind == "true", offset)
        if kind == "exists" and self._tokens[self._position].kind == "(":
            self._take()
            name = self._take()
            if name.kind not in ("property", "exists"):
                self._refuse("name")
            if self._take().kind != ")":
                self._refuse("close")
            return Exists(name.text, offset)
        return Property(text, offset)

    def _operator(self) -> bool:
        """Process tokens where an operator or the end may follow; return True at the end."""
        while True:
            token = self._take()
            operator = _BINARY.get(token.kind)
            if operator is not None:
                precedence = PRECEDENCE[operator]
                self._reduce(precedence + 1)
                if self._pending and self._pending[-1].precedence == precedence:
                    if operator in NEGATED:
                        self._refuse("chain")
                    self._reduce(precedence)
                self._pending.append(_Pending(precedence, token))
                return False
            if token.kind not in (")", END):
                self._refuse("operator")
            self._reduce(1)
            if token.kind == END and not self._pending:
                return True
            if token.kind == END or not self._pending:
                self._refuse("operator")
            self._pending.pop()

    def _reduce(self, precedence: int) -> None:
        """Apply all waiting operators of at least this precedence."""
        while self._pending and self._pending[-1].precedence >= precedence:
            level, (kind, _, offset) = self._pending.pop()
            operand = self._operands.pop()
            if level == UNARY_PRECEDENCE:
                node: Node = Not(operand, offset) if kind == "!" else Negate(operand, offset)
            else:
                node = Binary(_BINARY[kind], self._operands.pop(), operand, offset)
            self._operands.append(node)

    def _take(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _problem(self, expecting: str, *, literal: bool = False) -> Problem:
        depth = sum(p.precedence == 0 for p in self._pending)
        return Problem(self._tokens, self._position - 1, expecting, depth, literal)

    def _refuse(self, expecting: str) -> NoReturn:
        raise syntax_error(self._text, self._problem(expecting))


def parse(text: str) -> Node:
    """Parse an expression; only the grammar is checked, and no limits.

    Raises:
        InvalidExpression: with the code SYNTAX.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"an expression must be a str, not {_checks.shown(text)}")
    return _Parser(text).parse()


# ---- Checks whether the broker would compile an expression, in the broker's order of checks


def encoded_length(text: str) -> int:
    """Return the size of a text in bytes as sent.

    Raises:
        InvalidExpression: the text has a lone surrogate, which cannot be encoded.
    """
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise unsendable(text, error.start) from None


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
        raise unsendable(text, error.start) from None
    if "\0" in text:
        raise unsendable(text, text.index("\0"))


def check(text: str) -> Node:
    """Return the syntax tree of a text that the broker would compile.

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
    if not property_names(ast):
        raise invalid(
            "expression does not use any properties",
            text,
            kind=ErrorKind.NO_PROPERTIES,
            advice="An expression must contain at least one property. To receive all messages, subscribe "
            "without an expression.",
        )
    return ast
