"""What keeps a session going: the core, its connection, its timer, and who waits for what.

:class:`Driver` moves bytes and events between the protocol core and the rest of the client. Sessions, queues
and consumers call it; applications do not see it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as ssl_module
import time
import weakref
from asyncio import get_running_loop
from collections.abc import Coroutine
from typing import Any, TypeVar

from bmq.client._address import Address
from bmq.client._channel import Channel
from bmq.client._closing import CloseReport, close_queue, close_session
from bmq.client._dialer import Dialer
from bmq.client._event_stream import EventStream
from bmq.client._identity import introduce
from bmq.client._posting import settle
from bmq.client._reporting import Reporter
from bmq.client._waiting import Waiting
from bmq.client.consumer import Places
from bmq.client.health import HostHealthMonitor
from bmq.client.options import CredentialsSource, SessionOptions
from bmq.client.queue import Queue
from bmq.errors import BufferFull, Error, SessionClosed, StateError, UsageError
from bmq.protocol.client.core import ClientCore, CoreOptions
from bmq.protocol.client.events import (
    Acked,
    CloseChannel,
    Completed,
    ConnectionLost,
    CredentialsNeeded,
    Disconnected,
    Pushed,
    QueueReopenFailed,
    SessionEvent,
    Signal,
    SlowConsumer,
    SlowConsumerRecovered,
    StateRestored,
)
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.tables import SessionState
from bmq.wire.control import QueueFlags
from bmq.wire.guid import GuidGenerator
from bmq.wire.push import Push
from bmq.wire.uri import QueueUri

__all__ = ["Driver"]

_T = TypeVar("_T")

logger = logging.getLogger("bmq.client")

# The event loop keeps no task alive. These go on when nobody holds their session any more: a close that was
# cancelled, and the watching of the host's health, which ends when the session is noticed to be gone.
_kept: set[asyncio.Task[Any]] = set()
# How much is taken from the core for one write.
_WRITE = 1024 * 1024


class Driver:
    """Drives one session; belongs to the event loop it was started on.

    The loop does not keep it alive: neither its channel nor its timer does. What does is the application,
    with the session, a queue or a consumer in its hands. A session nobody holds is noticed, and warned of.
    """

    def __init__(
        self,
        addresses: list[Address],
        options: SessionOptions,
        credentials: CredentialsSource | None,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
        events: EventStream,
        host_health: HostHealthMonitor | None,
    ) -> None:
        self.options = options
        self.loop: asyncio.AbstractEventLoop
        self.core: ClientCore
        self.event_stream = events
        self.reporter = Reporter(self)
        events.report_to(self.reporter)
        self.dialer = Dialer(self, addresses, credentials, ssl, server_hostname)
        self._channel: Channel | None = None
        self._queues: dict[QueueCore, Queue] = {}
        self._epoch = 0
        self.guids: GuidGenerator
        #: Something waits to be sent at the end of this turn of the event loop.
        self.flush_due = False
        self._moment = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._writable = True
        self._waiting: Waiting
        # How many messages have arrived: what they are numbered with.
        self._delivered = 0
        self._buffered_messages = 0
        self._buffered_bytes = 0
        self._slow = False
        self._host_health = host_health
        self._health_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[CloseReport] | None = None
        self._crashed = False
        # The event loop is being kept awake, and until when (see SessionOptions.busy_poll).
        self._awake = False
        self._awake_until = 0.0
        #: Closing has come so far that not even handlers in flight may post any more.
        self.sealed = False
        self.started = False

    # life

    async def start(self) -> None:
        """Connect for the first time; see :class:`bmq.connect`."""
        if self.started:
            raise StateError("the session was started before; every bmq.connect(...) makes one session")
        self.loop = asyncio.get_running_loop()
        identity, self.guids = introduce(self.options.process_name)
        self._epoch = time.monotonic_ns()
        options = self.options
        self.core = ClientCore(
            identity,
            CoreOptions(
                handshake_timeout=options.connect_timeout,
                reopen_timeout=options.open_timeout,
                max_incoming_event=options.max_event_size,
                drop_confirmed_redeliveries=options.drop_confirmed_redeliveries,
            ),
        )
        self._waiting = Waiting(self.core.window, options)
        self.core.start()
        self.started = True
        if self._host_health is not None:
            watch = _watch_health(weakref.ref(self), self._host_health)
            self._health_task = self.keep(watch)
        try:
            await self.dialer.first_connect()
        except BaseException:
            self.core.give_up("could not connect", self.now())
            self.pump()
            raise

    async def close(self, timeout: float | None) -> CloseReport:
        """End the session; see :meth:`bmq.Session.close`."""
        if not self.started:
            return CloseReport()
        self.check_loop()
        if self._close_task is None or self._close_task.cancelled():
            if self.core.state is SessionState.CLOSED:
                return CloseReport()
            seconds = self.options.disconnect_timeout if timeout is None else timeout
            closing = close_session(self, self.now() + seconds, asyncio.current_task())
            self._close_task = self.keep(closing)
            self._close_task.add_done_callback(self._closed)
        return await asyncio.shield(self._close_task)

    def keep(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine as a task that lives until it is done, whoever is interested in it."""
        task = self.loop.create_task(coroutine)
        _kept.add(task)
        task.add_done_callback(_kept.discard)
        return task

    @property
    def closing(self) -> bool:
        """Closing has begun and is not over."""
        return self._close_task is not None and not self._close_task.done()

    def _closed(self, _: asyncio.Task[CloseReport]) -> None:
        # In a callback, because a task that is cancelled before its first step runs nothing of its coroutine.
        self.sealed = True
        self.dialer.stop()
        if self.core.state is not SessionState.CLOSED:
            self.core.give_up("", self.now())
            self.pump()

    async def disconnect(self, deadline: float) -> None:
        """Say goodbye, and wait until the connection is gone."""
        done: asyncio.Future[None] = self.loop.create_future()
        channel = self._channel
        self.core.stop(done, self.now(), deadline)
        self.pump()
        await done
        if channel is not None:
            await channel.wait_closed()

    async def close_queue(
        self, queue: Queue, timeout: float | None, closer: asyncio.Task[object] | None
    ) -> None:
        """Close one queue; see :meth:`bmq.Queue.close`."""
        self.check_loop()
        deadline = self.now() + (self.options.close_timeout if timeout is None else timeout)
        await close_queue(self, queue, deadline, closer)

    async def close_core(self, queue: Queue, deadline: float) -> None:
        """Close a queue whose posts have been waited for."""
        done: asyncio.Future[None] = self.loop.create_future()
        try:
            self.core.close_queue(queue._core, done, self.now(), deadline)
            self.wake()
            await done
        finally:
            self._queues.pop(queue._core, None)

    def _finish(self) -> None:
        """The session is over: leave nothing behind in the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._health_task is not None:
            self._health_task.cancel()
            self._health_task = None
        if self._channel is not None:
            self._channel.close()
        self._waiting.finish()

    def abandon(self) -> None:
        """End the session at once: nobody is left to close it, but there may be futures of its posts."""
        if self.started:
            try:
                # Not here: garbage may be collected in any thread.
                self.loop.call_soon_threadsafe(self._abandoned)
            except RuntimeError:
                pass  # the event loop is closed: nobody can wait for anything any more

    def _abandoned(self) -> None:
        channel = self._channel
        self.dialer.stop()
        if self.core.state is not SessionState.CLOSED:
            self.core.give_up("it was dropped without being closed", self.now())
            self.pump()
        if channel is not None:
            channel.abort()

    # queues

    async def open_queue(
        self, uri: QueueUri, flags: QueueFlags, queue: Queue, timeout: float | None, *, suspends: bool
    ) -> None:
        """Open a queue and wait until it is; a cancelled caller has it closed again.

        Raises:
            SessionClosed, StateError, OpenQueueError, ConfigureQueueError, RequestTimeout: see
                :meth:`bmq.Session.open_queue`.
        """
        self.check_open()
        if self._close_task is not None:
            raise SessionClosed("the session is closing")
        done: asyncio.Future[None] = self.loop.create_future()
        deadline = self.now() + (self.options.open_timeout if timeout is None else timeout)
        core = self.core.open_queue(uri, flags, queue, done, deadline, suspends=suspends)
        queue._attach(core)
        self._queues[core] = queue
        try:
            self.core.begin_open(core, self.now())
            self.wake()
            await done
        except BaseException as error:
            self._queues.pop(core, None)
            queue._shut(None)
            if isinstance(error, asyncio.CancelledError) and self.core.state is not SessionState.CLOSED:
                self.core.abandon_queue(core, self.now(), self.now() + self.options.close_timeout)
                self.wake()
            raise

    @property
    def queues(self) -> list[Queue]:
        """The queues that were opened and are not closed."""
        return [queue for core, queue in self._queues.items() if core.opening is None]

    @property
    def state(self) -> SessionState:
        """Where the session is."""
        return self.core.state if self.started else SessionState.STOPPED

    @property
    def channel(self) -> Channel | None:
        """The present connection."""
        return self._channel

    @property
    def buffered(self) -> tuple[int, int]:
        """How many messages, and bytes of them, wait for the application."""
        return self._buffered_messages, self._buffered_bytes

    # what queues and consumers call

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()

    def moment(self) -> tuple[float, int]:
        """Return the loop's time, and nanoseconds since the session was started, what GUIDs are made from.

        Both stand still in a turn of the event loop in which something waits to be sent.
        """
        if self.flush_due:
            return self._moment
        return self.loop.time(), time.monotonic_ns() - self._epoch

    def turn(self, messages: int, size: int) -> tuple[int, int]:
        """Return how many messages and bytes may be posted before asking again: at most so many."""
        window, options = self.core.window, self.options
        return (
            min(messages, options.max_unacked_messages - len(window)),
            min(size, options.max_unacked_bytes - window.bytes),
        )

    def check_open(self) -> None:
        """Raise unless the session can be used, here.

        Raises:
            SessionClosed: it is closed or closing.
            UsageError: this is not the event loop it belongs to.
        """
        try:
            here = get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if not here:
            raise _wrong_loop()
        if self.sealed or self.core.state is SessionState.CLOSED:
            raise SessionClosed("the session is closed")

    def check_loop(self) -> None:
        """Raise unless this is the event loop the session belongs to.

        Raises:
            UsageError: it is not.
        """
        try:
            if get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass
        raise _wrong_loop()

    @property
    def has_room(self) -> bool:
        """Whether the window takes another post."""
        window, options = self.core.producer.window, self.options
        return len(window.entries) < options.max_unacked_messages and window.bytes < options.max_unacked_bytes

    @property
    def takes_posts(self) -> bool:
        """Whether the window takes another post and the connection keeps up."""
        return self._writable and self.has_room

    async def room(self) -> None:
        """Wait until it is worth trying to post again: until the window is half empty."""
        self.check_open()
        await self._waiting.room()

    def buffer_full(self) -> BufferFull:
        """Say how full the window is."""
        window = self.core.window
        return BufferFull(
            f"{len(window):,} posts ({window.bytes:,} bytes) have no outcome yet; the session allows "
            f"{self.options.max_unacked_messages:,} ({self.options.max_unacked_bytes:,} bytes). "
            "'await queue.post(...)' waits for room"
        )

    async def flushed(self, queue: Queue) -> None:
        """Wait until everything posted to a queue so far has its outcome."""
        self.check_loop()
        await self._waiting.outcomes(queue._core, self.now())

    def configure(self, core: QueueCore) -> asyncio.Future[None]:
        """Have the broker brought up to what a queue's subscriptions are at the end of this turn."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.core.configure_queue(core, done, self.now() + self.options.configure_timeout)
        self.wake()
        return done

    def note_buffered(self, messages: int, size: int) -> None:
        """Count messages that wait for the application; pause reading when there are too many."""
        self._buffered_messages += messages
        self._buffered_bytes += size
        options = self.options
        if self._slow:
            if (
                self._buffered_messages * 2 <= options.max_buffered_messages
                and self._buffered_bytes * 2 <= options.max_buffered_bytes
            ):
                self._slow = False
                self._set_reading(True)
                self.event_stream.publish(
                    SlowConsumerRecovered(self._buffered_messages, self._buffered_bytes)
                )
            elif messages > 0 and self._holds_more_than(2):
                self._set_reading(False)
        elif self._holds_more_than(1):
            self._slow = True
            # While queues are being reopened there are answers to wait for, behind messages: twice as much.
            if self.core.settled or self._holds_more_than(2):
                self._set_reading(False)
            self.publish(SlowConsumer(self._buffered_messages, self._buffered_bytes))

    def _holds_more_than(self, times: int) -> bool:
        options = self.options
        return (
            self._buffered_messages > times * options.max_buffered_messages
            or self._buffered_bytes > times * options.max_buffered_bytes
        )

    def wake(self) -> None:
        """Send what has gathered at the end of this turn of the event loop."""
        if not self.flush_due:
            self._moment = self.moment()
            self.flush_due = True
            self.loop.call_soon(self._flush)

    def wake_here(self) -> None:
        """Check that this is the event loop the session belongs to, and :meth:`wake`.

        Raises:
            UsageError: it is not.
        """
        try:
            here = get_running_loop() is self.loop
        except RuntimeError:
            here = False
        if not here:
            raise _wrong_loop()
        if not self.flush_due:
            self.wake()

    def set_health(self, healthy: bool) -> None:
        """Take what the host health monitor says."""
        self.core.host_health(healthy)
        self.wake()

    def publish(self, event: SessionEvent) -> None:
        """Hand an event to the application."""
        self.event_stream.publish(event)

    # the channel (see ``bmq.client._channel.Receiver``)

    def attach_channel(self, channel: Channel) -> None:
        """A connection is there."""
        self._channel = channel
        self._writable = True

    def drop_channel(self, channel: Channel) -> None:
        """This connection came to nothing."""
        channel.abort()
        if channel is self._channel:
            self._detach("it came to nothing")

    def channel_data(self, channel: Channel, data: bytes) -> None:
        """Bytes arrived."""
        if channel is self._channel:
            try:
                self.core.receive(data, self.loop.time())
            except Exception as error:
                self._crash(error)
            self.pump()

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone."""
        if channel is self._channel:
            self._detach(self.dialer.close_reason or str(error or "the broker closed the connection"))
            self.dialer.channel_lost()

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """The transport's buffer is full, or has room again."""
        if channel is self._channel:
            self._writable = writable
            if writable:
                self.pump()
                if self.takes_posts:
                    self._waiting.wake()

    def _detach(self, reason: str) -> None:
        self._channel = None
        self._writable = True
        self.dialer.close_reason = ""
        self.core.channel_closed(reason, self.now())
        self.pump()

    # the pump

    def _flush(self) -> None:
        self.flush_due = False
        self.pump()

    def pump(self) -> None:
        """Handle what the core reports, send what it has to send, and arm its timer."""
        try:
            self._pump()
        except Exception as error:
            self._crash(error)

    def _pump(self) -> None:
        core = self.core
        while events := core.events():
            for event in events:
                self._handle(event)
        channel = self._channel
        if channel is not None:
            # What the transport does not take now waits in the core: messages in their window, not in a copy.
            now = self.loop.time()
            while self._writable and (data := core.data_to_send(now, _WRITE)):
                channel.write(data)
                if not core.outbox:
                    break
            if self.options.busy_poll:
                self._stay_awake()
        deadline = core.next_deadline()
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, _tick, weakref.ref[Driver](self))

    def _stay_awake(self) -> None:
        """Keep the event loop from sleeping for a while: an event loop with something to call does not."""
        # The loop's own time may count whole milliseconds (uvloop), and not while callbacks run.
        self._awake_until = time.monotonic() + self.options.busy_poll
        if not self._awake:
            self._awake = True
            self.loop.call_soon(self._poll)

    def _poll(self) -> None:
        self._awake = self._channel is not None and time.monotonic() < self._awake_until
        if self._awake:
            self.loop.call_soon(self._poll)

    def on_timer(self) -> None:
        """It is time for something."""
        self._timer = None
        try:
            self.core.tick(self.loop.time())
        except Exception as error:
            self._crash(error)
        self.pump()

    def _crash(self, error: Exception) -> None:
        """There is a mistake in this library: end the session, so that nobody waits for what never comes."""
        logger.critical("internal error; the session ends", exc_info=error)
        if self._crashed:
            return
        self._crashed = True
        self.dialer.stop()
        self.core.give_up(f"internal error: {error!r}", self.loop.time())
        for event in self.core.events():
            try:
                self._handle(event)
            except Exception:
                logger.critical("internal error, while ending the session", exc_info=True)

    def _handle(self, event: SessionEvent | Signal) -> None:
        if isinstance(event, Acked):
            settle(event.outcomes)
            self._waiting.posts_left(self._writable)
        elif isinstance(event, Pushed):
            # Subscriptions take turns: each consumer gets its share of an event at once, in its order, and
            # with it what it was among all: it may pass messages on.
            shares: dict[Any, tuple[list[Push], Places]] = {}
            number = self._delivered
            for sub, messages in event.deliveries:
                share = shares.get(sub.owner)
                if share is None:
                    shares[sub.owner] = messages[:], [(0, number)]
                else:
                    share[1].append((len(share[0]), number))
                    share[0].extend(messages)
                number += len(messages)
            self._delivered = number
            for owner, (messages, places) in shares.items():
                owner._deliver(messages, places)
        elif isinstance(event, Completed):
            future: asyncio.Future[None] | None = event.token
            if future is not None and not future.done():
                if event.error is None:
                    future.set_result(None)
                else:
                    future.set_exception(event.error)
        elif isinstance(event, CloseChannel):
            self._close_channel(event.error)
        elif isinstance(event, CredentialsNeeded):
            self.dialer.renew_credentials()
        elif isinstance(event, SessionEvent):
            if isinstance(event, StateRestored) and self._slow:
                self._set_reading(False)
            elif isinstance(event, QueueReopenFailed):
                self._queue_failed(event)
            elif isinstance(event, ConnectionLost):
                for queue in self._queues.values():
                    queue._forget_delivered()
            elif isinstance(event, Disconnected):
                self._ended(event)
            self.dialer.note(event)
            self.event_stream.publish(event)
            if isinstance(event, Disconnected):
                self.event_stream.end()

    def _close_channel(self, error: Error | None) -> None:
        if self._channel is None:
            return
        if error is None:
            self._channel.close()
        else:
            logger.info("closing the connection to %s: %s", self.dialer.target, error)
            self.dialer.close_reason = str(error)
            self.dialer.failure = error
            self._channel.abort()

    def _queue_failed(self, event: QueueReopenFailed) -> None:
        for core, queue in list(self._queues.items()):
            if queue.uri == event.queue_uri and not core.in_use:  # reading and writing may be two queues
                del self._queues[core]
                queue._shut(event.error)

    def _ended(self, event: Disconnected) -> None:
        error = SessionClosed(f"the session is over: {event.reason}") if event.reason else None
        for queue in self._queues.values():
            queue._shut(error)
        self._queues.clear()
        self._finish()

    def _set_reading(self, reading: bool) -> None:
        self.core.pause_reading(not reading, self.now())
        self.wake()
        if self._channel is not None:
            self._channel.set_reading(reading)


def _wrong_loop() -> UsageError:
    return UsageError(
        "a session, its queues and messages belong to the event loop the session was started in: use "
        "loop.call_soon_threadsafe() or asyncio.run_coroutine_threadsafe() in other threads, and "
        "bmq.connect() again in another loop"
    )


def _tick(driver: weakref.ref[Driver]) -> None:
    if (alive := driver()) is not None:
        alive.on_timer()


async def _watch_health(driver: weakref.ref[Driver], monitor: HostHealthMonitor) -> None:
    try:
        async for healthy in monitor:
            alive = driver()
            if alive is None:
                return
            alive.set_health(healthy)
            del alive
    except Exception:
        logger.exception("the host health monitor failed; the host's health stays as it was said last")
