# SPDX-License-Identifier: Apache-2.0
"""A service of workers: a session, its queues, its handlers, an orderly end; and apps that are its parts."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

from bmq import _checks
from bmq._signals import on_signals
from bmq.client.connect import check_options
from bmq.client.consumer import Consumer
from bmq.client.dead_letters import DeadLetter, Failure
from bmq.client.interceptors import check_interceptors
from bmq.client.options import ConnectOptions
from bmq.client.poison import Allow, Allowed
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.codecs import Codec
from bmq.conventions import CANCEL
from bmq.delays import check_due
from bmq.engine.address import parse_addresses
from bmq.engine.health import Health
from bmq.errors import StateError, UsageError
from bmq.subscriptions import Selector
from bmq.wire.uri import QueueUri
from bmq.workers._batches import Batches, BatchHandler, batch_shape, check_batches
from bmq.workers._clock import Clock
from bmq.workers._consume import settled
from bmq.workers._later import is_durable
from bmq.workers._life import AppInput, AppState, Life
from bmq.workers._options import AckPolicy, HandlerOptions, Key, OnError, checked_clock
from bmq.workers._probe import Metrics, Probe, address_of, worst
from bmq.workers._registry import Registration, Registry, Waiting, check_hook
from bmq.workers._responder import Respond, Responder
from bmq.workers._retry import NoRetry, RetryPolicy
from bmq.workers._running import Running, Settings
from bmq.workers._state import S, checked_state
from bmq.workers._status import Statuses, status
from bmq.workers._sweeper import Sweeper
from bmq.workers._typed import AnyHandler, OnUndecodable, adapted

__all__ = ["App"]

logger = logging.getLogger("bmq.workers")

H = TypeVar("H", bound=AnyHandler)
B = TypeVar("B", bound=BatchHandler)
F = TypeVar("F", bound=Callable[[], object])
R = TypeVar("R", bound=Respond)


class App(Generic[S]):
    """A service that handles messages.

    ::

        app = bmq.App("tcp://localhost:30114")

        @app.consumer("bmq://bmq.test.mem.priority/orders", subscription='OrderType == "EXPRESS"')
        async def ship(message: bmq.Message) -> None:
            ...

        bmq.run(app.run())

    Making an app and registering handlers opens nothing and needs no event loop. Handlers stay plain
    functions, which tests can call.

    Args:
        broker: as for :func:`bmq.connect`.
        grace: seconds that handlers have to finish when the service ends.
        on_error: called with a :class:`bmq.workers.Failure` for every attempt of any handler that did not
            succeed.
        clock: what measures the pauses between attempts.
        health: ``HOST:PORT`` where it answers HTTP while it runs: ``/livez`` says that the event loop turns,
            ``/readyz`` how :meth:`bmq.Session.health` is (503 if not ready), ``/metrics`` what ``metrics``
            returns. Port 0 is any free one; see :attr:`health_uri`.
        metrics: returns metrics in Prometheus' text format, called for each request, in the event loop.
        state: an object for what handlers share, of a class of your own: type checkers then check
            ``app.state``. None makes a namespace that takes any name.
        options: anything else that :func:`bmq.connect` takes: ``retry_first_connect=True`` for one that waits
            for its broker when it starts, say.

    Attributes:
        state: the object given as ``state``, or a namespace. Set its attributes in a function of
            :meth:`on_startup`; reading an attribute that is not set raises an ``AttributeError`` that names
            those that are.

    Raises:
        UsageError: ``health`` is no address, there are ``metrics`` without it, or ``state`` is a class.
    """

    def __init__(
        self,
        broker: str | None = None,
        *,
        grace: float = 30.0,
        on_error: OnError | None = None,
        clock: Clock | None = None,
        health: str | None = None,
        metrics: Metrics | None = None,
        state: S | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        if broker is not None:
            parse_addresses(broker)
        # A list of interceptors is used for each session that the app makes.
        if "interceptors" in options:
            options["interceptors"] = check_interceptors(options["interceptors"])
        check_options(**options)
        grace = _checks.seconds("grace", grace)
        clock = checked_clock(clock)
        if on_error is not None:
            _checks.function("on_error", on_error, 1)
        if metrics is not None:
            _checks.function("metrics", metrics, 0, plain=True)
        self._probe = Probe(*address_of(health), self._health, metrics) if health is not None else None
        if self._probe is None and metrics is not None:
            raise UsageError("metrics are served at health='HOST:PORT', which is not given")
        self.state: S = checked_state(state)
        self._settings = Settings(broker, options, grace, on_error, clock)
        self._registry = Registry()
        self._parts: list[App[Any]] = []
        # While the app runs as a part of another one, the life of the whole.
        self._life = Life()
        self._running: Running | None = None
        # The consumers of the latest run: their status can be asked for afterwards.
        self._consumers: list[Consumer] = []
        # The task of the run in ``async with``.
        self._background: asyncio.Task[None] | None = None

    def include(self, app: App[Any]) -> None:
        """Make another app a part of this one: for a service with several brokers.

        ::

            eu, us = bmq.App("tcp://eu:30114"), bmq.App("tcp://us:30114")
            eu.include(us)

            @eu.consumer("bmq://bmq.test.mem.priority/orders")
            async def copy(message: bmq.Message) -> None:
                await (await us.queue("bmq://bmq.test.mem.priority/orders")).post(message.data)

        A part has its own session, queues, handlers, options and state, and may have parts itself. It begins
        and ends with this app: parts connect first; when all have, their startup functions run, and their
        shutdown functions run last. A part that fails ends all; :meth:`stop` of any is :meth:`stop` of all.
        A part that has nothing registered is a session to post by.

        Args:
            app: the other one. It can still be run by itself, but not twice at a time.

        Raises:
            UsageError: it is a part already, or this app is a part of it.
            StateError: one of them is running.
        """
        self._check_stopped("register its handlers before")
        _checks.choice("app", app, App)._check_stopped("register its handlers before")
        if self in app._all() or app in self._all():
            raise UsageError("the app is a part of the other one already, or that of it")
        self._parts.append(app)

    def _all(self) -> list[App[Any]]:
        """The app's parts, theirs too, and the app itself."""
        return [*(each for part in self._parts for each in part._all()), self]

    def consumer(
        self,
        queue: str,
        *,
        subscription: Selector = None,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        discard_unmatched: bool = False,
        concurrency: int = 1,
        key: Key | None = None,
        ack: AckPolicy = AckPolicy.ON_SUCCESS,
        retry: RetryPolicy | None = None,
        quarantine: DeadLetter | None = None,
        after: int = 3,
        timeout: float | None = None,
        rate: float | None = None,
        codec: str | Codec[Any] | None = None,
        undecodable: OnUndecodable | None = None,
        on_error: OnError | None = None,
    ) -> Callable[[H], H]:
        """Register the decorated function as a handler; it is returned as it is.

        Several handlers of one queue share it by their subscriptions. The app opens the queues for dead
        letters.

        Args:
            queue: the queue's URI.
            subscription: what to receive; None for everything. This and all that follows as for
                :func:`bmq.consume`.
            priority: of the subscription.
            max_unconfirmed_messages: how many messages the handler may hold.
            max_unconfirmed_bytes: how many bytes of them.
            discard_unmatched: confirm unseen what does not match.
            concurrency: how many messages are handled at once.
            key: what must not overtake each other: the name of a property, or a function of the message.
            ack: when a message is confirmed.
            retry: what happens to a message whose handler fails; None as for :func:`bmq.consume`.
            quarantine: where messages are put that kill the process that handles them; None for nowhere.
            after: how many processes may die, or lose their connection, while they handle a message.
            timeout: seconds a handler may take for one attempt.
            rate: how many messages a second it takes at most.
            codec: decodes messages that do not say what they are, for a handler of values.
            undecodable: called with what has no such value, instead of the handler.
            on_error: called for every attempt that did not succeed, instead of the app's.

        Raises:
            UsageError: arguments that contradict each other or are out of range.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal, or the subscription
                does not fit the type of the values.
            StateError: the app is running.
        """
        options = HandlerOptions(
            subscription=subscription,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            discard_unmatched=discard_unmatched,
            concurrency=concurrency,
            key=key,
            ack=ack,
            retry=retry,
            quarantine=quarantine,
            after=after,
            timeout=timeout,
            rate=rate,
            on_error=on_error,
        )
        uri = options.checked_uri(queue)
        options.definition  # noqa: B018  # raises where limits are out of range

        def register(handler: H) -> H:
            self._check_stopped("register its handlers before")
            function, shape = adapted(handler, codec, undecodable)
            options.check_handler(function, shape)
            self._registry.add(Registration(uri, handler, function, options, shape))
            return handler

        return register

    def sweeper(
        self,
        queue: str,
        *,
        put_aside: str | None = None,
        hand_back_every: float | None = 60.0,
        max_unconfirmed_messages: int = 100_000,
        max_unconfirmed_bytes: int = 256 * 1024 * 1024,
        by: str | None = None,
    ) -> Sweeper:
        """Have what no subscription of a queue takes put aside, or held, while the app runs.

        The sweepers of an app begin when its handlers have their subscriptions, and have a session of their
        own.

        Args:
            queue: the queue's URI; this and all that follows as for :class:`bmq.workers.Sweeper`.
            put_aside: the URI of the queue where messages are put; None holds them.
            hand_back_every: seconds until what is held is handed back.
            max_unconfirmed_messages: how many messages it may hold.
            max_unconfirmed_bytes: how many bytes of them.
            by: a property by whose values messages are counted.

        Returns:
            The sweeper, whose ``stats()`` say what it has.

        Raises:
            UsageError, InvalidURI: as for :class:`bmq.workers.Sweeper`.
            StateError: the app is running.
        """
        self._check_stopped("register its sweepers before")
        sweeper = Sweeper(
            queue,
            put_aside=put_aside,
            hand_back_every=hand_back_every,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            by=by,
        )
        self._registry.sweepers.append(sweeper)
        return sweeper

    def batch_consumer(
        self,
        queue: str,
        *,
        max_messages: int = 500,
        max_wait: float = 0.2,
        subscription: Selector = None,
        priority: int | None = None,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        discard_unmatched: bool = False,
        concurrency: int = 1,
        retry: RetryPolicy | None = None,
        quarantine: DeadLetter | None = None,
        after: int = 3,
        timeout: float | None = None,
        rate: float | None = None,
        codec: str | Codec[Any] | None = None,
        on_error: OnError | None = None,
    ) -> Callable[[B], B]:
        """Register the decorated function as a handler of batches; it is returned as it is.

        It takes a list of messages; or one of values, as its annotation says, and a second one of their
        messages if it wants that::

            @app.batch_consumer("bmq://bmq.test.mem.priority/orders")
            async def load(orders: list[Order], messages: list[bmq.Message]) -> None:
                ...

        When it returns, all are confirmed. When it raises, all have failed, or those that a
        :class:`bmq.PartlyFailed` names: they are tried again together, or given up one by one, as the retry
        policy says. What is no value is given up at once, and not in the list.

        Args:
            queue: the queue's URI.
            max_messages: how many messages there are in a batch at most.
            max_wait: seconds to wait for that many, from when the first one was there.
            subscription: what to receive; None for everything. This and all that follows as for
                :meth:`consumer`.
            priority: of the subscription.
            max_unconfirmed_messages: how many messages the handler may hold; None for as many as make
                ``concurrency`` batches and one that waits, 1,000 at least.
            max_unconfirmed_bytes: how many bytes of them.
            discard_unmatched: confirm unseen what does not match.
            concurrency: how many batches are handled at once.
            retry: what happens to messages that have failed.
            quarantine: where messages are put that kill the process that handles them; None for nowhere.
            after: how many processes may die, or lose their connection, while they handle a message.
            timeout: seconds a handler may take for a batch.
            rate: how many messages a second it takes at most.
            codec: decodes messages that do not say what they are, for a handler of values.
            on_error: called for every message of an attempt that did not succeed, instead of the app's.

        Raises:
            UsageError: arguments that contradict each other or are out of range.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal, or the subscription
                does not fit the type of the values.
            StateError: the app is running.
        """
        max_messages, max_wait = check_batches(max_messages, max_wait, max_unconfirmed_messages)
        options = HandlerOptions(
            subscription=subscription,
            priority=priority,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            discard_unmatched=discard_unmatched,
            concurrency=concurrency,
            retry=retry,
            quarantine=quarantine,
            after=after,
            timeout=timeout,
            rate=rate,
            on_error=on_error,
        )
        if is_durable(options.policy):
            raise UsageError(
                "a batch is tried again here: durable retries are for handlers of single messages"
            )
        if max_unconfirmed_messages is None:
            room = max(1000, (options.concurrency + 1) * max_messages)
            options = replace(options, max_unconfirmed_messages=room)
        uri = options.checked_uri(queue)
        options.definition  # noqa: B018  # raises where limits are out of range

        def register(handler: B) -> B:
            self._check_stopped("register its handlers before")
            shape = batch_shape(handler, codec)
            options.check_handler(handler, shape)
            batches = Batches(max_messages, max_wait, shape)
            self._registry.add(Registration(uri, handler, handler, options, shape, batches))
            return handler

        return register

    def on_startup(self, function: F) -> F:
        """Register a function that is called when the app starts; it is returned as it is.

        It takes no arguments, and may be ``async def``. It is called when the app has connected and opened
        its queues, before any handler; several one after another. What it raises ends the app.

        Raises:
            StateError: the app is running.
        """
        self._check_stopped("register its handlers before")
        check_hook(function)
        self._registry.startup.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Register a function that is called when the app ends; it is returned as it is.

        It takes no arguments, and may be ``async def``. It is called when no handler is at work any more and
        the session is still open, the one registered last first; also when a startup function has failed.

        Raises:
            StateError: the app is running.
        """
        self._check_stopped("register its handlers before")
        check_hook(function)
        self._registry.shutdown.append(function)
        return function

    def _try_out(self, broker: str, clock: Clock, watch: Callable[[Failure], None]) -> Callable[[], None]:
        """Run elsewhere from now on, as a test says; return what undoes it."""
        settings, state = self._settings, self.state
        options = settings.options.copy()
        options.pop("credentials", None)
        options.pop("ssl", None)
        options.pop("server_hostname", None)
        self._settings = replace(settings, broker=broker, options=options, clock=clock, watch=watch)
        self.state = copy.copy(state)

        def undo() -> None:
            self._settings, self.state = settings, state

        return undo

    def _check_stopped(self, remedy: str) -> None:
        if self._life.state is not AppState.STOPPED:
            raise StateError(f"the app is running; {remedy}")

    def responder(
        self,
        queue: str,
        *,
        subscription: str | None = None,
        allow: Allow | None = None,
        concurrency: int = 1,
        max_unconfirmed_messages: int | None = None,
        max_unconfirmed_bytes: int | None = None,
        on_error: OnError | None = None,
    ) -> Callable[[R], R]:
        """Register the decorated function as what answers the requests of a queue; it is returned as it is.

        See :class:`bmq.workers.Responder`. An error is the answer, and is not tried again. Cancellations have
        a subscription of their own, of a higher priority, so that they reach a responder at work.

        Args:
            queue: the queue's URI.
            subscription: an expression; None for all requests.
            allow: the queues where requests may expect their replies, as for :class:`bmq.workers.Responder`.
            concurrency: how many requests are handled at once.
            max_unconfirmed_messages: how many requests the responder may hold.
            max_unconfirmed_bytes: how many bytes of them.
            on_error: called when a request cannot be taken apart; an error of the function is not one.

        Raises:
            UsageError: arguments are out of range, or the function is not async.
            InvalidURI, InvalidExpression: the queue or the subscription is not legal.
            StateError: the app is running.
        """

        options = HandlerOptions(
            subscription=subscription,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
            concurrency=concurrency,
            retry=NoRetry("discard"),
            on_error=on_error,
        )
        cancelling = HandlerOptions(subscription=f"exists({CANCEL})", priority=1, retry=NoRetry("discard"))
        uri = options.checked_uri(queue)
        options.definition  # noqa: B018  # raises where limits are out of range

        def register(function: R) -> R:
            self._check_stopped("register its handlers before")
            responder = Responder(function, allow=allow)
            call, _ = adapted(responder, None, None)
            for each in (options, cancelling):
                each.check_handler(call, None)
                self._registry.add(Registration(uri, responder, call, each))
            return function

        return register

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
        """Pass on what waits in a queue, when it is due, while the app runs; see :class:`bmq.delays.Mover`.

        Any number of apps may do so for one queue: they share the work. The broker is asked every minute
        whether the queue can keep what waits; what is wrong is logged.

        Args:
            queue: the URI of the delay queue, ``bmq://DOMAIN/NAME.delayed`` unless the producers say
                otherwise.
            allow: the queues that messages may name: patterns such as ``bmq://DOMAIN/*`` or a function of the
                URI. None allows the domain of the delay queue, and queues for replies.
            dead_letters: the URI of the queue for messages that cannot be passed on; None confirms them.
            longest: seconds that messages may have to wait, to be compared with what the broker keeps.
            lookahead: seconds before it is due that a message is taken and held here, at most.
            max_held: how many messages are held.
            max_held_bytes: how many bytes of them.

        Raises:
            InvalidURI: the queue is not legal.
            UsageError: it is moved already, or its dead letters would come back to it.
            StateError: the app is running.
        """
        uri = QueueUri.parse(queue)
        longest = _checks.timeout(longest, "longest")
        lookahead, _, max_held, max_held_bytes = check_due(lookahead, None, max_held, max_held_bytes)
        self._check_stopped("say what it moves before")
        Allowed(allow, uri)
        if dead_letters is not None:
            letters = QueueUri.parse(dead_letters)
            if letters.canonical == uri.canonical:
                raise UsageError(f"dead letters of {uri} would come back to it; name another queue for them")
        self._registry.add_waiting(
            uri, Waiting(allow, dead_letters, longest, lookahead, max_held, max_held_bytes)
        )

    @property
    def session(self) -> Session:
        """The session, while the app runs.

        Raises:
            StateError: the app is not running.
        """
        if self._running is None:
            raise StateError("the app has a session only while it runs: await app.run()")
        return self._running.session

    @property
    def health_uri(self) -> str | None:
        """Where it answers HTTP, such as ``http://127.0.0.1:8080``; None while it does not."""
        return self._probe.uri if self._probe is not None else None

    def _health(self) -> Health | None:
        if self._life.state is AppState.DRAINING:
            return None
        found: list[Health] = []
        for each in self._all():
            if each._running is None:
                return None
            found.append(each._running.session.health())
        return worst(found)

    async def queue(self, uri: str) -> Queue:
        """Return a queue to post to, opened the first time it is asked for; for use in handlers.

        It may be one that the app consumes.

        Raises:
            OpenQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
            InvalidURI: the URI is not legal.
            StateError: the app is not running.

        Cancelling it does not stop the opening: the next call for this queue waits for the same one.
        """
        return await self.session.open_output(uri)

    def status(self) -> Statuses:
        """Say how the subscribers of the handlers are doing, those of parts first, as they were registered.

        Printed, it is a table; see :class:`bmq.workers.SubscriberStatus`.
        Empty before the app has opened its queues; afterwards it is what was last.
        """
        return status(*(consumer for each in self._all() for consumer in each._consumers))

    async def pause(self, handler: object = None) -> None:
        """Take no more messages, until :meth:`resume`; handlers at work go on.

        The broker delivers to other consumers meanwhile; see :meth:`bmq.Consumer.pause`.

        Args:
            handler: the function that was registered; None for all.

        Raises:
            StateError: the app is not running, or has no such handler.
            RequestTimeout: the broker did not answer in time.

        Cancelling it leaves some paused.
        """
        for consumer in self._consumers_of(handler):
            await consumer.pause()

    async def resume(self, handler: object = None) -> None:
        """Go on after :meth:`pause`.

        Args:
            handler: the function that was registered; None for all.

        Raises:
            StateError: the app is not running, or has no such handler.
            ConfigureQueueError, RequestTimeout: the broker refused, or did not answer in time.

        Cancelling it leaves some paused.
        """
        for consumer in self._consumers_of(handler):
            await consumer.resume()

    def _consumers_of(self, handler: object) -> list[Consumer]:
        feeding = [
            fed for each in self._all() if each._running is not None for fed in each._running.consumers
        ]
        if not feeding:
            raise StateError("the app has consumers only while it runs: await app.run()")
        found = [consumer for each, consumer, _ in feeding if handler is None or each.is_of(handler)]
        if not found:
            raise StateError(f"{_checks.shown(handler)} is no handler of this app")
        return found

    async def __aenter__(self) -> App[S]:
        """Run the app in the background, inside another program; return once its handlers are at work.

        Raises:
            StateError: the app is running already, or nothing is registered.
            ConnectionFailed, OpenQueueError, ConfigureQueueError: as :meth:`run`.

        Cancelling it ends the app.
        """
        if self._life.state is not AppState.STOPPED:
            raise StateError("the app is running already")
        begun = self._life.begun = asyncio.get_running_loop().create_future()
        running = self._background = asyncio.create_task(self.run(signals=False), name="bmq app")
        try:
            await asyncio.wait({running, begun}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.stop()
            await settled([running], None)
            raise
        if running.done():
            await running
            raise StateError("the app was stopped while it started")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End the app as :meth:`stop` does, and wait for it.

        Raises:
            Error: a queue or the session has failed meanwhile.
        """
        running, self._background = self._background, None
        assert running is not None
        self.stop()
        undisturbed = await settled([running], None)
        if not running.cancelled():
            running.result()
        if not undisturbed:
            raise asyncio.CancelledError

    def stop(self) -> None:
        """Begin to end: take no more messages, and let handlers at work finish within ``grace`` seconds.

        A second call cancels them. While the app connects and opens its queues, a call ends that.
        Call it in the event loop, from a handler for instance. For a part it is that of the whole.
        """
        self._life.fire(AppInput.STOP)

    async def run(self, *, signals: bool = True) -> None:
        """Connect, open the queues, and handle messages until told to stop.

        It ends after :meth:`stop`; on SIGTERM and SIGINT, which do the same (a second one cancels the
        handlers); when cancelled; when every queue was closed; and with an error when a queue or the session
        fails. Handlers at work may finish within ``grace`` seconds, then queues and session are closed.

        Args:
            signals: handle SIGTERM and SIGINT, where the platform and the thread allow it.

        Raises:
            ConnectionFailed: no broker answered.
            OpenQueueError, ConfigureQueueError: the broker refused a queue or a subscription.
            StateError: the app is running already, or nothing is registered.
            OSError: the address for ``health`` cannot be used.
            Error: a queue or the session has failed.

        Cancelling it ends it in the same way; cancelling it again cancels the handlers.
        """
        signals = _checks.boolean("signals", signals)
        apps = self._all()
        if any(each._life.state is not AppState.STOPPED for each in apps):
            raise StateError("the app is running already")
        if all(each._registry.empty for each in apps):
            raise StateError("nothing to do: register a handler with @app.consumer(...)")
        life = self._life
        for each in apps:
            each._life = life
        life.fire(AppInput.RUN, asyncio.current_task())
        try:
            with on_signals(self.stop) if signals else nullcontext():
                async with AsyncExitStack() as closing:
                    for each in apps:
                        if each._probe is not None:
                            await closing.enter_async_context(each._probe.serving())
                    async with AsyncExitStack() as ending:
                        await self._start(apps, closing, ending)
                        if life.state is AppState.STARTING:
                            await self._work(apps)
                    for each in apps:
                        each._running = None
        finally:
            life.fire(AppInput.ENDED)
            for each in apps:
                each._running = None
                each._life = life if each is self else Life()

    async def _start(self, apps: list[App[Any]], closing: AsyncExitStack, ending: AsyncExitStack) -> None:
        """Connect, open the queues, call the startup functions; return early after a stop."""
        task = asyncio.current_task()
        assert task is not None
        try:
            for each in apps:
                each._running = await Running.start(each._settings, each._registry, closing)
                each._consumers = [consumer for _, consumer, _ in each._running.consumers]
            for function in [function for each in apps for function in each._registry.shutdown]:
                ending.push_async_callback(_called, function)
            for function in [function for each in apps for function in each._registry.startup]:
                await _called(function)
            # A function that stops the app, and awaits nothing, has its cancellation here.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Not the cancellation of the stop, or not only this one.
            if self._life.state is not AppState.DRAINING or task.cancelling() > 1:
                raise
            task.uncancel()

    async def _work(self, apps: list[App[Any]]) -> None:
        """Run every handler until all are done, or one has failed; and the sweepers beside them."""
        running = [each._running for each in apps if each._running is not None]
        feeding = [task for each in running for task in each.feeding()]
        sweeping = [task for each in running for task in each.sweeping()]

        def end_sweeping(_: asyncio.Task[None]) -> None:
            if all(task.done() for task in feeding):
                for task in sweeping:
                    task.cancel()

        for task in feeding:
            task.add_done_callback(end_sweeping)
        tasks = [*feeding, *sweeping, *(task for each in running for task in each.moving())]
        self._life.fire(AppInput.STARTED, tasks)
        cancelled = False
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            cancelled = True
        if self._life.state is AppState.RUNNING:
            self.stop()
        cancelled |= not await settled(tasks, None)
        if cancelled:
            raise asyncio.CancelledError
        failures = [error for task in tasks if not task.cancelled() and (error := task.exception())]
        for error in failures[1:]:
            logger.error("a second handler ended too: %s", error)
        if failures:
            raise failures[0]


async def _called(function: Callable[[], object]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result
