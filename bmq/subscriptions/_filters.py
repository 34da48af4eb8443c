# SPDX-License-Identifier: Apache-2.0
"""Tags on messages, tag filters, and the subscriptions for a filter of any kind."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import perm
from typing import Any, Final, TypeAlias

from bmq import _checks
from bmq.conventions import PREFIX
from bmq.errors import InvalidExpression, InvalidProperty, ProtocolError, UsageError
from bmq.subscriptions._builder import Filter, Operand, P
from bmq.subscriptions._diagnostics import ErrorKind, invalid
from bmq.subscriptions._evaluator import lowered
from bmq.subscriptions._expression import Expression, made, planned
from bmq.subscriptions._lint import WORDS, Types
from bmq.subscriptions._parser import check_sendable
from bmq.subscriptions._planner import MAX_SUBSCRIPTIONS, is_total, plan_text, plan_tree
from bmq.subscriptions._syntax import Exists, Node, Not, join
from bmq.wire.constants import PropertyType
from bmq.wire.properties import Properties, PropertyInput, PropertyValue

# ---- Tags on messages, as properties for subscriptions to test
#
# The expression language has no sets, so each tag becomes a property: a message tagged ``urgent`` has
# ``t.urgent`` = true, and ``exists(t.urgent)`` tests the tag. ``exists`` never ends in an error, regardless
# of a message's properties. A tag filter is therefore the only kind of filter with an exact opposite.
#
# A tag can be any string. In the name of the property, ASCII letters, digits, ``.`` and ``_`` are unchanged.
# Any other byte of the UTF-8 form becomes ``__`` and two lower-case hexadecimal digits, and so does an
# underscore directly before another underscore or before an encoded byte. If shorter, as for non-Latin text,
# the name is ``__.`` and the UTF-8 form in base 64, with ``_`` and ``.`` for the 62nd and 63rd digits and
# without padding.

TAG_PREFIX: Final = "t."
#: Maximum length of an encoded tag: beyond this length, not even ``!exists(t.<tag>)`` is a legal expression.
MAX_TAG_LENGTH: Final = 117

_PULSAR_PREFIX: Final = "tag"
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9._]|_(?=[^A-Za-z0-9.])")
_ESCAPE: Final = re.compile(rb"__([0-9a-f]{2})")
# Plain names never have a dot after two underscores.
_DENSE: Final = b"__."
_DIGITS: Final = (b"+/", b"_.")


def tag_name(tag: str) -> str:
    """Return the name of the property for a tag.

    Different tags have different names, and :func:`tags_of` returns the tags again.

    Raises:
        InvalidProperty: the tag is too long for an expression, or cannot be encoded as UTF-8.
    """
    if not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a tag must be a str, not {_checks.shown(tag)}")
    try:
        raw = str.encode(tag, "utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidProperty(
            f"tag {tag[:40]!r} has half of a surrogate pair, which UTF-8 cannot encode"
        ) from None
    plain = _ESCAPED.sub(lambda found: b"__%02x" % found.group()[0], raw)
    dense = _DENSE + b2a_base64(raw, newline=False).rstrip(b"=").translate(bytes.maketrans(*_DIGITS))
    name = min(plain, dense, key=len).decode("ascii")
    if len(name) > MAX_TAG_LENGTH:
        raise InvalidProperty(
            f"tag {tag[:40]!r}… needs a property name of {len(name)} characters; subscriptions can select "
            f"up to {MAX_TAG_LENGTH}"
        )
    return TAG_PREFIX + name


def tag_properties(tags: Iterable[str]) -> dict[str, bool]:
    """Return the properties of a message with the given tags, as added by ``post`` for ``tags=``.

    >>> tag_properties(["urgent", "high-priority"])
    {'t.high__2dpriority': True, 't.urgent': True}

    Raises:
        InvalidProperty: a tag is too long for an expression, or cannot be encoded as UTF-8.
        UsageError: ``tags`` is a single string.
    """
    return dict.fromkeys(map(tag_name, distinct(tags)), True)


def distinct(tags: Iterable[str]) -> tuple[str, ...]:
    """Return each tag once, sorted: equal filters have equal texts, to be merged by the broker."""
    if isinstance(tags, str):
        raise UsageError(f"tags is a collection of strings, not one string: write {{{tags!r}}}")
    given: list[str] = _checks.items("tags", tags, "strings")
    for tag in given:
        tag_name(tag)
    return tuple(sorted(set(given)))


def tags_of(properties: Mapping[str, PropertyInput] | None) -> frozenset[str]:
    """Return the tags of a message, from the properties."""
    tags: set[str] = set()
    for name, value in _typed(properties).items():
        if isinstance(name, str) and name.startswith(TAG_PREFIX) and not _is_binary(value):
            # A name unlike any tag's (for example ``t.a__``) comes from elsewhere, and is never tested by a
            # filter.
            try:
                text = _decoded(name)
                if tag_name(text) == name:
                    tags.add(text)
            except (Error, InvalidProperty):
                continue
    return frozenset(tags)


def tag_names(properties: Properties) -> Set[str]:
    """Return the names of a message's properties: of tags, and of all further properties."""
    if properties.plain is not None:
        return properties.plain.keys()
    try:
        types = properties.types
    except ProtocolError:  # undecodable for the broker, too, and treated as absent
        return frozenset()
    return {name for name, kind in types.items() if kind is not PropertyType.BINARY}


