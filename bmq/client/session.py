# SPDX-License-Identifier: Apache-2.0
"""Sessions: a connection to a broker, restored when it is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl as ssl_module
import warnings
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING

from bmq import _checks
from bmq._renamed import renamed, renamed_arguments
from bmq.client._definition import checked_options
from bmq.client._end import QueueEnd, drain, left_over
from bmq.client._open_queue import end_of
from bmq.client._posting import Settler
from bmq.client.consumer import Subscription
from bmq.client.interceptors import Handling, Hooks, Interceptor
from bmq.client.message import Message
from bmq.client.queue import (
    DEFAULT_MAX_UNCONFIRMED_BYTES,
    DEFAULT_MAX_UNCONFIRMED_MESSAGES,
    Queue,
)
from bmq.client.stats import SessionStats, session_stats
from bmq.conventions import delay_queue_of
from bmq.engine.address import Address
from bmq.engine.driver import Driver
from bmq.engine.health import Health, HostHealthMonitor
from bmq.engine.options import CredentialsSource, SessionOptions, check_compression
from bmq.errors import QueueClosed, StateError, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import SessionEvent
from bmq.wire.constants import Compression
from bmq.wire.control import QueueFlags
from bmq.wire.properties import PropertyInput
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.requests import Requests
    from bmq.subscriptions import Selector

__all__ = ["CloseReport", "Session", "disown", "driver_of"]

logger = logging.getLogger("bmq.client")

# After so many turns of the event loop a task has noticed that it was cancelled, inside wait_for() too.
_TURNS_OF_A_CANCELLATION = 3


@dataclass(frozen=True, slots=True)
class CloseReport:
    """What was left when a session was closed and the time was up.

    Attributes:
        unacked_posts: posts that had no outcome; they failed with :class:`bmq.PostError`.
        unfinished_handlers: messages that were still being handled (inside ``async with message``); unless
            confirmed by others they will be delivered again.
        unclosed_queues: the URIs of queues that the broker did not confirm to be closed.
    """

    unacked_posts: int = 0
    unfinished_handlers: int = 0
    unclosed_queues: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was left."""
        return not (self.unacked_posts or self.unfinished_handlers or self.unclosed_queues)

    def __str__(self) -> str:
        left = left_over(self.unacked_posts, self.unfinished_handlers, len(self.unclosed_queues))
        return left or "nothing was left"


