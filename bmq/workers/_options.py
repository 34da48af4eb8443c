# SPDX-License-Identifier: Apache-2.0
"""The options of handlers: one class for all ways to register a handler, and the rules of groups."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from bmq import _checks
from bmq._dead_letters import DeadLetter, Failure, check_elsewhere
from bmq._pace import checked_rate
from bmq.client.attempt import Attempt, CallNext
from bmq.client.consumer import Subscription
from bmq.client.message import Message
from bmq.client.queue import Queue
from bmq.codecs import Codec
from bmq.conventions import BUCKET
from bmq.errors import Undecodable, UsageError
from bmq.groups import Group
from bmq.subscriptions import ExpressionInput, subscriptions_for
from bmq.wire.uri import QueueUri
from bmq.workers._retry import (
    DEFAULT_RETRY,
    Backoff,
    NoRetry,
    RetryPolicy,
    check_give_up,
    is_durable,
)

if TYPE_CHECKING:
    from bmq.workers._handlers import HandlerPlan

__all__ = [
    "GROUP_RETRY",
    "AckPolicy",
    "BatchBounds",
    "BatchConsumerOptions",
    "Call",
    "ConsumerOptions",
    "GroupOf",
    "Handler",
    "HandlerOptions",
    "Key",
    "Middleware",
    "OnError",
    "OnUndecodable",
    "ResponderOptions",
    "check_middleware",
    "check_middlewares",
    "for_group",
    "is_async",
    "lane_of",
    "member_of",
    "name_of",
    "undecided",
]

# ---- Handlers and middlewares: their names and their kinds

#: An async function, or a function to run in a thread.
Handler: TypeAlias = Callable[[Message], object]


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a handler is a coroutine function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def name_of(handler: Callable[..., object]) -> str:
    """Return the name of a handler for logs."""
    name: str = getattr(handler, "__qualname__", "") or repr(handler)
    return name.rpartition("<locals>.")[2]


#: An async function of an attempt and of the rest of the attempt. The result is the result of the attempt.
Middleware: TypeAlias = Callable[[Attempt, CallNext], Awaitable[Any]]

#: The rest of an attempt.
Call: TypeAlias = Callable[[Attempt], Awaitable[Any]]


def check_middlewares(given: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return the checked middlewares.

    Raises:
        UsageError: an object is not an async function of two arguments.
    """
    found: list[Middleware] = _checks.items("middlewares", given, "async functions")
    for each in found:
        check_middleware(each)
    return tuple(found)


def check_middleware(given: object) -> None:
    """Check a middleware.

    Raises:
        UsageError: the object is not an async function of two arguments.
    """
    wanted = "async def middleware(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object"
    if isinstance(given, type):
        raise UsageError(
            f"a middleware must be an async function, not the class {given.__name__}: give an object of the "
            f"class with 'async def __call__', or {wanted}"
        )
    function: Callable[..., object] = _checks.function("a middleware", given, 2)
    if not is_async(function):
        raise UsageError(f"the middleware {name_of(function)} must be async: {wanted}")


# ---- The options of handlers: one class for all ways to register a handler

#: Hook for failed attempts, sync or async.
OnError: TypeAlias = Callable[[Failure], Awaitable[None] | None]

#: Ordering key of messages: name of a property, or function of the message.
Key: TypeAlias = str | Callable[[Message], Hashable]

#: Function called with messages not decodable to the handler's type.
OnUndecodable: TypeAlias = Callable[[Message, Undecodable], object]

# A larger number of tasks or threads is a mistake.
MAX_CONCURRENCY = 1_000_000


