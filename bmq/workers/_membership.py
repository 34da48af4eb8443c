# SPDX-License-Identifier: Apache-2.0
"""Handlers of a group: what the workers need of a member, and the options that keep the order of a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, TypeGuard

from bmq import _checks
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.conventions import BUCKET
from bmq.errors import UsageError
from bmq.workers._delayed_retry import is_durable
from bmq.workers._options import AckPolicy, HandlerOptions
from bmq.workers._retry import DEFAULT_RETRY, Backoff, RetryPolicy

__all__ = [
    "GROUP_RETRY",
    "GroupOf",
    "Membership",
    "for_group",
    "is_membership",
    "lane_of",
    "member_of",
    "undecided",
]

#: The default policy of a group: the key waits until its message succeeds, and other keys continue.
GROUP_RETRY = Backoff(every=1.0, factor=2.0, cap=60.0, retries=None)


class Membership(Protocol):
    """A member of a group, as :class:`bmq.groups.Group` is."""

    @property
    def queue(self) -> Queue:
        """The queue of the group."""
        ...

    @property
    def key(self) -> str | None:
        """The property that determines the bucket; None for the property ``bmq_bucket``."""
        ...

    def __aiter__(self) -> AsyncIterator[Message]: ...

    def bucket_of(self, message: Message) -> int | None:
        """Return the bucket of a message; None for a message without a bucket."""
        ...

    def stats(self) -> Any:
        """Return a snapshot of the member; ``settled`` is whether it gets the messages of its buckets."""
        ...

    def holds(self, message: Message) -> bool:
        """Whether this member may work on a message of the group now."""
        ...

    async def open(self) -> object:
        """Join the group."""
        ...

    async def close(self) -> None:
        """Leave the group, and close the queue: unconfirmed messages are delivered again."""
        ...


#: Makes the member of an open queue, as ``lambda queue: queue.group("CustomerId")`` does.
GroupOf: TypeAlias = Callable[[Queue], Membership]


def is_membership(source: object) -> TypeGuard[Membership]:
    """Whether an object is a member of a group."""
    return callable(getattr(type(source), "bucket_of", None)) and callable(
        getattr(type(source), "holds", None)
    )


def member_of(group: GroupOf, queue: Queue) -> Membership:
    """Return the member that a function makes of a queue.

    Raises:
        UsageError: the function returns another object, or the group of another queue.
    """
    member: Any = group(queue)
    if not is_membership(member) or member.queue is not queue:
        raise UsageError(
            "group must be a function that returns the group of its queue, as lambda queue: "
            f"queue.group('CustomerId') does, and returned {_checks.shown(member)}"
        )
    return member


def for_group(options: HandlerOptions) -> HandlerOptions:
    """Return the options of a handler of a group, with the default policy of a group.

    Raises:
        UsageError: an option is for a subscription, or would change the order of a key.
    """
    if options.limited:
        raise UsageError(
            "a group has its own subscriptions: give expression and limits to queue.group(...), and omit "
            "expression, priority, max_unconfirmed_messages, max_unconfirmed_bytes and discard_unmatched"
        )
    if options.quarantine is not None:
        raise UsageError(
            "a quarantine posts messages again, behind later messages of their key: omit quarantine in a "
            "group"
        )
    if options.retry is DEFAULT_RETRY:
        options = replace(options, retry=GROUP_RETRY)
    policy = options.policy
    if is_durable(policy):
        raise UsageError(
            "after a durable retry, a message comes behind later messages of its key: omit durable in a "
            "group, as bmq.Backoff(every=1, factor=2, cap=60, retries=None) does, where the key waits"
        )
    if isinstance(policy, Backoff) and policy.blocks:
        raise UsageError("in a group, only later messages of the key wait behind a failed one: omit blocks")
    if undecided(policy) and not _endless(policy) and options.ack is not AckPolicy.ON_RECEIPT:
        raise UsageError(
            f"then={policy.then!r} keeps a message unconfirmed, and its bucket could never change hands: in "
            'a group, use then=bmq.DeadLetter(...), then="discard", or retries=None'
        )
    return options


def undecided(policy: RetryPolicy) -> bool:
    """Whether a policy leaves messages in the queue when it gives up."""
    return isinstance(policy.then, str) and policy.then != "discard"


def _endless(policy: RetryPolicy) -> bool:
    """Whether a policy never gives up a message because of an error of its handler."""
    return (
        isinstance(policy, Backoff)
        and policy.retries is None
        and policy.give_up_after is None
        and policy.no_retry == ()
    )


def lane_of(group: Membership, options: HandlerOptions) -> Callable[[Message], Hashable]:
    """Return the function for the lane of a message: its bucket, and within the bucket its key."""
    name, own = group.key or BUCKET, options.key_of()

    def lane(message: Message) -> Hashable:
        return group.bucket_of(message), own(message) if own is not None else message.properties.get(name)

    return lane
