# SPDX-License-Identifier: Apache-2.0
"""Legal expressions that are surely mistakes.

A broker accepts ``x == 1 && x == 2`` without a report, and delivers no messages. Doubts are proved, not
guessed: conditions are evaluated with values representing all possible properties. A property compared with 5
and 9 is tried as missing, as another type, and as 4, 5, 6, 8, 9 and 10; any further value behaves like one of
these. Arithmetic, and comparisons of two properties, may have any outcome. A doubt can therefore be missed,
but is never raised without proof. The only exception is marked as a guess: a word in capital letters compared
with a property, as in ``OrderType == EXPRESS``.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from bmq.errors import ExpressionWarning
from bmq.subscriptions._diagnostics import point_at
from bmq.subscriptions._evaluator import encoded, lowered
from bmq.subscriptions._syntax import (
    INT64_MAX,
    INT64_MIN,
    NEGATED,
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
    property_names,
    unparse,
    walk,
)

__all__ = ["Doubt", "find_doubts", "possible_outcomes", "warn_of"]

#: Largest number of situations to try; beyond this number no doubt is raised.
_MAX_SITUATIONS: Final = 1000

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
    found = [*_literals(tree), *_words(tree), *_bare_words(tree)]
    tree = lowered(tree)
    operands = list(_operands(tree))
    found += operands or _comparisons(tree) or _places(tree) or _junctions(tree)
    return tuple(sorted(found, key=lambda doubt: doubt.offset))


def warn_of(text: str, doubts: tuple[Doubt, ...]) -> None:
    """Issue an :class:`~bmq.errors.ExpressionWarning` for each doubt, at the calling line outside of bmq."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    for doubt in doubts:
        message = f"{doubt.message}\n{point_at(text, doubt.offset)}"
        warnings.warn(message, ExpressionWarning, stacklevel=level)


# ---- doubts from the tree


def _literals(tree: Node) -> Iterator[Doubt]:
    for node in walk(tree):
        if isinstance(node, String) and "\\" in node.value:
            yield Doubt(
                node.offset,
                "escapes are not decoded: the backslash is part of the string, and so is the next "
                "character. No literal can contain a double quote",
            )


def _words(tree: Node) -> Iterator[Doubt]:
    for node in walk(tree):
        if not isinstance(node, Property):
            continue
        if node.name in _NO_BOOLEAN:
            literal = node.name.lower()
            yield Doubt(node.offset, f"`{node.name}` is the name of a property; the literal is `{literal}`")
        elif node.name in _NO_NULL:
            yield Doubt(
                node.offset,
                f"`{node.name}` is the name of a property: the language has no null. To test whether a "
                "message has a property, write exists(name)",
            )


def _bare_words(tree: Node) -> Iterator[Doubt]:
    """Words in capital letters, possibly texts without quotes. The expression uses each word once."""
    uses = Counter(node.name for node in walk(tree) if isinstance(node, Property | Exists))
    for node in walk(tree):
        if not (isinstance(node, Binary) and node.operator in ("==", "!=")):
            continue
        left, right = node.left, node.right
        if not (isinstance(left, Property) and isinstance(right, Property)):
            continue
        words = [each for each in (right, left) if each.name.isupper() and len(each.name) > 1]
        for word in words:
            if uses[word.name] == 1 and word.name not in _NO_BOOLEAN | _NO_NULL:
                yield Doubt(
                    word.offset,
                    f"`{word.name}` is the name of a property here; to compare with the text, write "
                    f'`"{word.name}"`',
                    guessed=True,
                )
                break


def _operands(tree: Node) -> Iterator[Doubt]:
    """Operands instead of conditions, and operands deciding a junction in advance."""
    yield from _no_condition(tree, "the whole expression")
    for node in walk(tree):
        if isinstance(node, Not):
            yield from _no_condition(node.operand, "the operand of `!`, which binds tightly,")
        elif _is_junction(node):
            for side in (node.left, node.right):
                yield from _no_condition(side, f"this side of `{node.operator}`")
                if isinstance(side, Boolean) and side.value == (node.operator == "||"):
                    yield Doubt(
                        side.offset, f"this side decides the `{node.operator}`, regardless of the other side"
                    )


