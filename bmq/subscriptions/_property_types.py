# SPDX-License-Identifier: Apache-2.0
"""Check a filter against the names and types of the known properties."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from bmq import _checks
from bmq.conventions import PREFIX
from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions._diagnostics import ErrorKind, point_at
from bmq.subscriptions._filters import TAG_PREFIX, ExpressionInput, TagFilter, subscriptions_for
from bmq.subscriptions._syntax import Binary, Boolean, Exists, Integer, Negate, Node, Not, Property

__all__ = ["check_property_types"]

# Names possible in any message: conventions, tags, and the properties of dead letters.
_OTHERS: Final = (PREFIX, TAG_PREFIX)


def check_property_types(
    expression: ExpressionInput,
    kinds: Mapping[str, type],
    of: str = "a message",
    others: tuple[str, ...] = (),
) -> None:
    """Check that a filter uses only known properties, and compares them with values of the right types.

    Tag filters pass. Names beginning with ``bmq_``, and names of tags, are always known.

    Args:
        expression: as for :meth:`bmq.Queue.subscribe`.
        kinds: the known properties: bool, int, str or bytes, by name.
        of: description of messages with these properties, for the error.
        others: prefixes of further known names.

    Raises:
        InvalidExpression: the filter would match no message, or fail on every message; or the filter is not
            legal.
    """
    for name, kind in _checks.mapping("kinds", kinds, "names to types").items():
        _checks.text("the name of a property", name)
        if not isinstance(kind, type) or kind not in _WORDS:
            raise UsageError(f"kinds must contain bool, int, str or bytes, not {_checks.shown(kind)}")
    of = _checks.text("of", of)
    others = tuple(_checks.texts("others", others))
    if (
        expression is None
        or isinstance(expression, TagFilter)
        or (isinstance(expression, str) and not expression)
    ):
        return
    for each in subscriptions_for(expression):
        if each is not None and each.ast is not None:
            _Check(str(each), of, kinds, _OTHERS + others).kind(each.ast)


_WORDS: Final = {bool: "a boolean", int: "an integer", str: "a string", bytes: "binary"}


class _Check:
    """Finds the type of each part of an expression."""

    def __init__(self, text: str, of: str, kinds: Mapping[str, type], others: tuple[str, ...]) -> None:
        self._others = others
        self._text = text
        self._of = of
        self._kinds = kinds

    def kind(self, node: Node) -> type | None:
        """Return the type of a part; None if unknown.

        Raises:
            InvalidExpression: the types of two parts do not fit.
        """
        if isinstance(node, Property):
            return self._property(node.name, node.offset)
        if isinstance(node, Exists):
            self._property(node.name, node.offset)
            return bool
        if isinstance(node, Boolean):
            return bool
        if isinstance(node, Integer):
            return int
        if isinstance(node, Not):
            self._expect(bool, node.operand, "!")
            return bool
        if isinstance(node, Negate):
            self._expect(int, node.operand, "-")
            return int
        if isinstance(node, Binary):
            return self._binary(node)
        return str

    def _property(self, name: str, offset: int) -> type | None:
        kind = self._kinds.get(name)
        if kind is bytes:
            raise self._error(
                f"{name} of {self._of} is binary, and expressions cannot read binary properties", offset
            )
        if kind is None and not name.startswith(self._others):
            near = difflib.get_close_matches(name, self._kinds, 1)
            hint = f": did you mean {near[0]}?" if near else f"; it has {', '.join(self._kinds)}"
            raise self._error(f"{self._of} has no property {name}{hint}", offset)
        return kind

    def _expect(self, wanted: type, node: Node, operator: str) -> None:
        kind = self.kind(node)
        if kind not in (wanted, None):
            raise self._error(
                f"`{operator}` takes {_WORDS[wanted]}, and the operand is {_WORDS[kind]}", node.offset
            )

    def _binary(self, node: Binary) -> type:
        operator = node.operator
        if operator in ("&&", "||"):
            self._expect(bool, node.left, operator)
            self._expect(bool, node.right, operator)
            return bool
        if operator in ("+", "-", "*", "/", "%"):
            self._expect(int, node.left, operator)
            self._expect(int, node.right, operator)
            return int
        left, right = self.kind(node.left), self.kind(node.right)
        if left is not None and right is not None and left is not right:
            raise self._error(
                f"`{operator}` compares {_WORDS[left]} with {_WORDS[right]}: no message would match",
                node.offset,
            )
        return bool

    def _error(self, message: str, offset: int) -> InvalidExpression:
        return InvalidExpression(
            f"{message}\n{point_at(self._text, offset)}",
            expression=self._text,
            offset=offset,
            code=ErrorKind.TYPE.name,
        )
