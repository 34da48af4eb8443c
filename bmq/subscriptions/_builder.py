# SPDX-License-Identifier: Apache-2.0
"""Expressions built from Python operators, to keep values from being mistaken for syntax::

    (P("CustomerId") == 1234) & ((P.OrderType == "EXPRESS") | P.Urgent.exists())

A comparison is a :class:`Filter`; filters combine with ``&``, ``|`` and ``~``. Rendering uses as few
operators and characters as possible.
"""

from __future__ import annotations

from typing import Final, NoReturn, TypeAlias, final

from bmq import _checks
from bmq.errors import UsageError
from bmq.subscriptions._diagnostics import invalid, too_many_operators
from bmq.subscriptions._expression import Expression, built, made
from bmq.subscriptions._planner import plan_tree, simplest
from bmq.subscriptions._syntax import (
    INT64_MAX,
    INT64_MIN,
    MAX_OPERATORS,
    NAME_PATTERN,
    Binary,
    BinaryOperator,
    Boolean,
    Exists,
    Integer,
    Junction,
    Negate,
    Node,
    Not,
    Property,
    String,
    operator_count,
    unparse,
)

#: Types comparable with a property.
Comparable: TypeAlias = bool | int | str

_PARENTHESES: Final = (
    "Python's `&` and `|` bind tighter than `==` and `<`: put each comparison in parentheses, as in "
    "(P.a == 1) & (P.b == 2)"
)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(f"a property's name must be a str, not {type(name).__name__}")
    match = NAME_PATTERN.match(name)
    if match is None or match.end() != len(name):
        raise invalid(
            f"{name[:40]!r} cannot be used as a name in an expression: a name starts with an ASCII letter, "
            "followed by letters, digits, `_` and `.`",
            name,
            match.end() if match else 0,
        )
    if name in ("true", "false"):
        raise invalid(f"{name!r} is a literal in an expression, never a property", name)
    return name


def _literal(value: object) -> Node:
    if isinstance(value, bool):
        return Boolean(value)
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise invalid(f"integer overflow: {_checks.shown(value)} is outside {INT64_MIN} to {INT64_MAX}")
        return Integer(int.__index__(value))
    if isinstance(value, str):
        text = str.__str__(value)
        for offset, character in enumerate(text):
            if character in '"\\\0':
                raise invalid(
                    f"a string with {character!r} cannot be written in an expression: escapes are not "
                    "decoded, so no literal has this value. Let producers set a property without this "
                    "character (a code, a hash), or check the value in the application",
                    text,
                    offset,
                )
        return String(text)
    hints = {
        "NoneType": "; to test for a property, use .exists()",
        "float": "; all numbers are integers: scale the value (cents instead of euros)",
        "bytes": "; an expression cannot read binary properties",
    }
    kind = type(value).__name__
    raise UsageError(f"a property compares with bool, int or str, not {kind}{hints.get(kind, '')}")


@final
class Filter:
    """A condition on a message's properties, created by comparisons, never directly.

    ``a & b``, ``a | b`` and ``~a`` combine conditions. Evaluation runs from left to right and ends at the
    first error: in ``(P.x == 1) | (P.y == 2)`` a message without ``x`` does not match, regardless of ``y``.
    """

    __slots__ = ("_node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def ast(self) -> Node:
        """The syntax tree in the simplest form."""
        return simplest(self._node)

    def expression(self) -> Expression:
        """Return the filter as one checked expression.

        Raises:
            InvalidExpression: the filter exceeds a limit of the broker; :meth:`plan` may be able to split it.
        """
        return built(str(self))

    def plan(self) -> list[Expression]:
        """Return the filter as one expression, or as several equivalent expressions (see ``plan``).

        Raises:
            InvalidExpression: the filter exceeds a limit of the broker and cannot be split.
        """
        texts = plan_tree(self._node)
        return [built(texts[0])] if len(texts) == 1 else made(texts)

    def __and__(self, other: object) -> Filter:
        return self._joined("&&", other, False)

    def __rand__(self, other: object) -> Filter:
        return self._joined("&&", other, True)

    def __or__(self, other: object) -> Filter:
        return self._joined("||", other, False)

    def __ror__(self, other: object) -> Filter:
        return self._joined("||", other, True)

    def _joined(self, junction: Junction, other: object, swapped: bool) -> Filter:
        right = _condition(other)
        first, second = (right, self) if swapped else (self, right)
        return Filter(Binary(junction, first._node, second._node))

    def __invert__(self) -> Filter:
        if isinstance(self._node, Not):
            return Filter(self._node.operand)
        return Filter(Not(self._node))

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"a filter has no truth value here ({self}): the broker evaluates it. Combine filters with "
            "`&`, `|` and `~` instead of `and`, `or` and `not`; write a < P.x < b as (P.x > a) & (P.x < "
            "b); for one of several values use P.x.one_of(...); to evaluate the filter here, use "
            ".expression().matches(...)"
        )

    def __eq__(self, other: object) -> NoReturn:
        raise UsageError(
            "filters cannot be compared: the language has no equality of conditions (and "
            f"{_PARENTHESES[0].lower()}{_PARENTHESES[1:]}); compare their texts with str()"
        )

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__

    def __str__(self) -> str:
        return unparse(simplest(self._node))

    def __repr__(self) -> str:
        return f"<Filter {self}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (Filter, (self._node,))