def _no_condition(node: Node, place: str) -> Iterator[Doubt]:
    if isinstance(node, Integer | Negate) or _is_arithmetic(node):
        kind = "an integer"
    elif isinstance(node, String):
        kind = "a string"
    else:
        return
    yield Doubt(node.offset, f"{place} is {kind}, not a condition: an error for every message, and no match")


def _is_arithmetic(node: Node) -> TypeGuard[Binary]:
    return isinstance(node, Binary) and node.operator in ("+", "-", "*", "/", "%")


def _is_comparison(node: Node) -> TypeGuard[Binary]:
    return isinstance(node, Binary) and node.operator in NEGATED


def _is_junction(node: Node) -> TypeGuard[Binary]:
    return isinstance(node, Binary) and node.operator in ("&&", "||")


# ---- doubts from trying values


def _comparisons(tree: Node) -> list[Doubt]:
    """Comparisons always false, or always true."""
    doubts = (_comparison(node) for node in _inside_out(tree) if _is_comparison(node))
    return [doubt for doubt in doubts if doubt is not None]


def _junctions(tree: Node) -> list[Doubt]:
    """Junctions never matching, or always matching; of nested junctions only the innermost."""
    found: list[Doubt] = []
    doubtful: set[int] = set()
    for node in _inside_out(tree):
        if _is_junction(node) and not any(id(inner) in doubtful for inner in walk(node)):
            doubt = _junction(node)
            if doubt is not None:
                doubtful.add(id(node))
                found.append(doubt)
    return found


def _inside_out(tree: Node) -> list[Binary]:
    """The comparisons, and the whole chains of one junction, from the inside out."""
    found: list[Binary] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Not):
            waiting.append(node.operand)
        elif _is_comparison(node):
            found.append(node)
        elif _is_junction(node):
            found.append(node)
            waiting += flatten("&&" if node.operator == "&&" else "||", node)
    return found[::-1]


def _comparison(node: Binary) -> Doubt | None:
    if _is_plain(node.left, node.right) or _is_plain(node.right, node.left):
        return None
    outcomes = _tried(node).get(id(node), set())
    if not outcomes or {_TRUE, _FALSE} <= outcomes:
        return None
    if _TRUE in outcomes:
        return Doubt(node.offset, "this comparison is true for every comparable value")
    if _FALSE in outcomes:
        return Doubt(node.offset, "this comparison is never true")
    reason = next(each for each in _REASONS if each in outcomes)
    return Doubt(node.offset, f"an error for every message, and no match: {reason.value!s}")


def _is_plain(unknown: Node, literal: Node) -> bool:
    """Whether a property is compared with a literal with values on both sides: both outcomes occur."""
    if not isinstance(unknown, Property):
        return False
    if isinstance(literal, Integer):
        return INT64_MIN < literal.value < INT64_MAX
    return isinstance(literal, String) and literal.value != ""


def _junction(node: Binary) -> Doubt | None:
    if not _repeats(node):
        return None
    outcomes = _tried(node).get(id(node), set())
    if outcomes and _TRUE not in outcomes:
        return Doubt(node.offset, "this condition never matches. Join alternatives with `||`")
    if outcomes and _FALSE not in outcomes:
        return Doubt(
            node.offset,
            "this condition is never false. To exclude several values, join the conditions with `&&`",
        )
    return None


def _repeats(node: Node) -> bool:
    """Whether a property occurs twice; otherwise no condition can decide another."""
    return len(property_names(node)) < sum(isinstance(each, Property | Exists) for each in walk(node))


