"""Tag filters as objects, and the discard side of any filter.

:class:`TagFilter` has the meaning of Pulsar's ``anytag`` and ``alltag``, :class:`CmqTags` that of CMQ's tag
matching. Both turn into subscriptions. What Pulsar and CMQ drop for a subscriber stays in a BlazingMQ queue
until somebody confirms it, which is what :func:`complement` is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from bmq.errors import InvalidArgument, InvalidExpression
from bmq.subscriptions._builder import Filter, Operand
from bmq.subscriptions._expression import Expression
from bmq.subscriptions._planner import plan_text, plan_tree
from bmq.subscriptions._rewrite import is_total
from bmq.subscriptions._syntax import Exists, Node, Not, join
from bmq.subscriptions._tags import distinct, tag_name, tags_of
from bmq.wire.properties import PropertyInput

__all__ = ["CmqTags", "Complement", "Selector", "TagFilter", "complement", "plan", "subscriptions_for", "tag"]


_ALL_OF_ADVICE: Final = (
    "A message needs all of {count} tags, and that has to fit one expression: five tags if they are short, "
    "for there is no *and* between subscriptions. Instead, either (1) let an application subscription in the "
    "domain's configuration ask for half of them (the broker applies both), (2) let producers set one tag "
    "for the combination, (3) with a closed list of up to 15 tags, let producers set the product of a prime "
    "a tag, and subscribe to `tp % K == 0`, or (4) subscribe to five and check the others with matches() in "
    "the application."
)


@dataclass(frozen=True, slots=True)
class Complement:
    """How to receive exactly what a filter does not want, in order to confirm it unseen.

    Whoever drains has to ask :meth:`may_discard` for every message before confirming it, exact or not: a
    message may have been routed by an earlier configuration of the stream.

    It takes *all* that this filter does not want, what other consumers of the same appId want included. It is
    for an appId whose consumers all have this one filter.

    Attributes:
        expressions: subscriptions that are disjoint from the filter and together match everything else; empty
            when there is nothing to discard, or when ``catch_all``.
        catch_all: no expressions can say it. Subscribe without expression at a *lower priority* than the
            filter instead; wanted messages can then arrive there too, and belong to the application.
        reason: why it is a catch-all; empty otherwise.
        wanted: the filter itself, as subscriptions.
    """

    expressions: tuple[Expression, ...]
    catch_all: bool
    reason: str
    wanted: tuple[Expression | None, ...]

    def subscriptions(self) -> list[Expression | None]:
        """What to subscribe to: expressions, or None for everything; empty when nothing is discarded."""
        return [None] if self.catch_all else list(self.expressions)

    def may_discard(self, properties: Mapping[str, PropertyInput] | None) -> bool:
        """Whether the filter really does not want a message; only then may it be confirmed unseen."""
        return not any(each is None or each.matches(properties) for each in self.wanted)


def tag(text: str) -> Filter:
    """The message has this tag: a condition to combine, as in ``tag("urgent") & (P.price > 3)``."""
    return Filter(Exists(tag_name(text)))


class TagFilter:
    """Messages by their tags: at least one of ``any_of`` (if there are any) and every one of ``all_of``.

    Without tags it takes every message. Immutable; equal when it has the same tags. Tags are case-sensitive.

    Args:
        any_of: a message needs one of these. Any number; many become several subscriptions.
        all_of: a message needs all of these. At most five fit an expression.

    Raises:
        InvalidProperty: a tag is too long for any expression to name.
    """

    __slots__ = ("_all_of", "_any_of")

    def __init__(self, *, any_of: Iterable[str] = (), all_of: Iterable[str] = ()) -> None:
        self._any_of = distinct(any_of)
        self._all_of = distinct(all_of)

    @classmethod
    def from_pulsar(cls, metadata: Mapping[str, str]) -> TagFilter:
        """The filter of a Pulsar consumer's properties: the values under ``anytag...`` and ``alltag...``."""
        return TagFilter(
            any_of=[value for key, value in metadata.items() if key.startswith("anytag")],
            all_of=[value for key, value in metadata.items() if key.startswith("alltag")],
        )

    @property
    def any_of(self) -> frozenset[str]:
        """A message needs one of these, unless there are none."""
        return frozenset(self._any_of)

    @property
    def all_of(self) -> frozenset[str]:
        """A message needs all of these."""
        return frozenset(self._all_of)

    @property
    def ast(self) -> Node | None:
        """The filter as a syntax tree, however big; None when it takes everything."""
        terms: list[Node] = [Exists(tag_name(each)) for each in self._all_of]
        # A tag in both sets makes any_of true wherever all_of is.
        if self._any_of and not self.any_of & self.all_of:
            terms.insert(0, join("||", [Exists(tag_name(each)) for each in self._any_of]))
        return join("&&", terms) if terms else None

    def matches_tags(self, tags: Iterable[str]) -> bool:
        """Whether a message with these tags matches."""
        has = frozenset(distinct(tags))
        return (not self._any_of or not has.isdisjoint(self._any_of)) and has.issuperset(self._all_of)

    def matches(self, properties: Mapping[str, PropertyInput] | None) -> bool:
        """Whether a message with these properties matches.

        Args:
            properties: as for ``post``; None for a message without any.
        """
        return self.matches_tags(tags_of(properties))

    def subscriptions(self) -> list[Expression | None]:
        """The subscriptions that together are this filter; ``[None]``, without expression, for everything.

        A message that matches several of them is delivered once. Each has its own limits of unconfirmed
        messages: divide the consumer's among them.

        Raises:
            InvalidExpression: ``all_of`` has more tags than one expression can hold.
        """
        tree = self.ast
        if tree is None:
            return [None]
        try:
            return [Expression(text) for text in plan_tree(tree)]
        except InvalidExpression as error:
            limit = str(error).partition("\n")[0]
            raise InvalidExpression(
                f"{limit}\n{_ALL_OF_ADVICE.format(count=len(self._all_of))}",
                expression=error.expression,
                offset=0,
                code=error.code,
            ) from None

    def complement(self) -> Complement:
        """How to receive what this filter drops, to confirm it unseen.

        Raises:
            InvalidExpression: ``all_of`` has more tags than one expression can hold.
        """
        return _complement(self.ast, self.subscriptions())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TagFilter):
            return NotImplemented
        return (self._any_of, self._all_of) == (other._any_of, other._all_of)

    def __hash__(self) -> int:
        return hash((self._any_of, self._all_of))

    def __repr__(self) -> str:
        return f"TagFilter(any_of={list(self._any_of)}, all_of={list(self._all_of)})"

    def __getstate__(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._any_of, self._all_of

    def __setstate__(self, state: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        self._any_of, self._all_of = state


class CmqTags(TagFilter):
    """CMQ's tag matching: messages that share a tag with the subscriber; without tags every message.

    Args:
        tags: one by one, or in collections.

    Raises:
        InvalidProperty: a tag is too long for any expression to name.

    >>> CmqTags("imac", "xiaomi").matches_tags({"apple", "imac"})
    True
    """

    __slots__ = ()

    def __init__(self, *tags: str | Iterable[str]) -> None:
        super().__init__(any_of=[tag for each in tags for tag in ([each] if isinstance(each, str) else each)])

    @property
    def tags(self) -> frozenset[str]:
        """The subscriber's tags."""
        return self.any_of

    def __repr__(self) -> str:
        return f"CmqTags({', '.join(map(repr, self._any_of))})"


#: Whatever says which messages a consumer wants; None is every message.
Selector: TypeAlias = str | Expression | Filter | Operand | TagFilter | None


def plan(filter: str | Expression | Filter | Operand) -> list[Expression]:
    """Fit a filter into the broker's limits: one expression, or several that are joined by *or*.

    Of a filter that exceeds a limit, every ``||`` at the top (or that can be brought there) is a place to
    split. Subscriptions are judged one by one: where evaluating one part on a message ends in an error (a
    property is missing), the message can still match another part.

    Raises:
        InvalidExpression: a syntax error, or a part that cannot be split exceeds a limit; the message says
            which and what to do.
    """
    if isinstance(filter, Filter):
        return filter.plan()
    if isinstance(filter, Operand):
        return [filter.expression()]
    if isinstance(filter, Expression):
        return [filter]
    return [Expression(text) for text in plan_text(filter)]


def subscriptions_for(selector: Selector) -> list[Expression | None]:
    """The subscriptions that mean a selector, whatever its kind; None stands for no expression.

    Raises:
        InvalidExpression: as :func:`plan`.
        InvalidArgument: it is nothing that selects messages.
    """
    if selector is None:
        return [None]
    if isinstance(selector, TagFilter):
        return selector.subscriptions()
    if not isinstance(selector, str | Expression | Filter | Operand):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(
            "messages are selected by an expression as text, a bmq.Expression, a filter made with bmq.P, a "
            f"bmq.TagFilter or a bmq.CmqTags, not by {type(selector).__name__} {selector!r}"
        )
    return list(plan(selector))


def complement(selector: Selector) -> Complement:
    """How to receive exactly what a selector does not want.

    Only a condition of nothing but ``exists`` has an expression that is its opposite: any other ends in an
    error on some messages, and then neither it nor its negation matches. The answer then is a catch-all.

    Raises:
        InvalidExpression: as :func:`plan`.
    """
    wanted = subscriptions_for(selector)
    if isinstance(selector, TagFilter):
        return _complement(selector.ast, wanted)
    trees = [each.ast for each in wanted if each is not None]
    known = [tree for tree in trees if tree is not None]
    # Without expression, or with one the broker cannot compile, everything is wanted.
    everything = len(known) < len(wanted)
    return _complement(None if everything else join("||", known), wanted)


def _complement(tree: Node | None, wanted: list[Expression | None]) -> Complement:
    if tree is None:
        return Complement((), False, "", tuple(wanted))
    if not is_total(tree):
        reason = (
            "on messages where evaluating ends in an error (a property is missing, or of another type) "
            "neither the filter nor its negation matches, so no expression takes the rest"
        )
        return Complement((), True, reason, tuple(wanted))
    try:
        texts = plan_tree(Not(tree))
    except InvalidExpression as error:
        reason = str(error).partition("\n")[0]
        return Complement((), True, f"the opposite does not fit an expression: {reason}", tuple(wanted))
    return Complement(tuple(Expression(text) for text in texts), False, "", tuple(wanted))
