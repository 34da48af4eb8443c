# SPDX-License-Identifier: Apache-2.0
"""Sessions: a connection to a broker, restored after a loss."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from bmq import _checks
from bmq._live import live
from bmq._logging import Log
from bmq._turn import look_at, wait_done
from bmq.client.address import BrokerAccess
from bmq.client.connection import Connection
from bmq.client.consumer import Subscription
from bmq.client.health import Health, HostHealthMonitor
from bmq.client.interceptors import Hooks, Interceptor
from bmq.client.keywords import DEFAULT_LIMITS, ConsumerLimits, checked_limits
from bmq.client.options import SessionOptions, Trace, check_compression
from bmq.client.queue import (
    DEFAULT_MAX_UNCONFIRMED_BYTES,
    DEFAULT_MAX_UNCONFIRMED_MESSAGES,
    Queue,
    drain,
    left_over,
)
from bmq.conventions import delay_queue_of
from bmq.errors import InvalidURI, QueueClosed, RequestTimeout, StateError, UsageError
from bmq.protocol.client.core import SessionState
from bmq.protocol.client.events import SessionEvent
from bmq.protocol.client.queue import QueueState
from bmq.wire.constants import Compression
from bmq.wire.control import QueueFlags
from bmq.wire.uri import QueueUri

if TYPE_CHECKING:
    from bmq.client.requests import Requests
    from bmq.client.stats import SessionStats
    from bmq.subscriptions import ExpressionInput

__all__ = ["CloseReport", "Session", "disown"]

logger = Log("bmq.client", later=True)

# Seconds for the posts of a session that the program did not close.
_LEFT_OPEN = 5.0
# Turns of the event loop until a cancelled task has noticed its cancellation, even inside wait_for().
_TURNS_OF_A_CANCELLATION = 3


@dataclass(frozen=True, slots=True)
class CloseReport:
    """Work left unfinished when a session closed at its deadline.

    ::

        report = await session.close(timeout=10)
        print(report.unacked_posts, report.unfinished_handlers)

    Attributes:
        unacked_posts: posts without an outcome; they failed with :class:`bmq.PostError`.
        unfinished_handlers: messages still in progress (inside ``async with message``). The broker redelivers
            them unless they are confirmed elsewhere.
        unclosed_queues: URIs of queues closed without the broker's confirmation.
    """

    unacked_posts: int = 0
    unfinished_handlers: int = 0
    unclosed_queues: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no work was left."""
        return not (self.unacked_posts or self.unfinished_handlers or self.unclosed_queues)

    def __str__(self) -> str:
        left = left_over(self.unacked_posts, self.unfinished_handlers, len(self.unclosed_queues))
        return left or "no work was left"


