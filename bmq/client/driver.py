"""What keeps a session going: the core, its connection, its timer, and who waits for what.

:class:`Driver` moves bytes and events between the protocol core and the rest of the client. Sessions, queues
and consumers call it; applications do not see it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import ssl as ssl_module
import time
from collections import deque
from collections.abc import Iterable

from bmq._version import __version__
from bmq.client.address import Address
from bmq.client.channel import Channel
from bmq.client.dialer import Dialer
from bmq.client.event_stream import EventStream
from bmq.client.options import CredentialsSource, SessionOptions
from bmq.client.posting import settle
from bmq.client.queue import Queue
from bmq.errors import BufferFull, Error, SessionClosed
from bmq.protocol.client import ClientCore, CoreOptions
from bmq.protocol.events import (
    Acked,
    CloseChannel,
    Completed,
    ConnectionLost,
    CredentialsNeeded,
    Disconnected,
    Outcome,
    Pushed,
    QueueReopenFailed,
    SessionEvent,
    Signal,
    SlowConsumer,
    SlowConsumerRecovered,
)
from bmq.protocol.queue import QueueCore
from bmq.protocol.tables import SessionState
from bmq.wire.control import ClientIdentity, ClientLanguage, ClientType, GuidInfo, QueueFlags
from bmq.wire.guid import GuidGenerator, client_id_from
from bmq.wire.uri import QueueUri

__all__ = ["Driver"]

logger = logging.getLogger("bmq.client")

_FEATURES = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"
_session_ids = itertools.count(1)


class Driver:
    """Drives one session; belongs to the event loop it was started on."""

    def __init__(
        self,
        addresses: list[Address],
        options: SessionOptions,
        credentials: CredentialsSource | None,
        ssl: ssl_module.SSLContext | None,
        server_hostname: str | None,
        events: EventStream,
    ) -> None:
        self.options = options
        self.loop: asyncio.AbstractEventLoop
        self.core: ClientCore
        self.event_stream = events
        self.dialer = Dialer(self, addresses, credentials, ssl, server_hostname)
        self._channel: Channel | None = None
        self._queues: dict[QueueCore, Queue] = {}
        self._epoch = 0
        self.guids: GuidGenerator
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._writable = True
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flush_waiters: list[tuple[Queue, float, asyncio.Future[None]]] = []
        self._buffered_messages = 0
        self._buffered_bytes = 0
        self._slow = False
        self._close_task: asyncio.Task[None] | None = None
        self.started = False

    # life

    async def start(self) -> None:
        """Connect for the first time; see :class:`bmq.connect`."""
        self.loop = asyncio.get_running_loop()
        session_id = next(_session_ids)
        self._epoch = time.monotonic_ns()
        wall = time.time_ns()
        client_id = client_id_from(socket.gethostname(), wall, os.getpid(), session_id)
        self.guids = GuidGenerator(client_id)
        identity = ClientIdentity(
            protocol_version=1,
            sdk_version=_version_number(__version__),
            client_type=ClientType.E_TCPCLIENT,
            process_name=self.options.process_name,
            pid=os.getpid(),
            session_id=session_id,
            host_name="",
            features=_FEATURES,
            sdk_language=ClientLanguage.E_UNKNOWN,
            guid_info=GuidInfo(client_id=self.guids.client_id_text, nano_seconds_from_epoch=wall),
            user_agent=f"bmq-py:{__version__}",
        )
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
        self.core.start()
        self.started = True
        try:
            await self.dialer.first_connect()
        except BaseException:
            self.core.give_up("could not connect", self.now())
            self.pump()
            raise

    async def close(self, timeout: float | None) -> None:
        """End the session; see :meth:`bmq.Session.close`."""
        if not self.started:
            return
        if self._close_task is None:
            if self.core.state is SessionState.CLOSED:
                return
            seconds = self.options.disconnect_timeout if timeout is None else timeout
            self._close_task = asyncio.ensure_future(self._close(self.now() + seconds))
        await asyncio.shield(self._close_task)

    async def _close(self, deadline: float) -> None:
        for queue in list(self._queues.values()):
            queue.shut(None)
        if len(self.core.window) and not await self._drained(deadline):
            logger.warning(
                "closing the session with %d posts that have no outcome yet", len(self.core.window)
            )
        if self.core.connected:
            closing = [self.close_core(q, deadline) for q in self.queues if not q.closed]
            await asyncio.gather(*closing, return_exceptions=True)
        self.dialer.stop()
        done: asyncio.Future[None] = self.loop.create_future()
        self.core.stop(done, self.now(), deadline)
        self.pump()
        await done
        self._finish()

    async def _drained(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                for queue in list(self._queues.values()):
                    await self.flushed(queue)
        except TimeoutError:
            return False
        return True

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._channel is not None:
            self._channel.close()
        self._wake_room(len(self._room_waiters))

    def abort(self) -> None:
        """Drop the connection at once: nobody is left to close the session."""
        if self.started and self._channel is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._channel.abort)

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
        done: asyncio.Future[None] = self.loop.create_future()
        deadline = self.now() + (self.options.open_timeout if timeout is None else timeout)
        core = self.core.open_queue(uri, flags, queue, done, deadline, suspends=suspends)
        queue.attach(core)
        self._queues[core] = queue
        try:
            self.core.begin_open(core, self.now())
            self.wake()
            await done
        except BaseException as error:
            self._queues.pop(core, None)
            queue.shut(None)
            if isinstance(error, asyncio.CancelledError):
                self.core.abandon_queue(core, self.now(), self.now() + self.options.close_timeout)
                self.wake()
            raise

    @property
    def queues(self) -> list[Queue]:
        """The open queues."""
        return list(self._queues.values())

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

    def tick(self) -> int:
        """Nanoseconds since the session was started: what GUIDs are made from."""
        return time.monotonic_ns() - self._epoch

    def turn(self, messages: int, size: int) -> tuple[int, int]:
        """Return how many messages and bytes may be posted before asking again: at most so many."""
        window, options = self.core.window, self.options
        return (
            min(messages, options.max_unacked_messages - len(window)),
            min(size, options.max_unacked_bytes - window.bytes),
        )

    def check_open(self) -> None:
        """Raise unless the session can be used.

        Raises:
            SessionClosed: it is closed or closing.
        """
        if self._close_task is not None or self.core.state is SessionState.CLOSED:
            raise SessionClosed("the session is closed")

    @property
    def has_room(self) -> bool:
        """Whether the window takes another post."""
        window, options = self.core.window, self.options
        return len(window) < options.max_unacked_messages and window.bytes < options.max_unacked_bytes

    @property
    def takes_posts(self) -> bool:
        """Whether the window takes another post and the connection keeps up."""
        return self._writable and self.has_room

    async def room(self) -> None:
        """Wait until it is worth trying to post again."""
        self.check_open()
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._room_waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter.cancelled():
                self._room_waiters.remove(waiter) if waiter in self._room_waiters else self._wake_room(1)

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
        if not queue.core.unacked:
            return
        waiter: asyncio.Future[None] = self.loop.create_future()
        entry = (queue, self.now(), waiter)
        self._flush_waiters.append(entry)
        try:
            await waiter
        finally:
            if entry in self._flush_waiters:
                self._flush_waiters.remove(entry)

    async def configure(self, core: QueueCore) -> None:
        """Bring the broker up to a queue's desired subscriptions."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.core.configure_queue(core, done, self.now() + self.options.configure_timeout)
        self.wake()
        await done

    def configure_later(self, core: QueueCore) -> None:
        """The same, with nobody waiting for it."""
        self.core.configure_queue(core, None, self.now() + self.options.configure_timeout)
        self.wake()

    def release(self, core: QueueCore) -> bool:
        """Hand unconfirmed messages back to the broker; False when that is not possible now."""
        released = self.core.release_queue(core, self.now())
        self.wake()
        return released

    async def close_queue(self, queue: Queue, timeout: float | None) -> None:
        """Close one queue; see :meth:`Queue.close`."""
        deadline = self.now() + (self.options.close_timeout if timeout is None else timeout)
        queue.shut(None)
        try:
            async with asyncio.timeout_at(deadline):
                await self.flushed(queue)
        except TimeoutError:
            logger.warning("closing %s with %d posts that have no outcome yet", queue.uri, queue.unacked)
        await self.close_core(queue, deadline)

    async def close_core(self, queue: Queue, deadline: float) -> None:
        """Close a queue whose posts have been waited for."""
        done: asyncio.Future[None] = self.loop.create_future()
        try:
            self.core.close_queue(queue.core, done, self.now(), deadline)
            self.wake()
            await done
        finally:
            self._queues.pop(queue.core, None)

    def confirm(self, queue: QueueCore, guid: bytes) -> None:
        """Confirm a message."""
        self.core.confirm(queue, guid)
        self.wake()

    def confirm_many(self, queue: QueueCore, guids: Iterable[bytes]) -> None:
        """Confirm several messages of one queue."""
        self.core.confirm_many(queue, guids)
        self.wake()

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
        elif (
            self._buffered_messages > options.max_buffered_messages
            or self._buffered_bytes > options.max_buffered_bytes
        ):
            self._slow = True
            self._set_reading(False)
            self.publish(SlowConsumer(self._buffered_messages, self._buffered_bytes))

    def wake(self) -> None:
        """Send what has gathered at the end of this turn of the event loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def publish(self, event: SessionEvent) -> None:
        """Hand an event to the application."""
        self.event_stream.publish(event)

    # the channel (see ``bmq.client.channel.Receiver``)

    def attach_channel(self, channel: Channel) -> None:
        """A connection is there."""
        self._channel = channel
        self._writable = True
        if self._slow:
            channel.set_reading(False)

    def channel_data(self, channel: Channel, data: bytes) -> None:
        """Bytes arrived."""
        if channel is self._channel:
            self.core.receive(data, self.loop.time())
            self.pump()

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """The connection is gone."""
        if channel is not self._channel:
            return
        self._channel = None
        self._writable = True
        reason = self.dialer.close_reason or (str(error) if error else "the broker closed the connection")
        self.dialer.close_reason = ""
        self.core.channel_closed(reason, self.now())
        self.pump()
        self.dialer.channel_lost()

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """The transport's buffer is full, or has room again."""
        if channel is self._channel:
            self._writable = writable
            if writable:
                self._wake_room(len(self._room_waiters))

    # the pump

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.pump()

    def pump(self) -> None:
        """Handle what the core reports, send what it has to send, and arm its timer."""
        core = self.core
        while events := core.events():
            for event in events:
                self._handle(event)
        data = core.data_to_send(self.loop.time())
        if data and self._channel is not None:
            self._channel.write(data)
        deadline = core.next_deadline()
        if deadline is not None and (self._timer is None or deadline < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._slow and self.core.connected:
            pass
        self.core.tick(self.loop.time())
        self.pump()

    def _handle(self, event: SessionEvent | Signal) -> None:
        if isinstance(event, Acked):
            self._acked(event.outcomes)
        elif isinstance(event, Pushed):
            for sub, messages in event.deliveries:
                sub.owner.deliver(messages)
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
            if isinstance(event, QueueReopenFailed):
                self._queue_failed(event)
            elif isinstance(event, ConnectionLost):
                for queue in self._queues.values():
                    queue.forget_delivered()
            elif isinstance(event, Disconnected):
                self._ended(event)
            self.dialer.note(event)
            self.event_stream.publish(event)

    def _acked(self, outcomes: list[Outcome]) -> None:
        settle(outcomes)
        if self._room_waiters and self.takes_posts:
            self._wake_room(self.options.max_unacked_messages - len(self.core.window))
        if self._flush_waiters:
            self._check_flushed()

    def _check_flushed(self) -> None:
        for queue, since, waiter in list(self._flush_waiters):
            oldest = next((p for p in self.core.window if p.queue is queue.core), None)
            if (oldest is None or oldest.posted > since) and not waiter.done():
                waiter.set_result(None)

    def _close_channel(self, error: Error | None) -> None:
        if self._channel is None:
            return
        if error is None:
            self._channel.close()
        else:
            logger.error("closing the connection to %s: %s", self.dialer.target, error)
            self.dialer.close_reason = str(error)
            self.dialer.failure = error
            self._channel.abort()

    def _queue_failed(self, event: QueueReopenFailed) -> None:
        for core, queue in list(self._queues.items()):
            if queue.uri == event.queue_uri:
                del self._queues[core]
                queue.shut(event.error)

    def _ended(self, event: Disconnected) -> None:
        error = SessionClosed(f"the session is over: {event.reason}") if event.reason else None
        for queue in self._queues.values():
            queue.shut(error)
        self._queues.clear()
        self.event_stream.end(event)
        for _, _, waiter in self._flush_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._finish()

    def _wake_room(self, count: int) -> None:
        while count > 0 and self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _set_reading(self, reading: bool) -> None:
        if self._channel is not None:
            self._channel.set_reading(reading)


def _version_number(version: str) -> int:
    major, minor, patch = (
        int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3]
    )
    return major * 10000 + minor * 100 + patch
