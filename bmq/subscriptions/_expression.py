# SPDX-License-Identifier: Apache-2.0
"""A subscription expression as an object: checked on creation, evaluated offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, final

from bmq import _checks
from bmq._caches import Cache
from bmq.errors import InvalidExpression, UsageError
from bmq.subscriptions._diagnostics import ErrorKind
from bmq.subscriptions._evaluator import (
    EvaluationFailure,
    Evaluator,
    Matcher,
    always,
    compile_matcher,
    compile_tree,
    lookup,
)
from bmq.subscriptions._lint import Doubt, find_doubts, warn_of
from bmq.subscriptions._parser import check, encoded_length
from bmq.subscriptions._syntax import Node, operator_count, property_names
from bmq.wire.properties import Properties, PropertyInput, PropertyValue


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of evaluating an expression on one message; true in a condition if the message matched.

    Attributes:
        value: True or False; None if the evaluation ended in an error (no match).
        error: kind of the error: NAME, TYPE or ARITHMETIC.
        offset: index of the error in the expression's text.
        reason: the error in words.
    """

    value: bool | None
    error: ErrorKind | None = None
    offset: int | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.value is True


_MATCH: Final = Evaluation(True)
_NO_MATCH: Final = Evaluation(False)


def _everything(_values: Mapping[str, PropertyInput]) -> bool:
    return True


class _Compiled:
    """A legal text with everything derived from it. All expressions with this text share the object.

    Attributes:
        ast: the syntax tree.
        doubts: probable mistakes; None before the first use.
        evaluator: function of a lookup; None before the first use.
        matcher: function of decoded properties; None before the first use.
    """

    __slots__ = ("ast", "doubts", "evaluator", "matcher")

    def __init__(self, ast: Node) -> None:
        self.ast = ast
        self.doubts: tuple[Doubt, ...] | None = None
        self.evaluator: Evaluator | None = None
        self.matcher: Matcher | None = None


# Programs subscribe with equal texts again and again: consumers that reopen, groups that pass on their parts.
_texts: Cache[str, _Compiled] = Cache("legal expressions", 2048)


