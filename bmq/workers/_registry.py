# SPDX-License-Identifier: Apache-2.0
"""The register of an app: handlers, sweepers, delay queues, startup and shutdown functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bmq import _checks
from bmq.client.dead_letters import DeadLetter
from bmq.client.poison import Allow
from bmq.codecs import Shape
from bmq.conventions import delay_queue_of
from bmq.errors import UsageError
from bmq.subscriptions import ExpressionInput, subscriptions_for
from bmq.wire.uri import QueueUri
from bmq.workers._delayed_retry import is_durable
from bmq.workers._dependencies import HandlerPlan, Overrides
from bmq.workers._handlers import name_of
from bmq.workers._membership import GroupOf
from bmq.workers._middleware import Middleware
from bmq.workers._options import HandlerOptions
from bmq.workers._publishing import Output, Publisher
from bmq.workers._responder import Responder
from bmq.workers._results import Results
from bmq.workers._sources import BatchBounds
from bmq.workers._sweeper import Sweeper

__all__ = ["DelayQueue", "Registration", "Registry", "check_hook"]


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler of a queue.

    Attributes:
        uri: URI of the queue.
        handler: decorated object.
        plan: the checked handler.
        options: options of the handler.
        batches: bounds of batches; None for a handler of single messages.
        middlewares: middlewares of the routers and of the handler, the first outermost; None for a handler of
            bmq's own messages, without any middlewares.
        responder: the responder of the handler; None if the handler does not answer requests.
        group: makes the member of a group from the queue; None without a group.
    """

    uri: QueueUri
    handler: Callable[..., object]
    plan: HandlerPlan
    options: HandlerOptions
    batches: BatchBounds | None = None
    middlewares: tuple[Middleware, ...] | None = ()
    responder: Responder | None = None
    group: GroupOf | None = None

    @property
    def shape(self) -> Shape[Any] | None:
        """Type of the values; None for a handler of messages."""
        return self.plan.shape

    def is_of(self, handler: object) -> bool:
        """Whether a handler is registered here.

        Compares methods by value: each access creates a new object.
        """
        return self.handler is handler or (inspect.ismethod(handler) and self.handler == handler)


@dataclass(frozen=True, slots=True)
class DelayQueue:
    """A delay queue, and the arguments of a :class:`bmq.delays.Mover`."""

    allow: Allow | None
    dead_letters: str | None
    longest: float | None
    lookahead: float
    max_held: int
    max_held_bytes: int