@live
class Session:
    """A session with a broker. Created by :func:`bmq.connect`.

    A session belongs to the event loop that started it.

    ::

        async with bmq.connect("tcp://localhost:30114") as session:
            uri = "bmq://bmq.test.mem.priority/orders"
            queue = await session.open_queue(uri, write=True)
            await queue.post(b"...")
    """

    def __init__(
        self,
        broker: BrokerAccess,
        options: SessionOptions,
        *,
        on_event: Callable[[SessionEvent], None] | None = None,
        host_health: HostHealthMonitor | None = None,
        interceptors: Iterable[Interceptor] | None = (),
    ) -> None:
        self._hooks = Hooks(interceptors)
        if options.log_stats_every:
            from bmq.client.stats import StatsLog  # few programs need the module

            on_event = StatsLog(self, options.log_stats_every, on_event).note
        self._connection: Connection = Connection(broker, options, on_event, host_health)
        self._close_task: asyncio.Task[CloseReport] | None = None
        # The openings of queues for posting, by URI: of the application, and of destinations that messages
        # name. What a stranger has named must never stand in the way of the application.
        self._outputs: dict[str, asyncio.Task[Queue]] = {}
        self._named: dict[str, asyncio.Task[Queue]] = {}
        self._requests: Requests | None = None
        with _registering:
            _sessions[self] = None

    # life cycle

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Close the session in an orderly way.

        The steps: delivery stops; handlers in progress finish (inside ``async with message``, except a
        handler that calls this method); posts receive their outcomes, and confirmations are sent; queues
        close; the session disconnects. Without a connection, a session with unacknowledged posts waits for a
        reconnect until the timeout; any other session closes at once.

        Idempotent, also during an earlier call. Allowed in every state.

        Args:
            timeout: seconds for all steps; None for ``disconnect_timeout``, 0 to give up at once. At the
                timeout, unfinished work is abandoned: posts without an outcome fail with
                :class:`bmq.PostError`.

        Returns:
            The work left at the timeout. If any work is left, a warning is logged, too.

        Raises:
            UsageError: the session belongs to another event loop.

        Cancelling the call does not stop the closing, which continues in the background. If the event loop
        ends first, all unfinished work is abandoned at once.
        """
        connection = self._connection
        timeout = _checks.timeout(timeout)
        connection.check_loop()
        task = self._close_task
        if task is None or task.cancelled():
            if self.state is SessionState.CLOSED:
                return CloseReport()
            seconds = connection.options.disconnect_timeout if timeout is None else timeout
            task = self._begin_close(seconds, asyncio.current_task())
        await wait_done(task)
        return task.result()

    def _begin_close(
        self, seconds: float, closer: asyncio.Task[object] | None, *, left_open: bool = False
    ) -> asyncio.Task[CloseReport]:
        connection = self._connection
        now = connection.loop.time()
        connection.core.drain(now)  # rejects new queues from now on
        self._close_task = task = connection.keep(self._close(now + seconds, closer, left_open=left_open))
        # Use a callback: a task cancelled before the first step never runs its coroutine.
        task.add_done_callback(self._closed)
        self._hooks.watch("session.stop", self, "", task)
        return task

    async def _close(
        self, deadline: float, closer: asyncio.Task[object] | None, *, left_open: bool
    ) -> CloseReport:
        """Close every queue and disconnect; abandon unfinished work at the deadline."""
        connection = self._connection
        queues = connection.open_queues
        for queue in queues:
            queue._shut(None)
        await drain(queues, deadline, closer)
        connection.core.seal(connection.loop.time())
        handlers = sum(queue._handlers.busy(closer) for queue in queues)
        posts = len(connection.core.posts)
        unclosed: list[str] = []
        if connection.core.connected:
            results = await asyncio.gather(
                *(connection.close_queue(queue._core, deadline) for queue in queues), return_exceptions=True
            )
            unclosed = [
                queue.uri
                for queue, error in zip(queues, results, strict=True)
                if error is not None and not isinstance(error, QueueClosed)
            ]
        report = CloseReport(posts, handlers, tuple(unclosed))
        await connection.disconnect(deadline)
        if not report.clean:
            logger.log(
                # Without a caller of close(), only the log has the report.
                logging.ERROR if left_open else logging.WARNING,
                "closing the session exceeded its timeout: %s",
                report,
                extra={"broker": connection.address},
            )
        return report

    def _closed(self, task: asyncio.Task[CloseReport]) -> None:
        self._connection.give_up(
            "its event loop ended before the session was closed" if task.cancelled() else ""
        )

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_close_task") or self._connection.disowned:
            return  # the constructor failed, or the process of a simulation was killed
        closing = self._close_task is not None and not self._close_task.done()
        if self.state is not SessionState.CLOSED and not closing:
            self._warn_of_leaving()
            try:
                # Not here: garbage may be collected in any thread. The call keeps the session until then.
                self._connection.loop.call_soon_threadsafe(self._dropped)
            except RuntimeError:
                self._report_unsettled("its event loop ended")  # no caller can be waiting

    def _warn_of_leaving(self) -> None:
        warnings.warn(
            f"{self!r} was never closed: use 'async with bmq.connect(...)' or 'await session.close()'",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _dropped(self) -> None:
        """End the session after its last reference is gone; posts still receive their outcomes."""
        if len(self._connection.core.posts):
            self._connection.revive()
            close_left_open(self)
        else:
            # At once: callers may still wait for messages.
            self._connection.give_up("its last reference was dropped before close()")
            channel = self._connection.channel
            if channel is not None:
                channel.abort()

    def _report_unsettled(self, end: str) -> None:
        posts = len(self._connection.core.posts)
        if posts and not self._connection.disowned:
            self._connection.disowned = True
            logger.error(
                "the session with %s was not closed before %s: %s",
                self._connection.dialer.target,
                end,
                left_over(posts, 0),
                extra={"broker": self._connection.address},
            )

    def __repr__(self) -> str:
        return f"<bmq.Session with {self._connection.dialer.target}, {self.state.value}>"

    # queues

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
        subscriptions: Iterable[ExpressionInput | Subscription] = (),
        compression: Compression | None = None,
        delay_queue_uri: str | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Open a queue.

        Opening a queue for reading does not start delivery. Delivery starts with the first receiving call on
        the queue (iteration, ``receive``, ``receive_many``, ``receive_nowait`` or ``batches``), or with a
        consumer of :meth:`Queue.subscribe`. Only a broadcast queue delivers from the opening on, because it
        keeps no messages.

        A session may open the same queue once for reading and once for writing. The result is two
        :class:`Queue` objects, which open and close independently.

        Args:
            uri: ``bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]``; readers of a fanout queue add their appId.
            read: open the queue for reading.
            write: open the queue for writing.
            priority: consumer priority; the broker serves the highest priority first.
            max_unconfirmed_messages: limit of delivered messages without a confirmation.
            max_unconfirmed_bytes: limit of delivered bytes without a confirmation.
            suspends_on_bad_host_health: suspend the queue while the host is unhealthy.
            default_subscription: when to subscribe to all messages: on the first ``receive()`` or iteration
                (None), at once (True), or never (False: receiving from the queue raises a ``UsageError``).
                On a broadcast queue None means at once, unless ``subscriptions`` are given; a consumer that
                starts before the first receive takes over. The default subscription lasts until the queue is
                closed. A consumer of ``queue.subscribe()`` can be closed earlier.
            subscriptions: initial subscriptions: :class:`bmq.Subscription` objects, or expressions as for
                :meth:`Queue.subscribe`. The broker receives all subscriptions in the same request, before the
                delivery starts. :attr:`Queue.consumers` has a :class:`bmq.Consumer` for each, in the same
                order.
            compression: default compression for payloads posted to the queue; None for the session's default.
            delay_queue_uri: delay queue for messages posted with ``delay`` or ``not_before``. The first
                delayed post opens the delay queue. The default is a queue in the same domain, with this
                queue's name and the suffix ``.delayed``. Pass the queue's own URI if its consumers read
                ``bmq_due`` themselves, as :class:`bmq.delays.DueMessages` does.
            timeout: seconds to wait; None for the session's ``open_timeout``.

        Raises:
            OpenQueueError: the broker refused; ``broker_message`` has the broker's reason.
            RequestTimeout: the broker did not answer in time; an immediate retry is allowed.
            InvalidURI, InvalidExpression, UsageError: an argument is not legal.
            ConfigureQueueError: the broker refused the subscriptions.
            StateError: the session has already opened the queue for the same direction.
            SessionClosed: the session is closed.

        After a cancellation, the queue is closed again as soon as the broker has opened it. The same queue
        can be opened again at once: an open request waits for an earlier open or close of the queue to
        finish.
        """
        parsed = _parsed("uri", uri)
        read, write = _checks.boolean("read", read), _checks.boolean("write", write)
        suspends = _checks.boolean("suspends_on_bad_host_health", suspends_on_bad_host_health)
        default_subscription = _checks.optional(_checks.boolean, "default_subscription", default_subscription)
        timeout = _checks.timeout(timeout)
        if not (read or write):
            raise UsageError(f"choose how to open {uri}: read=True, write=True, or both")
        if write and parsed.app_id:
            raise UsageError(
                f"{uri} names an appId, but is opened for writing only: open it with read=True, "
                f"and {parsed.canonical} with write=True"
            )
        subscriptions = _checks.items("subscriptions", subscriptions, "bmq.Subscription and expressions")
        if subscriptions and not read:
            raise UsageError(f"{uri} has subscriptions, but is opened for writing only: use read=True")
        if compression is not None:
            check_compression(compression)
        delay_queue = (
            delay_queue_of(parsed.canonical)
            if delay_queue_uri is None
            else _parsed("delay_queue_uri", delay_queue_uri).canonical
        )
        limits: ConsumerLimits = {
            "priority": priority,
            "max_unconfirmed_messages": max_unconfirmed_messages,
            "max_unconfirmed_bytes": max_unconfirmed_bytes,
        }
        options = checked_limits(limits, DEFAULT_LIMITS)
        wanted = [each if isinstance(each, Subscription) else Subscription(each) for each in subscriptions]
        flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
        if write:
            await self._make_way(parsed.canonical)
        seconds = self._connection.options.open_timeout if timeout is None else timeout
        make = partial(
            Queue,
            self,
            parsed,
            flags,
            options,
            default_subscription=default_subscription,
            subscriptions=wanted,
            suspends=suspends,
            compression=compression,
            delay_queue_uri=delay_queue,
            deadline=self._connection.loop.time() + seconds,
        )
        with self._hooks.operation("queue.open", self, str(parsed)):
            for _ in range(_TURNS_OF_A_CANCELLATION):
                try:
                    return await self._open(make)
                except StateError:
                    await asyncio.sleep(0)  # an opening task may not have noticed the cancellation yet
            return await self._open(make)

    async def _open(self, make: Callable[..., Queue]) -> Queue:
        """Create a queue, and wait until the queue is open."""
        connection = self._connection
        connection.check_open()
        opened: asyncio.Future[None] = connection.loop.create_future()
        queue = make(opened=opened)
        core = queue._core
        connection.add(core, queue)
        try:
            await opened
            if queue._eager and core.at_most_once and queue._default is not None:
                # Without a subscription, the messages of a broadcast queue are missed.
                await queue._default.open()
        except BaseException as error:
            queue._shut(None)
            mine = connection.forget(core, queue)
            if mine and (isinstance(error, asyncio.CancelledError) or core.state is QueueState.OPEN):
                now = connection.loop.time()
                connection.core.abandon_queue(core, now, now + connection.options.close_timeout)
                connection.transmit_soon()
            raise
        connection.health.opened(queue.uri)
        return queue

    async def open_output(self, uri: str) -> Queue:
        """Return a queue for posting. The first call opens the queue, unless it is open for writing already.

        All calls for the same URI share the queue. The queue stays open until closed explicitly or by the
        session.

        Raises:
            OpenQueueError: the broker refused.
            RequestTimeout: the broker did not answer in time.
            InvalidURI: the URI is not legal.
            SessionClosed: the session is closed.

        Cancelling the call does not cancel the opening: the next call for this queue waits for the same
        opening.
        """
        key = _parsed("uri", uri).canonical
        if (named := self._named.pop(key, None)) is not None:
            self._outputs[key] = named
        return await self._output(key, self._outputs)

    async def _open_named(self, uri: str) -> Queue:
        """Return a queue for posting, whose URI comes from a message; as :meth:`open_output` otherwise.

        The application's own queue is shared, and so are queues that other messages have named. The
        application takes a named queue over by :meth:`open_output`, and replaces it by :meth:`open_queue`.
        """
        return await self._output(_parsed("uri", uri).canonical, self._named)

    async def _close_named(self, queue: Queue) -> None:
        """Close a queue that messages have named, unless the application has taken it over."""
        key = queue._parsed_uri.canonical
        opening = self._named.get(key)
        if opening is not None and opening.done() and _usable(opening) and opening.result() is queue:
            del self._named[key]
            await queue.close()

    async def _make_way(self, key: str) -> None:
        """Close a queue that messages have named, so that the application can open it."""
        named = self._named.get(key)
        if named is None or named is asyncio.current_task():
            return
        del self._named[key]
        await wait_done(named)
        if _usable(named):
            with suppress(RequestTimeout):
                await named.result().close()

    async def _output(self, key: str, openings: dict[str, asyncio.Task[Queue]]) -> Queue:
        for each in (self._outputs, self._named):
            opening = each.get(key)
            if opening is not None and _usable(opening):
                await wait_done(opening)
                return opening.result()
        for queue in self.queues:
            if queue.writable and queue._parsed_uri.canonical == key:
                return queue
        for stale in [uri for uri, opening in openings.items() if not _usable(opening)]:
            del openings[stale]
        openings[key] = opening = self._connection.keep(self.open_queue(key, write=True))
        opening.add_done_callback(look_at)
        await wait_done(opening)
        return opening.result()

    @property
    def queues(self) -> list[Queue]:
        """The open queues."""
        return [queue for queue in self._connection.open_queues if not queue.closed]

    # events and state

    def events(self) -> AsyncIterator[SessionEvent]:
        """Iterate over session events from now on, until the end of the session.

        Each iterator receives every event. A slow iterator loses its oldest events beyond 1,000.
        """
        return self._connection.events.subscribe()

    @property
    def options(self) -> SessionOptions:
        """The options of the session."""
        return self._connection.options

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return self._connection.core.state

    @property
    def address(self) -> str:
        """The address of the connected broker, or the next address to try: ``tcp://host:port``."""
        return self._connection.address

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """The interceptors of the session, installed ones first."""
        return self._hooks.interceptors

    def fileno(self) -> int:
        """Return the file descriptor of the connection; -1 without a connection.

        Use the descriptor only to keep child processes from inheriting it. Reading or writing breaks the
        session.
        """
        return self._connection.fileno()

    def set_trace(self, trace: Trace, *, count: int | None = None) -> None:
        """Switch the wire trace on or off while the session runs, on this connection and all later ones.

        A session in trouble can be looked at without a restart, and without the flood of an unlimited trace::

            session.set_trace(bmq.Trace.ON, count=100)

        The trace is as for the option ``trace`` of :func:`bmq.connect`, which sets its initial value. Each
        call replaces the setting of the earlier call.

        Args:
            trace: content of the trace; ``Trace.OFF`` ends the trace.
            count: number of events, sent and received, after which the trace ends; None for no limit.

        Raises:
            SessionClosed: the session is closed.
            UsageError: an argument is not legal, or the call is outside the session's event loop.


        """
        _checks.instance("trace", trace, Trace, "one of bmq.Trace")
        count = _checks.optional(_checks.integer, "count", count, 1)
        self._connection.check_open()
        self._connection.dialer.set_trace(trace, count)

    def health(self) -> Health:
        """Return the health of the session: whether it is ready or degraded, why, since when, and three ages.

        The session is not ready before the first connection, from the loss of a connection until all queues
        are open again, and after its end; while a handler of an app or of ``bmq.consume`` does not get its
        messages, gives up each message, or has had no success for 5 s. The session is degraded

        - if, for half of ``liveness``, the broker is silent, does not answer a heartbeat, acknowledges no
          waiting post of a queue, or does not answer a request for a queue;
        - while reading is paused because the application is too slow;
        - while a handler's threads still run after the deadline, or no attempt of a handler succeeds;
        - while queues are suspended because the host is unhealthy;
        - after a queue could not be reopened, until the application opens the queue.
        """
        connection = self._connection
        return connection.health.report(connection.ages(), connection.core.stalls(connection.loop.time()))

    def stats(self) -> SessionStats:
        """Return a snapshot of the session's counters and levels."""
        from bmq.client.stats import session_stats  # large, and not all programs ask

        self._connection.confirming.finish()
        return session_stats(self._connection)