def _decoded(name: str) -> str:
    raw = name.removeprefix(TAG_PREFIX).encode("utf-8", "surrogateescape")
    if raw.startswith(_DENSE):
        digits = raw.removeprefix(_DENSE).translate(bytes.maketrans(*reversed(_DIGITS)))
        return a2b_base64(digits + b"=" * (-len(digits) % 4)).decode("utf-8", "surrogateescape")
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), raw).decode("utf-8", "surrogateescape")


def _typed(properties: Mapping[str, PropertyInput] | None) -> Mapping[Any, PropertyInput]:
    if not isinstance(properties, Properties):
        return {} if properties is None else _checks.mapping("properties", properties)
    try:
        return properties.typed()
    except ProtocolError:  # undecodable for the broker, too, and treated as absent
        return {}


def _is_binary(value: PropertyInput) -> bool:
    if isinstance(value, PropertyValue):
        return value.type is PropertyType.BINARY
    return isinstance(value, bytes | bytearray | memoryview)


# ---- Pulsar's convention: the values of string properties with names starting with "tag"


def pulsar_properties(tags: Iterable[str]) -> dict[str, str]:
    """Return tags in Pulsar's form: ``tag0``, ``tag1``, ... with the tags as values."""
    return {f"{_PULSAR_PREFIX}{i}": tag for i, tag in enumerate(distinct(tags))}


def pulsar_tags(properties: Mapping[str, PropertyInput] | None) -> frozenset[str]:
    """Return the tags of a message in Pulsar's form: the values of STRING properties called ``tag...``."""
    values: set[str] = set()
    for name, value in _typed(properties).items():
        text = (
            value.value if isinstance(value, PropertyValue) and value.type is PropertyType.STRING else value
        )
        if isinstance(name, str) and name.startswith(_PULSAR_PREFIX) and isinstance(text, str):
            values.add(text)
    return frozenset(values)


def with_pulsar_tags(properties: Mapping[str, PropertyInput]) -> dict[str, PropertyInput]:
    """Return a copy of properties, with tags in Pulsar's form added in the form of :func:`tag_properties`.

    For producers written for Pulsar: ``{"tag0": "urgent"}`` becomes ``{"tag0": "urgent", "t.urgent": True}``,
    for subscriptions to test.

    Raises:
        InvalidProperty: a tag is too long for an expression.
    """
    return {**_typed(properties), **tag_properties(pulsar_tags(properties))}


