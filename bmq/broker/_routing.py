# SPDX-License-Identifier: Apache-2.0
"""The choice of a consumer for a message: an application's subscriptions, by priority and expression.

The rules were measured at a real broker. Subscriptions with byte-equal expressions form a group; in a group
only the subscriptions of the highest priority take part. Priorities are tried from high to low. The first
matching group with room takes the message, and its members take turns. A matching group without room is
marked as full; further groups of the same priority may take the message, lower priorities may not. If no
group takes the message:

* If a group on the way has room and only did not match, the message is put aside and delivery continues. From
  the next message on, groups marked as full are skipped, and their messages may go to lower priorities.
* If no group on the way has room, the application stops until a group has room, even if lower priorities have
  room.

Invariants: a member with room is in the round robin of its group exactly once; a full subscriber rejoins at
80 % of its limits, or with new limits.

Costs decide the structure, because routing runs for every message. Joining and leaving a round robin take the
same time with any number of members. Many equalities of one property, as in consumer groups, become one
lookup (:class:`bmq.subscriptions.Equalities`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bmq.broker._storage import MessageRecord
from bmq.subscriptions import Equalities, Evaluator, Expression
from bmq.wire.control import INVALID_CONSUMER_PRIORITY, ConsumerInfo, ExpressionVersion, Subscription
from bmq.wire.options import encode_sub_queue_ids

if TYPE_CHECKING:
    from bmq.broker._client import SubStream

__all__ = ["NOBODY", "Blocked", "ExpressionGroup", "Routing", "Subscriber", "compile_expression"]

#: Part of the limits to which unconfirmed messages have to fall before delivery resumes.
_LOW_WATERMARK = 0.8

#: A message waits until a group of the tuple has room. Empty: no present group matches the message.
Blocked = tuple["ExpressionGroup", ...]


def compile_expression(version: int, text: str) -> Evaluator | None:
    """Return the evaluator of an expression; None if the expression matches every message.

    An expression that does not compile matches every message, as in a real broker; clients check expressions
    before sending.
    """
    if version != ExpressionVersion.E_VERSION_1 or not text:
        return None
    expression = Expression(text, strict=False)
    return None if expression.error is not None else expression.compile()


@dataclass(slots=True, eq=False)
class Subscriber:
    """A subscription of a consumer, with the counts of unconfirmed messages.

    The counts survive a reconfiguration, and a withdrawn subscription stays until its messages are confirmed.

    Attributes:
        stream: the consumer.
        s_id: the subscription id.
        option: the PUSH option with the id.
        messages: number of unconfirmed messages.
        size: unconfirmed bytes of application data.
        full: whether a limit was reached, without a fall to 80 % of the limits since.
        key: version and text of the expression.
        matcher: evaluator of the expression; None if every message matches.
        priority: the highest priority of a consumer.
        count: number of consumers with this priority: the messages in a turn.
        turns: messages left in the present turn.
        max_messages: limit for ``messages``, of the consumer with the highest priority.
        max_bytes: likewise for ``size``.
        group: the group, while the subscriber takes part in routing.
    """

    stream: SubStream
    s_id: int
    option: bytes = b""
    messages: int = 0
    size: int = 0
    full: bool = False
    key: tuple[int, str] = (0, "")
    matcher: Evaluator | None = None
    priority: int = 0
    count: int = 1
    turns: int = 1
    max_messages: int = 0
    max_bytes: int = 0
    group: ExpressionGroup | None = None

    def __post_init__(self) -> None:
        self.option = encode_sub_queue_ids((self.s_id,))

    def configure(self, subscription: Subscription) -> bool:
        """Take over a subscription; return False without a consumer: then the subscriber takes no part."""
        valid: Sequence[ConsumerInfo] = [
            each for each in subscription.consumers if each.consumer_priority != INVALID_CONSUMER_PRIORITY
        ]
        if not valid:
            return False
        top = max(valid, key=lambda each: each.consumer_priority)
        self.priority = top.consumer_priority
        self.max_messages, self.max_bytes = top.max_unconfirmed_messages, top.max_unconfirmed_bytes
        self.count = sum(
            each.consumer_priority_count for each in valid if each.consumer_priority == self.priority
        )
        self.key = (int(subscription.expression.version), subscription.expression.text)
        self.matcher = compile_expression(*self.key)
        return True

    def join(self, group: ExpressionGroup) -> None:
        """Become a member of a group, with a new turn.

        Usage is compared anew: a subscriber that was full takes part again if it has any room.
        """
        self.turns = self.count
        self.full = self.messages >= self.max_messages or self.size >= self.max_bytes
        self.group = group
        group.members.append(self)
        group.admit(self)

    def recover(self) -> bool:
        """Take part again if enough messages are confirmed; return whether the subscriber does."""
        if self.messages <= math.ceil(self.max_messages * _LOW_WATERMARK) and self.size <= math.ceil(
            self.max_bytes * _LOW_WATERMARK
        ):
            self.full = False
        return self.group is not None and self.group.admit(self)


@dataclass(slots=True, eq=False)
class ExpressionGroup:
    """The subscribers with an equal expression, and the priority of the expression.

    Attributes:
        text: the expression.
        matcher: evaluator of the expression; None if every message matches.
        priority: the priority.
        members: all subscribers that take part.
        ready: the members with room, in the order of their turns.
        full: whether a message matched while no member had room, and no member has had room since.
    """

    text: str
    matcher: Evaluator | None
    priority: int
    members: list[Subscriber] = field(default_factory=list["Subscriber"])
    ready: OrderedDict[Subscriber, None] = field(default_factory=OrderedDict["Subscriber", None])
    full: bool = False

    @property
    def first(self) -> Subscriber | None:
        """The next member with room; None if no member has room."""
        return next(iter(self.ready), None)

    def admit(self, subscriber: Subscriber) -> bool:
        """Add a subscriber to the round robin; return False without room, or if already a member."""
        if subscriber.full or not subscriber.stream.open or subscriber in self.ready:
            return False
        self.ready[subscriber] = None
        self.full = False
        return True

    def withdraw(self, subscriber: Subscriber) -> None:
        """Remove a subscriber from the round robin."""
        self.ready.pop(subscriber, None)


class Routing:
    """The routing table of an application, rebuilt whenever a consumer of the application changes.

    Args:
        streams: the application's consumers, in the order they opened the queue.

    Attributes:
        levels: the groups of each priority, the highest first.
        groups: all groups, in the same order.
        only: the only group, if its expression matches every message and no search is needed.
        cost: largest number of expressions to evaluate for one message.
    """

    __slots__ = ("_likely", "cost", "groups", "levels", "only")

    def __init__(self, streams: Iterable[SubStream] = ()) -> None:
        wanted: dict[tuple[int, str], list[Subscriber]] = {}
        for stream in streams:
            for subscriber in stream.active.values():
                wanted.setdefault(subscriber.key, []).append(subscriber)
        levels: dict[int, list[ExpressionGroup]] = {}
        for (_, text), subscribers in wanted.items():
            priority = max(each.priority for each in subscribers)
            group = ExpressionGroup(text, subscribers[0].matcher, priority)
            for subscriber in subscribers:
                # The others take no part while a subscription with the same expression has a higher priority.
                if subscriber.priority == priority:
                    subscriber.join(group)
            levels.setdefault(priority, []).append(group)
        self.levels = [levels[priority] for priority in sorted(levels, reverse=True)]
        self.groups = [group for level in self.levels for group in level]
        self.only = self.groups[0] if len(self.groups) == 1 and self.groups[0].matcher is None else None
        # Groups of equalities, such as the buckets of a consumer group, are found by a lookup.
        self._likely = Equalities(self.groups, lambda group: group.text if group.matcher is not None else "")
        self.cost = 0 if self.only is not None else self._likely.most

    def select(self, message: MessageRecord) -> Subscriber | Blocked | None:
        """Return the receiver of a message, or the groups that the message waits for.

        None if no subscriber has room: then no further message needs to be considered before one has room.
        """
        only = self.only
        if only is not None:
            return only.first
        lookup = message.lookup
        for _, group in self._likely.candidates(lookup):
            if group.full or (group.matcher is not None and group.matcher(lookup) is not True):
                continue
            if group.first is not None:
                return group.first
            break  # The group is full, so the outcome depends on all groups.
        if all(group.full for group in self.groups):
            return None
        matching = dict.fromkeys(
            group
            for _, group in self._likely.candidates(lookup)
            if group.matcher is None or group.matcher(lookup) is True
        )
        looked_at_with_room = False
        for level in self.levels:
            found_full = False
            for group in level:
                if group.full:
                    continue
                if group not in matching:
                    looked_at_with_room = True
                elif group.first is not None:
                    return group.first
                else:
                    group.full = found_full = True
            if found_full:
                if not looked_at_with_room:
                    return None
                break
        # The message waits for every group that matches, also for those that were full before: otherwise a
        # newer message would overtake it.
        return tuple(group for group in matching if group.full)

    def candidates(self, message: MessageRecord) -> Iterator[Subscriber]:
        """Yield, for each consumer, the first active subscription that matches and has room."""
        found: set[SubStream] = set()
        for group in self.groups:
            if group.matcher is None or group.matcher(message.lookup) is True:
                for subscriber in list(group.ready):
                    if subscriber.stream not in found:
                        found.add(subscriber.stream)
                        yield subscriber


#: The routing of an application without consumers.
NOBODY: Final[Routing] = Routing()