def _places(tree: Node) -> list[Doubt]:
    """Conditions useful alone, but useless after the preceding conditions."""
    seen = _tried(tree) if _repeats(tree) else {}
    found: list[Doubt] = []
    read: set[str] = set()
    for node in walk(tree):
        outcomes = seen.get(id(node), set())
        if isinstance(node, Property):
            read.add(node.name)
        elif isinstance(node, Exists) and node.name in read and len(outcomes) == 1:
            found.append(
                Doubt(
                    node.offset,
                    f"`{node.name}` is read before this test for its existence, and a missing property "
                    "ends the evaluation: put the test first",
                )
            )
        elif _is_comparison(node) and outcomes and not outcomes & {_TRUE, _FALSE}:
            found.append(
                Doubt(
                    node.offset,
                    "after the earlier conditions, this condition can only end in an error: a property "
                    "has one type, or is missing. Use separate subscriptions for alternatives",
                )
            )
    return found


def possible_outcomes(tree: Node) -> frozenset[bool | None]:
    """Return a tree's possible outcomes, None for an error; empty if there are too many situations."""
    tree = lowered(tree)
    outcomes = _tried(tree).get(id(tree), set())
    return frozenset({_TRUE: True, _FALSE: False}.get(each) for each in outcomes)


# ---- trying values


class _Value(NamedTuple):
    """The outcome of evaluating a node; equal only to a value of the same kind."""

    kind: str
    value: str | bytes | int


_TRUE: Final = _Value("bool", 1)
_FALSE: Final = _Value("bool", 0)
_ABSENT: Final = _Value("absent", "")
#: A value of a type unused in all comparisons.
_OTHER: Final = _Value("other", "")
_MISSING: Final = _Value("error", "a property is missing")
_MIXED: Final = _Value(
    "error",
    "integers can be compared with integers, strings with strings, and a condition only with a "
    "literal true or false",
)
_NO_INTEGER: Final = _Value("error", "arithmetic takes integers")
_NO_CONDITION: Final = _Value("error", "a condition is needed")
_DIVISION: Final = _Value("error", "division by zero, or out of range")
#: If every outcome is an error, the first occurring error is reported.
_REASONS: Final = (_DIVISION, _MIXED, _NO_INTEGER, _NO_CONDITION, _MISSING)

_Situations: TypeAlias = dict[str, dict[_Value, None]]
_Outcomes: TypeAlias = dict[int, set[_Value]]


def _tried(root: Node) -> _Outcomes:
    """Evaluate in every distinct situation; return the outcomes of each node.

    The result is empty for too many situations.
    """
    situations = _situations(root)
    count = 1
    for values in situations.values():
        count *= len(values)
    outcomes: _Outcomes = {}
    if count <= _MAX_SITUATIONS:
        for chosen in product(*situations.values()):
            _Trial(dict(zip(situations, chosen, strict=True)), outcomes).value(root)
    return outcomes


def _situations(root: Node) -> _Situations:
    """The values to try, by the name of a property or the text of an uncalculated term."""
    found: _Situations = {}
    for node in walk(root):
        if isinstance(node, Property | Exists):
            found.setdefault(node.name, {}).update(dict.fromkeys((_ABSENT, _OTHER)))
    for node in (root, *_joined(root)):
        if isinstance(node, Property):
            found[node.name].update(dict.fromkeys((_TRUE, _FALSE)))
    for node in walk(root):
        if not isinstance(node, Negate) and not _is_arithmetic(node):
            continue
        # The result is not calculated: 0 represents any result. The operands have to be integers.
        place = found.setdefault(unparse(node), {_Value("int", 0): None})
        if isinstance(node, Binary) and node.operator in ("/", "%"):
            place[_DIVISION] = None
        for side in (node.left, node.right) if isinstance(node, Binary) else (node.operand,):
            if isinstance(side, Property):
                found[side.name][_Value("int", 0)] = None
    for node in walk(root):
        if _is_comparison(node):
            _compared(node, found)
    return found