@final
class Operand:
    """A property, or integer arithmetic on properties. A comparison returns a :class:`Filter`."""

    __slots__ = ("_node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        count = operator_count(node)
        if count > MAX_OPERATORS:
            raise too_many_operators("", count, 0)
        self._node = node

    @property
    def ast(self) -> Node:
        """The syntax tree."""
        return self._node

    # ---- to filters

    def __eq__(self, other: object) -> Filter:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Filter:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Filter:
        return self._compared("<", other)

    def __le__(self, other: object) -> Filter:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Filter:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Filter:
        return self._compared(">=", other)

    def _compared(self, operator: BinaryOperator, other: object) -> Filter:
        if isinstance(other, Filter):
            raise UsageError(f"a property cannot be compared with a condition ({other}); {_PARENTHESES}")
        right = other._node if isinstance(other, Operand) else _literal(other)
        if isinstance(right, Boolean) and operator not in ("==", "!="):
            raise UsageError(
                f"booleans have no order: `{operator}` with {other} is an error for every message"
            )
        if not isinstance(self._node, Property) and isinstance(right, Boolean | String):
            raise UsageError(f"{self} is an integer and cannot be compared with {other!r}")
        return Filter(Binary(operator, self._node, right))

    def one_of(self, *values: Comparable) -> Filter:
        """Return a filter: the property equals any of the values, as an ``||`` of comparisons.

        Raises:
            TypeError: no values are given, or a value has a type not comparable with properties.
        """
        if not values:
            raise UsageError("one_of() needs at least one value")
        result = self == values[0]
        for value in values[1:]:
            result = result | (self == value)
        return result

    def exists(self) -> Filter:
        """Return a filter: the message has the property (not as BINARY: expressions cannot read BINARY)."""
        if not isinstance(self._node, Property):
            raise UsageError(f"exists() tests a single property, and {self} is a computation")
        return Filter(Exists(self._node.name))

    def __invert__(self) -> Filter:
        return ~_condition(self)

    def __and__(self, other: object) -> Filter:
        return _condition(self) & other

    def __rand__(self, other: object) -> Filter:
        return _condition(other) & self

    def __or__(self, other: object) -> Filter:
        return _condition(self) | other

    def __ror__(self, other: object) -> Filter:
        return _condition(other) | self

    def expression(self) -> Expression:
        """Return the boolean property as an expression."""
        return _condition(self).expression()

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"{self} has no value here: it stands for a property of future messages. Combine conditions "
            "with `&`, `|` and `~` instead of `and`, `or` and `not`"
        )

    # ---- to operands

    def _computed(self, operator: BinaryOperator, other: object, *, swapped: bool = False) -> Operand:
        if isinstance(other, Operand):
            node = other._node
        elif isinstance(other, bool) or not isinstance(other, int):
            raise UsageError(f"`{operator}` needs integers, not {type(other).__name__}")
        else:
            node = _literal(other)
        left, right = (node, self._node) if swapped else (self._node, node)
        return Operand(Binary(operator, left, right))

    def __add__(self, other: object) -> Operand:
        return self._computed("+", other)

    def __radd__(self, other: object) -> Operand:
        return self._computed("+", other, swapped=True)

    def __sub__(self, other: object) -> Operand:
        return self._computed("-", other)

    def __rsub__(self, other: object) -> Operand:
        return self._computed("-", other, swapped=True)

    def __mul__(self, other: object) -> Operand:
        return self._computed("*", other)

    def __rmul__(self, other: object) -> Operand:
        return self._computed("*", other, swapped=True)

    def __truediv__(self, other: object) -> Operand:
        return self._computed("/", other)

    def __rtruediv__(self, other: object) -> Operand:
        return self._computed("/", other, swapped=True)

    def __mod__(self, other: object) -> Operand:
        return self._computed("%", other)

    def __rmod__(self, other: object) -> Operand:
        return self._computed("%", other, swapped=True)

    def __neg__(self) -> Operand:
        return Operand(Negate(self._node))

    def __floordiv__(self, other: object) -> NoReturn:
        raise UsageError("the broker rounds quotients towards zero, not down: write `/`")

    __rfloordiv__ = __floordiv__

    def __str__(self) -> str:
        return unparse(self._node)

    def __repr__(self) -> str:
        return f"<Operand {self}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (Operand, (self._node,))


def _condition(value: object) -> Filter:
    if isinstance(value, Filter):
        return value
    if isinstance(value, Operand):
        if isinstance(value.ast, Property):
            return Filter(value.ast)
        raise UsageError(f"{value} is an integer, not a condition: compare it with a value")
    raise UsageError(f"`&` and `|` join conditions, not {type(value).__name__} {value!r}; {_PARENTHESES}")


@final
class PropertyFactory:
    """``P``: ``P("any.name")`` or ``P.name`` is the property of that name.

    ::

        wanted = (bmq.P.OrderType == "EXPRESS") & (bmq.P.CustomerId > 5)
        consumer = queue.subscribe(wanted)
    """

    __slots__ = ()

    def __call__(self, name: str) -> Operand:
        """Return the property with this name.

        Raises:
            InvalidExpression: the name is impossible in an expression.
        """
        return Operand(Property(_name(name)))

    def __getattr__(self, name: str) -> Operand:
        if name.startswith("_"):
            raise AttributeError(f"a property's name starts with an ASCII letter: {name!r} does not")
        return self(name)

    def __repr__(self) -> str:
        return "P"

    def __reduce__(self) -> str:
        return "P"


#: The starting point of built expressions.
P: Final = PropertyFactory()
