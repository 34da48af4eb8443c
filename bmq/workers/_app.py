# SPDX-License-Identifier: Apache-2.0
"""A service of message handlers: sessions, queues, an orderly shutdown; and apps as parts of an app."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import Any, ClassVar, Generic, Unpack

from bmq import _checks
from bmq._dead_letters import Failure
from bmq._live import live
from bmq._logging import Log
from bmq._loop import running_loop
from bmq._signals import on_signals
from bmq._turn import turn_of
from bmq.admin.client import Admin
from bmq.admin.client import connect as ask
from bmq.client.address import parse_addresses
from bmq.client.connect import check_options, connect
from bmq.client.consumer import Consumer
from bmq.client.health import Health
from bmq.client.interceptors import check_interceptors
from bmq.client.keywords import ConnectOptions
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.delays import Mover
from bmq.errors import Error, StateError, UsageError
from bmq.protocol.machine import Machine, Transition
from bmq.workers._handlers import HandlerContext, S, app_dependencies, checked_state
from bmq.workers._options import Middleware, OnError, member_of
from bmq.workers._registry import Registrar, Registration, Registry, Router
from bmq.workers._results import Publisher
from bmq.workers._retry import Clock, checked_clock
from bmq.workers._status import Statuses, expect, status, workers_of
from bmq.workers._sweeper import Sweeper
from bmq.workers._workers import feed, idle_consumer_of, settled, together
from bmq.workers.probe import Metrics, Probe, address_of, worst

__all__ = ["App", "Life", "LifeState"]

logger = Log("bmq.workers")

# ---- The life of an app, as a table
#
# The problem: an app is stopped by signals, by handlers, by failures and by cancellation, also while it
# connects, and a second stop means more than the first. An app and its parts (:meth:`bmq.App.include`) share
# a single life: stopping a part stops all.
#
# Invariants:
#
# - Every question about the life is a question about the state: no flag stands beside the table.
# - In STARTING a stop cancels the starting task. In RUNNING and DRAINING a stop cancels the tasks of the
#   handlers. A handler's task finishes its messages after the first cancellation, and ends at the second.
# - ENDED is the last input of every run, and leads to STOPPED: an app can run again.
#
# Rejected: a separate state for a stop in STARTING. The rest of the run is the same as in DRAINING: no new
# work begins, and all sessions are closed.


class LifeState(Enum):
    """The states of an app."""

    STOPPED = "does not run; handlers can be registered"
    STARTING = "connects, opens queues, calls the startup functions"
    RUNNING = "handlers are called"
    DRAINING = "takes no more messages; running handlers finish"


class LifeInput(Enum):
    """The inputs of an app's state machine."""

    RUN = "run or async with"
    STARTED = "the tasks of the handlers exist"
    STOP = "stop, a signal, a cancellation, or a handler that has ended"
    ENDED = "everything is closed"


_S, _I = LifeState, LifeInput


