# SPDX-License-Identifier: Apache-2.0
"""Who gets a message: one application's subscriptions, by priority and expression.

Subscriptions with byte-equal expressions form a group; only those of the highest priority in it take part.
Priorities are tried from high to low. The first group that matches and has room takes the message, its
members in round robin. A group that matches and has no room is marked as full; other groups of its priority
may still take the message, lower priorities may not. If none takes it:

* if a group that was looked at has room and only did not match, the message is put aside and delivery goes
  on. From the next message on groups marked as full are skipped: what they match may go to lower priorities;
* if none of them has room, the application stops until one has, even if lower priorities have room.

This is what a real broker was measured to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bmq.broker._storage import MessageRecord, property_values
from bmq.subscriptions import Equalities, Evaluator, Expression, compile_chain
from bmq.wire.control.messages import (
    INVALID_CONSUMER_PRIORITY,
    ConsumerInfo,
    ExpressionVersion,
    Subscription,
)
from bmq.wire.options import encode_sub_queue_ids

if TYPE_CHECKING:
    from bmq.broker._handle import SubStream

__all__ = [
    "NOBODY",
    "UNMATCHED",
    "Blocked",
    "CompiledSubscription",
    "Group",
    "Routing",
    "Subscriber",
    "compile_expression",
    "compile_subscriptions",
]

#: Delivery resumes when what is unconfirmed has fallen to this part of the maximum.
_LOW_WATERMARK = 0.8

Blocked = tuple["Group", ...]
#: A message waits until any of these groups has room. Empty: no present group matches it.
UNMATCHED: Final[Blocked] = ()


_compiled: dict[str, Evaluator] = {}
_COMPILED_KEPT = 4096
# What finds the first of several expressions that matches. So many are compiled together at most: that takes
# time whenever a consumer changes, and there may be many.
_chains: dict[tuple[str, ...], Callable[[Mapping[str, Any]], int]] = {}
_CHAINS_KEPT = 64
_CHAIN = 32


def compile_expression(version: int, text: str) -> Evaluator | None:
    """Return what evaluates an expression, or None when it matches everything.

    An expression that does not compile matches everything, as in a real broker; clients check before they
    send.
    """
    if version != ExpressionVersion.E_VERSION_1 or not text:
        return None
    found = _compiled.get(text)
    if found is None:
        expression = Expression(text, strict=False)
        if expression.error is not None:
            return None
        if len(_compiled) >= _COMPILED_KEPT:
            _compiled.clear()
        found = _compiled[text] = expression.compile()
    return found


def compile_first(texts: tuple[str, ...]) -> Callable[[Mapping[str, Any]], int]:
    """Return what gives the place of the first expression that matches, or -1; "" matches everything.

    It takes what :func:`bmq.broker._storage.property_values` returns.
    """
    found = _chains.get(texts)
    if found is None:
        if len(_chains) >= _CHAINS_KEPT:
            _chains.clear()
        trees = [Expression(text, strict=False).ast if text else None for text in texts]
        found = _chains[texts] = compile_chain(trees)
    return found


class Subscriber:
    """One subscription of one consumer, and what it has not confirmed yet.

    Attributes:
        stream: the consumer.
        s_id: the subscription's id.
        option: the PUSH option that names it.
        messages: unconfirmed messages.
        bytes: unconfirmed bytes of application data.
        full: a limit was reached, and usage has not fallen to 80 % of the limits since.
        group: its group, while it takes part in routing.
        after: the next one in the round robin, while it has room; None otherwise. With both neighbours known,
            it joins and leaves in the same time however many others there are.
        before: the one before it in the round robin.
    """

    __slots__ = (
        "after",
        "before",
        "bytes",
        "count",
        "full",
        "group",
        "low_bytes",
        "low_messages",
        "max_bytes",
        "max_messages",
        "messages",
        "option",
        "s_id",
        "stream",
        "turns",
    )

    def __init__(self, stream: SubStream, s_id: int) -> None:
        self.stream = stream
        self.s_id = s_id
        self.option = encode_sub_queue_ids((s_id,))
        self.messages = 0
        self.bytes = 0
        self.full = False
        self.group: Group | None = None
        self.after: Subscriber | None = None
        self.before: Subscriber | None = None
        self.count = self.turns = 1
        self.max_messages = self.max_bytes = self.low_messages = self.low_bytes = 0

    def leave(self) -> None:
        """Leave the group, when all groups are about to be rebuilt."""
        self.group = self.after = self.before = None

    def limit(self, consumer: ConsumerInfo, count: int) -> None:
        """Set the limits of unconfirmed messages and bytes, and how many messages make a turn.

        Usage is compared anew: a subscriber that was full and has any room at all takes part again.
        """
        self.max_messages = consumer.max_unconfirmed_messages
        self.max_bytes = consumer.max_unconfirmed_bytes
        self.low_messages = math.ceil(self.max_messages * _LOW_WATERMARK)
        self.low_bytes = math.ceil(self.max_bytes * _LOW_WATERMARK)
        self.count = self.turns = count
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes


class CompiledSubscription(NamedTuple):
    """One subscription as a client configured it, ready to route by.

    Attributes:
        s_id: the subscription's id.
        key: the version and the text of its expression.
        matcher: what evaluates that; None when it matches everything.
        consumer: its limits and its priority: those of the consumer of the highest priority.
        weight: how many consumers of that priority it stands for.
    """

    s_id: int
    key: tuple[int, str]
    matcher: Evaluator | None
    consumer: ConsumerInfo
    weight: int


def compile_subscriptions(subscriptions: Iterable[Subscription]) -> tuple[CompiledSubscription, ...]:
    """Return what is to be routed by: subscriptions without a consumer take no part."""
    found: list[CompiledSubscription] = []
    for subscription in subscriptions:
        top = _strongest(subscription)
        if top is not None:
            key = (int(subscription.expression.version), subscription.expression.text)
            found.append(CompiledSubscription(subscription.s_id, key, compile_expression(*key), *top))
    return tuple(found)


class Group:
    """The subscribers with one expression, and their priority.

    Attributes:
        text: the expression.
        matcher: what evaluates it; None when it matches everything.
        priority: the priority.
        members: every subscriber that takes part.
        first: the next in turn of the members that have room; None when none has.
        full: whether a message matched when no member had room, and none has had room since.
    """

    __slots__ = ("first", "full", "matcher", "members", "priority", "text")

    def __init__(self, text: str, matcher: Evaluator | None, priority: int) -> None:
        self.text = text
        self.matcher = matcher
        self.priority = priority
        self.members: list[Subscriber] = []
        self.first: Subscriber | None = None
        self.full = False

    def admit(self, subscriber: Subscriber) -> bool:
        """Put a subscriber last in the round robin; return False if it has no room or is in it already."""
        if subscriber.full or not subscriber.stream.open or subscriber.after is not None:
            return False
        first = self.first
        if first is None or first.before is None:
            self.first = subscriber.after = subscriber.before = subscriber
        else:
            subscriber.before, subscriber.after = first.before, first
            first.before.after = first.before = subscriber
        self.full = False
        return True

    def withdraw(self, subscriber: Subscriber) -> None:
        """Take a subscriber out of the round robin."""
        after, before = subscriber.after, subscriber.before
        if after is None or before is None:
            return
        if after is subscriber:
            self.first = None
        else:
            before.after, after.before = after, before
            if self.first is subscriber:
                self.first = after
        subscriber.after = subscriber.before = None


class Routing:
    """The routing table of one application, rebuilt whenever one of its consumers changes.

    Args:
        streams: the application's consumers, in the order they opened the queue.

    Attributes:
        levels: the groups of each priority, the highest first.
        groups: all of them, in that order.
        only: the only group, when its expression matches everything: nothing to search.
        cost: how many expressions it may take to find out who gets a message.
    """

    __slots__ = ("_by_stream", "_first", "_likely", "cost", "groups", "levels", "only")

    def __init__(self, streams: Iterable[SubStream] = ()) -> None:
        wanted: dict[tuple[int, str], list[tuple[CompiledSubscription, Subscriber]]] = {}
        for stream in streams:
            for choice in stream.compiled:
                wanted.setdefault(choice.key, []).append((choice, stream.subscriber(choice.s_id)))
        levels: dict[int, list[Group]] = {}
        for (_, text), entries in wanted.items():
            priority = max(choice.consumer.consumer_priority for choice, _ in entries)
            group = Group(text, entries[0][0].matcher, priority)
            for choice, subscriber in entries:
                if choice.consumer.consumer_priority == priority:
                    subscriber.limit(choice.consumer, choice.weight)
                    subscriber.group = group
                    group.members.append(subscriber)
                    group.admit(subscriber)
                else:
                    # Takes no part while a subscription with the same expression has a higher priority.
                    subscriber.group = None
            levels.setdefault(priority, []).append(group)
        self.levels: list[list[Group]] = [levels[priority] for priority in sorted(levels, reverse=True)]
        self.groups: list[Group] = [group for level in self.levels for group in level]
        self._by_stream: dict[SubStream, list[Subscriber]] = {}
        for group in self.groups:
            for subscriber in group.members:
                self._by_stream.setdefault(subscriber.stream, []).append(subscriber)
        self.only = self.groups[0] if len(self.groups) == 1 and self.groups[0].matcher is None else None
        # Groups of equalities, as consumer groups have one a bucket, are found by one lookup.
        self._likely = Equalities(self.groups, lambda group: group.text if group.matcher is not None else "")
        self.cost = 0 if self.only is not None else self._likely.most
        self._first: Callable[[Mapping[str, Any]], int] | None = None
        if self._likely.finds_none and 1 < len(self.groups) <= _CHAIN:
            self._first = compile_first(
                tuple(group.text if group.matcher is not None else "" for group in self.groups)
            )

    def select(self, message: MessageRecord) -> Subscriber | Blocked | None:
        """Return who gets a message, or what it waits for.

        None when nobody has room: then no further message need be looked at before somebody has.
        """
        only = self.only
        if only is not None:
            return only.first
        if self._first is not None:
            # What is found at once is not kept: nearly always nobody asks again.
            place = self._first(property_values(message.data, message.flags, message.schema_id))
            if place >= 0:
                group = self.groups[place]
                if group.first is not None and not group.full:
                    return group.first
        lookup = message.lookup
        for _, group in self._likely.candidates(lookup):
            if group.full or (group.matcher is not None and group.matcher(lookup) is not True):
                continue
            if group.first is not None:
                return group.first
            break  # it is full: what becomes of the message depends on all groups
        for group in self.groups:
            if not group.full:
                break
        else:
            return None
        looked_at_with_room = False
        for level in self.levels:
            found_full: list[Group] = []
            for group in level:
                if group.full:
                    continue
                matcher = group.matcher
                if matcher is not None and matcher(lookup) is not True:
                    looked_at_with_room = True
                elif group.first is not None:
                    return group.first
                else:
                    group.full = True
                    found_full.append(group)
            if found_full:
                return tuple(found_full) if looked_at_with_room else None
        # Groups that were skipped as full may match it: it waits for them.
        return tuple(
            group
            for group in self.groups
            if group.full and (group.matcher is None or group.matcher(lookup) is True)
        )

    def candidates(self, message: MessageRecord) -> Iterator[Subscriber]:
        """Yield, for each consumer, its first active subscription that matches and has room."""
        lookup = message.lookup
        for subscribers in self._by_stream.values():
            for subscriber in subscribers:
                group = subscriber.group
                if group is None or subscriber.full or not subscriber.stream.open:
                    continue
                if group.matcher is None or group.matcher(lookup) is True:
                    yield subscriber
                    break

    def receivers(self, message: MessageRecord) -> Iterator[Subscriber]:
        """Yield who gets a message of a broadcast queue, where nothing is ever unconfirmed."""
        for subscribers in self._by_stream.values():
            for subscriber in subscribers:
                group = subscriber.group
                if group is None or subscriber.full or not subscriber.stream.open:
                    continue
                if group.matcher is None or group.matcher(message.lookup) is True:
                    yield subscriber
                    break


#: The routing of an application without consumers.
NOBODY: Final = Routing()


def _strongest(subscription: Subscription) -> tuple[ConsumerInfo, int] | None:
    """Return the consumer of the highest priority and how many it stands for; None when deconfigured."""
    valid: Sequence[ConsumerInfo] = [
        c for c in subscription.consumers if c.consumer_priority != INVALID_CONSUMER_PRIORITY
    ]
    if not valid:
        return None
    top = max(valid, key=lambda c: c.consumer_priority)
    count = sum(c.consumer_priority_count for c in valid if c.consumer_priority == top.consumer_priority)
    return top, count
