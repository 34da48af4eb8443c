# SPDX-License-Identifier: Apache-2.0
"""The choice of a subscription for a message, computed offline, and the index of equalities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from bmq import _checks
from bmq.errors import UsageError
from bmq.subscriptions._builder import Filter, Operand
from bmq.subscriptions._evaluator import Lookup
from bmq.subscriptions._expression import Evaluation, Expression
from bmq.subscriptions._syntax import Binary, Integer, Node, Property, flatten
from bmq.wire.properties import PropertyInput

# ---- Equalities required of one property by expressions: a single lookup replaces many evaluations
#
# A broker with sixteen subscriptions ``k % 16 == 0`` to ``k % 16 == 15`` need not evaluate all sixteen.

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
    """

    __slots__ = ("_all", "_by_remainder", "_modulus", "_name", "_others", "most")

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


# ---- The choice of a subscription for a message, computed offline
#
# The problem: the broker chooses the consumer of a message by rules involving all subscriptions of the
# application, and reports neither the choice nor the reason. A user sees only that a message arrives
# elsewhere, or nowhere. This module reproduces the choice and explains each step.
#
# For one message of one application the broker follows these rules:
#
# - Subscriptions with byte-equal expressions form a group. In a group only the subscriptions of the highest
#   priority are active; they take turns.
# - Groups are tried from the highest priority down. The first matching group takes the message.
# - If the matching group is full, the message waits for this group, and the group is marked. Later messages
#   skip a marked group until the group has room again.
# - If no group tried on the way had room, delivery to the application stops: no message is delivered until a
#   group has room, even if the message is for another group. If a group on the way had room (and did not
#   match), delivery continues without the full group, and *later* messages for the full group go to matching
#   groups of lower priority.
#
# Invariants of a :class:`Decision`: ``candidates`` come from a single group (except with broadcast), and
# ``spills`` have a lower priority than the full group. The order of groups with equal priority is unspecified
# at the broker. This module uses the order of the list, and reports other matching groups of the priority in
# ``also``.
#
# Rejected designs: a single name as the answer, correct only by chance among groups of equal priority;
# groups by the meaning of expressions instead of their bytes, because two spellings are two groups at the
# broker; a state over several messages (unconfirmed messages, the next turn in a group), because the module
# would become a second broker. ``full`` is an argument instead.

_EVERYTHING = "(everything)"


@dataclass(frozen=True, slots=True)
class Route:
    """One subscription of one consumer.

    Attributes:
        expression: the expression; None matches every message.
        priority: consumer priority; higher priorities are tried first.
        name: name for reports; numbered if empty.
        consumer: the consumer; if empty, the name. Relevant for broadcast, with a copy for each consumer.
        full: whether the consumer is at its limit of unconfirmed messages.

    Raises:
        UsageError: an attribute has another type.
    """

    expression: Expression | None
    priority: int = 0
    name: str = ""
    consumer: str = ""
    full: bool = False

    def __post_init__(self) -> None:
        if self.expression is not None:
            _checks.choice("expression", self.expression, Expression)
        set_value = object.__setattr__
        set_value(self, "priority", _checks.integer("priority", self.priority, -_checks.INT64_MAX))
        set_value(self, "name", _checks.text("name", self.name))
        set_value(self, "consumer", _checks.text("consumer", self.consumer))
        set_value(self, "full", _checks.boolean("full", self.full))