# ---- Tag filters as objects, and ways to receive the messages left out by a filter
#
# :class:`TagFilter` has the meaning of Pulsar's ``anytag`` and ``alltag``, :class:`CmqTags` the meaning of
# CMQ's tag matching. Both become subscriptions. Pulsar and CMQ drop unwanted messages of a subscriber. A
# BlazingMQ queue keeps unwanted messages until a consumer confirms them: :func:`complement` returns the
# subscriptions for this purpose.

#: An expression that never matches.
_NEVER: Final = "exists(tag)&&!exists(tag)"
_ALL_OF_ADVICE: Final = (
    "A message must have all of {count} tags, and one expression must test all of them, because "
    "subscriptions cannot be joined by *and*. One expression has room for five short tags. Instead, "
    "either (1) let an application subscription in the domain's configuration test half of the tags (the "
    "broker applies both), (2) let producers set one tag for the combination, (3) with a closed list of "
    "up to 15 tags, assign a prime to each tag, let producers set the product as `tp`, and subscribe to "
    "`tp % K == 0`, or (4) subscribe to five tags and check the others with matches() in the application."
)


@dataclass(frozen=True, slots=True)
class Complement:
    """Subscriptions for exactly the messages left out by a filter, to be confirmed unprocessed.

    Call :meth:`may_discard` for every message before confirming, even if ``expressions`` are exact: the
    broker may have routed a message by an earlier configuration of the stream.

    A complement receives *all* messages left out by this filter, including messages wanted by other consumers
    of the application. Use a complement only if all consumers of the application have this filter.

    Attributes:
        expressions: subscriptions disjoint from the filter, which together match all remaining messages;
            empty if no message is left out, or if ``catch_all``.
        catch_all: True if no expressions can describe the messages. Subscribe without an expression at a
            *lower priority* than the filter instead. Wanted messages may arrive through this subscription,
            too, and must be processed.
        reason: the reason for a catch-all; otherwise empty.
        wanted: the filter, as subscriptions.
    """

    expressions: tuple[Expression, ...]
    catch_all: bool
    reason: str
    wanted: tuple[Expression | None, ...]

    def subscriptions(self) -> list[Expression | None]:
        """The expressions to subscribe to, or None for every message; empty if no message is discarded."""
        return [None] if self.catch_all else list(self.expressions)

    def may_discard(self, properties: Mapping[str, PropertyInput] | None) -> bool:
        """Whether the filter leaves out a message; only then may the message be confirmed unprocessed."""
        return not any(each is None or each.matches(properties) for each in self.wanted)


def tag(text: str) -> Filter:
    """Return a condition for messages with this tag, to combine as in ``tag("urgent") & (P.price > 3)``."""
    return Filter(Exists(tag_name(text)))


