# SPDX-License-Identifier: Apache-2.0
"""The connection of a session: a sequence of TCP or TLS channels, with a single core and timer.

The life cycle of the session is the table of :class:`ClientCore`; the connection repeats no state of it.
Its own facts belong to the transport and the event loop, and change independently of the table:

- ``writable``: whether the transport has space. A session in any state may find the transport full.
- ``scheduled``: whether the event loop has a pending callback for the output of this turn.
- ``_awake_until``: the end of busy polling; 0 while no polling callback is pending.

A bug in this library ends the session through the table: the session is CLOSED afterwards, without a flag.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from bmq import _world
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._loop import running_loop, weakly
from bmq._turn import turn_of
from bmq.client.address import BrokerAccess
from bmq.client.channel import Channel
from bmq.client.counting import Confirming, ReceiveCounts, distinct
from bmq.client.dialer import Dialer
from bmq.client.health import Ages, HealthWatch, HostHealthMonitor
from bmq.client.options import SessionOptions, introduce
from bmq.client.posts import settle
from bmq.client.receive_limit import ReceiveLimit
from bmq.client.reporting import EventStream, Reporter
from bmq.client.send_window import SendWindow
from bmq.errors import Error, SessionClosed, UsageError
from bmq.protocol.client.core import ClientCore, CoreOptions, SessionState
from bmq.protocol.client.events import (
    Acked,
    Astray,
    CloseChannel,
    Completed,
    ConfirmedAgain,
    ConnectionLost,
    CredentialsNeeded,
    Disconnected,
    Pushed,
    PushedColumns,
    QueueReopened,
    QueueReopenFailed,
    Reconnected,
    SessionEvent,
    Signal,
    Skipped,
    StateRestored,
    StreamConfigured,
    UnclaimedMessages,
    Unsendable,
)
from bmq.protocol.client.handshake import Handshake
from bmq.protocol.client.ports import Sink
from bmq.protocol.client.queue import QueueCore
from bmq.wire.properties import SchemaIds
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.client.queue import Queue

__all__ = ["Connection"]

_T = TypeVar("_T")

_STARTED = SessionState.STARTED
# Maximum number of a peer's ids in a log line.
_SHOWN = 5
# A write of this size is not extended by further events. An event has at most a megabyte.
_WRITE = 512 * 1024
# A backlog below this size gives no information about the peer.
_SMALL_BACKLOG = 64 * 1024
# A newer broker keeps sending unknown elements: a line for each, or each minute, adds no information.
_ONCE_A_DAY = 86_400.0

logger = Log("bmq.client", later=True)

# The event loop does not keep tasks alive. Two kinds must continue without a reference: a close after the
# cancellation of the caller, and the watch of the host's health until the end of the session.
_kept: set[asyncio.Task[Any]] = set()


class Connection:
    """A core on an event loop: the present channel, the output and the timer, and the core's reports.

    The event loop keeps neither the connection nor its session alive: a session dropped without closing is
    collected, with a warning.

    Args:
        broker: addresses of the broker, and credentials.
        options: options of the session.
        on_event: the application's callback for session events.
        host_health: source of the host's health; None for a healthy host.

    Attributes:
        options: options of the session.
        core: the protocol.
        loop: the event loop.
        thread: identifier of the event loop's thread.
        monotonic_ns: the monotonic clock, in nanoseconds.
        epoch: start of the session, in nanoseconds of the monotonic clock.
        writable: whether the transport accepts more data.
        scheduled: whether output is sent at the end of this turn of the event loop.
        one_at_a_time: whether the latest such turn left a single post without an outcome.
        confirming: collects confirmations within a turn.
        turn: the loop's time, and nanoseconds since the start of the session, as returned by the latest call
            of :meth:`clock`. A new object in every turn.
        channel: the present channel, or None.
        close_reason: reason if this side closed the channel; otherwise "".
        send_window: space and outcomes for posts.
        receive_limit: account of held messages.
        dialer: connects and reconnects.
        reporter: log of the session.
        lines: log of repeated problems.
        events: application's subscribers to session events.
        guids: generates the GUIDs of posts.
        schema_ids: numbers the sequences of property names in posts.
        health: health of the session.
        received: counters of received messages.
        queues: open queues, and queues being opened.
        disowned: whether the session needs no closing: the process of a simulation was killed, or the log has
            the posts without an outcome.
    """

    def __init__(
        self,
        broker: BrokerAccess,
        options: SessionOptions,
        on_event: Callable[[SessionEvent], None] | None,
        host_health: HostHealthMonitor | None,
    ) -> None:
        identity, self.guids = introduce(options.process_name, options.user_agent)
        self.schema_ids = SchemaIds()
        self.options = options
        self.core = ClientCore(
            identity,
            CoreOptions(
                reopen_timeout=options.open_timeout,
                max_incoming_event=options.max_event_size,
                max_unacked_messages=options.max_unacked_messages,
                max_unacked_bytes=options.max_unacked_bytes,
                repeat_after=options.repeat_subscriptions_after,
                drop_confirmed_redeliveries=options.drop_confirmed_redeliveries,
                liveness=options.liveness,
            ),
        )
        self.loop = running_loop()
        self.thread = get_ident()
        self.writable = True
        self.scheduled = False
        self.one_at_a_time = False
        self.close_reason = ""
        self.channel: Channel | None = None
        self.monotonic_ns = _world.current().monotonic_ns
        self.epoch = self.monotonic_ns()
        self.confirming = Confirming()
        self.core.before_confirms_change(self.confirming.close)
        self.turn = 0.0, 0
        self._busy_poll = options.busy_poll
        self._sent_before = 0
        self._received_before = 0
        # Sizes of the backlog and of the data taken by the peer, at the last run of the timer.
        self._backlog = 0
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Time until which the event loop is kept awake; 0 if it is not.
        self._awake_until = 0.0

        self.health = HealthWatch()
        self.received = ReceiveCounts()
        self.events = EventStream(on_event)
        self.reporter = Reporter(self)
        self.send_window = SendWindow(self)
        self.receive_limit = ReceiveLimit(self)
        self.dialer = Dialer(self, broker)
        self.queues: dict[QueueCore, Queue] = {}
        self.disowned = False
        self._over_because = ""
        self.lines = LogLimit(logger)
        self._skipped = LogLimit(logger, every=_ONCE_A_DAY)
        # Number of arrived messages: the delivery number of the next message.
        self._delivered = 0
        # Number of messages for queues no longer open.
        self._astray = 0
        # Time of the loss of the connection, or None; and total time without a connection before.
        self._lost_at: float | None = None
        self._disconnected = 0.0
        self._health_task: asyncio.Task[None] | None = None
        if host_health is not None:
            self._health_task = self.keep(_watch_health(weakref.ref(self), host_health))

    # the life of the session

    async def connect(self) -> None:
        """Connect for the first time; see :class:`bmq.connect`."""
        try:
            await self.dialer.first_connect()
        except BaseException:
            self.give_up("could not connect")
            raise
        self.reporter.begun = True

    def keep(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine as a task, kept alive until the end."""
        task = self.loop.create_task(coroutine)
        _kept.add(task)
        task.add_done_callback(_kept.discard)
        return task

    async def disconnect(self, deadline: float) -> None:
        """Disconnect from the broker, and wait until the channel is gone."""
        self.dialer.stop()
        done: asyncio.Future[None] = self.loop.create_future()
        channel = self.channel
        self.core.stop(done, self.loop.time(), deadline)
        self.transmit()
        await done
        if channel is not None:
            await channel.wait_closed()

    def give_up(self, reason: str = "") -> None:
        """End the session at once, unless it has already ended; see :meth:`ClientCore.give_up`."""
        self.dialer.stop()
        if self.core.state is not SessionState.CLOSED:
            self.core.give_up(reason, self.loop.time())
            self.transmit()

    def revive(self) -> None:
        """Continue after garbage collection, which clears weak references before it calls finalizers."""
        if self.channel is not None:
            self.channel.hand_over(self)
        if self._timer is not None:
            self._arm(self._timer_at)

    def close_channel(self, error: Error | None) -> None:
        """Close the channel: at once after an error, otherwise after all written data is sent."""
        if self.channel is None:
            return
        if error is None:
            self.channel.close()
        else:
            self.close_reason = str(error)
            self.channel.abort()

    # the clock and the event loop

    def clock(self) -> tuple[float, int]:
        """Return the loop's time, and nanoseconds since the start of the session, for GUIDs.

        Both values stay the same while output waits for the end of a turn of the event loop.
        """
        if self.scheduled:
            return self.turn
        return self.loop.time(), self.monotonic_ns() - self.epoch

    def check_loop(self) -> None:
        """Raise unless the call comes from the session's event loop.

        Raises:
            UsageError: the call comes from another loop, or from outside any loop.
        """
        try:
            if get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass
        raise UsageError(
            "a session, its queues and messages belong to the event loop the session was started in: use "
            "loop.call_soon_threadsafe() or asyncio.run_coroutine_threadsafe() in other threads, and "
            "bmq.connect() again in another loop"
        )

    def check_open(self) -> None:
        """Check whether the session can be used here.

        Raises:
            SessionClosed: the session is closed or closing.
            UsageError: the call is outside the session's event loop.
        """
        if not self.scheduled or get_ident() != self.thread:  # as in Message.confirm()
            self.check_loop()
        if self.core.state is not _STARTED and self.core.sealed:
            reason = self._over_because
            raise SessionClosed(
                f"the session is over: {reason}" if reason else "the session is closed"
            ) from self.core.ended_by

    # transmitting

    def transmit_soon(self) -> None:
        """Send the collected output at the end of this turn of the event loop."""
        if not self.scheduled:
            self.turn = self.clock()
            self.scheduled = True
            self.loop.call_soon(self._transmit_scheduled)

    def _transmit_scheduled(self) -> None:
        self.scheduled = False
        self.one_at_a_time = len(self.core.posts.entries) == 1
        self.transmit()
        if self.confirming.open is not None:
            self.confirming.close()  # nothing could be sent

    def transmit(self) -> None:
        """Pass on the core's reports, send the output, and start the timer."""
        core = self.core
        try:
            self._hand_over()
            channel = self.channel  # the reports may have closed it
            if channel is not None:
                # Data not accepted by the transport now stays in the core, without a second copy of posts.
                now = self.loop.time()
                while self.writable and (data := core.data_to_send(now, _WRITE)):
                    if channel.write(data) < _WRITE:
                        break
                if self._busy_poll:
                    self._stay_awake()
            deadline = core.next_deadline()
            if deadline is not None and (self._timer is None or deadline < self._timer_at or core.relaxed):
                core.relaxed = False
                self._arm(deadline)
        except Exception as error:
            self._crash(error)

    def _hand_over(self) -> None:
        """Distribute the core's reports."""
        core, handle = self.core, self.handle
        while events := core.events():
            for event in events:
                handle(event)

    def _arm(self, deadline: float) -> None:
        """Run the timer at a deadline, earlier than before, or later after an answer to a heartbeat."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_at(deadline, weakly(self.on_timer))

    def on_timer(self) -> None:
        """Perform due actions."""
        self._timer = None
        now = self.loop.time()
        try:
            if self._has_written():
                self.core.written(now)
            self.core.tick(now)
        except Exception as error:
            self._crash(error)
        self.transmit()

    def _has_written(self) -> bool:
        """Whether the peer's kernel has taken part of a backlog since the last call."""
        waiting = self.channel.backlog if self.channel is not None else 0
        taken = self.bytes_sent - waiting
        # The kernel of a hung process acknowledges small writes too, while its buffer has space.
        moved = self._backlog > _SMALL_BACKLOG and taken > self._taken
        self._backlog, self._taken = waiting, taken
        return moved

    def _stay_awake(self) -> None:
        """Keep the event loop awake for a while: a loop with a scheduled callback does not sleep."""
        # Not the loop's own time: uvloop's clock has a resolution of a millisecond, and stands still during
        # callbacks.
        if not self._awake_until:
            self.loop.call_soon(self._poll)
        self._awake_until = _world.monotonic() + self._busy_poll

    def _poll(self) -> None:
        if self.channel is not None and _world.monotonic() < self._awake_until:
            self.loop.call_soon(self._poll)
        else:
            self._awake_until = 0.0

    def _crash(self, error: Exception) -> None:
        """End the session because of a bug in this library; otherwise callers might wait forever."""
        logger.critical("internal error; the session ends", exc_info=error)
        self.dialer.stop()
        self.core.give_up(f"internal error: {error!r}", self.loop.time())
        for event in self.core.events():
            try:
                self.handle(event)
            except Exception:
                logger.critical("internal error, while ending the session", exc_info=True)

    # the channel (see Receiver)

    def adopt(self, channel: Channel, handshake: Handshake) -> None:
        """Use a negotiated channel from now on.

        Raises:
            SessionClosed: the session is over.
        """
        self.core.channel_opened(handshake, self.loop.time())
        self.channel = channel
        channel.hand_over(self)
        self.transmit()

    def channel_data(self, channel: Channel, data: bytes | memoryview) -> None:
        """Process received bytes."""
        if channel is self.channel:
            try:
                core, now = self.core, self.loop.time()
                quiet = core.receive(data, now)
                framer = core.framer
                if framer.bulky is not channel.filling:
                    channel.fill(framer.space if framer.bulky else None)
                if quiet:
                    self._hand_over()
                    if self._busy_poll:
                        self._stay_awake()
                    return
            except Exception as error:
                self._crash(error)
            self.transmit()

    def channel_lost(self, channel: Channel, error: Exception | None) -> None:
        """Process the loss of the channel."""
        if channel is self.channel:
            reason = self.close_reason or (
                "the broker closed the connection" if error is None else str(error) or type(error).__name__
            )
            self._sent_before, self._received_before = self.bytes_sent, self.bytes_received
            self._backlog = 0
            self.channel = None
            self.writable = True
            self.close_reason = ""
            self.core.channel_closed(reason, self.loop.time())
            self.transmit()
            self.dialer.channel_lost()
            self.send_window.wake()  # posts are kept for the next connection

    def channel_writable(self, channel: Channel, writable: bool) -> None:
        """Note that the transport's buffer is full, or has space again."""
        if channel is self.channel:
            self.writable = writable
            if writable:
                self.transmit()
                self.send_window.wake()

    def set_reading(self, reading: bool) -> None:
        """Pause or resume reading."""
        self.core.pause_reading(not reading, self.loop.time())
        self.transmit_soon()
        if self.channel is not None:
            self.channel.set_reading(reading)

    # queues

    async def close_queue(self, queue: QueueCore, deadline: float, *, at_once: bool = False) -> None:
        """Close a queue whose posts are finished."""
        done: asyncio.Future[None] = self.loop.create_future()
        known = self.queues.get(queue)
        try:
            self.core.close_queue(queue, done, self.loop.time(), deadline, at_once=at_once)
            self.send_window.closed(queue)
            self.transmit_soon()
            self.receive_limit.reconsider()
            await done
        finally:
            if known is not None:
                self.forget(queue, known)

    def add(self, core: QueueCore, queue: Queue) -> None:
        """Register a queue that is being opened, and send the request."""
        self.queues[core] = queue
        self.send_window.queues += core.writable
        self.transmit_soon()
        self.receive_limit.reconsider()

    def forget(self, core: QueueCore, queue: Queue) -> bool:
        """Forget a queue that is closed, or was never open; return whether the session still had the queue.

        A later opening may have taken over the core with a new :class:`Queue`: leave the new queue
        registered.
        """
        if self.queues.get(core) is not queue:
            return False
        del self.queues[core]
        self.send_window.closed(core)
        self.send_window.queues -= core.writable
        self.confirming.finish()
        queue._counts.ended()
        self.health.closed(queue.uri, delayed=self._delayed(queue.uri))
        return True

    def _delayed(self, uri: str) -> bool:
        """Whether a queue waits to be reopened; reading and writing may be two queues with the same URI."""
        return any(core.late_to_reopen and queue.uri == uri for core, queue in self.queues.items())

    # the core's reports

    def handle(self, event: SessionEvent | Signal) -> None:
        """Distribute a report of the core."""
        if isinstance(event, Acked):
            settle(event, self.core)
            self.send_window.posts_left()
        elif isinstance(event, Pushed):
            self._deliver(event)
        elif isinstance(event, PushedColumns):
            self._deliver_columns(event)
        elif isinstance(event, Completed):
            future = event.token
            if future is not None and not future.done():
                if event.error is None:
                    future.set_result(None)
                else:
                    future.set_exception(event.error)
            self.receive_limit.reconsider()  # reading may have continued for this answer
        elif isinstance(event, StreamConfigured):
            event.owner.configured(event.failed)
        elif isinstance(event, CloseChannel):
            if event.error is not None:
                logger.info(
                    "closing the connection to %s: %s",
                    self.dialer.target,
                    event.error,
                    extra={"broker": self.address},
                )
            self.close_channel(event.error)
        elif isinstance(event, ConfirmedAgain):
            self._note_again(event)
        elif isinstance(event, Astray):
            self._note_astray(event)
        elif isinstance(event, Skipped):
            self._skipped.warning(
                event.what,
                "%s sent data that this version of bmq does not know or cannot read. bmq skips: %s",
                self.address,
                event.what,
            )
        elif isinstance(event, Unsendable):
            self.lines.error(
                Unsendable,
                "a post to %s could not be encoded and has failed: %r",
                event.queue_uri,
                event.error,
            )
        elif isinstance(event, CredentialsNeeded):
            self.dialer.renew_credentials()
        elif isinstance(event, SessionEvent):
            self._happened(event)

    def _note_again(self, event: ConfirmedAgain) -> None:
        event.owner.again(event.messages)
        self.lines.log(
            logging.INFO,
            (ConfirmedAgain, event.queue_uri),
            "%s redelivered %d messages of %s that this session had confirmed: the confirmations were "
            "lost with a connection or a node. The session confirms the messages again, and passes none "
            "to the application",
            self.address,
            event.messages,
            event.queue_uri,
        )

    def _note_astray(self, event: Astray) -> None:
        # A few are normal when a queue is closed during delivery: one warning is enough.
        level = logging.DEBUG if self._astray else logging.WARNING
        self._astray += event.messages
        self.received.match_nobody(event.messages)
        if level == logging.WARNING:
            self.publish(UnclaimedMessages("", event.messages))
        logger.log(
            level,
            "%d messages arrived for a queue that is not open here (qId %d, subscriptions %s). The "
            "messages stay unconfirmed",
            event.messages,
            event.q_id,
            _some(event.s_ids),
            extra={"broker": self.address},
        )

    def _deliver(self, event: Pushed) -> None:
        number = self._delivered
        arrival = self.loop.time(), self.received.losses
        if len(event.deliveries) == 1:
            queue, subscription, pushes = event.deliveries[0]
            count = len(pushes)
            self._delivered = number + count
            subscription.owner.deliver(pushes, range(number, number + count), arrival)
            if not queue.at_most_once:
                self.received.delivered(arrival, count)
            return
        # Messages of several subscriptions alternate. Each consumer receives all its messages in one call.
        shares: dict[Sink, tuple[list[Push], list[int]]] = {}
        to_confirm = 0
        for queue, subscription, pushes in event.deliveries:
            count = len(pushes)
            to_confirm += 0 if queue.at_most_once else count
            share, numbers = shares.setdefault(subscription.owner, ([], []))
            share += pushes
            numbers += range(number, number + count)
            number += count
        self._delivered = number
        for owner, (share, numbers) in shares.items():
            owner.deliver(share, numbers, distinct(arrival))
        if to_confirm:
            self.received.delivered(arrival, to_confirm)

    def _deliver_columns(self, event: PushedColumns) -> None:
        arrival = self.loop.time(), self.received.losses
        for queue, subscription, columns in event.deliveries:
            subscription.owner.deliver_columns(columns, self._delivered, distinct(arrival))
            count = columns.count
            self._delivered += count
            if not queue.at_most_once:
                self.received.delivered(arrival, count)

    def _happened(self, event: SessionEvent) -> None:
        if isinstance(event, StateRestored | QueueReopened):
            self.receive_limit.reconsider()  # a delayed queue may be reopened after StateRestored
        elif isinstance(event, QueueReopenFailed):
            for core, queue in list(self.queues.items()):
                # Reading and writing may be two queues; another opening of the queue may be in progress.
                if queue.uri == event.queue_uri and core.opened and not core.in_use:
                    self.forget(core, queue)
                    queue._shut(event.error)
        elif isinstance(event, Reconnected):
            self._disconnected, self._lost_at = self.seconds_disconnected, None
        elif isinstance(event, ConnectionLost):
            self._lost_at = self.loop.time()
            self.confirming.finish()
            self.received.losses += 1
            self.received.pending.clear()
            for queue in self.queues.values():
                queue._subscriptions.forget_delivered()
        elif isinstance(event, Disconnected):
            self._ended(event)
        self.publish(event)
        if isinstance(event, Disconnected):
            self.events.end()

    def _ended(self, event: Disconnected) -> None:
        """Leave nothing in the event loop at the end of the session."""
        self._disconnected, self._lost_at = self.seconds_disconnected, None
        self._over_because = event.reason
        error = SessionClosed(f"the session is over: {event.reason}") if event.reason else None
        if error is not None:
            error.__cause__ = self.core.ended_by
        for queue in self.queues.values():
            queue._shut(error)
        for core, queue in list(self.queues.items()):
            self.forget(core, queue)
        if self._health_task is not None:
            self._health_task.cancel()
            self._health_task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.close_channel(None)
        self.send_window.finish()
        self.receive_limit.finish()

    def publish(self, event: SessionEvent) -> None:
        """Pass an event to the log and the application."""
        if not isinstance(event, QueueReopened) or not self._delayed(event.queue_uri):
            self.reporter.note(event)
            self.health.note(event)
        self.events.publish(event)

    # figures

    def ages(self) -> Ages:
        """Return the ages of the oldest pending post, message and byte."""
        self.confirming.finish()
        now = self.loop.time()

        def age(begun: float | None) -> float | None:
            return None if begun is None else max(0.0, now - begun)

        return {
            "silent_seconds": self.core.silence(now),
            "oldest_unacked_seconds": age(self.core.posts.oldest()),
            "oldest_unconfirmed_seconds": age(self.received.oldest()),
        }

    @property
    def seconds_disconnected(self) -> float:
        """Time without a connection, after the first connection, in seconds."""
        now = 0.0 if self._lost_at is None else self.loop.time() - self._lost_at
        return self._disconnected + now

    @property
    def address(self) -> str:
        """The connected address, or the next address to try."""
        return self.dialer.address.text

    @property
    def open_queues(self) -> list[Queue]:
        """The open queues."""
        return [queue for core, queue in self.queues.items() if core.opened]

    def fileno(self) -> int:
        """The file descriptor of the connection; -1 without a connection."""
        return self.channel.fileno() if self.channel else -1

    @property
    def write_buffer_size(self) -> int:
        """Number of bytes not yet accepted by the operating system."""
        return self.channel.write_buffer_size if self.channel else 0

    @property
    def bytes_sent(self) -> int:
        """Number of bytes sent, on all channels."""
        return self._sent_before + (self.channel.bytes_sent if self.channel else 0)

    @property
    def bytes_received(self) -> int:
        """Number of bytes received, on all channels."""
        return self._received_before + (self.channel.bytes_received if self.channel else 0)


def _some(numbers: Sequence[int]) -> str:
    """Return the first numbers as text, and the total if longer."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} ... ({len(numbers):,} in all)"


async def _watch_health(connection: weakref.ref[Connection], monitor: HostHealthMonitor) -> None:
    turn = turn_of(asyncio.get_running_loop())
    try:
        async for healthy in monitor:
            alive = connection()
            if alive is None:
                return
            alive.core.host_health(healthy)
            alive.transmit_soon()
            del alive
            if turn.clock() >= turn.until:
                await turn.wait()  # for a monitor that never waits
    except Exception:
        logger.exception("the host health monitor failed; the host's last reported health stays in effect")