class AckPolicy(Enum):
    """When a message is confirmed.

    ::

        @app.consumer(ORDERS, ack=bmq.AckPolicy.MANUAL)
        async def handle(message: bmq.Message) -> None:
            later.append(message)  # message.confirm() follows elsewhere

    Attributes:
        ON_SUCCESS: when the handler has returned; if the handler fails, the retry policy decides.
        ON_RECEIPT: before the handler is called. No message is handled twice; a message whose handler fails
            is lost.
        MANUAL: when the handler, or code called by the handler, calls ``message.confirm()``.
    """

    ON_SUCCESS = "on success"
    ON_RECEIPT = "on receipt"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Options of batches.

    Attributes:
        max_messages: maximum number of messages in a batch.
        max_wait: seconds to wait for a full batch.
    """

    max_messages: int
    max_wait: float


class ResponderOptions(TypedDict, total=False):
    """The options that all ways to register a handler have in common, for type checkers."""

    max_unconfirmed_messages: int | None
    max_unconfirmed_bytes: int | None
    concurrency: int
    retry: RetryPolicy | None
    codec: str | Codec[Any] | None
    middlewares: Iterable[Middleware]
    on_error: OnError | None


class BatchConsumerOptions(ResponderOptions, total=False):
    """The options of handlers of batches, for type checkers."""

    expression: ExpressionInput
    priority: int | None
    discard_unmatched: bool
    quarantine: DeadLetter | None
    after: int
    timeout: float | None
    rate: float | None


class ConsumerOptions(BatchConsumerOptions, total=False):
    """The options of handlers of single messages, for type checkers."""

    key: Key | None
    ack: AckPolicy
    undecodable: OnUndecodable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler, checked when made; :func:`bmq.consume` describes them.

    Raises:
        UsageError: an option is out of range.
    """

    expression: ExpressionInput = None
    priority: int | None = None
    max_unconfirmed_messages: int | None = None
    max_unconfirmed_bytes: int | None = None
    discard_unmatched: bool = False
    concurrency: int = 1
    key: Key | None = None
    ack: AckPolicy = AckPolicy.ON_SUCCESS
    retry: RetryPolicy | None = None
    quarantine: DeadLetter | None = None
    after: int = 3
    timeout: float | None = None
    rate: float | None = None
    codec: str | Codec[Any] | None = None
    undecodable: OnUndecodable | None = None
    middlewares: Iterable[Middleware] = ()
    on_error: OnError | None = None
    batches: BatchBounds | None = None

    def __post_init__(self) -> None:
        if self.on_error is not None:
            _checks.function("on_error", self.on_error, 1)
        for name, value in (
            ("concurrency", _checks.integer("concurrency", self.concurrency, 1, MAX_CONCURRENCY)),
            ("timeout", _checks.timeout(self.timeout, positive=True)),
            ("rate", None if self.rate is None else checked_rate(self.rate)),
            ("discard_unmatched", _checks.boolean("discard_unmatched", self.discard_unmatched)),
            ("retry", _policy_of(self.retry, self.ack)),
            ("middlewares", check_middlewares(self.middlewares)),
        ):
            object.__setattr__(self, name, value)

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy: the given one, or the default."""
        assert self.retry is not None
        return self.retry

    @property
    def definition(self) -> Subscription:
        """The subscription with its limits.

        Raises:
            UsageError: a limit is out of range.
        """
        return Subscription(
            self.expression,
            priority=self.priority,
            max_unconfirmed_messages=self.max_unconfirmed_messages,
            max_unconfirmed_bytes=self.max_unconfirmed_bytes,
            discard_unmatched=self.discard_unmatched,
        )

    @property
    def limited(self) -> bool:
        """Whether an option of the consumer is given."""
        given = (self.expression, *self.definition.limits.values())
        return self.discard_unmatched or any(each is not None for each in given)

    @property
    def expressions(self) -> list[str]:
        """The expressions of the subscription: a broker merges equal expressions.

        Raises:
            InvalidExpression: the subscription is not legal.
        """
        wanted = self.expression
        if isinstance(wanted, str):
            wanted = str.__str__(wanted) or None
        return [str(each or "") for each in subscriptions_for(wanted)]

    def check_queue(self, queue: str) -> QueueUri:
        """Check the options that depend on the queue, and the limits; return the URI of the queue.

        Raises:
            InvalidURI, InvalidExpression: the queue or the subscription is not legal.
            UsageError: dead letters would come back to the queue, or cannot be posted; or a limit is out of
                range.
        """
        uri = QueueUri.parse(queue)
        if is_durable(self.policy) and uri.app_id:
            raise UsageError(
                f"a durable retry of {uri} would reach every application of the queue, not "
                f"{uri.app_id!r} alone: retry it in the worker, durable=False"
            )
        self.expressions  # noqa: B018  # raises if the subscription is not legal
        if isinstance(self.policy.then, DeadLetter):
            check_elsewhere(uri, self.policy.then.queue)
        self.definition  # noqa: B018  # raises if a limit is out of range
        self._check_quarantine(uri)
        return uri

    def _check_quarantine(self, uri: QueueUri) -> None:
        _checks.integer("after", self.after, 1, _checks.INT32_MAX)
        if self.quarantine is None:
            return
        letters = _checks.choice("quarantine", self.quarantine, DeadLetter)
        check_elsewhere(uri, letters.queue)
        if uri.app_id:
            raise UsageError(
                f"quarantine posts messages again, and a post to {uri} would reach every application of the "
                "queue: omit quarantine"
            )
        if self.ack is AckPolicy.ON_RECEIPT:
            raise UsageError(
                "ON_RECEIPT confirms a message before its handler runs: without redelivery, quarantine "
                "cannot count deaths"
            )
        if self.key is not None:
            raise UsageError(
                "after the death of a process, quarantine posts its messages again, behind later messages of "
                "the same key: omit key or quarantine"
            )

    def check_handler(self, handler: Callable[..., object], plan: HandlerPlan) -> None:
        """Check the options together with a handler.

        Raises:
            UsageError: the options contradict the handler.
            InvalidExpression: the subscription or the key does not fit the type of the values.
        """
        shape, properties = plan.shape, plan.properties
        if shape is not None:
            shape.check(self.expression, properties)
        if self.ack is AckPolicy.ON_RECEIPT and not isinstance(self.policy, NoRetry):
            raise UsageError(
                "ON_RECEIPT confirms before the first attempt, so that no message is handled twice; a "
                "retry is not possible then: use ON_SUCCESS"
            )
        if self.ack is AckPolicy.MANUAL and not is_async(handler):
            raise UsageError(
                f"message.confirm() belongs in the event loop, and {name_of(handler)} runs in a thread: make "
                "it 'async def', or let ON_SUCCESS confirm"
            )
        key = self.key
        if isinstance(key, str) and key:
            if shape is not None:
                shape.check(f"exists({key})", properties)
        elif callable(key):
            _checks.function("key", key, 1)
        elif key is not None:
            raise UsageError(
                f"key must be the name of a property, or a function of the message, not {_checks.shown(key)}"
            )
        if key is not None and isinstance(self.policy, Backoff) and self.policy.blocks:
            raise UsageError(
                "with a key, only later messages of the key wait behind a failed message: omit key or blocks"
            )
        if key is not None and is_durable(self.policy):
            raise UsageError(
                "after a durable retry, a message comes behind later messages of its key: omit key or durable"
            )

    def key_of(self) -> Callable[[Message], Hashable] | None:
        """Return the function for a message's key, or None."""
        key = self.key
        return (lambda message: message.properties.get(key)) if isinstance(key, str) else key