class TagFilter:
    """Messages by tags: at least one of ``any_of`` (if not empty) and all of ``all_of``.

    Without tags the filter matches every message. Immutable; filters with the same tags are equal. Tags are
    case-sensitive.

    ::

        wanted = bmq.TagFilter(any_of={"urgent", "late"}, all_of={"eu"})
        consumer = queue.subscribe(wanted)

    Args:
        any_of: alternative tags: a message needs at least one. Any number; many tags become several
            subscriptions.
        all_of: tags required together. At most five fit an expression.

    Raises:
        InvalidProperty: a tag is too long for an expression.
    """

    __slots__ = ("_all_of", "_any_of", "_names")

    def __init__(self, *, any_of: Iterable[str] = (), all_of: Iterable[str] = ()) -> None:
        self.__setstate__((distinct(any_of), distinct(all_of)))

    @classmethod
    def from_pulsar(cls, metadata: Mapping[str, str]) -> TagFilter:
        """Return the filter of a Pulsar consumer's properties ``anytag...`` and ``alltag...``."""
        items = _checks.mapping("metadata", metadata).items()
        return TagFilter(
            any_of=[value for key, value in items if isinstance(key, str) and key.startswith("anytag")],
            all_of=[value for key, value in items if isinstance(key, str) and key.startswith("alltag")],
        )

    @property
    def any_of(self) -> frozenset[str]:
        """Alternative tags: a message needs at least one; empty for no condition."""
        return frozenset(self._any_of)

    @property
    def all_of(self) -> frozenset[str]:
        """Tags required together."""
        return frozenset(self._all_of)

    @property
    def ast(self) -> Node | None:
        """The filter as a syntax tree of any size; None if the filter matches every message."""
        terms: list[Node] = [Exists(tag_name(each)) for each in self._all_of]
        # If a tag is in both sets, any_of is true whenever all_of is.
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
            properties: as for ``post``; None for a message without properties.
        """
        if type(properties) is not Properties:
            return self.matches_tags(tags_of(properties))
        # Each tag has exactly one name: the tags of a received message need not be decoded.
        any_of, all_of = self._names
        names = tag_names(properties)
        return (not any_of or not any_of.isdisjoint(names)) and all_of <= names

    def subscriptions(self) -> list[Expression | None]:
        """Return the subscriptions of this filter; ``[None]`` (without an expression) for all messages.

        A message matching several subscriptions is delivered once. Each subscription has its own limits of
        unconfirmed messages: divide the consumer's limits among the subscriptions.

        Raises:
            InvalidExpression: ``all_of`` has more tags than one expression can hold.
        """
        tree = self.ast
        if tree is None:
            return [None]
        try:
            return [*made(plan_tree(tree))]
        except InvalidExpression as error:
            raise self._refusal(error, _ALL_OF_ADVICE) from None

    def _refusal(self, error: InvalidExpression, advice: str) -> InvalidExpression:
        limit = str(error).partition("\n")[0]
        told = f"{limit}\n{advice.format(count=len(self._all_of))}"
        return InvalidExpression(told, expression=error.expression, offset=0, code=error.code)

    def complement(self) -> Complement:
        """Return the complement: the subscriptions for messages left out by this filter.

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
        self._names = frozenset(map(tag_name, self._any_of)), frozenset(map(tag_name, self._all_of))


class CmqTags(TagFilter):
    """CMQ's tag matching: messages that share a tag with the subscriber; without tags every message.

    Args:
        tags: tags, or collections of tags.

    Raises:
        InvalidProperty: a tag is too long for an expression.

    >>> CmqTags("imac", "xiaomi").matches_tags({"apple", "imac"})
    True
    """

    __slots__ = ()

    def __init__(self, *tags: str | Iterable[str]) -> None:
        given = [[each] if isinstance(each, str) else _checks.items("tags", each, "strings") for each in tags]
        super().__init__(any_of=[tag for some in given for tag in some])

    def __repr__(self) -> str:
        return f"CmqTags({', '.join(map(repr, self._any_of))})"


_PULSAR_ADVICE: Final = (
    "A message must have all of {count} values, in properties of different names, and one expression has "
    "room for three short values. Let producers also set tags (with_pulsar_tags), of which five fit, or "
    "subscribe to three values and check the others with matches()."
)


