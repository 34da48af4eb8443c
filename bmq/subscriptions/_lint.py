# SPDX-License-Identifier: Apache-2.0
"""Legal expressions that are surely mistakes, and filters that do not fit the types of known properties.

A broker accepts ``x == 1 && x == 2`` without a report, and delivers no messages. A doubt is proved: a
property has one type, so it has the type that the conditions evaluated before require; and conditions joined
to one must leave a value. A doubt can be missed, but is not raised without proof. The only exception is
marked as a guess: a word in capital letters compared with a property, as in ``OrderType == EXPRESS``.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bmq.errors import ExpressionWarning
from bmq.subscriptions._diagnostics import point_at
from bmq.subscriptions._evaluator import encoded, lowered
from bmq.subscriptions._syntax import (
    INT64_MAX,
    INT64_MIN,
    NEGATED,
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
    flatten,
    unparse,
    walk,
)

#: The types of properties in words.
WORDS: Final[Mapping[type, str]] = {bool: "a boolean", int: "an integer", str: "a string", bytes: "binary"}

_NO_BOOLEAN: Final = frozenset({"TRUE", "True", "FALSE", "False"})
_NO_NULL: Final = frozenset({"NULL", "Null", "null", "None", "nil", "NIL", "undefined"})
_PACKAGE: Final = str(Path(__file__).parent.parent)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A part of a legal expression that is surely a mistake.

    Attributes:
        offset: index of the part in the text.
        message: the effect of the part, and the text to write instead.
        guessed: whether the text may be intended; expressions built by a program get no guesses.
    """

    offset: int
    message: str
    guessed: bool = False

    def __str__(self) -> str:
        return self.message


def find_doubts(tree: Node) -> tuple[Doubt, ...]:
    """Return the doubts about an expression, in the order of the text."""
    found = [*_literals(tree), *_bare_words(tree)]
    tree = lowered(tree)
    types = Types()
    types.require(bool, tree, "the whole expression", {})
    found += types.doubts or _comparisons(tree) or _junctions(tree)
    return tuple(sorted(found, key=lambda doubt: doubt.offset))