def _policy_of(retry: RetryPolicy | None, ack: AckPolicy) -> RetryPolicy:
    """Return the policy; for None the default policy."""
    _checks.choice("ack", ack, AckPolicy)
    if retry is not None:
        if not callable(getattr(type(retry), "delay", None)) or isinstance(retry, type):
            raise UsageError(
                "retry must be a policy such as bmq.Backoff(...), or an object with an attribute then and "
                f"a method delay, not {_checks.shown(retry)}"
            )
        check_give_up(retry.then)
        return retry
    return NoRetry() if ack is AckPolicy.ON_RECEIPT else DEFAULT_RETRY


# ---- Handlers of a group: what the workers need of a member, and the options that keep the order of a key

#: The default policy of a group: the key waits until its message succeeds, and other keys continue.
GROUP_RETRY = Backoff(every=1.0, factor=2.0, cap=60.0, retries=None)


#: Makes the member of an open queue, as ``lambda queue: queue.group("CustomerId")`` does.
GroupOf: TypeAlias = Callable[[Queue], Group]


def member_of(group: GroupOf, queue: Queue) -> Group:
    """Return the member that a function makes of a queue.

    Raises:
        UsageError: the function returns another object, or the group of another queue.
    """
    member: Any = group(queue)
    if not isinstance(member, Group) or member.queue is not queue:
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


def lane_of(group: Group, options: HandlerOptions) -> Callable[[Message], Hashable]:
    """Return the function for the lane of a message: its bucket, and within the bucket its key."""
    name, own = group.key or BUCKET, options.key_of()

    def lane(message: Message) -> Hashable:
        return group.bucket_of(message), own(message) if own is not None else message.properties.get(name)

    return lane
