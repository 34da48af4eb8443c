# SPDX-License-Identifier: Apache-2.0
"""The decorators that register handlers, queues and functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Concatenate, TypeAlias, TypeVar, Unpack

from bmq import _checks
from bmq.client.poison import Allow, Allowed
from bmq.codecs import Codec
from bmq.conventions import CANCEL
from bmq.delays import check_due
from bmq.errors import InvalidURI, UsageError
from bmq.wire.properties import PropertyInput, encode_properties
from bmq.wire.uri import QueueUri
from bmq.workers._delayed_retry import is_durable
from bmq.workers._dependencies import BATCH, HANDLER, HandlerPlan, Role, planned
from bmq.workers._membership import GroupOf, for_group
from bmq.workers._middleware import Middleware, check_middleware, check_middlewares
from bmq.workers._options import (
    BatchConsumerOptions,
    ConsumerOptions,
    HandlerOptions,
    ResponderOptions,
)
from bmq.workers._publishing import PUBLISHING, KeyOf, Output
from bmq.workers._registry import DelayQueue, Registration, Registry, check_hook
from bmq.workers._responder import Respond, Responder
from bmq.workers._sources import BatchBounds, checked_bounds

__all__ = ["Registrar", "RegistrationTarget", "Step"]

#: A function of a message or a value, and of further parameters.
AnyHandler: TypeAlias = Callable[Concatenate[Any, ...], object]

H = TypeVar("H", bound=AnyHandler)
B = TypeVar("B", bound=AnyHandler)
F = TypeVar("F", bound=Callable[[], object])
M = TypeVar("M", bound=Middleware)
P = TypeVar("P", bound=Callable[..., object])
R = TypeVar("R", bound=Respond)


@dataclass(frozen=True, slots=True)
class RegistrationTarget:
    """The app or router of a registration.

    Attributes:
        registry: register to add to.
        uri_of: returns the URI of a queue name.
        state: class of the app's state; ``ANY_STATE`` for a router.
        middlewares: middlewares of the included routers, the outermost router first.
    """

    registry: Registry
    uri_of: Callable[[str], str]
    state: Any
    middlewares: tuple[Middleware, ...] = ()

    def add(
        self,
        queue: str,
        handler: Callable[..., object],
        plan: HandlerPlan,
        options: HandlerOptions,
        *,
        own: bool = False,
        **how: Any,
    ) -> None:
        """Register a handler, after checking the options together with the handler.

        Args:
            queue: name of the queue.
            handler: decorated object.
            plan: the checked handler.
            options: options of the handler.
            own: whether the messages are bmq's own, which no middleware sees.
            how: further attributes of the :class:`Registration`.
        """
        uri = options.check_queue(self.uri_of(queue))
        options.check_handler(handler, plan)
        middlewares = None if own else (*self.middlewares, *options.middlewares)
        self.registry.add(Registration(uri, handler, plan, options, middlewares=middlewares, **how))


def _known_with(options: type) -> Callable[[P], P]:
    """Return :func:`_checks.known_arguments` for a function with these ``**options``."""
    names: frozenset[str] = getattr(options, "__optional_keys__")  # noqa: B009
    return lambda function: _checks.known_arguments(function, names)


#: A registration: adds a handler, a queue or a function to an app or a router. A router repeats its
#: registrations in each app.
Step: TypeAlias = Callable[[RegistrationTarget], None]


class Registrar(ABC):
    """The decorators of an app and of a router. Registering opens nothing and needs no event loop."""

    # Number of calls of ``publish_to`` whose handler is not known yet.
    _open_outputs = 0

    def __init__(self, middlewares: Iterable[Middleware] = ()) -> None:
        self._registry = Registry()
        self._middlewares = [*check_middlewares(middlewares)]

    @abstractmethod
    def _uri_of(self, queue: str) -> str:
        """Return the URI of a queue name."""

    @abstractmethod
    def _register(self, step: Step) -> None:
        """Make a registration.

        Raises:
            StateError: the app is running, or the router is a part of an app.
        """

    def middleware(self, function: M) -> M:
        """Register the decorated function as the innermost middleware, and return the function unchanged.

        ::

            @app.middleware
            async def measure(attempt: bmq.Attempt, call_next: bmq.workers.CallNext) -> object:
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
            on_error: called after each unsuccessful attempt, in place of the app's hook.
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
        chosen.check_queue(self._uri_of(queue))

        def register(handler: H) -> H:
            role = self._role_of(handler)

            def step(target: RegistrationTarget) -> None:
                plan = planned(handler, chosen.codec, chosen.undecodable, role=role, state=target.state)
                target.add(queue, handler, plan, chosen, group=group)

            self._register(step)
            return handler

        return register

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
            on_error: called for each message of an unsuccessful attempt, in place of the app's hook.

        Raises:
            UsageError: an argument is out of range, or two arguments contradict each other.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal, or the subscription
                does not fit the type of the values.
            StateError: the app is running, or the router is already a part of an app.
        """
        given = options.get("max_unconfirmed_messages")
        bounds = BatchBounds(*checked_bounds(max_messages, max_wait, given))
        chosen = HandlerOptions(**options)
        if is_durable(chosen.policy):
            raise UsageError(
                "durable retries are for handlers of single messages: a batch is retried in the worker"
            )
        if given is None:
            room = max(1000, (chosen.concurrency + 1) * bounds.max_messages)
            chosen = replace(chosen, max_unconfirmed_messages=room)
        chosen.check_queue(self._uri_of(queue))

        def register(handler: B) -> B:
            def step(target: RegistrationTarget) -> None:
                plan = planned(handler, chosen.codec, role=BATCH, state=target.state)
                target.add(queue, handler, plan, chosen, batches=bounds)

            self._register(step)
            return handler

        return register

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
            UsageError: the result of the handler cannot be posted, the handler confirms its input earlier, or
                an argument is of another type.
            InvalidURI: the queue is not legal.
            InvalidProperty: a property cannot be posted.
            StateError: the app is running, or the router is already a part of an app.
        """
        if key is not None:
            _checks.function("key", key, 1, plain=True)
        if properties is not None:
            properties = dict(_checks.mapping("properties", properties))
            encode_properties(properties, new=True)
        self._open_outputs += 1

        def register(handler: P) -> P:
            def step(target: RegistrationTarget) -> None:
                uri = QueueUri.parse(target.uri_of(queue))
                if uri.app_id:
                    raise InvalidURI(f"messages are posted to a queue, not to its application: {uri}")
                target.registry.publish(Output(handler, uri, codec, key, properties))

            self._open_outputs -= 1
            self._register(step)
            return handler

        return register

    def _role_of(self, handler: Callable[..., object]) -> Role:
        """Return the role of a handler: with ``publish_to``, a handler may yield several results.

        A ``publish_to`` above ``consumer`` has been called already, and will decorate the handler next.
        """
        published = any(each.handler == handler for each in self._registry.published)
        return PUBLISHING if published or self._open_outputs else HANDLER

    def on_startup(self, function: F) -> F:
        """Register a function to be called when the app starts, and return the function unchanged.

        The function takes no arguments and may be ``async def``. The app calls the function after connecting
        and opening the queues, and before any handler. Several functions run in order of registration. An
        exception ends the app.

        Raises:
            StateError: the app is running, or the router is already a part of an app.
        """
        check_hook(function)
        self._register(lambda target: target.registry.startup.append(function))
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
        self._register(lambda target: target.registry.shutdown.append(function))
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
        chosen.check_queue(self._uri_of(queue))

        def register(function: R) -> R:
            def step(target: RegistrationTarget) -> None:
                responder = Responder(function, allow=allow, codec=chosen.codec)
                plan = responder._plan(target.state)
                target.add(queue, function, plan, chosen, responder=responder)
                target.add(queue, function, plan, cancelling, responder=responder, own=True)

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
        bounds = check_due(lookahead, None, max_held, max_held_bytes)

        def step(target: RegistrationTarget) -> None:
            uri = QueueUri.parse(target.uri_of(queue))
            Allowed(allow, uri)
            letters = None
            if dead_letters is not None:
                letters = target.uri_of(dead_letters)
                if QueueUri.parse(letters).canonical == uri.canonical:
                    raise UsageError(f"dead letters of {uri} would return to it; name another queue for them")
            lookahead, _, max_held, max_held_bytes = bounds
            target.registry.add_delay_queue(
                uri, DelayQueue(allow, letters, longest, lookahead, max_held, max_held_bytes)
            )

        self._register(step)