def warn_of(text: str, doubts: tuple[Doubt, ...]) -> None:
    """Issue an :class:`~bmq.errors.ExpressionWarning` for each doubt, at the calling line outside of bmq."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    for doubt in doubts:
        message = f"{doubt.message}\n{point_at(text, doubt.offset)}"
        warnings.warn(message, ExpressionWarning, stacklevel=level)


# ---- literals that are none


def _literals(tree: Node) -> Iterator[Doubt]:
    for node in walk(tree):
        if isinstance(node, String) and "\\" in node.value:
            yield Doubt(
                node.offset,
                "escapes are not decoded: the backslash is part of the string, and so is the next "
                "character. No literal can contain a double quote",
            )
        elif isinstance(node, Property) and node.name in _NO_BOOLEAN:
            literal = node.name.lower()
            yield Doubt(node.offset, f"`{node.name}` is the name of a property; the literal is `{literal}`")
        elif isinstance(node, Property) and node.name in _NO_NULL:
            yield Doubt(
                node.offset,
                f"`{node.name}` is the name of a property: the language has no null. To test whether a "
                "message has a property, write exists(name)",
            )


def _bare_words(tree: Node) -> Iterator[Doubt]:
    """Words in capital letters, possibly texts without quotes. The expression uses each word once."""
    uses = Counter(node.name for node in walk(tree) if isinstance(node, Property | Exists))
    for node in walk(tree):
        match node:
            case Binary("==" | "!=", Property() as left, Property() as right):
                for word in (right, left):
                    name = word.name
                    if name.isupper() and len(name) > 1 and uses[name] == 1 and name not in _NO_LITERALS:
                        yield Doubt(
                            word.offset,
                            f"`{name}` is the name of a property here; to compare with the text, write "
                            f'`"{name}"`',
                            guessed=True,
                        )
                        break
            case _:
                pass


_NO_LITERALS: Final = _NO_BOOLEAN | _NO_NULL

# ---- types

#: The properties read so far, with the required types; None for a property of any type.
_Read: TypeAlias = dict[str, type | None]


class Types:
    """Finds the type of each part of an expression, and the parts that do not fit.

    Args:
        kinds: the types of the known properties; None if all are unknown.
        others: prefixes of further names that may occur.
        of: description of messages with these properties.

    Attributes:
        doubts: the parts that do not fit.
    """

    def __init__(
        self, kinds: Mapping[str, type] | None = None, others: tuple[str, ...] = (), of: str = ""
    ) -> None:
        self._kinds = kinds
        self._others = others
        self._of = of
        self.doubts: list[Doubt] = []

    def require(self, wanted: type, node: Node, place: str, read: _Read) -> None:
        """Note a doubt if a part has another type.

        Args:
            wanted: the type.
            node: the part.
            place: the part in words.
            read: the properties read before, to which the properties of the part are added.
        """
        kind = self.kind(node, read)
        if kind is None and isinstance(node, Property):
            read[node.name] = wanted
        elif kind not in (wanted, None):
            needed = "a condition" if wanted is bool else "an integer"
            self._note(node, f"{place} is {WORDS[kind]}, not {needed}: an error, and no match")

    def kind(self, node: Node, read: _Read) -> type | None:
        """Return the type of a part; None if unknown."""
        match node:
            case Property(name):
                if self._kinds is not None:
                    return self._known(node, name)
                return read.setdefault(name)
            case Exists(name):
                if self._kinds is not None:
                    self._known(node, name)
                elif name in read:
                    self._note(
                        node,
                        f"`{name}` is read before this test for its existence, and a missing property ends "
                        "the evaluation: put the test first",
                    )
                return bool
            case Boolean():
                return bool
            case Integer():
                return int
            case String():
                return str
            case Not(operand):
                self.require(bool, operand, "the operand of `!`, which binds tightly,", read)
                return bool
            case Negate(operand):
                self.require(int, operand, "the operand of `-`", read)
                return int
            case Binary("&&" | "||" as junction, left, right):
                self.require(bool, left, f"this side of `{junction}`", read)
                # The right side may be skipped: it reads properties for itself.
                self.require(bool, right, f"this side of `{junction}`", dict(read))
                return bool
            case Binary("+" | "-" | "*" | "/" | "%" as sign, left, right):
                self.require(int, left, f"this side of `{sign}`", read)
                self.require(int, right, f"this side of `{sign}`", read)
                return int
            case Binary():
                self._compare(node, read)
                return bool

    def _compare(self, node: Binary, read: _Read) -> None:
        left, right = self.kind(node.left, read), self.kind(node.right, read)
        for side, other in ((node.left, right), (node.right, left)):
            if isinstance(side, Property) and read.get(side.name) is None and other in (int, str):
                read[side.name] = other
        if bool in (left, right) or (left is not right and left is not None and right is not None):
            first, second = (WORDS[each] if each else "a value" for each in (left, right))
            self._note(
                node,
                f"`{node.operator}` compares {first} with {second}: an error, and no match. Integers compare "
                "with integers, strings with strings, and conditions only with a literal true or false",
            )

    def _known(self, node: Node, name: str) -> type | None:
        known = self._kinds or {}
        kind = known.get(name)
        if kind is bytes:
            self._note(node, f"{name} of {self._of} is binary, and expressions cannot read binary properties")
            return None
        if kind is None and not name.startswith(self._others):
            near = difflib.get_close_matches(name, known, 1)
            hint = f": did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            self._note(node, f"{self._of} has no property {name}{hint}")
        return kind

    def _note(self, node: Node, message: str) -> None:
        self.doubts.append(Doubt(node.offset, message))


# ---- values

#: A condition on the value of a part, which is given as a text: ``x % 2``, ``==``, 1.
_Test: TypeAlias = tuple[str, BinaryOperator, int | bytes]

_HOLDS: Final[Mapping[BinaryOperator, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final[Mapping[BinaryOperator, BinaryOperator]] = {
    "==": "==",
    "!=": "!=",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}


def _test(node: Node) -> _Test:
    """Return a condition as a test of a value; a condition of unknown form is a boolean of its own."""
    match node:
        case Boolean(value):
            return "", "==", value
        case Not(operand):
            return _opposite(_test(operand))
        case Binary(sign, left, right) if sign in NEGATED and left == right:
            return "", "==", _HOLDS[sign](0, 0)
        case Binary(sign, left, Integer(value)) if sign in NEGATED:
            return unparse(left), sign, value
        case Binary(sign, left, String(text)) if sign in NEGATED:
            return unparse(left), sign, encoded(text)
        case Binary(sign, Integer() | String() as left, right) if sign in NEGATED:
            return _test(Binary(_MIRRORED[sign], right, left))
        case _:
            return unparse(node), "==", True


def _opposite(test: _Test) -> _Test:
    return test[0], NEGATED[test[1]], test[2]


def _impossible(tests: list[_Test]) -> bool:
    """Whether no value passes all tests of a part."""
    parts: dict[tuple[str, type], list[_Test]] = {}
    for test in tests:
        parts.setdefault((test[0], type(test[2])), []).append(test)
    return any(
        not any(all(_HOLDS[sign](value, limit) for _, sign, limit in part) for value in _values(part))
        for part in parts.values()
    )


def _values(tests: list[_Test]) -> Iterator[int | bytes]:
    """Return values for all outcomes: any further value behaves like one of these."""
    for part, _, limit in tests:
        if isinstance(limit, bool):
            yield from (True, False) if part else (True,)
        elif isinstance(limit, bytes):
            yield from (b"", limit, limit + b"\0")
        else:
            yield from (each for each in (limit - 1, limit, limit + 1) if INT64_MIN <= each <= INT64_MAX)


def _comparisons(tree: Node) -> list[Doubt]:
    """Comparisons always false, or always true."""
    found: list[Doubt] = []
    for node in walk(tree):
        if isinstance(node, Binary) and node.operator in NEGATED:
            test = _test(node)
            if _impossible([test]):
                found.append(Doubt(node.offset, "this comparison is never true"))
            elif _impossible([_opposite(test)]):
                found.append(Doubt(node.offset, "this comparison is true for every comparable value"))
    return found


def _junctions(node: Node) -> list[Doubt]:
    """Junctions never matching, or always matching; of nested junctions only the innermost."""
    match node:
        case Not(operand):
            return _junctions(operand)
        case Binary("&&" | "||" as junction, offset=offset):
            terms = flatten(junction, node)
            tests = [_test(term) for term in terms]
            if inner := [doubt for term in terms for doubt in _junctions(term)]:
                return inner
            if junction == "&&" and _impossible(tests):
                return [Doubt(offset, "this condition never matches. Join alternatives with `||`")]
            if junction == "||" and _impossible([_opposite(test) for test in tests]):
                message = (
                    "this condition is never false. To exclude several values, join the conditions with `&&`"
                )
                return [Doubt(offset, message)]
            return []
        case _:
            return []