class Life(Machine):
    """The state of an app with its parts, and the tasks to be cancelled by a stop.

    Attributes:
        begun: set once all handlers get messages; None if no caller waits.
    """

    __slots__ = ("_tasks", "begun")

    def __init__(self) -> None:
        self.state = LifeState.STOPPED
        self.begun: asyncio.Future[None] | None = None
        self._tasks: tuple[asyncio.Task[Any], ...] = ()

    def _keep(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        self._tasks = tuple(tasks)

    def _cancel(self) -> None:
        loop = asyncio.get_running_loop()
        turn_of(loop).hold(loop)
        for task in self._tasks:
            task.cancel()

    def _interrupt(self) -> None:
        self._cancel()
        self._tasks = ()  # the rest of the run closes what was opened

    def _forget(self) -> None:
        self._tasks, self.begun = (), None

    TRANSITIONS: ClassVar[Mapping[tuple[Any, Any], Transition]] = {
        (_S.STOPPED, _I.RUN): Transition(_keep, _S.STARTING),
        (_S.STOPPED, _I.STOP): Transition(None, _S.STOPPED),
        (_S.STARTING, _I.STARTED): Transition(_keep, _S.RUNNING),
        (_S.STARTING, _I.STOP): Transition(_interrupt, _S.DRAINING),
        (_S.STARTING, _I.ENDED): Transition(_forget, _S.STOPPED),
        (_S.RUNNING, _I.STOP): Transition(_cancel, _S.DRAINING),
        (_S.DRAINING, _I.STOP): Transition(_cancel, _S.DRAINING),
        (_S.DRAINING, _I.ENDED): Transition(_forget, _S.STOPPED),
    }


# ---- The app

# Seconds between two looks whether all handlers get messages, at the start.
_LOOK_EVERY = 0.02


@live
class App(Registrar, Generic[S]):
    """A service that handles messages.

    ::

        app = bmq.App("tcp://localhost:30114")

        @app.consumer(
            "bmq://bmq.test.mem.priority/orders",
            expression='OrderType == "EXPRESS"',
        )
        async def ship(message: bmq.Message) -> None:
            ...

        bmq.run(app.run())

    Creating an app and registering handlers opens nothing and needs no event loop. Handlers remain plain
    functions, so tests can call them directly.

    Args:
        broker: as for :func:`bmq.connect`.
        grace: seconds for handlers to finish when the service stops. Handlers that still run 6 seconds later
            are left running, and the log names them.
        on_error: called with a :class:`bmq.workers.Failure` after each unsuccessful attempt of any handler.
        clock: clock for the pauses between attempts.
        health: ``HOST:PORT`` of an HTTP server to run with the app. ``/livez`` answers while the event loop
            runs, ``/readyz`` reports :meth:`bmq.Session.health` (503 if not ready, or starting), and
            ``/metrics`` returns the result of ``metrics``. Port 0 selects a free port: :attr:`health_uri`.
        metrics: function returning metrics in Prometheus' text format. Called in the event loop, once for
            each request.
        state: object shared by the handlers. With a class of your own, type checkers check ``app.state``, and
            a handler receives the object in a parameter annotated with the class. The default is a namespace
            that accepts any name.
        middlewares: async functions around each attempt of each handler, the first outermost; see
            :meth:`middleware`.
        options: further options of :func:`bmq.connect`; for example ``retry_first_connect=True`` to wait for
            the broker at startup.

    Attributes:
        state: the object given as ``state``, or a namespace. Set its attributes in a function of
            :meth:`on_startup`. Reading an unset attribute raises an ``AttributeError`` that lists the
            attributes already set.
        overrides: replacements of the functions of dependencies, by function, used from the next start of the
            app. For tests: ``app.overrides[get_repo] = FakeRepo``.

    Raises:
        UsageError: ``health`` is not an address, ``metrics`` is given without ``health``, or ``state`` is a
            class.
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
        middlewares: Iterable[Middleware] = (),
        **options: Unpack[ConnectOptions],
    ) -> None:
        #: Object shared by the handlers: the one given as ``state``, or a namespace.
        self.state: S = checked_state(state)
        super().__init__(Registry(lambda queue: queue, type(self.state)), middlewares)
        known = (*(App.__init__.__kwdefaults__ or ()), *ConnectOptions.__optional_keys__)
        _checks.keywords(f"{type(self).__qualname__}()", options, known)
        if broker is not None:
            parse_addresses(broker)
        # Each session of the app uses this list of interceptors.
        if "interceptors" in options:
            options["interceptors"] = check_interceptors(options["interceptors"])
        check_options(**options)
        grace = _checks.seconds("grace", grace)
        clock = checked_clock(clock)
        if on_error is not None:
            _checks.function("on_error", on_error, 1)
        if metrics is not None:
            _checks.function("metrics", metrics, 0, plain=True)
        address = address_of(health) if health is not None else None
        if address is None and metrics is not None:
            raise UsageError(
                "metrics needs health='HOST:PORT', where the metrics are served. If bmq run --health gives "
                "the address, any address will do here, as health='127.0.0.1:0'"
            )
        self._probe = Probe(address, self._health, metrics)
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._broker, self._options, self._grace, self._clock = broker, options, grace, clock
        self._on_error = on_error
        # Second hook for failures, for tests.
        self._watch: Callable[[Failure], None] | None = None
        self._parts: list[App[Any]] = []
        # State of the run; shared with the whole while the app runs as a part of another app.
        self._life = Life()
        # The task of the run in ``async with``.
        self._background: asyncio.Task[None] | None = None
        # The run: the session of the handlers, and a session for sweepers, because sweepers close queues.
        self._session: Session | None = None
        self._sweeping: Session | None = None
        self._movers: list[Mover] = []
        self._context = HandlerContext()
        # Each handler with its consumer; kept for status() after the end of the run.
        self._fed: list[tuple[Registration, Consumer]] = []

    def include(self, part: App[Any] | Router) -> None:
        """Include a router, or make another app a part of this app.

        The handlers of a :class:`bmq.Router` become handlers of this app, and use the session of this app.
        An app as a part is for a service with several brokers::

            eu, us = bmq.App("tcp://eu:30114"), bmq.App("tcp://us:30114")
            eu.include(us)

            @eu.consumer("bmq://bmq.test.mem.priority/orders")
            async def copy(message: bmq.Message) -> None:
                await (await us.queue("bmq://bmq.test.mem.priority/orders")).post(message.data)

        Such a part has a session, queues, handlers, options and state of its own, and may include further
        apps. Parts start and stop with this app. All parts connect first, and then run their startup
        functions. Their shutdown functions run last. A part that fails ends the whole app, and :meth:`stop`
        of any part stops all parts. A part without handlers is a session for posting.

        Args:
            part: a router, which may be included in several apps; or another app. The other app can still run
                alone, but not at the same time.

        Raises:
            UsageError: ``part`` is already a part of the app, or the app is a part of ``part``; or a
                registration of the router contradicts a registration of the app.
            InvalidURI: a queue name of the router is relative, and no prefix begins with ``bmq://``.
            StateError: either app is running.
        """
        if isinstance(part, Router):
            self._include_router(part)
            return
        self._check_open()
        if not isinstance(part, App):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"part must be a bmq.Router or a bmq.App, not {_checks.shown(part)}")
        part._check_open()
        if self in part._all() or part in self._all():
            raise UsageError("one of the apps is already a part of the other")
        self._parts.append(part)

    def _all(self) -> list[App[Any]]:
        """The app's parts, with nested parts, and the app itself."""
        return [*(each for part in self._parts for each in part._all()), self]

    def _calls(self) -> int:
        """Return the number of calls in progress, for a test of the app."""
        workers = [workers_of(consumer) for _, consumer in self._fed]
        return sum(each.calls for each in workers if each is not None)

    @_checks.known_arguments
    def sweeper(
        self,
        queue: str,
        *,
        put_aside: str | None = None,
        hand_back_every: float | None = 60.0,
        max_unconfirmed_messages: int = 100_000,
        max_unconfirmed_bytes: int = 256 * 1024 * 1024,
    ) -> Sweeper:
        """Put aside or hold the unclaimed messages of a queue, while the app runs.

        The sweepers of an app start after the subscriptions of its handlers, and use a separate session.

        Args:
            queue: the queue's URI. For this and all further arguments, see :class:`bmq.workers.Sweeper`.
            put_aside: URI of the queue for unclaimed messages; if None, the sweeper holds the messages.
            hand_back_every: seconds until held messages return to the queue.
            max_unconfirmed_messages: limit of held messages.
            max_unconfirmed_bytes: limit of held bytes.

        Returns:
            The sweeper, with counts from ``stats()``.

        Raises:
            UsageError, InvalidURI: as for :class:`bmq.workers.Sweeper`.
            StateError: the app is running.
        """
        self._check_open("sweepers")
        sweeper = Sweeper(
            queue,
            put_aside=put_aside,
            hand_back_every=hand_back_every,
            max_unconfirmed_messages=max_unconfirmed_messages,
            max_unconfirmed_bytes=max_unconfirmed_bytes,
        )
        self._registry.sweepers.append(sweeper)
        return sweeper

    def _begun(self) -> asyncio.Future[None]:
        """Return a future to be done once the handlers of the next run receive messages."""
        begun = self._life.begun = running_loop().create_future()
        return begun

    def _check_open(self, parts: str = "handlers") -> None:
        if self._life.state is not LifeState.STOPPED:
            raise StateError(f"the app is running; register its {parts} before")

    @property
    def session(self) -> Session:
        """The session, while the app runs.

        Raises:
            StateError: the app is not running.
        """
        if self._session is None:
            raise StateError("the app has a session only while it runs: await app.run()")
        return self._session

    @property
    def health_uri(self) -> str | None:
        """Address of the HTTP server, for example ``http://127.0.0.1:8080``; None if not running.

        None under ``bmq run --processes``, too: the supervisor runs the server for all.
        """
        return self._probe.uri

    def _health(self) -> Health | None:
        """The worst health of the sessions; None before all handlers get messages, and after a stop."""
        sessions = [each._session for each in self._all()]
        if self._life.state is not LifeState.RUNNING or None in sessions:
            return None
        return worst([each.health() for each in sessions if each is not None])

    async def _announce(self, begun: asyncio.Future[None]) -> None:
        """Tell the caller once all handlers get messages."""
        while (health := self._health()) is None or not health.ready:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY)
        if not begun.done():
            begun.set_result(None)

    async def queue(self, uri: str) -> Queue:
        """Return a queue for posting, for use in handlers. The first call opens the queue.

        Queues consumed by the app are allowed, too.

        Raises:
            OpenQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
            InvalidURI: the URI is not legal.
            StateError: the app is not running.

        Cancelling the call does not cancel the opening: the next call for this queue waits for the same
        opening.
        """
        return await self.session.open_output(uri)

    def status(self) -> Statuses:
        """Return the status of each handler's subscriber, parts first, in the order of registration.

        As text, the result is a table; see :class:`bmq.workers.SubscriberStatus`. The result is empty before
        the app has opened its queues. After the end of the app, the result is the last status.
        """
        return status(*(consumer for each in self._all() for _, consumer in each._fed))

    async def pause(self, handler: object = None) -> None:
        """Take no more messages until :meth:`resume`. Messages in progress are finished.

        Meanwhile the broker delivers to other consumers; see :meth:`bmq.Consumer.pause`.

        Args:
            handler: the registered function; None for all handlers.

        Raises:
            StateError: the app is not running, or has no such handler.
            RequestTimeout: the broker did not answer in time.

        Cancelling the call may leave some handlers paused.
        """
        for consumer in self._consumers_of(handler):
            await consumer.pause()

    async def resume(self, handler: object = None) -> None:
        """Take messages again after :meth:`pause`.

        Args:
            handler: the registered function; None for all handlers.

        Raises:
            StateError: the app is not running, or has no such handler.
            ConfigureQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.

        Cancelling the call may leave some handlers paused.
        """
        for consumer in self._consumers_of(handler):
            await consumer.resume()

    def _consumers_of(self, handler: object) -> list[Consumer]:
        feeding = [fed for each in self._all() if each._session is not None for fed in each._fed]
        if not feeding:
            raise StateError("the app has consumers only while it runs: await app.run()")
        known = callable(handler)  # the equality of other objects may be anything
        chosen = [fed for fed in feeding if handler is None or (known and fed[0].handler == handler)]
        if not chosen:
            raise StateError(f"{_checks.shown(handler)} is not a handler of this app")
        for each, _ in chosen:
            if each.group is not None:
                raise StateError(
                    f"{each.plan.name} is the handler of a group, which cannot be paused: stop the app, and "
                    "the other members take over"
                )
        return [consumer for _, consumer in chosen]

    async def __aenter__(self) -> App[S]:
        """Run the app in the background of another program; return once its handlers receive messages.

        Raises:
            StateError: the app is running already, or nothing is registered.
            ConnectionFailed, OpenQueueError, ConfigureQueueError: as :meth:`run`.

        Cancelling the call ends the app.
        """
        if self._life.state is not LifeState.STOPPED:
            raise StateError("the app is running already")
        begun = self._begun()
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
        """Stop the app as :meth:`stop` does, and wait for its end.

        Raises:
            Error: a queue or the session failed while the app was running.
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
        """Stop taking messages, and let handlers in progress finish within ``grace`` seconds.

        No handler starts after this call. A second call cancels the handlers. While the app connects and
        opens its queues, a call ends the startup. Call this method in the event loop, for example from a
        handler. Stopping a part stops the whole app.
        """
        self._life.fire(LifeInput.STOP)

    async def run(self, *, signals: bool = True) -> None:
        """Connect, open the queues, and handle messages until the app stops.

        The app stops after :meth:`stop`, on SIGTERM or SIGINT, on a cancellation of this call, and once all
        queues are closed. If a queue or the session fails, the app stops and raises the error. Handlers in
        progress may finish within ``grace`` seconds; then the queues and the session are closed. A second
        signal cancels the handlers.

        Args:
            signals: handle SIGTERM and SIGINT, if the platform and the thread allow signal handlers.

        Raises:
            ConnectionFailed: no broker answered.
            OpenQueueError, ConfigureQueueError: the broker refused a queue or a subscription.
            StateError: the app is running already, or nothing is registered.
            OSError: the address for ``health`` cannot be used.
            Error: a queue or the session has failed.

        Cancelling the call stops the app in the same way; a second cancellation cancels the handlers.
        """
        signals = _checks.boolean("signals", signals)
        apps = self._all()
        if any(each._life.state is not LifeState.STOPPED for each in apps):
            raise StateError("the app is running already")
        if not any(it.handlers or it.sweepers or it.waiting for it in [each._registry for each in apps]):
            raise StateError("the app has no handler: register one with @app.consumer(...)")
        for each in apps:
            for handler in each._registry.handlers:
                if handler.middlewares is not None:
                    around = *each._middlewares, *handler.middlewares
                    handler.plan.check_middlewares(around, each.overrides)
        life = self._life
        for each in apps:
            each._life = life
        life.fire(LifeInput.RUN, [asyncio.current_task()])
        try:
            with on_signals(self.stop) if signals else nullcontext():
                async with AsyncExitStack() as closing:
                    for each in apps:
                        await closing.enter_async_context(each._probe.serving())
                    async with AsyncExitStack() as ending:
                        await self._start(apps, closing, ending)
                        if life.state is LifeState.STARTING:
                            await self._work(apps)
                    for each in apps:
                        each._session = None
        finally:
            life.fire(LifeInput.ENDED)
            for each in apps:
                each._session = None
                each._life = life if each is self else Life()

    async def _start(self, apps: list[App[Any]], closing: AsyncExitStack, ending: AsyncExitStack) -> None:
        """Connect, open the queues, call the startup functions; return early after a stop."""
        task = asyncio.current_task()
        assert task is not None
        try:
            for each in apps:
                await each._open(closing)
            for function in [function for each in apps for function in each._registry.shutdown]:
                ending.push_async_callback(_called, function)
            for function in [function for each in apps for function in each._registry.startup]:
                await _called(function)
            for each in apps:
                context = HandlerContext(tuple(each._middlewares), None, each.state, each.overrides.copy())
                plans = [registered.plan for registered in each._registry.handlers]
                await ending.enter_async_context(app_dependencies(plans, context))
                each._context = context
            # A startup function may stop the app without awaiting: the cancellation arrives here.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # The cancellation came from elsewhere, or from elsewhere as well.
            if self._life.state is not LifeState.DRAINING or task.cancelling() > 1:
                raise
            task.uncancel()

    async def _open(self, closing: AsyncExitStack) -> None:
        """Connect, and open each queue once, with all its subscriptions."""
        self._registry.check_published()
        session = await closing.enter_async_context(connect(self._broker, **self._options))
        handlers, posted = self._registry.handlers, self._registry.outputs()
        consumers: dict[object, Iterator[Consumer]] = {}
        for uri in {each.uri: None for each in handlers}:
            of_queue = [each for each in handlers if each.uri == uri]
            queue = await session.open_queue(
                str(uri),
                read=True,
                write=not uri.app_id and uri.canonical in posted,
                default_subscription=False,
                subscriptions=[each.options.definition for each in of_queue if each.group is None],
            )
            grouped = of_queue[0].group is not None  # a group has one handler
            consumers[uri] = iter([idle_consumer_of(queue)] if grouped else queue.consumers)
        for output in posted:
            await session.open_output(output)
        self._fed = [(each, next(consumers[each.uri])) for each in handlers]
        for each, consumer in self._fed:
            expect(consumer, each.plan.name)
        self._movers = [mover async for mover in self._make_movers(session, closing)]
        self._sweeping = None
        if self._registry.sweepers:
            connecting = connect(self._broker, **self._options)
            self._sweeping = await closing.enter_async_context(connecting)
        self._session = session

    async def _make_movers(self, session: Session, closing: AsyncExitStack) -> AsyncGenerator[Mover]:
        if not self._registry.waiting:
            return
        admin: Admin | None = None
        same = ("credentials", "ssl", "server_hostname")
        how: dict[str, Any] = {name: value for name, value in self._options.items() if name in same}
        try:
            admin = await closing.enter_async_context(ask(self._broker, **how))
        except Error as error:
            logger.info("the delay queue cannot be checked: %s", error)
        for uri, given in self._registry.waiting.items():
            queue = await session.open_queue(str(uri), read=True, default_subscription=False)
            options = dict(given or {})
            if (letters := options.get("dead_letters")) is not None:
                options["dead_letters"] = await session.open_output(letters)
            yield Mover(queue, admin=admin, **options)

    async def _feed(self, each: Registration, consumer: Consumer) -> None:
        """Call one handler until the app stops."""
        options, watch = each.options, self._watch
        hook = options.on_error if options.on_error is not None else self._on_error

        def tell(failure: Failure) -> Awaitable[None] | None:
            if watch is not None:
                watch(failure)
            return hook(failure) if hook is not None else None

        options = replace(options, on_error=tell if watch is not None else hook)
        outer = self._context.middlewares
        builtin: Middleware | None = None
        if each.responder is not None:
            builtin = each.responder._handle
        elif each.outputs:
            builtin = Publisher(each.outputs, batch=options.batches is not None)
        middlewares = () if each.middlewares is None else (*outer, *each.middlewares)
        context = replace(self._context, middlewares=middlewares, builtin=builtin)
        group = None if each.group is None else member_of(each.group, consumer.queue)
        how = (consumer, each.plan, options, context)
        await feed(*how, group=group, close=True, grace=self._grace, clock=self._clock)

    async def _work(self, apps: list[App[Any]]) -> None:
        """Run all handlers and the sweepers, until all handlers end or the first of them fails."""
        start = asyncio.create_task
        feeding = [start(app._feed(*fed), name=f"consume {fed[0].uri}") for app in apps for fed in app._fed]
        sweeping = [
            start(each.run(app._sweeping), name=f"sweep {each.queue}")
            for app in apps
            if app._sweeping is not None
            for each in app._registry.sweepers
        ]
        moving = [start(each.run(), name="mover") for app in apps for each in app._movers]

        def end_sweeping(_: asyncio.Task[None]) -> None:
            if all(task.done() for task in feeding):
                for task in sweeping:
                    task.cancel()

        for task in feeding:
            task.add_done_callback(end_sweeping)
        tasks = [*feeding, *sweeping, *moving]
        self._life.fire(LifeInput.STARTED, tasks)
        begun = self._life.begun
        announcing = asyncio.create_task(self._announce(begun)) if begun is not None else None

        def stop() -> None:
            if announcing is not None:
                announcing.cancel()
            if self._life.state is LifeState.RUNNING:
                self.stop()

        await together(tasks, stop, asyncio.FIRST_EXCEPTION)


async def _called(function: Callable[[], object]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result
