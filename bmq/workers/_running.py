# SPDX-License-Identifier: Apache-2.0
"""The sessions, consumers and movers of an app, from its start to its end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bmq._logging import Log
from bmq.admin.client import Admin
from bmq.admin.client import connect as ask
from bmq.client.connect import connect
from bmq.client.consumer import Consumer
from bmq.client.dead_letters import DeadLetter, Failure
from bmq.client.keywords import ConnectOptions
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.delays import Mover
from bmq.errors import Error
from bmq.workers._clock import Clock
from bmq.workers._consume import feed, idle_consumer_of
from bmq.workers._dependencies import HandlerContext
from bmq.workers._membership import member_of
from bmq.workers._options import HandlerOptions, OnError
from bmq.workers._registry import Registration, Registry
from bmq.workers._status import expect

__all__ = ["Running", "Settings"]

logger = Log("bmq.workers")


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of an app.

    Attributes:
        broker: address of the broker.
        options: other arguments of :func:`bmq.connect`.
        grace: seconds for handlers to finish.
        on_error: hook for failed attempts of handlers without a hook.
        clock: clock for pauses.
        watch: second hook, for tests.
    """

    broker: str | None
    options: ConnectOptions
    grace: float
    on_error: OnError | None
    clock: Clock | None
    watch: Callable[[Failure], None] | None = None

    def hook(self, own: OnError | None) -> OnError | None:
        """Return a handler's hook, or the app's, joined with the second hook."""
        hook, watch = own if own is not None else self.on_error, self.watch
        if watch is None:
            return hook

        def tell(failure: Failure) -> Awaitable[None] | None:
            watch(failure)
            return hook(failure) if hook is not None else None

        return tell


class Running:
    """A running app.

    Attributes:
        session: session of the handlers.
        consumers: registration, consumer and open dead-letter queue of each handler.
        context: middlewares, state and dependencies of the app.
    """

    def __init__(self, settings: Settings, registry: Registry, session: Session) -> None:
        self._settings = settings
        self._registry = registry
        self.session = session
        self.consumers: list[tuple[Registration, Consumer, Queue | None]] = []
        # Sweepers close queues, so sweepers have a separate session.
        self._sweeping: Session | None = None
        self._movers: list[Mover] = []
        self.context = HandlerContext()

    @classmethod
    async def start(cls, settings: Settings, registry: Registry, closing: AsyncExitStack) -> Running:
        """Connect, and open the queues.

        Args:
            settings: arguments of the app.
            registry: handlers, sweepers and delay queues of the app.
            closing: closes the sessions at the end.
        """
        registry.check_published()
        session = await closing.enter_async_context(connect(settings.broker, **settings.options))
        running = cls(settings, registry, session)
        await running._open_queues()
        await running._make_movers(closing)
        if registry.sweepers:
            connecting = connect(settings.broker, **settings.options)
            running._sweeping = await closing.enter_async_context(connecting)
        return running

    async def _open_queues(self) -> None:
        """Open each queue once, with all its subscriptions."""
        handlers, session = self._registry.handlers, self.session
        posted = self._registry.outputs()
        consumers: dict[object, Iterator[Consumer]] = {}
        for uri in {each.uri: None for each in handlers}:
            queue = await session.open_queue(
                str(uri),
                read=True,
                write=not uri.app_id and uri.canonical in posted,
                default_subscription=False,
                subscriptions=[
                    each.options.definition for each in handlers if each.uri == uri and each.group is None
                ],
            )
            grouped = any(each.uri == uri and each.group is not None for each in handlers)
            consumers[uri] = iter([idle_consumer_of(queue)] if grouped else queue.consumers)
        for output in self._registry.published:
            await session.open_output(output.uri.canonical)
        for each in handlers:
            then, dead_letters = each.options.policy.then, None
            if isinstance(then, DeadLetter):
                dead_letters = (
                    await session.open_output(then.queue) if isinstance(then.queue, str) else then.queue
                )
            self.consumers.append((each, next(consumers[each.uri]), dead_letters))
            expect(self.consumers[-1][1], each.plan.name)

    async def _make_movers(self, closing: AsyncExitStack) -> None:
        if not self._registry.waiting:
            return
        admin: Admin | None = None
        same = ("credentials", "ssl", "server_hostname")
        how: dict[str, Any] = {name: value for name, value in self._settings.options.items() if name in same}
        try:
            admin = await closing.enter_async_context(ask(self._settings.broker, **how))
        except Error as error:
            logger.info("the delay queue cannot be checked: %s", error)
        for uri, waiting in self._registry.waiting.items():
            queue = await self.session.open_queue(str(uri), read=True, default_subscription=False)
            options: dict[str, Any] = {}
            if waiting is not None:
                options = {field.name: getattr(waiting, field.name) for field in dataclasses.fields(waiting)}
                if waiting.dead_letters is not None:
                    options["dead_letters"] = await self.session.open_output(waiting.dead_letters)
            self._movers.append(Mover(queue, admin=admin, **options))

    def feeding(self) -> list[asyncio.Task[None]]:
        """Start a task for each handler."""
        return [
            asyncio.create_task(self._feed(*each), name=f"consume {each[0].uri}") for each in self.consumers
        ]

    def sweeping(self) -> list[asyncio.Task[None]]:
        """Start a task for each sweeper."""
        session = self._sweeping
        if session is None:
            return []
        return [
            asyncio.create_task(sweeper._of_copy().run(session), name=f"sweep {sweeper.queue}")
            for sweeper in self._registry.sweepers
        ]

    def moving(self) -> list[asyncio.Task[None]]:
        """Start a task for each mover."""
        return [asyncio.create_task(mover.run(), name="mover") for mover in self._movers]

    async def _feed(self, each: Registration, consumer: Consumer, dead_letters: Queue | None) -> None:
        """Call one handler until the app stops."""
        settings, quarantine = self._settings, each.options.quarantine
        if quarantine is not None and isinstance(quarantine.queue, str):
            quarantine = DeadLetter(await self.session.open_output(quarantine.queue))
        options: HandlerOptions = dataclasses.replace(
            each.options, quarantine=quarantine, on_error=settings.hook(each.options.on_error)
        )
        grace, clock = settings.grace, settings.clock
        own, publisher = each.middlewares, self._registry.publisher_of(each)
        builtins = () if each.responder is None else (each.responder._handle,)
        context = dataclasses.replace(
            self.context,
            middlewares=() if own is None else (*self.context.middlewares, *own),
            builtins=builtins if publisher is None else (publisher,),
        )
        group = None if each.group is None else member_of(each.group, consumer.queue)
        how = (consumer, each.plan, options, dead_letters, context)
        await feed(*how, group=group, bounds=each.batches, close=group is None, grace=grace, clock=clock)