class PulsarTags(TagFilter):
    """Pulsar's ``anytag`` and ``alltag`` for messages in Pulsar's own form: ``tag0`` = "urgent".

    Use this filter for producers that cannot be changed; otherwise ``with_pulsar_tags`` and a
    :class:`TagFilter` cost less. Pulsar looks at every property with a name beginning with "tag". An
    expression has to name each property, so this filter takes the producers' names as ``keys`` and ignores
    all further names. Each assignment of values to names needs a subscription: two values of ``all_of`` under
    four names need twelve subscriptions, three values need 24.

    Args:
        any_of: alternative values: a message needs at least one, in any of the properties.
        all_of: values required together. At most three fit an expression.
        keys: names of the properties, each beginning with "tag".

    Raises:
        UsageError: no names are given, or a name does not begin with "tag".
        InvalidExpression: an expression cannot hold a name or a value.
    """

    __slots__ = ("_keys",)

    def __init__(
        self, *, any_of: Iterable[str] = (), all_of: Iterable[str] = (), keys: Iterable[str]
    ) -> None:
        super().__init__(any_of=any_of, all_of=all_of)
        if isinstance(keys, str):
            raise UsageError(f"keys is a collection of names, not one name: write [{keys!r}]")
        self._keys = tuple(sorted(set(_checks.texts("keys", keys))))
        wrong = [key for key in self._keys if not key.startswith("tag")]
        if wrong or not self._keys:
            raise UsageError(f"the names of Pulsar's tags begin with 'tag': {wrong or 'no name was given'}")
        for value in (*self._any_of, *self._all_of):
            for key in self._keys:
                _ = P(key) == value

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the properties read by the filter."""
        return self._keys

    @property
    def ast(self) -> Node | None:
        """None: no single expression can be this filter, because a missing property ends the evaluation."""
        return None

    def matches(self, properties: Mapping[str, PropertyInput] | None) -> bool:
        """Whether a message with these properties matches, in Pulsar's form under the filter's names.

        Args:
            properties: as for ``post``; None for a message without properties.
        """
        given: Mapping[str, PropertyInput] = (
            {} if properties is None else _checks.mapping("properties", properties)
        )
        mine = {name: given[name] for name in self._keys if name in given}
        return self.matches_tags(pulsar_tags(mine))

    def subscriptions(self) -> list[Expression | None]:
        """Return the subscriptions of this filter; ``[None]`` (without an expression) for all messages.

        Raises:
            InvalidExpression: ``all_of`` has more values than one expression can hold, or the filter needs
                too many subscriptions.
        """
        if not self._any_of and not self._all_of:
            return [None]
        ways = perm(len(self._keys), len(self._all_of))
        if ways > MAX_SUBSCRIPTIONS:
            raise invalid(
                f"{len(self._all_of)} values can be distributed among {len(self._keys)} names in {ways} "
                f"ways, each of which needs a subscription; the maximum is {MAX_SUBSCRIPTIONS}. Give fewer "
                "names, or let producers also set tags (with_pulsar_tags)",
                kind=ErrorKind.TOO_COMPLEX,
            )
        any_of = () if self.any_of & self.all_of else self._any_of
        texts: dict[str, None] = {}
        try:
            for chosen in permutations(self._keys, len(self._all_of)):
                terms = [P(key) == value for key, value in zip(chosen, self._all_of, strict=True)]
                # A property has one value: a property with a value of all_of cannot have a value of any_of.
                for key in [key for key in self._keys if key not in chosen] if any_of else [""]:
                    wanted = [P(key).one_of(*any_of), *terms] if key else terms
                    texts.update(dict.fromkeys(plan_tree(join("&&", [each.ast for each in wanted]))))
        except InvalidExpression as error:
            raise self._refusal(error, _PULSAR_ADVICE) from None
        # With fewer names than values no message can match.
        return [*made(texts or [_NEVER])]

    def complement(self) -> Complement:
        """Return the complement: a catch-all, because a missing property ends the evaluation.

        Raises:
            InvalidExpression: as :meth:`subscriptions`.
        """
        wanted = self.subscriptions()
        if wanted == [None]:
            return Complement((), False, "", (None,))
        reason = "on messages without one of the names, neither the filter nor its negation matches"
        return Complement((), True, reason, tuple(wanted))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PulsarTags):
            return False
        return super().__eq__(other) is True and self._keys == other._keys

    def __hash__(self) -> int:
        return hash((self._any_of, self._all_of, self._keys))

    def __repr__(self) -> str:
        return f"PulsarTags(any_of={[*self._any_of]}, all_of={[*self._all_of]}, keys={[*self._keys]})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(PulsarTags, any_of=self._any_of, all_of=self._all_of, keys=self._keys), ()


#: Selects the messages of a consumer; None selects every message.
ExpressionInput: TypeAlias = str | Expression | Filter | Operand | TagFilter | None


def plan(filter: str | Expression | Filter | Operand) -> list[Expression]:
    """Fit a filter into the broker's limits: one expression, or several joined by *or*.

    A filter beyond a limit is split at an ``||`` at the top, or movable to the top. Subscriptions are
    evaluated separately: if the evaluation of one part ends in an error (a property is missing), the message
    can still match another part.

    Raises:
        InvalidExpression: a syntax error, or a part that cannot be split exceeds a limit; the message names
            the limit and the remedy.
    """
    _checks.instance("filter", filter, (str, Expression, Filter, Operand), "an expression or a bmq.P filter")
    if isinstance(filter, Filter):
        return filter.plan()
    if isinstance(filter, Operand):
        return [filter.expression()]
    if isinstance(filter, Expression):
        return [filter]
    return planned(plan_text(str.__str__(filter)))


def subscriptions_for(expression: ExpressionInput) -> list[Expression | None]:
    """Return the subscriptions for an expression of any type; None means no expression.

    Raises:
        InvalidExpression: as :func:`plan`; or a text has a NUL or a lone surrogate, checked or not.
        UsageError: the expression has another type.
    """
    check_expression_type(expression)
    if expression is None:
        return [None]
    if isinstance(expression, TagFilter):
        return expression.subscriptions()
    planned_parts = plan(expression)
    for part in planned_parts:
        check_sendable(part.text)
    return list(planned_parts)


def check_expression_type(expression: object) -> None:
    """Check whether a value is an expression or None.

    Raises:
        UsageError: the value has another type.
    """
    if expression is not None and not isinstance(expression, str | Expression | Filter | Operand | TagFilter):
        raise UsageError(
            "messages must be selected by an expression as text, a bmq.Expression, a filter made with "
            f"bmq.P, a bmq.TagFilter or a bmq.subscriptions.CmqTags, not by {_checks.shown(expression)}"
        )


def complement(expression: ExpressionInput) -> Complement:
    """Return the complement of an expression: the subscriptions for messages left out by the expression.

    Only a condition made of ``exists`` has an opposite. Any other condition ends in an error on some
    messages, and these match neither the condition nor its negation. The complement of an ordinary condition
    is a catch-all.

    Raises:
        InvalidExpression: as :func:`plan`.
    """
    wanted = subscriptions_for(expression)
    if isinstance(expression, TagFilter):
        return expression.complement()
    trees = [each.ast for each in wanted if each is not None]
    known = [tree for tree in trees if tree is not None]
    # Without an expression, or with an invalid expression, every message is wanted.
    everything = len(known) < len(wanted)
    return _complement(None if everything else join("||", known), wanted)


def _complement(tree: Node | None, wanted: list[Expression | None]) -> Complement:
    if tree is None:
        return Complement((), False, "", tuple(wanted))
    if not is_total(tree):
        reason = (
            "on messages where evaluating ends in an error (a property is missing, or of another type) "
            "neither the filter nor its negation matches, so no expression selects the remaining messages"
        )
        return Complement((), True, reason, tuple(wanted))
    try:
        texts = plan_tree(Not(tree))
    except InvalidExpression as error:
        reason = str(error).partition("\n")[0]
        return Complement((), True, f"the opposite does not fit into an expression: {reason}", tuple(wanted))
    return Complement(tuple(made(texts)), False, "", tuple(wanted))


# ---- A filter against the names and types of the known properties

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
        if not isinstance(kind, type) or kind not in WORDS:
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
            types = Types(kinds, _OTHERS + others, of)
            types.require(bool, lowered(each.ast), "the whole expression", {})
            for doubt in types.doubts:
                raise invalid(doubt.message, each.text, doubt.offset, ErrorKind.TYPE)
