# SPDX-License-Identifier: Apache-2.0
"""Assembles the parts of a session, and distributes the core's reports."""

from __future__ import annotations

import asyncio
import logging
import weakref
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._turn import turn_of
from bmq.client.address import BrokerAccess
from bmq.client.connection import Connection
from bmq.client.counting import ReceiveCounts, distinct
from bmq.client.dialer import Dialer
from bmq.client.health import Ages, HealthWatch, HostHealthMonitor
from bmq.client.options import SessionOptions, introduce
from bmq.client.posts import settle
from bmq.client.receive_limit import ReceiveLimit
from bmq.client.reporting import EventStream, Reporter
from bmq.client.send_window import SendWindow
from bmq.errors import SessionClosed
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
from bmq.protocol.client.ports import Sink
from bmq.protocol.client.queue import QueueCore
from bmq.protocol.client.subscription import SubscriptionCore
from bmq.wire.properties import SchemaIds
from bmq.wire.push import Push

if TYPE_CHECKING:
    from bmq.client.queue import Queue

__all__ = ["Driver"]

_T = TypeVar("_T")

_STARTED = SessionState.STARTED
# Maximum number of a peer's ids in a log line.
_SHOWN = 5

logger = Log("bmq.client", later=True)

# A newer broker keeps sending unknown elements: a line for each, or each minute, adds no information.
_ONCE_A_DAY = 86_400.0
# The event loop does not keep tasks alive. Two kinds must continue without a reference: a close after the
# cancellation of the caller, and the watch of the host's health until the end of the session.
_kept: set[asyncio.Task[Any]] = set()


class Driver:
    """The parts of one session, and the distribution of events. Belongs to the event loop of its creation.

    The event loop keeps neither the driver nor its session alive: a session dropped without closing is
    collected, with a warning.

    Attributes:
        options: options of the session.
        core: protocol.
        connection: connection of the session.
        send_window: space and outcomes for posts.
        receive_limit: account of held messages.
        dialer: connects and reconnects.
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
        self.health = HealthWatch()
        self.received = ReceiveCounts()
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
        self.events = EventStream(on_event)
        self.disowned = False
        self._reporter = Reporter(self)
        self.connection: Connection = Connection(self.core, self, options.busy_poll)
        self.loop = self.connection.loop
        self.send_window = SendWindow(self.connection, options)
        self.receive_limit: ReceiveLimit = ReceiveLimit(self.connection, options, self.publish, self._in_line)
        self.dialer = Dialer(
            self.connection,
            options,
            self.publish,
            self._reporter.not_connected_yet,
            broker,
        )
        self.queues: dict[QueueCore, Queue] = {}
        self._over_because = ""
        self._lines = LogLimit(logger)
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

    async def connect(self) -> None:
        """Connect for the first time; see :class:`bmq.connect`."""
        try:
            await self.dialer.first_connect()
        except BaseException:
            self.connection.give_up("could not connect")
            raise
        self._reporter.begun = True

    def keep(self, coroutine: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine as a task, kept alive until the end."""
        task = self.loop.create_task(coroutine)
        _kept.add(task)
        task.add_done_callback(_kept.discard)
        return task

    def give_up(self, reason: str = "") -> None:
        """End the session at once, unless already ended."""
        self.dialer.stop()
        self.connection.give_up(reason)

    @property
    def open_queues(self) -> list[Queue]:
        """The open queues."""
        return [queue for core, queue in self.queues.items() if core.opened]

    # for queues and consumers

    def check_open(self) -> None:
        """Check whether the session can be used here.

        Raises:
            SessionClosed: the session is closed or closing.
            UsageError: the call is outside the session's event loop.
        """
        connection = self.connection
        if not connection.scheduled or get_ident() != connection.thread:  # see Queue._confirm()
            try:
                here = get_running_loop() is self.loop
            except RuntimeError:
                here = False
            if not here:
                connection.check_loop()
        if self.core.state is not _STARTED and self.core.sealed:
            reason = self._over_because
            raise SessionClosed(
                f"the session is over: {reason}" if reason else "the session is closed"
            ) from self.core.ended_by

    def _in_line(self) -> int:
        """Number of messages in line, including unclaimed messages."""
        return sum(queue._buffered[0] for queue in self.queues.values())

    def ages(self) -> Ages:
        """Return the ages of the oldest pending post, message and byte."""
        self.connection.confirming.finish()
        now = self.connection.loop.time()

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
        now = 0.0 if self._lost_at is None else self.connection.loop.time() - self._lost_at
        return self._disconnected + now

    def configure(self, queue: QueueCore, subscriptions: Sequence[SubscriptionCore]) -> asyncio.Future[None]:
        """Change the subscriptions of a queue; return a future for the broker's answer.

        The request is sent at the end of this turn of the event loop.
        """
        done: asyncio.Future[None] = self.loop.create_future()
        deadline = self.connection.loop.time() + self.options.configure_timeout
        self.core.configure_queue(queue, subscriptions, done, deadline)
        self.connection.transmit_soon()
        self.receive_limit.reconsider()
        return done

    async def close_queue(self, queue: QueueCore, deadline: float, *, at_once: bool = False) -> None:
        """Close a queue whose posts are finished."""
        done: asyncio.Future[None] = self.loop.create_future()
        known = self.queues.get(queue)
        try:
            self.core.close_queue(queue, done, self.connection.loop.time(), deadline, at_once=at_once)
            self.send_window.closed(queue)
            self.connection.transmit_soon()
            self.receive_limit.reconsider()
            await done
        finally:
            if known is not None:
                self.forget(queue, known)

    def add(self, core: QueueCore, queue: Queue) -> None:
        """Register a queue that is being opened, and send the request."""
        self.queues[core] = queue
        self.send_window.queues += core.writable
        self.connection.transmit_soon()
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
        self.connection.confirming.finish()
        queue._counts.ended()
        self.health.closed(queue.uri, delayed=self._delayed(queue.uri))
        return True

    def _delayed(self, uri: str) -> bool:
        """Whether a queue waits to be reopened; reading and writing may be two queues with the same URI."""
        return any(core.late_to_reopen and queue.uri == uri for core, queue in self.queues.items())

    def set_health(self, healthy: bool) -> None:
        """Process a report of the host health monitor."""
        self.core.host_health(healthy)
        self.connection.transmit_soon()

    def publish(self, event: SessionEvent) -> None:
        """Pass an event to the log and the application."""
        if not isinstance(event, QueueReopened) or not self._delayed(event.queue_uri):
            self._reporter.note(event)
            self.health.note(event)
        self.events.publish(event)

    @property
    def address(self) -> str:
        """The connected address, or the next address to try."""
        return self.dialer.address.text

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
            self.connection.close_channel(event.error)
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
            self._lines.error(
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
        self._lines.log(
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
            self._lost_at = self.connection.loop.time()
            self.connection.confirming.finish()
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
        self.connection.finish()
        self.send_window.finish()
        self.receive_limit.finish()


def _some(numbers: Sequence[int]) -> str:
    """Return the first numbers as text, and the total if longer."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} ... ({len(numbers):,} in all)"


async def _watch_health(driver: weakref.ref[Driver], monitor: HostHealthMonitor) -> None:
    turn = turn_of(asyncio.get_running_loop())
    try:
        async for healthy in monitor:
            alive = driver()
            if alive is None:
                return
            alive.set_health(healthy)
            del alive
            if turn.clock() >= turn.until:
                await turn.wait()  # for a monitor that never waits
    except Exception:
        logger.exception("the host health monitor failed; the host's last reported health stays in effect")