class Registry:
    """The parts of an app.

    Attributes:
        handlers: handlers, in the order of registration.
        sweepers: sweepers.
        waiting: delay queues, with the arguments of the mover; None for default arguments.
        published: queues for the results of handlers.
        startup: functions to call before the first message.
        shutdown: functions to call after the last message.
    """

    def __init__(self) -> None:
        self.handlers: list[Registration] = []
        self.sweepers: list[Sweeper] = []
        self.waiting: dict[QueueUri, DelayQueue | None] = {}
        self.published: list[Output] = []
        self.startup: list[Callable[[], object]] = []
        self.shutdown: list[Callable[[], object]] = []

    @property
    def empty(self) -> bool:
        """Whether the app has no work."""
        return not (self.handlers or self.sweepers or self.waiting)

    def copy(self) -> Registry:
        """Return a register with the same entries."""
        made = Registry()
        made.handlers, made.sweepers = [*self.handlers], [*self.sweepers]
        made.startup, made.shutdown = [*self.startup], [*self.shutdown]
        made.waiting, made.published = {**self.waiting}, [*self.published]
        return made

    def add(self, new: Registration) -> None:
        """Add a handler, and the delay queue of its durable retries.

        Raises:
            UsageError: the handler is already registered for these messages, or would share messages with a
                handler of another type of values.
        """
        text = _text_of(new.options.expression)
        for each in self.handlers:
            if each.uri == new.uri and (each.group or new.group) is not None:
                raise UsageError(
                    f"{name_of(new.handler)} and {name_of(each.handler)} would share the messages of "
                    f"{new.uri}, which is the queue of a group: a group has one handler"
                )
            if each.uri != new.uri or _text_of(each.options.expression) != text:
                continue
            if each.handler == new.handler:
                raise UsageError(
                    f"{name_of(new.handler)} is registered for {new.uri} already, with the same "
                    "subscription: the two would share the messages. Give concurrency=2 to handle two at "
                    "once, or another subscription"
                )
            if new.shape is not None and each.shape is not None and not _alike(new.shape, each.shape):
                raise UsageError(
                    f"{name_of(new.handler)} takes {new.shape.name} in its first parameter, and "
                    f"{name_of(each.handler)} takes {each.shape.name}: both have the same subscription of "
                    f"{new.uri}, so each message goes to only one of them. Give each handler its own "
                    "subscription, or both the same type"
                )
        self.outputs_of(new)
        if is_durable(new.options.policy):
            self.waiting.setdefault(QueueUri.parse(delay_queue_of(new.uri.canonical)), None)
        self.handlers.append(new)

    def publish(self, new: Output) -> None:
        """Add a queue for the results of a handler, registered already or later.

        Raises:
            UsageError: the handler has no results to post, or the same queue already.
        """
        for each in self.published:
            if each.handler == new.handler and each.uri == new.uri:
                raise UsageError(f"{name_of(new.handler)} already posts its results to {new.uri}")
        for handler in self.handlers:
            if handler.handler == new.handler:
                _results_of(handler, new)
        self.published.append(new)

    def publisher_of(self, handler: Registration) -> Publisher | None:
        """Return the middleware that posts the results of a handler; None without a queue for results."""
        outputs = self.outputs_of(handler)
        return Publisher(outputs, batch=handler.batches is not None) if outputs else None

    def outputs_of(self, handler: Registration) -> list[tuple[Output, Results]]:
        """Return the queues for the results of a handler, with the conversion of results."""
        return [
            (each, _results_of(handler, each)) for each in self.published if each.handler == handler.handler
        ]

    def check_published(self) -> None:
        """Check whether each queue for results has a handler, and each generator a queue.

        Raises:
            UsageError: a queue or a generator is alone.
        """
        handlers = [each.handler for each in self.handlers]
        for output in self.published:
            if output.handler not in handlers:
                raise UsageError(
                    f"publish_to({str(output.uri)!r}) decorates {name_of(output.handler)}, which is not a "
                    "handler of this app: add @app.consumer(...) too"
                )
        for each in self.handlers:
            if each.plan.yields and not self.outputs_of(each):
                raise UsageError(
                    f"{each.plan.name} is a generator, and its results go nowhere: add @app.publish_to(...)"
                )

    def check_middlewares(self, outer: Sequence[Middleware], overrides: Overrides) -> None:
        """Check that each handler has the middlewares that its dependencies need.

        Args:
            outer: middlewares of the app.
            overrides: replacements of the functions of dependencies.

        Raises:
            UsageError: a middleware is missing.
        """
        for each in self.handlers:
            if each.middlewares is not None:
                each.plan.check_middlewares((*outer, *each.middlewares), overrides)

    def add_delay_queue(self, uri: QueueUri, waiting: DelayQueue) -> None:
        """Add a delay queue with a mover.

        Raises:
            UsageError: the queue already has a mover.
        """
        if self.waiting.get(uri) is not None:
            raise UsageError(f"{uri} already has a mover")
        self.waiting[uri] = waiting

    def outputs(self) -> set[str]:
        """Return the URIs, without application, of the queues for dead letters and for results."""
        letters = {QueueUri.parse(uri).canonical for uri in self._letters() if isinstance(uri, str)}
        return letters | {each.uri.canonical for each in self.published}

    def _letters(self) -> Iterator[object]:
        for each in self.handlers:
            for letters in (each.options.policy.then, each.options.quarantine):
                if isinstance(letters, DeadLetter):
                    yield letters.queue
        for waiting in self.waiting.values():
            if waiting is not None:
                yield waiting.dead_letters


def _results_of(handler: Registration, output: Output) -> Results:
    """Return the conversion of a handler's results for a queue.

    Raises:
        UsageError: the handler has no results to post.
    """
    return output.results(
        batch=handler.batches is not None, ack=handler.options.ack, replies=handler.responder is not None
    )


def _text_of(expression: ExpressionInput) -> list[str]:
    """Return the expressions of an expression: a broker merges equal expressions."""
    return [
        str(each or "")
        for each in subscriptions_for(expression or None if isinstance(expression, str) else expression)
    ]


def check_hook(function: Callable[[], object]) -> None:
    """Check a startup or shutdown function.

    Raises:
        UsageError: a call would not run the function's body, or the function takes arguments.
    """
    _checks.function("a startup or shutdown function", function, 0)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{name_of(cast('Callable[..., object]', function))} is a generator, whose body a call does not "
            "run: register one function for the start and another one for the end"
        )


def _alike(one: Shape[Any], other: Shape[Any]) -> bool:
    """Whether two handlers may share messages: the types are equal, or either type is a base of the other."""
    if one.of == other.of:
        return True
    if not (inspect.isclass(one.of) and inspect.isclass(other.of)):
        return False
    return issubclass(one.of, other.of) or issubclass(other.of, one.of)
