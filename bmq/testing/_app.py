# SPDX-License-Identifier: Apache-2.0
"""An app under test: it runs against a broker of its own, and what happened can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq.broker import Broker
from bmq.client.connect import connect
from bmq.client.message import Ack
from bmq.client.queue import Queue
from bmq.client.session import Session
from bmq.codecs import Codec, Shape
from bmq.errors import UsageError
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.workers import App, Failure

__all__ = ["TestApp"]


class TestApp:
    """Runs an app for a test, against an embedded broker, and remembers what became of its messages.

    ::

        async def test_an_order_is_shipped():
            async with bmq.testing.TestApp(app) as test:
                await test.post(ORDERS, Order(number=1))
                await test.drained(ORDERS)
                test.broker.assert_posted(SHIPPED, count=1, properties={"number": 1})

    The app's pauses between attempts take no time. Its broker is the embedded one here, whatever its address
    is otherwise, and whatever BMQ_BROKER_URI says. An app that is a part of it (:meth:`bmq.App.include`) has
    a broker of its own here: see :meth:`of`.

    Args:
        app: the app; it is as it was afterwards.
        broker: a broker that runs, with ``posts_kept``, such as the fixture ``bmq_broker``; None makes one.

    Attributes:
        app: the app.
        broker: the broker; see :meth:`bmq.broker.Broker.assert_posted`.
        failures: every attempt that did not succeed, in order.
    """

    __test__ = False  # no class of tests, whatever its name is

    def __init__(self, app: App[Any], broker: Broker | None = None) -> None:
        from bmq.workers import App

        self.app: App[Any] = _checks.choice("app", app, App)
        if broker is not None:
            _checks.choice("broker", broker, Broker)
        self._own = broker is None
        self.broker = broker if broker is not None else Broker(posts_kept=10_000)
        self.failures: list[Failure] = []
        self._queues: dict[str, Queue] = {}
        self._session: Session | None = None
        self._undo: Callable[[], None] | None = None
        self._parts = [TestApp(part) for part in app._parts]

    def of(self, part: App[Any]) -> TestApp:
        """Return the same for an app that is a part of this one: its broker, what failed in it.

        Raises:
            UsageError: it is no part.
        """
        for each in self._all():
            if each.app is part:
                return each
        raise UsageError("the app is no part of the one that is tested: app.include(...)")

    def _all(self) -> list[TestApp]:
        return [*(each for part in self._parts for each in part._all()), self]

    @property
    def retried(self) -> list[Failure]:
        """The attempts that were followed by another one."""
        return [failure for failure in self.failures if failure.retry_in is not None]

    @property
    def given_up(self) -> list[Failure]:
        """The last attempts of messages that were put aside, discarded, skipped or left."""
        return [failure for failure in self.failures if failure.retry_in is None]

    @property
    def session(self) -> Session:
        """A session of the test's own."""
        assert self._session is not None, "async with TestApp(app) as test"
        return self._session

    async def post(
        self,
        uri: str,
        value: Any,
        *,
        properties: Mapping[str, PropertyInput] | None = None,
        codec: str | Codec[Any] = "application/json",
    ) -> Ack:
        """Post a message to a queue: bytes as they are, anything else as a typed value.

        Args:
            uri: the queue's URI.
            value: bytes, or a value of a type that :meth:`bmq.Queue.typed` takes.
            properties: its properties, besides those that its fields are.
            codec: how a value is encoded.

        Raises:
            UsageError, InvalidPayload: there is no codec for such a value.
            PostError: the broker did not accept it.
        """
        name = QueueUri.parse(uri).canonical
        if name not in self._queues:
            self._queues[name] = await self.session.open_queue(name, write=True)
        if properties is not None:
            _checks.mapping("properties", properties)
        if isinstance(value, bytes):
            return await self._queues[name].post(value, properties=properties)
        shape: Shape[Any] = Shape(value.__class__, codec)
        data, own = shape.encode(value)
        return await self._queues[name].post(data, properties={**own, **(properties or {})})

    async def drained(self, *uris: str, timeout: float = 10.0) -> None:
        """Wait until every message of these queues was confirmed.

        Args:
            uris: the queues; without any, all that the test has posted to.
            timeout: seconds to wait for all of it.

        Raises:
            AssertionError: there are messages left; it says which, and what failed last.
        """
        timeout = _checks.seconds("timeout", timeout)
        for uri in uris:
            QueueUri.parse(uri)
        deadline = asyncio.get_running_loop().time() + timeout
        for uri in uris or list(self._queues):
            try:
                await self.broker.drained(uri, max(0.0, deadline - asyncio.get_running_loop().time()))
            except AssertionError as error:
                raise AssertionError(f"{error}{self._last_failures()}") from None

    def _last_failures(self) -> str:
        lines = [
            f"    {each.handler}, attempt {each.attempt}: {type(each.error).__name__}: {each.error}"
            for each in self.failures[-5:]
        ]
        return "\n".join(["\nwhat failed last:", *lines]) if lines else "\nno handler has failed"

    async def __aenter__(self) -> TestApp:
        try:
            for each in self._all():
                await each._begin()
            await self.app.__aenter__()
        except BaseException:
            await self._end_all()
            raise
        return self

    async def _begin(self) -> None:
        if self._own:
            await self.broker.start()
        self._undo = self.app._try_out(self.broker.uri, _NoTime(), self.failures.append)
        self._session = await connect(self.broker.uri)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.app.__aexit__(exc_type, exc, tb)
        finally:
            await self._end_all()

    async def _end_all(self) -> None:
        for each in self._all():
            await each._end()

    async def _end(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._queues.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._own:
            await self.broker.stop()


class _NoTime:
    """A clock on which every pause is over at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)
