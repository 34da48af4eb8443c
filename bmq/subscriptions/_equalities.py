# SPDX-License-Identifier: Apache-2.0
"""Equalities required of one property by expressions: a single lookup replaces many evaluations.

A broker with sixteen subscriptions ``k % 16 == 0`` to ``k % 16 == 15`` need not evaluate all sixteen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from bmq import _checks
from bmq.subscriptions._evaluator import Lookup
from bmq.subscriptions._expression import Expression
from bmq.subscriptions._syntax import Binary, Integer, Node, Property, flatten

__all__ = ["Equalities", "Equality", "equality"]

_T = TypeVar("_T")

# Differences of smaller numbers do not overflow 64 bits.
_SAFE = 2**62

_place = itemgetter(0)


class Equality(NamedTuple):
    """A necessary, perhaps not sufficient, condition of an expression.

    Attributes:
        name: an integer property.
        modulus: divisor of the value; 0 to compare the value directly.
        remainder: required remainder, never negative: -5 and 11 have the same remainder modulo 16.
    """

    name: str
    modulus: int
    remainder: int


def equality(text: str) -> Equality | None:
    """Return an equality required by an expression; None if not found.

    Recognised are ``p == 3``, ``p % 16 == 3`` and ``(p - 3) % 16 == 0``, alone or joined to further
    conditions by ``&&``.
    """
    tree = Expression(text, strict=False).ast if text else None
    if tree is not None:
        for term in flatten("&&", tree):
            found = _of(term)
            if found is not None:
                return found
    return None


def _of(term: Node) -> Equality | None:
    match term:
        case Binary("==", Property(name), Integer(value)):
            return Equality(name, 0, value)
        case Binary("==", Binary("%", Property(name), Integer(modulus)), Integer(value)) if modulus > 0:
            return Equality(name, modulus, value % modulus)
        case Binary(
            "==", Binary("%", Binary("-", Property(name), Integer(less)), Integer(modulus)), Integer(0)
        ) if modulus > 0 and -_SAFE < less < _SAFE:
            return Equality(name, modulus, less % modulus)
        case _:
            return None


class Equalities(Generic[_T]):
    """Objects with an expression each, indexed by the equalities in the expressions.

    Args:
        things: the objects, in order.
        text_of: returns the expression of an object; "" matches every message.

    Attributes:
        most: largest number of candidates for a message.
        finds_none: whether no expression has an equality: all objects are candidates for every message.
    """

    __slots__ = ("_all", "_by_remainder", "_modulus", "_name", "_others", "finds_none", "most")

    def __init__(self, things: Sequence[_T], text_of: Callable[[_T], str]) -> None:
        things = _checks.items("things", things)
        _checks.function("text_of", text_of, 1)
        found = [equality(_checks.text("text_of()", text_of(thing))) for thing in things]
        # The most frequent pair of property and modulus.
        counts = Counter(each[:2] for each in found if each is not None)
        about = counts.most_common(1)[0][0] if counts else ("", 0)
        self._name, self._modulus = about
        self._all = list(enumerate(things))
        self._others: list[tuple[int, _T]] = []
        self._by_remainder: dict[int, list[tuple[int, _T]]] = {}
        for place, each in zip(self._all, found, strict=True):
            if each is not None and each[:2] == about:
                self._by_remainder.setdefault(each.remainder, []).append(place)
            else:
                self._others.append(place)
        self.finds_none = not self._by_remainder
        self.most = len(self._others) + max((len(each) for each in self._by_remainder.values()), default=0)

    def candidates(self, get: Lookup) -> list[tuple[int, _T]]:
        """Return the candidates for a message with these properties, with indexes, in order."""
        if not self._by_remainder:
            return self._all
        value = get(self._name)
        if type(value) is int and -_SAFE < value < _SAFE:
            mine = self._by_remainder.get(value % self._modulus if self._modulus else value)
        elif value is None:
            mine = None
        else:
            return self._all
        if mine is None:
            return self._others
        return sorted(mine + self._others, key=_place) if self._others else mine
