# SPDX-License-Identifier: Apache-2.0
"""Runs an app under test against a separate broker, and records its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bmq import _checks
from bmq.broker import Broker
from bmq.client.connect import connect
from bmq.client.posts import Ack
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
    """Runs an app for a test, against an embedded broker, and records failed attempts.

    ::

        async def test_an_order_is_shipped():
            async with bmq.testing.TestApp(app) as test:
                await test.post(ORDERS, Order(number=1))
                await test.drained(ORDERS)
                test.broker.assert_posted(SHIPPED, count=1, properties={"number": 1})

    Pauses between attempts take no time. The app uses the test's embedded broker, despite its own address and
    BMQ_BROKER_URI. Each included app (:meth:`bmq.App.include`) has a separate broker: see :meth:`of`.

    Args:
        app: the app, unchanged after the test.
        broker: a running broker with ``posts_kept``, such as the fixture ``bmq_broker``; None makes a broker.

    Attributes:
        app: the app.
        broker: the broker; see :meth:`bmq.broker.Broker.assert_posted`.
        failures: all failed attempts, in order.
    """

    __test__ = False  # despite its name no class of tests

    def __init__(self, app: App[Any], broker: Broker | None = None) -> None:
        from bmq.workers import App, parts_of

        self.app: App[Any] = _checks.choice("app", app, App)
        if broker is not None:
            _checks.choice("broker", broker, Broker)
        self._own = broker is None
        self.broker = broker if broker is not None else Broker(posts_kept=10_000)
        self.failures: list[Failure] = []
        self._queues: dict[str, Queue] = {}
        self._session: Session | None = None
        self._undo: Callable[[], None] | None = None
        self._parts = [TestApp(part) for part in parts_of(app)]

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
        """Post a message to a queue: bytes unchanged, other values as typed values.

        Args:
            uri: the queue's URI.
            value: bytes, or a value of a type for :meth:`bmq.Queue.typed`.
            properties: properties, besides the properties from the value's fields.
            codec: encodes the value.

        Raises:
            UsageError, InvalidPayload: no codec fits the value.
            PostError: the broker did not accept the message.
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
            uris: the queues; by default all queues with posts of the test.
            timeout: seconds to wait for all queues together.

        Raises:
            AssertionError: messages are left; the text lists the messages, and the latest failure.
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
        return "\n".join(["\nlatest failures:", *lines]) if lines else "\nno handler has failed"

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
        from bmq.workers import trial_of

        self._undo = trial_of(self.app)(self.broker.uri, _NoTime(), self.failures.append)
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
    """A clock without pauses."""

    def __init__(self) -> None:
        self._now = 0.0

    def time(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)