def _joined(root: Node) -> Iterator[Node]:
    """The operands required to be conditions."""
    for node in walk(root):
        if isinstance(node, Not):
            yield node.operand
        elif _is_junction(node):
            yield node.left
            yield node.right


def _compared(node: Binary, found: _Situations) -> None:
    """Add the values for all outcomes of a comparison."""
    for side, other in ((node.left, node.right), (node.right, node.left)):
        place = found.get(side.name if isinstance(side, Property) else unparse(side))
        if place is None:
            continue
        if isinstance(other, Integer):
            around = (other.value - 1, other.value, other.value + 1)
            place.update((_Value("int", each), None) for each in around if INT64_MIN <= each <= INT64_MAX)
        elif isinstance(other, String) and isinstance(side, Property):
            text = encoded(other.value)
            place.update((_Value("str", each), None) for each in (b"", text, text + b"\0"))
        elif isinstance(side, Property):
            place.update(dict.fromkeys((_Value("int", 0), _Value("str", b""))))
    if not isinstance(node.left, Integer | String) and not isinstance(node.right, Integer | String):
        found[_question(node)[0]] = dict.fromkeys((_TRUE, _FALSE))


def _question(node: Binary) -> tuple[str, bool]:
    """Return the condition behind a comparison of two unknowns, and whether the comparison is a negation."""
    opposite = node.operator in ("!=", ">=", "<=")
    operator = NEGATED[node.operator] if opposite else node.operator
    return f"{unparse(node.left)} {operator} {unparse(node.right)}", opposite


class _Trial:
    """The evaluation in one situation."""

    def __init__(self, situation: dict[str, _Value], outcomes: _Outcomes) -> None:
        self._situation = situation
        self._outcomes = outcomes

    def value(self, node: Node) -> _Value:
        result = self._value(node)
        self._outcomes.setdefault(id(node), set()).add(result)
        return result

    def _value(self, node: Node) -> _Value:
        match node:
            case Integer(number):
                return _Value("int", number)
            case String(text):
                return _Value("str", encoded(text))
            case Boolean(truth):
                return _TRUE if truth else _FALSE
            case Exists(name):
                return _FALSE if self._situation[name] is _ABSENT else _TRUE
            case Property(name):
                value = self._situation[name]
                return _MISSING if value is _ABSENT else value
            case Not(operand):
                value = self.condition(operand)
                return {_TRUE: _FALSE, _FALSE: _TRUE}.get(value, value)
            case Binary("&&" | "||" as junction, left, right):
                value = self.condition(left)
                decisive = _FALSE if junction == "&&" else _TRUE
                return value if value is decisive or value.kind == "error" else self.condition(right)
            case Negate(operand):
                return self._calculated(node, operand)
            case Binary(_, left, right):
                if _is_comparison(node):
                    return self._compared(node)
                return self._calculated(node, left, right)

    def condition(self, node: Node) -> _Value:
        value = self.value(node)
        return value if value.kind in ("bool", "error") else _NO_CONDITION

    def _calculated(self, node: Node, *operands: Node) -> _Value:
        for operand in operands:
            value = self.value(operand)
            if value.kind != "int":
                return value if value.kind == "error" else _NO_INTEGER
        if isinstance(node, Binary) and node.operator in ("/", "%") and node.right == Integer(0):
            return _DIVISION
        return self._situation[unparse(node)]

    def _compared(self, node: Binary) -> _Value:
        a = self.value(node.left)
        if a.kind == "error":
            return a
        b = self.value(node.right)
        if b.kind == "error":
            return b
        if a.kind != b.kind or a.kind not in ("int", "str"):
            return _MIXED
        if isinstance(node.left, Integer | String) or isinstance(node.right, Integer | String):
            order = (a > b) - (a < b)
        elif node.left == node.right:
            order = 0
        else:
            question, opposite = _question(node)
            answer = self._situation[question] is _TRUE
            return _TRUE if answer is not opposite else _FALSE
        holds = {"==": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0}
        return _TRUE if holds.get(node.operator, order >= 0) else _FALSE