@renamed
class Session:
    """A session with a broker. Made by :func:`bmq.connect`.

    It belongs to the event loop it was started on.
    """

    def __init__(
        self,
        addresses: list[Address],
        options: SessionOptions,
        *,
        credentials: CredentialsSource | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        on_event: Callable[[SessionEvent], None] | None = None,
        host_health: HostHealthMonitor | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self._hooks = Hooks(interceptors)
        self._driver: Driver[QueueEnd] = Driver(
            addresses, options, credentials, ssl, server_hostname, on_event, host_health, Settler()
        )
        self._close_task: asyncio.Task[CloseReport] | None = None
        self._outputs: dict[str, asyncio.Task[Queue]] = {}
        self._requests: Requests | None = None

    # life

    async def close(self, timeout: float | None = None) -> CloseReport:
        """End the session in good order.

        Delivery stops; handlers in flight (inside ``async with message``, other than the one that calls this)
        finish; posts get their outcomes and confirmations are sent; queues are closed; the session
        disconnects. While the connection is down, posts without outcome are waited for too: it may be
        restored in time. If there are none, a session without a connection is closed at once.

        Idempotent, also while an earlier call is still going on; works in every state.

        Args:
            timeout: seconds for all of it; None for ``disconnect_timeout``, 0 for at once. What is not done
                then is given up: posts without outcome fail with :class:`bmq.PostError`.

        Returns:
            What was left when the time was up. If anything was, it is logged as a warning too.

        Raises:
            UsageError: the session belongs to another event loop.

        Cancelling it does not stop the closing: that goes on in the background; when the event loop ends
        before it is done, everything is given up at once.
        """
        driver = self._driver
        timeout = _checks.timeout(timeout)
        driver.connection.check_loop()
        if self._close_task is None or self._close_task.cancelled():
            if self.state is SessionState.CLOSED:
                return CloseReport()
            seconds = driver.options.disconnect_timeout if timeout is None else timeout
            driver.core.drain(driver.connection.now())  # no queue is opened from now on
            closing = self._close(driver.connection.now() + seconds, asyncio.current_task())
            self._close_task = driver.keep(closing)
            # In a callback: a task that is cancelled before its first step runs nothing of its coroutine.
            self._close_task.add_done_callback(self._closed)
        return await asyncio.shield(self._close_task)

    async def _close(self, deadline: float, closer: asyncio.Task[object] | None) -> CloseReport:
        """Close every queue and disconnect; what is not done at the deadline is given up."""
        driver = self._driver
        queues = driver.open_queues
        for queue in queues:
            queue.shut(None)
        await drain(queues, deadline, closer)
        driver.core.seal(driver.connection.now())
        handlers = sum(queue.handlers.busy(closer) for queue in queues)
        posts = len(driver.core.posts)
        unclosed: list[str] = []
        if driver.core.connected:
            results = await asyncio.gather(
                *(driver.close_queue(queue.core, deadline) for queue in queues), return_exceptions=True
            )
            unclosed = [
                queue.uri
                for queue, error in zip(queues, results, strict=True)
                if error is not None and not isinstance(error, QueueClosed)
            ]
        report = CloseReport(posts, handlers, tuple(unclosed))
        driver.dialer.stop()
        await driver.connection.disconnect(deadline)
        if not report.clean:
            logger.warning(
                "the session was closed, and the time was up: %s", report, extra={"broker": driver.address}
            )
        return report

    def _closed(self, _: asyncio.Task[CloseReport]) -> None:
        self._driver.give_up()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_close_task"):
            return  # the constructor failed
        closing = self._close_task is not None and not self._close_task.done()
        if self.state is not SessionState.CLOSED and not closing:
            warnings.warn(
                f"{self!r} was never closed: use 'async with bmq.connect(...)' or 'await session.close()'",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )
            self._driver.abandon()

    def __repr__(self) -> str:
        return f"<bmq.Session with {self._driver.dialer.target}, {self.state.value}>"

    # queues

    @renamed_arguments
    async def open_queue(
        self,
        uri: str,
        *,
        read: bool = False,
        write: bool = False,
        priority: int = 0,
        max_unconfirmed_messages: int = DEFAULT_MAX_UNCONFIRMED_MESSAGES,
        max_unconfirmed_bytes: int = DEFAULT_MAX_UNCONFIRMED_BYTES,
        suspends_on_bad_host_health: bool = False,
        default_subscription: bool | None = None,
        subscriptions: Iterable[Selector | Subscription] = (),
        compression: Compression | None = None,
        delay_queue_uri: str | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Open a queue.

        Opening it for reading asks for no messages yet: they come once somebody receives from the queue
        (iterates over it, or calls ``receive``, ``receive_many``, ``receive_nowait``, ``batches``), or from a
        consumer that :meth:`Queue.subscribe` makes. On a broadcast queue, what is posted before that is
        missed: see ``default_subscription``.

        A session may open a queue for reading in one place and for writing in another: these are then two
        :class:`Queue` objects, opened and closed independently.

        Args:
            uri: ``bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]``; readers of a fanout queue name their appId.
            read: open it for reading.
            write: open it for writing.
            priority: the consumer priority; the highest is served first.
            max_unconfirmed_messages: how many messages may be delivered and unconfirmed.
            max_unconfirmed_bytes: how many bytes of them.
            suspends_on_bad_host_health: take the queue out of service while the host is unhealthy.
            default_subscription: when the queue subscribes to all messages: None on the first ``receive()``
                or iteration, True at once, False never (receiving from the queue is then a ``UsageError``).
                The default subscription lasts until the queue is closed; ``queue.subscribe()`` makes a
                consumer of all messages that can be closed.
            subscriptions: what to receive from the beginning, by :class:`bmq.Subscription` or what
                :meth:`Queue.subscribe` takes as its selector. The broker gets them with the request that
                opens the stream, and sends nothing else before. Each has a :class:`bmq.Consumer` in
                :attr:`Queue.consumers`, in this order.
            compression: how payloads posted to it are compressed, unless a post says otherwise; None for the
                session's default.
            delay_queue_uri: the queue where messages posted with ``delay`` or ``not_before`` wait, opened
                with the first such post. If None, a queue in the same domain, with this queue's name and
                ``.delayed`` at the end. Its own URI where the consumers of this queue look at ``bmq_due``
                themselves, as :class:`bmq.delays.DueMessages` does.
            timeout: seconds to wait; None for the session's ``open_timeout``.

        Raises:
            OpenQueueError: the broker refused; ``broker_message`` has its reason.
            RequestTimeout: the broker did not answer in time; the same may be tried again at once.
            InvalidURI, InvalidExpression, UsageError: the arguments are not legal.
            ConfigureQueueError: the broker refused the subscriptions.
            StateError: the queue is already open in this session for the same side.
            SessionClosed: the session is closed.

        Cancelling it closes the queue again as soon as the broker has opened it. The same queue can be opened
        again at once: an open waits until an earlier open or close of the queue is over.
        """
        parsed = QueueUri.parse(uri)
        read, write = _checks.boolean("read", read), _checks.boolean("write", write)
        suspends = _checks.boolean("suspends_on_bad_host_health", suspends_on_bad_host_health)
        default_subscription = _checks.optional(_checks.boolean, "default_subscription", default_subscription)
        timeout = _checks.timeout(timeout)
        if not (read or write):
            raise UsageError(f"open {uri} for something: read=True, write=True, or both")
        if write and parsed.app_id:
            raise UsageError(
                f"{uri} names an appId, which only a reader has: open it with read=True, "
                f"and {parsed.canonical} with write=True"
            )
        subscriptions = _checks.items("subscriptions", subscriptions, "bmq.Subscription and selectors")
        if subscriptions and not read:
            raise UsageError(f"{uri} has subscriptions, which only a reader has: open it with read=True")
        if compression is not None:
            check_compression(compression)
        delay_queue = (
            delay_queue_of(parsed.canonical)
            if delay_queue_uri is None
            else QueueUri.parse(delay_queue_uri).canonical
        )
        options = checked_options(max_unconfirmed_messages, max_unconfirmed_bytes, priority)
        wanted = [each if isinstance(each, Subscription) else Subscription(each) for each in subscriptions]
        flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
        seconds = self._driver.options.open_timeout if timeout is None else timeout
        make = partial(
            Queue,
            self,
            self._driver,
            self._hooks,
            self._request,
            parsed,
            flags,
            options,
            default_subscription=default_subscription,
            subscriptions=wanted,
            suspends=suspends,
            compression=compression,
            delay_queue_uri=delay_queue,
            deadline=self._driver.connection.now() + seconds,
        )
        for _ in range(_TURNS_OF_A_CANCELLATION):
            try:
                return await self._open(make)
            except StateError:
                await asyncio.sleep(0)  # a task that opens the queue may be cancelled, and not know yet
        return await self._open(make)

    async def _open(self, make: Callable[..., Queue]) -> Queue:
        """Make a queue, and wait until it is open."""
        driver, connection = self._driver, self._driver.connection
        driver.check_open()
        opened: asyncio.Future[None] = connection.loop.create_future()
        queue = make(opened=opened)
        end = end_of(queue)
        driver.add(end.core, end)
        driver.backlog.expect(opened)
        connection.transmit_soon()
        try:
            await opened
        except BaseException as error:
            mine = driver.forget(end.core, end)
            end.shut(None)
            if mine and isinstance(error, asyncio.CancelledError):
                now = connection.now()
                driver.core.abandon_queue(end.core, now, now + driver.options.close_timeout)
                connection.transmit_soon()
            raise
        driver.health.opened(queue.uri)
        return queue

    async def _request(
        self,
        queue: Queue,
        data: bytes,
        properties: Mapping[str, PropertyInput],
        timeout: float,
        reply_to: str | None,
    ) -> Message:
        """Post a request; see :meth:`bmq.Queue.request`."""
        if self._requests is None:
            from bmq.client.requests import Requests

            self._requests = Requests(self)
        return await self._requests.request(queue, data, properties, timeout, reply_to)

    async def open_output(self, uri: str) -> Queue:
        """Return a queue to post to: one that this session has open for writing, else it is opened now.

        Calls for the same queue share it; it stays open until somebody or the session closes it.

        Raises:
            OpenQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
            InvalidURI: the URI is not legal.
            SessionClosed: the session is closed.

        Cancelling it does not stop the opening: the next call for this queue waits for the same one.
        """
        key = QueueUri.parse(uri).canonical
        opening = self._outputs.get(key)
        if opening is not None and _usable(opening):
            return await asyncio.shield(opening)
        for queue in self.queues:
            if queue.writable and end_of(queue).parsed_uri.canonical == key:
                return queue
        self._outputs = {each: task for each, task in self._outputs.items() if _usable(task)}
        self._outputs[key] = opening = self._driver.keep(self.open_queue(key, write=True))
        opening.add_done_callback(_seen)
        return await asyncio.shield(opening)

    @property
    def queues(self) -> list[Queue]:
        """The open queues."""
        return [end.queue for end in self._driver.open_queues if not end.closed]

    # what happens

    def events(self) -> AsyncIterator[SessionEvent]:
        """Iterate over session events from now on; ends when the session does.

        Each iterator sees every event. One that does not keep up loses the oldest beyond 1,000.
        """
        return self._driver.events.subscribe()

    @property
    def options(self) -> SessionOptions:
        """The options it was made with."""
        return self._driver.options

    @property
    def state(self) -> SessionState:
        """The state it is in."""
        return self._driver.core.state

    @property
    def address(self) -> str:
        """The broker's address that is connected, or is tried next: ``tcp://host:port``."""
        return self._driver.address

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """The interceptors it has, installed ones first."""
        return self._hooks.interceptors

    def fileno(self) -> int:
        """Return the file descriptor of the connection; -1 while there is none.

        For what must not inherit it; reading from it or writing to it breaks the session.
        """
        return self._driver.connection.fileno()

    def health(self) -> Health:
        """Return how the session is: ready, degraded and why, since when; and three ages.

        It is not ready before it is connected, from the loss of a connection until every queue is open again,
        and once it is over. It is degraded

        - while, for half of ``liveness``, the broker is silent although it was asked for a heartbeat, no post
          of a queue is acknowledged although some wait, or a request for a queue is not answered;
        - while the application does not keep up, so that reading has paused;
        - while workers take no messages because a handler goes on in its thread after its deadline;
        - while queues are suspended because the host is unhealthy;
        - after a queue could not be opened again, until the application opens it.
        """
        return self._driver.health_report()

    def around_handle(self, handling: Handling) -> AbstractContextManager[None]:
        """Return a context manager to handle messages in: it is that of every interceptor.

        :class:`bmq.App` and :func:`bmq.consume` use it; what calls handlers in another way can do so too. An
        interceptor that fails in it is logged; what the block raises passes through.
        """
        return self._hooks.around(_checks.choice("handling", handling, Handling))

    def stats(self) -> SessionStats:
        """Return a snapshot of what the session holds and has done."""
        self._driver.confirming.finish()
        return session_stats(self._driver)


def _usable(opening: asyncio.Task[Queue]) -> bool:
    """Whether a queue is being opened, or open."""
    if not opening.done():
        return True
    return not opening.cancelled() and opening.exception() is None and not opening.result().closed


def _seen(opening: asyncio.Task[Queue]) -> None:
    """Look at the error of an opening for which nobody waits any more."""
    if not opening.cancelled():
        opening.exception()


#: The inner part of a session, for the modules of the client.
driver_of: Callable[[Session], Driver[QueueEnd]] = attrgetter("_driver")


def disown(loops: Collection[asyncio.AbstractEventLoop]) -> None:
    """Let the sessions of event loops be collected without a warning: their processes were killed."""
    for each in gc.get_objects():
        if type(each) is Session and hasattr(each, "_close_task") and each._driver.loop in loops:
            del each._close_task