#: A route, or its first fields as a tuple; a plain text is checked as an expression.
RouteInput: TypeAlias = (
    Route | tuple[str | Expression | Filter | None, int] | tuple[str | Expression | Filter | None, int, str]
)


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome for one group of equal expressions.

    Attributes:
        priority: highest priority in the group.
        expression: the group's expression; None matches every message.
        active: the routes with this priority, used in turns.
        dormant: routes with the same expression at lower priorities, without messages.
        evaluation: None if the group was not tried, because an earlier group matched.
        verdict: the outcome in words.
    """

    priority: int
    expression: Expression | None
    active: tuple[Route, ...]
    dormant: tuple[Route, ...]
    evaluation: Evaluation | None = None
    verdict: str = "not evaluated"


@dataclass(frozen=True, slots=True)
class Decision:
    """The destination of a message; as text, a table of all steps.

    Attributes:
        candidates: the possible receivers of the message: a single route in turn, or with broadcast all
            routes. Empty if no route matches or the matching routes are full.
        waits: whether the message waits, because the matching group is full.
        stops: whether the waiting message blocks delivery to the whole application, including routes with
            room.
        spills: routes of lower priority, receiving the next messages of this kind while this message waits.
        also: matching routes with other expressions of the same priority; the broker may choose them instead.
        steps: every group, in the order of evaluation.
        broadcast: whether every consumer receives a copy.
    """

    candidates: tuple[Route, ...]
    waits: bool
    also: tuple[Route, ...]
    steps: tuple[Step, ...]
    broadcast: bool = False
    stops: bool = False
    spills: tuple[Route, ...] = ()

    @property
    def route(self) -> Route | None:
        """The first candidate."""
        return self.candidates[0] if self.candidates else None

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates' names."""
        return tuple(route.name for route in self.candidates)

    def __str__(self) -> str:
        rows = [("priority", "expression", "subscriptions", "verdict")]
        for step in self.steps:
            text = _EVERYTHING if step.expression is None else step.expression.text
            who = ", ".join(route.name + (" (full)" if route.full else "") for route in step.active)
            rows.append((str(step.priority), text, who, step.verdict))
            rows.extend(
                (str(route.priority), text, route.name, f"never: {step.priority} is higher")
                for route in step.dormant
            )
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        rows.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-" * len("verdict")))
        lines = [
            f"{row[0]:>{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}" for row in rows
        ]
        return "\n".join([*lines, "", self._summary()])

    def _summary(self) -> str:
        if self.waits:
            return self._wait()
        if not self.candidates:
            if self.broadcast:
                return "No subscription matches: the message is dropped."
            return (
                "No subscription matches: the message stays in the queue "
                "until a subscription matches or the TTL ends."
            )
        names = ", ".join(self.names)
        if self.broadcast:
            return f"A copy goes to each of: {names}."
        told = f"The message goes to {names}."
        if len(self.candidates) > 1:
            told = f"The message goes to one of {names}, in turn."
        if self.also:
            others = ", ".join(route.name for route in self.also)
            told += f" {others} match at the same priority: the order of their expressions is not specified."
        return told

    def _wait(self) -> str:
        told = "The message waits: the matching consumers are full."
        if self.stops:
            return (
                f"{told} No group tried so far has room, so delivery to this application stops "
                "until a group has room."
            )
        told += " Other groups have room, so delivery continues"
        if not self.spills:
            return f"{told}."
        names = ", ".join(route.name for route in self.spills)
        return f"{told}, and the next messages like this one spill over to {names}."


def _evaluate(group: Step, properties: Mapping[str, PropertyInput] | None) -> Evaluation:
    return Evaluation(True) if group.expression is None else group.expression.evaluate(properties)


def _free(group: Step) -> tuple[Route, ...]:
    return tuple(route for route in group.active if not route.full)