def _parsed(name: str, uri: object) -> QueueUri:
    if not isinstance(uri, str):
        raise InvalidURI(f"{name} must be a str, such as bmq://DOMAIN/QUEUE, not {_checks.shown(uri)}")
    return QueueUri.parse(uri)


def _usable(opening: asyncio.Task[Queue]) -> bool:
    """Whether a queue is open, or being opened."""
    if not opening.done():
        return True
    return not opening.cancelled() and opening.exception() is None and not opening.result().closed


def _open_sessions() -> list[Session]:
    with _registering:
        sessions = list(_sessions)
    return [each for each in sessions if each.state is not SessionState.CLOSED]


def close_left_open(session: Session, seconds: float = _LEFT_OPEN) -> asyncio.Task[CloseReport]:
    """Close a session that the program left open, in the background; its posts receive their outcomes."""
    task = session._begin_close(seconds, None, left_open=True)
    _closing[task] = None
    task.add_done_callback(_closing.pop)
    return task


async def close_all_left_open() -> None:
    """Close the sessions of this event loop that the program left open, and wait for their posts.

    Cancelling the call leaves the rest of the closing to the end of the event loop.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # sessions dropped just now begin to close
    for session in _open_sessions():
        if session._connection.loop is loop and session._close_task is None:
            session._warn_of_leaving()
            close_left_open(session)
    closing = [task for task in _closing if task.get_loop() is loop]
    if closing:
        await asyncio.wait(closing)


def disown(loops: Collection[asyncio.AbstractEventLoop]) -> None:
    """Allow sessions of event loops with killed processes to be collected without a warning."""
    for each in _open_sessions():
        connection = each._connection
        connection.disowned = connection.disowned or connection.loop in loops


def _at_exit() -> None:
    for each in _open_sessions():
        each._report_unsettled("the process ended")


# All sessions, until they are collected. Some threads make sessions of their own.
_sessions: weakref.WeakKeyDictionary[Session, None] = weakref.WeakKeyDictionary()
_registering = threading.Lock()
# Tasks that close sessions left open.
_closing: dict[asyncio.Task[CloseReport], None] = {}
atexit.register(_at_exit)
