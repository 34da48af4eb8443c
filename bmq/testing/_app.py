# SPDX-License-Identifier: Apache-2.0
"""Runs an app under test against a broker in memory, and records its failures."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from bmq import _checks, _world
from bmq._live import live
from bmq.broker import Broker, DomainConfig, PostedMessage
from bmq.client.connect import connect
from bmq.client.message import Message
from bmq.client.posts import Ack
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.codecs import Codec, Shape
from bmq.conventions import delay_queue_of
from bmq.errors import StateError, UsageError
from bmq.testing._memory import MemoryBroker, MemoryNetwork
from bmq.testing._time import TestTime
from bmq.wire.keys import Key
from bmq.wire.properties import Properties, PropertyInput
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.workers import App, Failure

__all__ = ["TestApp"]

T = TypeVar("T")

#: Posts that a broker of a test remembers.
_POSTS_KEPT = 10_000
_CENTURY = 100 * 366 * 86_400.0


@live
class TestApp:
    """Runs an app for a test, against a broker in memory, and records failed attempts.

    ::

        async def test_an_order_is_shipped():
            async with bmq.testing.TestApp(app) as test:
                await test.post(ORDERS, Order(number=1))
                await test.drained()
                test.assert_posted(SHIPPED, Shipped(number=1), count=1)

    The app and the test reach the broker in memory, without sockets and despite the app's own address and
    BMQ_BROKER_URI. Any asyncio event loop works. Each included app (:meth:`bmq.App.include`) has a separate
    broker: see :meth:`of`.

    The HTTP server of ``App(health=...)`` does not run; with ``broker``, the server has a free port
    (:attr:`bmq.App.health_uri`).

    Pauses between attempts and delays of messages take no time: while the app is idle, the clock of the test
    jumps to the end of the next pause. The clock counts for retries, durable retries, movers, delayed posts,
    batches, and the broker's own times such as ``message_ttl``. Other code, timeouts, and rates keep real
    time.

    Args:
        app: the app, unchanged after the test.
        broker: a running broker with ``posts_kept``, such as the fixture ``bmq_broker``, for connections over
            sockets; None makes a broker in memory.
        overrides: replacements of the functions of dependencies for this test, by function, besides those of
            :attr:`bmq.App.overrides`; also for included apps. A handler must depend on each function.
        domains: more domains for the broker in memory, as for :class:`bmq.broker.Broker`. The built-in
            domains with a ``message_ttl`` of five minutes have a year, so that long delays can be tested.
        skip_pauses: whether the clock jumps over pauses. Otherwise the clock runs in real time, and
            :meth:`advance` moves the clock.

    Attributes:
        app: the app.
        broker: the broker; see :meth:`bmq.broker.Broker.assert_posted`. ``broker.uri`` is an address for
            other programs: the first use opens a socket.
        failures: all failed attempts, in order.

    Raises:
        UsageError: ``app`` is not an app, ``broker`` is not a broker, or ``domains`` are given for a
            broker of your own.
    """

    __test__ = False  # despite its name no class of tests

    def __init__(
        self,
        app: App[Any],
        broker: Broker | None = None,
        *,
        overrides: Mapping[Callable[..., Any], Callable[..., Any]] | None = None,
        domains: Mapping[str, DomainConfig | dict[str, Any]] | Iterable[DomainConfig] = (),
        skip_pauses: bool = True,
    ) -> None:
        from bmq.workers import App

        _checks.choice("app", app, App)
        if broker is not None:
            _checks.choice("broker", broker, Broker)
            if domains:
                raise UsageError("domains are for a broker of the test: give them to the Broker(domains=...)")
        more: Mapping[str, DomainConfig | dict[str, Any]] | Iterable[DomainConfig] = domains
        if not isinstance(domains, Mapping):
            more = tuple(_checks.items("domains", domains, "DomainConfig"))
        time = TestTime(skip=_checks.boolean("skip_pauses", skip_pauses))
        self._set_up(app, broker, time, MemoryNetwork(time.stir), more)
        self._overrides: Mapping[Any, Any] = (
            {} if overrides is None else _checks.mapping("overrides", overrides)
        )
        time.calls = self._calls
        time.delayed = self._delayed

    def _set_up(
        self,
        app: App[Any],
        broker: Broker | None,
        time: TestTime,
        network: MemoryNetwork,
        domains: Mapping[str, DomainConfig | dict[str, Any]] | Iterable[DomainConfig],
    ) -> None:
        self.app = app
        self._time = time
        self._network = network
        self._world = time.world(network.create_connection)
        self._own = broker is None
        self._address = ""
        if broker is None:
            broker = MemoryBroker(posts_kept=_POSTS_KEPT, clock=time.clock, domains=domains)
            self._address = network.add(broker)
        self.broker: Broker = broker
        self.failures: list[Failure] = []
        self._queues: dict[str, Queue] = {}
        self._posted: dict[str, None] = {}
        self._session: Session | None = None
        self._undo: Callable[[], None] | None = None
        self._parts: list[TestApp] = []
        for each in app._parts:
            part = TestApp.__new__(TestApp)
            part._set_up(each, None, time, network, domains)
            self._parts.append(part)

    def of(self, part: App[Any]) -> TestApp:
        """Return the test of an included app: its broker and its failures.

        Raises:
            UsageError: the app is not included.
        """
        for each in self._all():
            if each.app is part:
                return each
        raise UsageError("the app is not part of the tested app: add it with app.include(...)")

    def _all(self) -> list[TestApp]:
        return [*(each for part in self._parts for each in part._all()), self]

    @contextmanager
    def _here(self) -> Generator[None]:
        """Run a block with the clock and the connections of the test."""
        token = _world.world.set(self._world)
        try:
            yield
        finally:
            _world.world.reset(token)

    # ---- the app's work, for the clock

    def _calls(self) -> int:
        return sum(each.app._calls() for each in self._all())

    def _delayed(self) -> bool:
        return any(each._left_in(uri) for each in self._all() for uri in each._delay_queues())

    def _left_in(self, uri: str) -> int:
        return len(self.broker.queues[uri]) if uri in self.broker.queues else 0

    def _delay_queues(self) -> list[str]:
        return [uri.canonical for uri in self.app._registry.waiting]

    def _read_queues(self) -> list[str]:
        registry = self.app._registry
        return [each.uri.canonical for each in registry.handlers] + self._delay_queues()

    # ---- results

    @property
    def retried(self) -> list[Failure]:
        """The failed attempts with a further attempt."""
        return [failure for failure in self.failures if failure.retry_in is not None]

    @property
    def given_up(self) -> list[Failure]:
        """The last attempts of messages that were put aside, discarded, skipped or left."""
        return [failure for failure in self.failures if failure.retry_in is None]

    @property
    def session(self) -> Session:
        """A session of the test's own.

        Raises:
            StateError: the test has not begun, or is over.
        """
        if self._session is None:
            raise StateError("the test has a session only within: async with TestApp(app) as test")
        return self._session

    @overload
    def posted(self, uri: str) -> list[PostedMessage]: ...
    @overload
    def posted(self, uri: str, of: type[T], *, codec: str | Codec[Any] = ...) -> list[T]: ...
    def posted(
        self, uri: str, of: type[Any] | None = None, *, codec: str | Codec[Any] = "application/json"
    ) -> Any:
        """Return the posts to a queue, oldest first, confirmed messages included.

        Args:
            uri: the queue's URI.
            of: type of the values, as for :meth:`bmq.Queue.typed`; None for messages.
            codec: decodes messages without a content type.

        Raises:
            Undecodable: a message has no value of this type.
            InvalidURI: the URI is not legal.
        """
        found = self.broker.posted(uri)
        if of is None:
            return found
        shape: Shape[Any] = Shape(of, codec)
        return [shape.decode(_Stored(each.payload, each.properties)) for each in found]

    def assert_posted(
        self,
        uri: str,
        value: Any = None,
        *,
        count: int | None = None,
        properties: Mapping[str, PropertyInput] | None = None,
        codec: str | Codec[Any] = "application/json",
    ) -> list[PostedMessage]:
        """Fail unless matching messages were posted to a queue; the failure shows all posts.

        Args:
            uri: the queue's URI.
            value: bytes, compared with the payload; or a value, compared with the decoded messages; None for
                any message.
            count: number of messages; None for at least one.
            properties: required properties; further properties are allowed.
            codec: decodes messages without a content type.

        Returns:
            The messages, oldest first.

        Raises:
            AssertionError: no message matches, or another number of messages.
            InvalidURI: the URI is not legal.
        """
        if value is None or isinstance(value, bytes):
            return self.broker.assert_posted(uri, count=count, payload=value, properties=properties)
        count = _checks.optional(_checks.integer, "count", count)
        shape: Shape[Any] = Shape(value.__class__, codec)
        found: list[PostedMessage] = []
        values: list[str] = []
        for each in self.broker.posted(uri):
            try:
                decoded: object = shape.decode(_Stored(each.payload, each.properties))
            except ValueError as error:
                values.append(f"    {each}: {error}")
                continue
            values.append(f"    {_shown(decoded)} {dict(each.properties)}")
            if decoded == value and each.has(None, properties or {}):
                found.append(each)
        if len(found) == count or (count is None and found):
            return found
        wanted = "a message" if count is None else f"{count} messages"
        wanted += f" {_shown(value)}"
        if properties:
            wanted += f" with {_shown(dict(properties))}"
        posts = "\n".join(values) or "    nothing"
        others = ", ".join(self._queues_with_posts()) or "none"
        raise AssertionError(
            f"expected {wanted} in {uri}, found {len(found)} of {len(values)} posted messages:\n{posts}\n"
            f"(queues with posts: {others})"
        )

    def _queues_with_posts(self) -> list[str]:
        return [uri for uri in self.broker.queues if self.broker.posted(uri)]

    # ---- steps

    async def post(
        self,
        uri: str,
        value: Any,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        tags: Iterable[str] = (),
        guid: str | None = None,
        key: Key | None = None,
        delay: float | None = None,
        codec: str | Codec[Any] = "application/json",
    ) -> Ack:
        """Post a message to a queue: bytes unchanged, other values as typed values.

        Args:
            uri: the queue's URI.
            value: bytes, or a value of a type for :meth:`bmq.Queue.typed`.
            properties: properties, besides the properties from the value's fields.
            tags: tags, as for :meth:`bmq.Queue.post`.
            guid: GUID to use instead of a generated one, as for :meth:`bmq.Queue.post`.
            key: ordering key, as for :meth:`bmq.Queue.post`.
            delay: seconds, by the test's clock, until the queue receives the message; needs a mover
                (:meth:`bmq.App.mover`).
            codec: encodes the value.

        Raises:
            UsageError, InvalidPayload: no codec fits the value.
            PostError: the broker did not accept the message.
        """
        queue, data, sent = await self._prepared(uri, value, properties, codec)
        self._posted[queue.uri] = None
        if delay is None:
            return await queue.post(data, properties=sent, tags=tags, guid=guid, key=key)
        self._posted[delay_queue_of(queue.uri)] = None
        with self._here():
            return await queue.post(data, properties=sent, tags=tags, guid=guid, key=key, delay=delay)

    async def request(
        self,
        uri: str,
        value: Any,
        *,
        reply: type[T],
        properties: Mapping[str, PropertyInput] | None = None,
        timeout: float = 10.0,
        codec: str | Codec[Any] = "application/json",
    ) -> T:
        """Send a request to a responder, and return the reply's value.

        Args:
            uri: the queue's URI.
            value: bytes, or a value of a type for :meth:`bmq.Queue.typed`.
            reply: type of the reply: bytes for the payload, :class:`bmq.Message`, or a type of values.
            properties: properties, besides the properties from the value's fields.
            timeout: seconds to wait, in real time.
            codec: encodes the value, and decodes a reply without a content type.

        Raises:
            RequestFailed: the responder has failed.
            TimedOut: no reply in time.
            Undecodable: the reply has no value of this type.
        """
        queue, data, sent = await self._prepared(uri, value, properties, codec)
        with self._here():
            message = await queue.request(data, properties=sent, timeout=timeout)
        answer: object = message
        if issubclass(reply, bytes):
            answer = message.data
        elif not issubclass(reply, Message):
            answer = Shape(reply, codec).decode(message)
        return cast("T", answer)

    async def _prepared(
        self, uri: str, value: Any, properties: Mapping[str, PropertyInput] | None, codec: str | Codec[Any]
    ) -> tuple[Queue, bytes, Mapping[str, PropertyInput] | None]:
        """Return the queue, the payload and the properties of a post."""
        name = QueueUri.parse(uri).canonical
        if properties is not None:
            _checks.mapping("properties", properties)
        if name not in self._queues:
            self._queues[name] = await self.session.open_queue(name, write=True)
        if isinstance(value, bytes):
            return self._queues[name], value, properties
        shape: Shape[Any] = Shape(value.__class__, codec)
        data, own = shape.encode(value)
        return self._queues[name], data, {**own, **(properties or {})}

    async def drained(self, *uris: str, timeout: float = 10.0) -> None:
        """Wait until every message of these queues was confirmed.

        Args:
            uris: the queues; by default all queues with posts of the test, and all queues with a handler or a
                mover of the app.
            timeout: seconds, in real time, to wait for all queues together.

        Raises:
            AssertionError: messages are left; the text lists the messages, their readers, and the latest
                failures.
        """
        timeout = _checks.seconds("timeout", timeout)
        names = [QueueUri.parse(uri).canonical for uri in uris]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            for uri in names or self._known():
                try:
                    await self.broker.drained(uri, max(0.0, deadline - loop.time()))
                except AssertionError as error:
                    raise AssertionError(f"{error}{self._explained(uri)}") from None
            # A handler may have posted to a queue seen empty before.
            if not any(self._left_in(uri) for uri in names or self._known()):
                return

    def _known(self) -> list[str]:
        read = [uri for uri in self._read_queues() if uri in self.broker.queues]
        return list(dict.fromkeys([*self._posted, *read]))

    async def advance(self, seconds: float, *, timeout: float = 10.0) -> None:
        """Move the clock forward, do all work due by then, and wait until the app is idle.

        ``await test.advance(0)`` only waits until the app is idle.

        Args:
            seconds: seconds by the test's clock, at most a century.
            timeout: seconds, in real time, to wait for handlers.

        Raises:
            AssertionError: a handler was still running.

        Cancelling the call leaves the clock between the two times.
        """
        seconds = _checks.number("seconds", seconds, 0.0, _CENTURY, unit="seconds")
        timeout = _checks.seconds("timeout", timeout)
        self.session  # noqa: B018  # raises outside of the test
        try:
            async with asyncio.timeout(timeout):
                await self._time.advance(seconds)
        except TimeoutError:
            raise AssertionError(f"the app was not idle within {timeout:g} s{self._explained('')}") from None

    @property
    def now(self) -> float:
        """Seconds of the test's clock, from any starting point: real time and skipped pauses."""
        return self._time.time()

    # ---- explanations

    def _explained(self, uri: str) -> str:
        """Return lines about the readers of a queue, or of all queues, and about the latest failures."""
        lines: list[str] = []
        read = self._read_queues()
        if uri and uri not in read:
            if uri in map(delay_queue_of, read) or uri.endswith(delay_queue_of("")):
                lines.append(
                    f"the app has no mover for {uri}: delayed messages stay there. Register "
                    f"app.mover({uri!r}), or test without the delay"
                )
            else:
                names = ", ".join(dict.fromkeys(read)) or "none"
                lines.append(f"the app has no handler for {uri}; its queues: {names}")
        for each in self.app.status():
            queue = QueueUri.parse(each.queue).canonical
            if uri not in ("", queue) or not each.handler:
                continue
            if each.handling > each.failing:
                lines.append(f"{each.handler} is handling {each.handling - each.failing} messages")
            if each.failing:
                lines.append(f"{each.handler} retries {each.failing} messages")
            if each.left:
                lines.append(
                    f"{each.handler} has left {each.left} messages unconfirmed: skipped, left, or waiting "
                    "for message.confirm() (ack=bmq.AckPolicy.MANUAL)"
                )
            if not (each.handling or each.left or each.waiting or each.unconfirmed) and uri:
                chosen = f" with {each.subscription}" if each.subscription else ""
                lines.append(f"{each.handler} has none of the messages of {queue}{chosen}")
        failures = [
            f"    {each.handler}, attempt {each.attempt}: {type(each.error).__name__}: {each.error}"
            for each in self.failures[-5:]
        ]
        lines += ["latest failures:", *failures] if failures else ["no handler has failed"]
        return "\n" + "\n".join(lines)

    # ---- life

    async def __aenter__(self) -> TestApp:
        self._check_overrides()
        self._time.begin()
        try:
            for each in self._all():
                await each._begin(self._overrides)
            context = copy_context()
            context.run(_world.world.set, self._world)
            starting = asyncio.get_running_loop().create_task(self.app.__aenter__(), context=context)
            try:
                await starting
            except BaseException:
                # A cancellation in the turn of the app's start arrives here alone.
                if starting.done() and not starting.cancelled() and starting.exception() is None:
                    await self.app.__aexit__(None, None, None)
                raise
        except BaseException:
            await self._end_all()
            raise
        return self

    def _check_overrides(self) -> None:
        """Check that a handler depends on each replaced function."""
        known = [
            dependency.function
            for app in (each.app for each in self._all())
            for handler in app._registry.handlers
            for some in ({}, app.overrides, {**app.overrides, **self._overrides})
            for dependency in handler.plan.dependencies(some)
        ]
        for function in self._overrides:
            if function not in known:
                name = getattr(function, "__qualname__", repr(function))
                close = [each for each in known if getattr(each, "__qualname__", "") == name]
                why = (
                    f"a handler depends on a function of this name in {close[0].__module__}: import that one"
                    if close
                    else "give the function that stands in bmq.Depends(...)"
                )
                raise UsageError(f"overrides replaces {name}, and no handler of the app depends on it: {why}")

    async def _begin(self, overrides: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        if self._own:
            await self.broker.start()
        address = self._address or self.broker.uri
        self._undo = self._replace_settings(address)
        self.app.overrides.update(overrides)
        with self._here():
            self._session = await connect(address)

    def _replace_settings(self, address: str) -> Callable[[], None]:
        """Make the app run with the broker, clock and hook of the test; the result undoes the change.

        With a broker on sockets, the probe has a free port: the service itself may run on the machine.
        """
        app, probe = self.app, self.app._probe
        broker, options, clock = app._broker, app._options, app._clock
        state, overrides, listens = app.state, app.overrides, probe.address
        probe.address = None if self._own or listens is None else (listens[0], 0)
        app._options = own = options.copy()
        own.pop("credentials", None)
        own.pop("ssl", None)
        own.pop("server_hostname", None)
        app._broker, app._clock, app._watch = address, self._time, self.failures.append
        app.state, app.overrides = copy(state), overrides.copy()

        def undo() -> None:
            app._broker, app._options, app._clock, app._watch = broker, options, clock, None
            app.state, app.overrides = state, overrides
            probe.address = listens

        return undo

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        retries = [] if exc_type is not None else self._retries()
        try:
            await self.app.__aexit__(exc_type, exc, tb)
        finally:
            await self._end_all()
        if retries:
            warnings.warn(
                f"the test ends before the next attempt of {', '.join(retries)}: its end is not tested. "
                "Finish the messages with await test.drained()",
                RuntimeWarning,
                stacklevel=2,
            )

    def _retries(self) -> list[str]:
        """Return the handlers with messages that wait for a retry."""
        return [f"{each.handler} ({each.failing} messages)" for each in self.app.status() if each.failing]

    async def _end_all(self) -> None:
        self._time.end()
        for each in self._all():
            await each._end()

    async def _end(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._queues.clear()
        self._posted.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._own:
            await self.broker.stop()


@dataclass(frozen=True, slots=True)
class _Stored:
    """A posted message, for a :class:`bmq.codecs.Shape`."""

    data: bytes
    properties: Properties


def _shown(value: object) -> str:
    """Return a value for an error message; never raises."""
    try:
        return repr(value)
    except Exception:  # the value's own __repr__ fails
        return _checks.shown(value)