class RoutingTable:
    """The subscriptions of one application (or of a queue without applications).

    Args:
        routes: :class:`Route` objects, or tuples ``(expression, priority, name)``.
        broadcast: whether the queue is in a broadcast domain, where every consumer receives a copy.

    Raises:
        InvalidExpression: a text is not an expression. To see the broker's treatment of an invalid text, pass
            ``Expression(text, strict=False)``.
        UsageError: two routes have the same name.
    """

    def __init__(self, routes: Iterable[RouteInput], *, broadcast: bool = False) -> None:
        self._broadcast = _checks.boolean("broadcast", broadcast)
        given: list[RouteInput] = _checks.items("routes", routes)
        named = tuple(_route(i, entry) for i, entry in enumerate(given, 1))
        names = [route.name for route in named]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two routes have the name {name!r}: names must be unique")
        self._groups = _grouped(named)

    def route(self, properties: Mapping[str, PropertyInput] | None) -> Decision:
        """Return the decision for a message with these properties.

        Args:
            properties: as for ``post``; None for a message without properties.
        """
        return self._to_all(properties) if self._broadcast else self._to_one(properties)

    def explain(self, properties: Mapping[str, PropertyInput] | None) -> str:
        """Return the decision as a table: every expression in the order of evaluation, with the verdict."""
        return str(self.route(properties))

    def _to_one(self, properties: Mapping[str, PropertyInput] | None) -> Decision:
        steps: list[Step] = []
        candidates: tuple[Route, ...] = ()
        also: list[Route] = []
        matched: int | None = None
        others_have_room = False
        for group in self._groups:
            if matched is not None and group.priority < matched:
                steps.append(group)
                continue
            evaluation, free = _evaluate(group, properties), _free(group)
            verdict = _verdict(evaluation)
            if not evaluation:
                others_have_room = others_have_room or bool(free)
            else:
                matched = group.priority
                if not free:
                    verdict = "matches, but is full"
                elif candidates:
                    also.extend(free)
                    verdict = "matches too"
                else:
                    candidates = free
            steps.append(replace(group, evaluation=evaluation, verdict=verdict))
        waits = matched is not None and not candidates
        spills: tuple[Route, ...] = ()
        if waits and others_have_room:
            # Every full group is marked now, and skipped.
            takers = (_free(group) for group in self._groups if _evaluate(group, properties))
            spills = next(filter(None, takers), ())
        return Decision(
            candidates,
            waits,
            tuple(also),
            tuple(steps),
            stops=waits and not others_have_room,
            spills=spills,
        )

    def _to_all(self, properties: Mapping[str, PropertyInput] | None) -> Decision:
        steps: list[Step] = []
        served: dict[str, Route] = {}
        for group in self._groups:
            evaluation = _evaluate(group, properties)
            verdict = _verdict(evaluation)
            if evaluation:
                # Broadcast deliveries are not tracked: no consumer is ever full, and each consumer receives
                # one copy.
                fresh = [route for route in group.active if route.consumer not in served]
                served.update((route.consumer, route) for route in fresh)
                verdict = verdict if fresh else "matches, served already"
            steps.append(replace(group, evaluation=evaluation, verdict=verdict))
        return Decision(tuple(served.values()), False, (), tuple(steps), broadcast=True)


def _route(number: int, entry: RouteInput) -> Route:
    if not isinstance(entry, Route):
        given: Any = entry
        if not isinstance(given, tuple) or len(entry) not in (2, 3):
            raise UsageError(
                "a route must be a bmq.subscriptions.Route, or a tuple of expression, priority and "
                f"optionally name, not {_checks.shown(entry)}"
            )
        name = entry[2] if len(entry) == 3 else ""
        entry = Route(_expression(entry[0]), entry[1], name)
    name = entry.name or f"#{number}"
    return replace(entry, name=name, consumer=entry.consumer or name)


def _expression(value: str | Expression | Filter | Operand | None) -> Expression | None:
    if value is None or isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Expression(value)
    if not isinstance(value, Filter | Operand):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the expression of a route must be text or a filter, not {_checks.shown(value)}")
    return value.expression()


def _grouped(routes: tuple[Route, ...]) -> list[Step]:
    by_expression: dict[Expression | None, list[Route]] = {}
    for route in routes:
        by_expression.setdefault(route.expression, []).append(route)
    groups: list[Step] = []
    for expression, members in by_expression.items():
        top = max(route.priority for route in members)
        active = tuple(route for route in members if route.priority == top)
        dormant = tuple(route for route in members if route.priority < top)
        groups.append(Step(top, expression, active, dormant))
    return sorted(groups, key=lambda group: -group.priority)


def _verdict(evaluation: Evaluation) -> str:
    if evaluation:
        return f"matches: {evaluation.reason}" if evaluation.reason else "matches"
    if evaluation.error is None:
        return "no match"
    return f"no match: {evaluation.error.name} error, {evaluation.reason}"
