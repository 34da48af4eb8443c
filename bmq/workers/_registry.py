# SPDX-License-Identifier: Apache-2.0
"""Registrations: the decorators of apps and routers, and the register of an app."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Final, TypeAlias, TypeVar, Unpack, cast

from bmq import _checks
from bmq._dead_letters import Allow, Allowed, DeadLetter, check_elsewhere
from bmq.codecs import Codec
from bmq.conventions import CANCEL, delay_queue_of
from bmq.delays import check_due
from bmq.errors import InvalidURI, StateError, UsageError
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.uri import QueueUri
from bmq.workers._handlers import ANY_STATE, BATCH, HANDLER, HandlerPlan, Role, accepts
from bmq.workers._options import (
    BatchBounds,
    BatchConsumerOptions,
    ConsumerOptions,
    GroupOf,
    HandlerOptions,
    Middleware,
    ResponderOptions,
    check_middleware,
    check_middlewares,
    for_group,
    name_of,
)
from bmq.workers._results import KeyOf, Output, Respond, Responder, Results
from bmq.workers._retry import is_durable
from bmq.workers._sweeper import Sweeper

__all__ = [
    "Registrar",
    "Registration",
    "Registry",
    "Router",
]

# ---- The register of an app: handlers, sweepers, delay queues, startup and shutdown functions


@dataclass(frozen=True, slots=True)
class Registration:
    """A handler of a queue.

    Attributes:
        uri: URI of the queue.
        handler: decorated object.
        plan: the checked handler.
        options: options of the handler.
        outputs: queues for the results of the handler, with the conversion of results.
        middlewares: middlewares of the routers and of the handler, the first outermost; None for a handler of
            bmq's own messages, without any middlewares.
        responder: the responder of the handler; None if the handler does not answer requests.
        group: makes the member of a group from the queue; None without a group.
    """

    uri: QueueUri
    handler: Callable[..., object]
    plan: HandlerPlan
    options: HandlerOptions
    outputs: Sequence[tuple[Output, Results]] = ()
    middlewares: tuple[Middleware, ...] | None = ()
    responder: Responder | None = None
    group: GroupOf | None = None


#: A registration: adds a handler, a queue or a function to the parts of an app or a router. A router repeats
#: its registrations in each app.
Step: TypeAlias = Callable[["Registry"], None]


class Registry:
    """The parts of an app or a router.

    Args:
        uri_of: returns the URI of a queue name.
        state: class of the app's state; ``ANY_STATE`` for a router.

    Attributes:
        middlewares: middlewares of the included routers, the outermost router first.
        handlers: handlers, in the order of registration.
        sweepers: sweepers.
        waiting: delay queues, with the arguments of a :class:`bmq.delays.Mover`; None for a queue of durable
            retries without a mover of its own.
        published: queues for the results of handlers.
        startup: functions to call before the first message.
        shutdown: functions to call after the last message.
    """

    def __init__(self, uri_of: Callable[[str], str], state: Any) -> None:
        self.uri_of = uri_of
        self.state = state
        self.middlewares: tuple[Middleware, ...] = ()
        self.handlers: list[Registration] = []
        self.sweepers: list[Sweeper] = []
        self.waiting: dict[QueueUri, dict[str, Any] | None] = {}
        self.published: list[Output] = []
        self.startup: list[Callable[[], object]] = []
        self.shutdown: list[Callable[[], object]] = []

    def copy(self) -> Registry:
        """Return a register with the same entries."""
        made = copy(self)
        for name, entries in vars(self).items():
            if isinstance(entries, list | dict):
                setattr(made, name, copy(cast("Any", entries)))
        return made

    def inside(self, router: Router) -> Registry:
        """Return this register, with the prefix and the middlewares of a router for what is added."""

        def uri_of(queue: str) -> str:
            uri = self.uri_of(_joined(router.prefix, queue))
            if not _is_whole(uri):
                raise InvalidURI(
                    f"the queue name {uri!r} of {router!r} is relative, and no router has a domain: "
                    "bmq.Router('bmq://DOMAIN/'), or give the queue's URI"
                )
            return uri

        made = copy(self)
        made.uri_of, made.middlewares = uri_of, (*self.middlewares, *router._middlewares)
        return made

    def add(
        self,
        queue: str,
        handler: Callable[..., object],
        plan: HandlerPlan,
        options: HandlerOptions,
        *,
        own: bool = False,
        responder: Responder | None = None,
        group: GroupOf | None = None,
    ) -> None:
        """Add a handler, and the delay queue of its durable retries.

        Args:
            queue: name of the queue.
            handler: decorated object.
            plan: the checked handler.
            options: options of the handler.
            own: whether the messages are bmq's own, which no middleware sees.
            responder: the responder of the handler, if any.
            group: makes the member of a group from the queue; None without a group.

        Raises:
            UsageError: the options contradict the handler; the handler is already registered for these
                messages; or it would share messages with a handler of another type of values.
        """
        uri = options.check_queue(self.uri_of(queue))
        options.check_handler(handler, plan)
        expressions = options.expressions
        for each in self.handlers:
            if each.uri == uri and (each.group or group) is not None:
                raise UsageError(
                    f"{plan.name} and {each.plan.name} would share the messages of {uri}, which is the queue "
                    "of a group: a group has one handler"
                )
            if each.uri != uri or each.options.expressions != expressions:
                continue
            if each.handler == handler:
                raise UsageError(
                    f"{plan.name} is registered for {uri} already, with the same subscription: the two would "
                    "share the messages. Give concurrency=2 to handle two at once, or another subscription"
                )
            one, other = plan.shape, each.plan.shape
            if one is not None and other is not None and not (accepts(one, other) or accepts(other, one)):
                raise UsageError(
                    f"{plan.name} takes {one.name} in its first parameter, and {each.plan.name} takes "
                    f"{other.name}: both have the same subscription of {uri}, so each message goes to only "
                    "one of them. Give each handler its own subscription, or both the same type"
                )
        outputs = [
            (each, each.results(options, replies=responder is not None))
            for each in self.published
            if each.handler == handler
        ]
        if is_durable(options.policy):
            self.waiting.setdefault(QueueUri.parse(delay_queue_of(uri.canonical)), None)
        around = None if own else (*self.middlewares, *options.middlewares)
        self.handlers.append(Registration(uri, handler, plan, options, outputs, around, responder, group))

    def publish(self, new: Output) -> None:
        """Add a queue for the results of a handler, to be registered later.

        Raises:
            UsageError: the handler has the same queue already, or is registered already.
        """
        if any(each.handler == new.handler and each.uri == new.uri for each in self.published):
            raise UsageError(f"{name_of(new.handler)} already posts its results to {new.uri}")
        if any(each.handler == new.handler for each in self.handlers):
            raise UsageError(
                f"{name_of(new.handler)} is registered already: write publish_to({str(new.uri)!r}) below the "
                "decorator that registers the handler"
            )
        self.published.append(new)

    def check_published(self) -> None:
        """Check whether each queue for results has a handler.

        Raises:
            UsageError: a queue is alone.
        """
        handlers = [each.handler for each in self.handlers]
        for output in self.published:
            if output.handler not in handlers:
                raise UsageError(
                    f"publish_to({str(output.uri)!r}) decorates {name_of(output.handler)}, which is not a "
                    "handler of this app: add @app.consumer(...) too"
                )

    def add_delay_queue(self, uri: QueueUri, **options: Any) -> None:
        """Add a delay queue with a mover.

        Raises:
            UsageError: the queue already has a mover.
        """
        if self.waiting.get(uri) is not None:
            raise UsageError(f"{uri} already has a mover")
        self.waiting[uri] = options

    def outputs(self) -> list[str]:
        """Return the URIs, without application, of the queues for dead letters and for results."""
        found: list[object] = [str(each.uri) for each in self.published]
        for each in self.handlers:
            letters = (each.options.policy.then, each.options.quarantine)
            found += [aside.queue for aside in letters if isinstance(aside, DeadLetter)]
        found += [options["dead_letters"] for options in self.waiting.values() if options is not None]
        return list(dict.fromkeys(QueueUri.parse(uri).canonical for uri in found if isinstance(uri, str)))


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


# ---- The decorators that register handlers, queues and functions

#: A function of a message or a value, and of further parameters.
AnyHandler: TypeAlias = Callable[Concatenate[Any, ...], object]

H = TypeVar("H", bound=AnyHandler)
B = TypeVar("B", bound=AnyHandler)
F = TypeVar("F", bound=Callable[[], object])
M = TypeVar("M", bound=Middleware)
P = TypeVar("P", bound=Callable[..., object])
R = TypeVar("R", bound=Respond)


def _known_with(options: type) -> Callable[[P], P]:
    """Return :func:`_checks.known_arguments` for a function with these ``**options``."""
    names: frozenset[str] = getattr(options, "__optional_keys__")  # noqa: B009
    return lambda function: _checks.known_arguments(function, names)


class Registrar(ABC):
    """The decorators of an app and of a router. Registering opens nothing and needs no event loop."""

    def __init__(self, registry: Registry, middlewares: Iterable[Middleware]) -> None:
        self._registry = registry
        self._middlewares = [*check_middlewares(middlewares)]
        self._steps: list[Step] = []
        # All included routers, also those of included routers.
        self._routers: list[Router] = []

    @abstractmethod
    def _check_open(self) -> None:
        """Check that registrations are possible.

        Raises:
            StateError: the app is running, or the router is a part of an app.
        """

    def _register(self, step: Step) -> None:
        self._check_open()
        step(self._registry)
        self._steps.append(step)

    def _include_router(self, router: Router) -> None:
        """Repeat the registrations of a router; an error changes nothing."""
        self._check_open()
        added = [router, *router._routers]
        if self in added:
            raise UsageError(f"{router!r} would be a part of itself")
        for each in added:
            if each in self._routers:
                raise UsageError(
                    f"{each!r} is already included, and its handlers would be registered twice. For the same "
                    "handlers on other queues, make each router in a function of the prefix"
                )
        trial = self._registry.copy()
        router._repeat(trial)
        self._registry = trial
        self._steps.append(router._repeat)
        self._routers += added
        router._included = True

    def _adding(
        self, queue: str, options: HandlerOptions, role: Role, group: GroupOf | None = None
    ) -> Callable[[H], H]:
        """Return a decorator that registers a handler of messages or of batches."""
        options.check_queue(self._registry.uri_of(queue))

        def register(handler: H) -> H:
            def step(registry: Registry) -> None:
                yields = any(each.handler == handler for each in registry.published)
                own = replace(role, yields=yields and options.batches is None)
                plan = HandlerPlan(
                    handler, options.codec, options.undecodable, role=own, state=registry.state
                )
                registry.add(queue, handler, plan, options, group=group)

            self._register(step)
            return handler

        return register

    def middleware(self, function: M) -> M:
        """Register the decorated function as the innermost middleware, and return the function unchanged.

        ::

            @app.middleware
            async def measure(
                attempt: bmq.Attempt, call_next: bmq.workers.CallNext
            ) -> object:
                began = time.monotonic()
                try:
                    return await call_next()
                finally:
                    print(attempt.handler, time.monotonic() - began)

        A middleware surrounds each attempt of each handler. ``await call_next()`` runs the rest of the
        attempt and returns the handler's result. A middleware may replace ``attempt.value``, translate or
        suppress an exception, call ``call_next`` again, or return without a call: the message counts as
        handled. An exception of the middleware fails the attempt.

        Raises:
            UsageError: the function is not an async function of two arguments.
            StateError: the app is running, or the router is a part of an app.
        """
        check_middleware(function)
        self._register(lambda _: None)
        self._middlewares.append(function)
        return function

    @_known_with(ConsumerOptions)
    def consumer(
        self,
        queue: str,
        *,
        group: GroupOf | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[H], H]:
        """Register the decorated function as a message handler, and return the function unchanged.

        Several handlers share a queue through their subscriptions. The app opens the queues for dead letters.

        Args:
            queue: the queue's URI; in a :class:`bmq.Router`, the name after the prefix.
            expression: selects messages; None for all messages. See :func:`bmq.consume` for this and the
                further arguments.
            priority: priority of the subscription.
            max_unconfirmed_messages: limit of unconfirmed messages.
            max_unconfirmed_bytes: limit of unconfirmed bytes.
            discard_unmatched: confirm messages that match no consumer without calling the handler.
            concurrency: number of messages handled at the same time.
            key: ordering key, the name of a property or a function of the message. Messages with equal keys
                stay in order.
            ack: when a message is confirmed.
            retry: policy for messages whose handler fails; None for the default of :func:`bmq.consume`.
            quarantine: URI of the queue for messages that crash the process; None for no quarantine.
            after: number of processes that may end, or lose the connection, while handling a message.
            timeout: seconds for one attempt of the handler.
            rate: maximum number of messages a second.
            codec: decodes messages without a content type, for a handler of values.
            undecodable: called instead of the handler with undecodable messages.
            middlewares: async functions around each attempt, inside the middlewares of the app.
            on_error: called after each unsuccessful attempt, instead of the app's hook.
            group: function that makes this process a member of the queue's group, with the options of
                :meth:`bmq.Queue.group`: ``group=lambda queue: queue.group("CustomerId")``. Messages of a key
                stay in order over all processes. The group has a single handler, and cannot be paused.

        Raises:
            UsageError: an argument is out of range, or two arguments contradict each other.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal, or the subscription
                does not fit the type of the values.
            StateError: the app is running, or the router is already a part of an app.
        """
        chosen = HandlerOptions(**options)
        if group is not None:
            _checks.function("group", group, 1, plain=True)
            chosen = for_group(chosen)
        return self._adding(queue, chosen, HANDLER, group)

    @_known_with(BatchConsumerOptions)
    def batch_consumer(
        self,
        queue: str,
        *,
        max_messages: int = 500,
        max_wait: float = 0.2,
        **options: Unpack[BatchConsumerOptions],
    ) -> Callable[[B], B]:
        """Register the decorated function as a handler of batches, and return the function unchanged.

        The handler takes a list of messages. If annotated with another type, the handler takes a list of
        values and, as an optional second argument, the list of their messages::

            @app.batch_consumer("bmq://bmq.test.mem.priority/orders")
            async def load(orders: list[Order], messages: list[bmq.Message]) -> None:
                ...

        When the handler returns, all messages of the batch are confirmed. When the handler raises, all
        messages have failed, or only the messages named by a :class:`bmq.PartlyFailed`. The retry policy
        decides whether failed messages are retried together or given up one by one. Undecodable messages are
        given up at once and are not in the list.

        Args:
            queue: the queue's URI; in a :class:`bmq.Router`, the name after the prefix.
            max_messages: maximum number of messages in a batch.
            max_wait: seconds to wait for a full batch, from the arrival of its first message.
            expression: selects messages; None for all messages. See :meth:`consumer` for this and the further
                arguments.
            priority: priority of the subscription.
            max_unconfirmed_messages: limit of unconfirmed messages. The default is enough for ``concurrency``
                + 1 batches, and at least 1,000.
            max_unconfirmed_bytes: limit of unconfirmed bytes.
            discard_unmatched: confirm messages that match no consumer without calling the handler.
            concurrency: number of batches handled at the same time.
            retry: policy for failed messages.
            quarantine: URI of the queue for messages that crash the process; None for no quarantine.
            after: number of processes that may end, or lose the connection, while handling a message.
            timeout: seconds for one batch.
            rate: maximum number of messages a second.
            codec: decodes messages without a content type, for a handler of values.
            middlewares: async functions around each attempt with a batch.
            on_error: called for each message of an unsuccessful attempt, instead of the app's hook.

        Raises:
            UsageError: an argument is out of range, or two arguments contradict each other.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal, or the subscription
                does not fit the type of the values.
            StateError: the app is running, or the router is already a part of an app.
        """
        bounds = BatchBounds(
            _checks.integer("max_messages", max_messages, 1), _checks.seconds("max_wait", max_wait)
        )
        chosen = HandlerOptions(**options, batches=bounds)
        room = chosen.max_unconfirmed_messages
        room = _checks.optional(_checks.integer, "max_unconfirmed_messages", room)
        if room is not None and room < bounds.max_messages:
            raise UsageError(
                f"a batch of {bounds.max_messages} messages can never fill up with "
                f"max_unconfirmed_messages={room}: raise max_unconfirmed_messages to max_messages or more"
            )
        if is_durable(chosen.policy):
            raise UsageError(
                "durable retries are for handlers of single messages: a batch is retried in the worker"
            )
        if room is None:
            room = max(1000, (chosen.concurrency + 1) * bounds.max_messages)
            chosen = replace(chosen, max_unconfirmed_messages=room)
        return self._adding(queue, chosen, BATCH)

    @_checks.known_arguments
    def publish_to(
        self,
        queue: str,
        *,
        codec: str | Codec[Any] | None = None,
        key: KeyOf | None = None,
        properties: Mapping[str, PropertyInput] | None = None,
    ) -> Callable[[P], P]:
        """Post the results of the decorated handler to a queue, and return the handler unchanged.

        ::

            @app.consumer("bmq://bmq.test.mem.priority/orders")
            @app.publish_to("bmq://bmq.test.mem.priority/invoices")
            async def bill(order: Order) -> Invoice | None:
                return Invoice(order.number, order.total) if order.total else None

        The annotation of the result is the type of the values. A handler may also return bytes, or a
        :class:`bmq.PutMessage` with properties, tags, key, delay or GUID of its own; None posts nothing. An
        ``async def`` with ``yield``, annotated with an ``AsyncIterator``, posts each result, after the end of
        the function. A handler of batches returns a list with one result for each message; an exception in
        the list is a failed message, as in :class:`bmq.PartlyFailed`.

        The input is confirmed after all outputs are acknowledged. If an output fails, the attempt has failed,
        and the retry policy decides. The GUID of an output derives from the GUID of the input: within the
        deduplication window, the broker stores the output of a repeated input once. Several ``publish_to``
        post each result to several queues.

        Args:
            queue: URI of the queue for the results; in a :class:`bmq.Router`, the name after the prefix.
            codec: content type or :class:`bmq.Codec` that encodes values; None for JSON.
            key: function of the result that returns the ordering key, as for :meth:`bmq.Queue.post`.
            properties: properties of each output; override properties derived from fields of the value.

        Raises:
            UsageError: the result of the handler cannot be posted, the handler confirms its input earlier or
                is registered already, or an argument is of another type.
            InvalidURI: the queue is not legal.
            InvalidProperty: a property cannot be posted.
            StateError: the app is running, or the router is already a part of an app.
        """
        if key is not None:
            _checks.function("key", key, 1, plain=True)
        if properties is not None:
            properties = dict(_checks.mapping("properties", properties))
            encode_properties(properties, new=True)

        def register(handler: P) -> P:
            def step(registry: Registry) -> None:
                uri = QueueUri.parse(registry.uri_of(queue))
                if uri.app_id:
                    raise InvalidURI(f"messages are posted to a queue, not to its application: {uri}")
                registry.publish(Output(handler, uri, codec, key, properties))

            self._register(step)
            return handler

        return register

    def on_startup(self, function: F) -> F:
        """Register a function to be called when the app starts, and return the function unchanged.

        The function takes no arguments and may be ``async def``. The app calls the function after connecting
        and opening the queues, and before any handler. Several functions run in order of registration. An
        exception ends the app.

        Raises:
            StateError: the app is running, or the router is already a part of an app.
        """
        check_hook(function)
        self._register(lambda registry: registry.startup.append(function))
        return function

    def on_shutdown(self, function: F) -> F:
        """Register a function to be called when the app stops, and return the function unchanged.

        The function takes no arguments and may be ``async def``. The app calls the function after the last
        handler has ended, while the session is still open. Several functions run in reverse order of
        registration, also if a startup function has failed.

        Raises:
            StateError: the app is running, or the router is already a part of an app.
        """
        check_hook(function)
        self._register(lambda registry: registry.shutdown.append(function))
        return function

    @_known_with(ResponderOptions)
    def responder(
        self,
        queue: str,
        *,
        expression: str | None = None,
        allow: Allow | None = None,
        **options: Unpack[ResponderOptions],
    ) -> Callable[[R], R]:
        """Register the decorated function as the responder of a queue, and return the function unchanged.

        ::

            @app.responder("bmq://bmq.test.mem.priority/prices")
            async def price(article: Article) -> Price:
                return Price(cents=999)

        The function has the parameters of a handler, and the annotation of its result is the type of the
        reply's value. See :class:`bmq.workers.Responder`. An exception becomes the reply, and is not retried.
        Cancellations have a separate subscription of a higher priority, and reach even a busy responder.

        Args:
            queue: the queue's URI; in a :class:`bmq.Router`, the name after the prefix.
            expression: an expression; None for all requests.
            allow: permitted queues for replies, as for :class:`bmq.workers.Responder`.
            concurrency: number of requests handled at the same time.
            max_unconfirmed_messages: limit of unconfirmed requests.
            max_unconfirmed_bytes: limit of unconfirmed bytes.
            retry: policy for malformed requests, and for exceptions without a requester; as for
                :meth:`consumer`. None leaves such messages in the queue.
            codec: encodes the values of replies, and decodes requests without a content type.
            middlewares: async functions around each call, inside the middlewares of the app.
            on_error: called for malformed requests, and for exceptions without a requester; not for further
                exceptions of the function, because these are replies.

        Raises:
            UsageError: an argument is out of range, the function is not async, or the requests or replies
                have a type without a codec.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal.
            StateError: the app is running, or the router is already a part of an app.
        """
        chosen = HandlerOptions(expression=expression, **options)
        cancelling = HandlerOptions(expression=f"exists({CANCEL})", priority=1, retry=chosen.retry)
        chosen.check_queue(self._registry.uri_of(queue))

        def register(function: R) -> R:
            def step(registry: Registry) -> None:
                responder = Responder(function, allow=allow, codec=chosen.codec)
                plan = responder._plan(registry.state)
                registry.add(queue, function, plan, chosen, responder=responder)
                registry.add(queue, function, plan, cancelling, responder=responder, own=True)

            self._register(step)
            return function

        return register

    @_checks.known_arguments
    def mover(
        self,
        queue: str,
        *,
        allow: Allow | None = None,
        dead_letters: str | None = None,
        longest: float | None = None,
        lookahead: float = 3600.0,
        max_held: int = 10_000,
        max_held_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """Pass on the messages of a delay queue when they are due, while the app runs.

        See :class:`bmq.delays.Mover`. Any number of apps can share the work of one delay queue. Every minute
        the mover checks whether the broker keeps messages for long enough, and logs any problem.

        Args:
            queue: URI of the delay queue, or in a :class:`bmq.Router` the name after the prefix. The URI is
                ``bmq://DOMAIN/NAME.delayed`` unless the producers name another queue.
            allow: permitted destinations of messages: patterns like ``bmq://DOMAIN/*``, or a function of the
                URI. The default allows the domain of the delay queue, and queues for replies.
            dead_letters: URI of the queue for undeliverable messages; None to leave them in the delay queue.
            longest: longest expected delay in seconds, to be compared with the broker's retention.
            lookahead: maximum number of seconds for holding a message before the due time.
            max_held: limit of held messages.
            max_held_bytes: limit of held bytes.

        Raises:
            InvalidURI: the queue is not legal.
            UsageError: the queue already has a mover, or dead letters would return to the queue.
            StateError: the app is running, or the router is already a part of an app.
        """
        longest = _checks.timeout(longest, "longest")
        ahead, _, held, held_bytes = check_due(lookahead, None, max_held, max_held_bytes)
        Allowed(allow)  # raises if the type is wrong

        def step(registry: Registry) -> None:
            uri = QueueUri.parse(registry.uri_of(queue))
            letters = None
            if dead_letters is not None:
                letters = registry.uri_of(dead_letters)
                check_elsewhere(uri, letters)
            registry.add_delay_queue(
                uri,
                allow=allow,
                dead_letters=letters,
                longest=longest,
                lookahead=ahead,
                max_held=held,
                max_held_bytes=held_bytes,
            )

        self._register(step)


# ---- Handlers registered without an app, for modules that an app includes

_SCHEME: Final = "bmq://"
# The registrations of a router with a relative prefix are checked with this domain.
_STAND_IN: Final = "bmq://router/"


class Router(Registrar):
    """Handlers of a module without an app, to be included in one or several apps.

    ::

        router = bmq.Router(prefix="bmq://bmq.test.mem.priority/")

        @router.consumer("orders")
        async def ship(message: bmq.Message) -> None:
            ...

        app = bmq.App("tcp://localhost:30114")
        app.include(router)

    The decorators are the decorators of :class:`bmq.App`, with the same arguments and checks. A router has no
    session: its handlers use the session of the app. :meth:`bmq.App.include` repeats the registrations in the
    app; afterwards the router accepts no further registrations.

    Args:
        prefix: beginning of the URI of each queue: a domain such as ``bmq://bmq.test.mem.priority/``, or a
            domain and the beginning of a queue name. Without ``bmq://``, the prefix is the beginning of a
            queue name, and the including router has the domain. Queues registered with a whole URI ignore
            the prefix.
        middlewares: async functions around each attempt of each handler, inside the middlewares of the app.

    Raises:
        InvalidURI: ``prefix`` is not the beginning of a queue URI or of a queue name.

    Attributes:
        prefix: the prefix.
    """

    @_checks.known_arguments
    def __init__(self, prefix: str = "", *, middlewares: Iterable[Middleware] = ()) -> None:
        super().__init__(Registry(self._uri_of, ANY_STATE), middlewares)
        self.prefix = _checked_prefix(prefix)
        self._included = False

    def include(self, router: Router) -> None:
        """Include another router. A prefix without ``bmq://`` is appended to the prefix of this router.

        Args:
            router: the other router.

        Raises:
            UsageError: ``router`` is already a part of this router, or this router is a part of ``router``;
                or a registration of ``router`` contradicts a registration of this router.
            InvalidURI: the prefixes and a queue name do not make a legal queue URI.
            StateError: this router is already a part of an app or of another router.
        """
        self._include_router(_checks.choice("router", router, Router))

    def _uri_of(self, queue: str) -> str:
        uri = _joined(self.prefix, queue)
        return uri if _is_whole(uri) else _STAND_IN + uri

    def _repeat(self, registry: Registry) -> None:
        """Repeat the registrations of this router, for an app or another router."""
        inside = registry.inside(self)
        for step in self._steps:
            step(inside)

    def _check_open(self) -> None:
        if self._included:
            raise StateError(
                "the router is already a part of an app or of another router; register its handlers before "
                "app.include(router)"
            )

    def __repr__(self) -> str:
        return f"Router({self.prefix!r})"


def _is_whole(queue: str) -> bool:
    return queue.startswith(_SCHEME)


def _joined(prefix: str, queue: str) -> str:
    """Return a queue name with a prefix. A whole URI is returned unchanged."""
    name = _checks.text("queue", queue)
    return name if _is_whole(name) else prefix + name


def _checked_prefix(prefix: object) -> str:
    """Return the prefix of a router.

    Raises:
        InvalidURI: no queue URI or queue name can begin with the prefix.
    """
    text = _checks.text("prefix", prefix)
    if "?" in text:
        raise InvalidURI(f"prefix {text!r} must not contain an application: ?id= belongs to the queue name")
    try:
        QueueUri.parse((text if _is_whole(text) else _STAND_IN + text) + "q")
    except InvalidURI as error:
        raise InvalidURI(
            "prefix must be a domain such as bmq://bmq.test.mem.priority/, or the beginning of a queue name, "
            f"not {text!r}: {error}"
        ) from None
    return text