@final
class Expression:
    """A subscription expression.

    Immutable and hashable; can be pickled. As for the broker, expressions with equal texts are equal.

    A broker silently accepts an invalid expression, and delivers *every message*. The text is therefore
    checked here, before sending.

    ::

        expression = bmq.Expression('OrderType == "EXPRESS" && CustomerId > 5')
        assert expression.matches({"OrderType": "EXPRESS", "CustomerId": 6})

    Args:
        text: the expression, for example ``CustomerId >= 1000 && exists(OrderType)``.
        strict: whether to check the text. An invalid unchecked text (see ``error``) matches every message, as
            in the broker.

    Raises:
        InvalidExpression: the broker could not compile the text (only with ``strict``), or the text cannot
            be encoded at all.

    Warns:
        ExpressionWarning: a legal text is surely a mistake (only with ``strict``); see :attr:`doubts`.
    """

    __slots__ = ("_compiled", "_error", "_strict", "_text")

    def __init__(self, text: str, *, strict: bool = True) -> None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"an expression must be a str, not {_checks.shown(text)}")
        text = str.__str__(text)
        strict = _checks.boolean("strict", strict)
        self._text = text
        self._strict = strict
        self._compiled = _texts.get(text)
        self._error: InvalidExpression | None = None
        if self._compiled is None:
            try:
                self._compiled = _texts.keep(text, _Compiled(check(text)))
            except InvalidExpression as error:
                if strict:
                    raise
                encoded_length(text)
                self._error = error.with_traceback(None)
        if strict and (doubts := self.doubts):
            warn_of(text, doubts)

    @property
    def text(self) -> str:
        """The text, byte for byte as sent."""
        return self._text

    @property
    def strict(self) -> bool:
        """Whether the text was checked."""
        return self._strict

    @property
    def error(self) -> InvalidExpression | None:
        """The reason why the broker cannot compile the text; always None with ``strict``."""
        return self._error

    @property
    def ast(self) -> Node | None:
        """The syntax tree; None if the text does not compile."""
        return self._compiled.ast if self._compiled else None

    @property
    def properties(self) -> tuple[str, ...]:
        """The names of the used properties, each once, in order of appearance."""
        return property_names(self._compiled.ast) if self._compiled else ()

    @property
    def operators(self) -> int:
        """The broker's count of operators (at most 10), including references to properties."""
        return operator_count(self._compiled.ast) if self._compiled else 0

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Probable mistakes in a legal text: for example ``x == 1 && x == 2``, which never matches."""
        compiled = self._compiled
        if compiled is None:
            return ()
        if compiled.doubts is None:
            compiled.doubts = find_doubts(compiled.ast)
        return compiled.doubts

    def compile(self) -> Evaluator:
        """Return a function to evaluate the expression, for use on many messages.

        The function takes a lookup of a property's value by name (None or KeyError if absent), and returns
        True, False, or a :class:`~bmq.subscriptions.EvaluationFailure`; only ``is True`` is a match. The
        function is compiled on first use and kept.
        """
        compiled = self._compiled
        if compiled is None:
            return always
        if compiled.evaluator is None:
            compiled.evaluator = compile_tree(compiled.ast)
        return compiled.evaluator

    def matches(self, properties: Mapping[str, PropertyInput] | None) -> bool:
        """Whether a message with these properties matches; an evaluation error is no match.

        Args:
            properties: as for ``post``; None for a message without properties.

        Raises:
            InvalidProperty: the expression reads a value whose type no property can have.
        """
        plain = properties.plain if type(properties) is Properties else None
        if plain is None:
            return self.compile()(lookup(properties)) is True
        # The path of nearly every received message: a function of the decoded values.
        compiled = self._compiled
        return ((compiled and compiled.matcher) or self._compile_matcher())(plain)

    def _compile_matcher(self) -> Matcher:
        compiled = self._compiled
        if compiled is None:
            return _everything
        matcher = compiled.matcher = compile_matcher(compiled.ast)
        return matcher

    def evaluate(self, properties: Mapping[str, PropertyInput] | None) -> Evaluation:
        """Evaluate the expression for a message, distinguishing true, false and the kinds of errors.

        Args:
            properties: as for ``post``; None for a message without properties.

        Raises:
            InvalidProperty: the expression reads a value whose type no property can have.
        """
        if self._error is not None:
            first_line = str(self._error).partition("\n")[0]
            return Evaluation(
                True,
                reason=f"the broker cannot compile this expression, and matches every message: {first_line}",
            )
        outcome = self.compile()(lookup(properties))
        if not isinstance(outcome, EvaluationFailure):
            return _MATCH if outcome else _NO_MATCH
        reason = outcome.reason
        if outcome.kind is ErrorKind.TYPE:
            get = lookup(properties)
            found = [_describe(name, get(name)) for name in self.properties if get(name) is not None]
            reason = f"{reason} ({', '.join(found)})" if found else reason
        return Evaluation(None, outcome.kind, outcome.offset, reason)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Expression({self._text!r}{'' if self._strict else ', strict=False'})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Expression) else NotImplemented

    def __hash__(self) -> int:
        return hash((Expression, self._text))

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self._text, self._strict))

    def __setstate__(self, strict: bool) -> None:
        self._strict = strict


def _restore(text: str, strict: bool) -> Expression:
    """Create an expression without warnings: already checked, or built by a program."""
    expression = Expression(text, strict=False)
    if strict and expression.error is not None:
        raise expression.error
    expression.__setstate__(strict)
    return expression


def built(text: str) -> Expression:
    """Return an expression built by the program from Python objects; guesses give no warning."""
    expression = _restore(text, True)
    warn_of(text, tuple(doubt for doubt in expression.doubts if not doubt.guessed))
    return expression


def planned(texts: list[str]) -> list[Expression]:
    """Return the expressions of a plan; parts of a split expression give no warnings."""
    if len(texts) == 1:
        return [Expression(texts[0])]
    return made(texts)


def made(texts: Iterable[str]) -> list[Expression]:
    """Return expressions built by a program, without warnings."""
    return [_restore(text, True) for text in texts]


def _describe(name: str, value: PropertyInput) -> str:
    if isinstance(value, PropertyValue):
        return f"{name} is {value.type.name} {value.value!r}"
    return f"{name} is {value!r}"
