# SPDX-License-Identifier: Apache-2.0
"""What a session reports: its log, and its events for the application.

The log has a line at the beginning and at the end of each problem.

Both lines have the level WARNING, to appear in a program without a logging configuration. Continuing and
repeated problems are logged rarely. Records have attributes for the subject: ``broker``, ``queue``.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from bmq._live import live
from bmq._log_limit import LogLimit
from bmq._logging import Log
from bmq._loop import raise_soon, weakly
from bmq._turn import turn_of
from bmq._words import several
from bmq.protocol.client.events import (
    ClientDeprecated,
    Connected,
    ConnectionLost,
    DeliveryRevived,
    Disconnected,
    HostHealthRestored,
    HostUnhealthy,
    QueueReopenDelayed,
    QueueReopened,
    QueueReopenFailed,
    QueueResumed,
    QueueSuspended,
    Reconnected,
    SessionEvent,
    SlowConsumer,
    SlowConsumerRecovered,
    Stalled,
    StallOver,
    StateRestored,
)

if TYPE_CHECKING:
    from bmq.client.connection import Connection

__all__ = ["EventStream", "Reporter"]

logger = Log("bmq.client", later=True)

# An outage is logged again after this many seconds, and at doubled intervals up to the second number.
_FIRST_REMINDER = 10.0
_RARELY = 600.0
# A slow application, losses of the connection, and stalls of the same cause, are logged at most once in this
# many seconds.
_SAME_EVERY = 60.0
# Maximum number of events kept for an iterator that does not keep up.
_MAX_WAITING = 1000
_MOVES = {
    "silence": "sends data again",
    "answers": "answers again",
    "posts": "acknowledges posts again",
    "requests": "answers requests again",
}
# The connection's future during a stall; further stalls do not end a connection.
_STALLED = {
    "silence": "dropped if the silence continues",
    "answers": "dropped if no answer arrives and few bytes do",
}


class Reporter:
    """Writes the log of one session.

    All events pass through :meth:`note`; only the reminders of an outage need a timer.

    Attributes:
        begun: whether the application has the session. Before, the caller receives the error that ends it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.begun = False
        # Time of the loss of a connection, until all queues are reopened; and whether the loss was logged.
        self._down_since: float | None = None
        self._down_said = False
        self._interval = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # Number of posts sent again before the connection was restored.
        self._sent_again = 0
        self._slow_since: float | None = None
        self._limit = LogLimit(logger, _SAME_EVERY, asyncio.get_running_loop().time)
        # Stalls with a logged beginning.
        self._stalls: set[str] = set()
        # Queues with a logged delay.
        self._delayed: set[str] = set()

    def note(self, event: SessionEvent) -> None:
        """Log an event, if relevant."""
        connection = self._connection
        match event:
            case ConnectionLost(reason):
                self._lost(reason)
            case Reconnected():
                self._sent_again = connection.core.posts.counts.retransmitted
            case StateRestored():
                self._restored("restored")
            case Connected():
                if self._down_since is not None:
                    self._restored("made")
            case Disconnected(reason):
                self._ended(reason)
            case QueueReopenDelayed(uri, error):
                said = self._limit.warning(
                    (QueueReopenDelayed, uri),
                    "queue %s could not be reopened yet; trying again, with its posts kept: %s",
                    uri,
                    error,
                    extra=self._about(uri),
                )
                if said:
                    self._delayed.add(uri)
            case QueueReopened(uri) if uri in self._delayed:
                self._delayed.discard(uri)
                logger.warning("queue %s is open again", uri, extra=self._about(uri))
            case QueueReopenFailed(uri, error):
                self._delayed.discard(uri)
                logger.warning(
                    "queue %s could not be reopened, and is closed: %s", uri, error, extra=self._about(uri)
                )
            case SlowConsumer(messages, size):
                self._slow(messages, size)
            case SlowConsumerRecovered():
                self._recovered(event)
            case QueueSuspended(uri):
                logger.warning("queue %s is suspended: the host is unhealthy", uri, extra=self._about(uri))
            case QueueResumed(uri):
                logger.warning(
                    "queue %s is in service again: the host is healthy", uri, extra=self._about(uri)
                )
            case Stalled(cause, reason):
                self._stalled(cause, reason)
            case StallOver(cause, seconds):
                self._moves(cause, seconds)
            case ClientDeprecated(broker):
                logger.warning(
                    "%s reports that this version of the client is deprecated: upgrade the client",
                    broker,
                    extra=self._about(),
                )
            case DeliveryRevived(uri):
                logger.info(
                    "deliveries to %s follow when its subscriptions are repeated: a busy broker limits "
                    "expressions to a burst a second, and bmq makes it go on",
                    uri,
                    extra=self._about(uri),
                )
            case HostUnhealthy():
                logger.info("the host is unhealthy", extra=self._about())
            case HostHealthRestored():
                logger.info("the host is healthy again", extra=self._about())
            case _ if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%r", event, extra=self._about(getattr(event, "queue_uri", None)))
            case _:
                pass

    def not_connected_yet(self, error: Exception) -> None:
        """Log a failed attempt of the first connect; further attempts follow."""
        if self._down_since is None:
            logger.warning("%s; trying again", error, extra=self._about())
            self._down_said = True
            self._begin()

    def _lost(self, reason: str) -> None:
        self._stalls.clear()
        if self._down_since is not None:
            return  # lost again before the end of the restoration
        if not self._connection.options.reconnect:
            return  # reported by the line about the end of the session
        connection, about = self._connection, self._about()
        queues, posts = len(connection.open_queues), len(connection.core.posts)
        self._down_said = self._limit.warning(
            ConnectionLost,
            "the connection to %s was lost: %s; reconnecting, %s and %s are kept",
            about["broker"],
            reason,
            several(queues, "queue"),
            several(posts, "post"),
            extra=about,
        )
        self._begin()

    def _begin(self) -> None:
        self._down_since = self._connection.loop.time()
        self._interval = _FIRST_REMINDER
        self._arm()

    def _arm(self) -> None:
        self._timer = self._connection.loop.call_later(self._interval, weakly(self._remind))
        self._interval = min(_RARELY, self._interval * 2)

    def _remind(self) -> None:
        """Log a continuing outage."""
        if self._down_since is None:
            return
        self._down_said = True
        posts = several(len(self._connection.core.posts), "post")
        last = self._connection.dialer.last_failure
        logger.warning(
            "no connection to %s for %s; still trying, with %s kept%s",
            self._connection.dialer.target,
            _seconds(self._connection.loop.time() - self._down_since),
            posts,
            f" (last: {last})" if last else "",
            extra=self._about(),
        )
        self._arm()

    def _over(self) -> None:
        self._down_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restored(self, what: str) -> None:
        if self._down_since is None:
            return
        queues, about = len(self._connection.open_queues), self._about()
        done = [f"{several(queues, 'queue')} opened again"] if queues else []
        again = self._connection.core.posts.counts.retransmitted - self._sent_again
        if again:
            done.append(f"{several(again, 'post')} sent again")
        if self._down_said:
            logger.warning(
                "the connection to %s was %s after %s%s",
                about["broker"],
                what,
                _seconds(self._connection.loop.time() - self._down_since),
                f": {', '.join(done)}" if done else "",
                extra=about,
            )
        self._over()

    def _ended(self, reason: str) -> None:
        if reason and self.begun:
            posts = self._connection.core.unsettled
            logger.error(
                "the session with %s is over: %s%s",
                self._connection.dialer.target,
                reason,
                f"; {several(posts, 'post')} without outcome" if posts else "",
                extra=self._about(),
            )
        self._over()

    def _stalled(self, cause: str, reason: str) -> None:
        said = self._limit.warning(
            cause,
            "%s; the connection to %s is %s",
            reason,
            self._connection.dialer.address,
            _STALLED.get(cause, "alive, and is kept"),
        )
        if said:
            self._stalls.add(cause)

    def _moves(self, cause: str, seconds: float) -> None:
        if cause in self._stalls:
            self._stalls.discard(cause)
            logger.warning(
                "%s %s after %s",
                self._connection.dialer.address,
                _MOVES[cause],
                _seconds(seconds + (self._connection.options.liveness or 0) / 2),
                extra=self._about(),
            )

    def _slow(self, messages: int, size: int) -> None:
        said = self._limit.warning(
            SlowConsumer,
            "the application does not keep up: %s (%s bytes) are waiting; reading from %s resumes when "
            "the application has taken half of the messages",
            several(messages, "message"),
            f"{size:,}",
            self._connection.dialer.address,
            extra=self._about(),
        )
        if said:
            self._slow_since = self._connection.loop.time()

    def _recovered(self, event: SlowConsumerRecovered) -> None:
        if self._slow_since is not None:
            after = _seconds(self._connection.loop.time() - self._slow_since)
            if self._connection.receive_limit.sheds:
                logger.warning(
                    "reading from %s resumes after %s, although %s (%s bytes) match no consumer here; "
                    "further messages without a consumer are not kept",
                    self._connection.dialer.address,
                    after,
                    several(event.messages, "message"),
                    f"{event.bytes:,}",
                    extra=self._about(),
                )
            else:
                logger.warning(
                    "the application has caught up after %s: reading resumes", after, extra=self._about()
                )
            self._slow_since = None

    def _about(self, queue: str | None = None) -> dict[str, str]:
        """Return the attributes of a line in the log."""
        about = {"broker": self._connection.address}
        return about if queue is None else {**about, "queue": queue}


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


@live
class _Subscriber(AsyncIterator[SessionEvent]):
    def __init__(self, ended: bool) -> None:
        self._waiting: deque[SessionEvent] = deque(maxlen=_MAX_WAITING)
        self._wakeup: asyncio.Event = asyncio.Event()
        self._ended = ended

    def put(self, event: SessionEvent) -> None:
        self._waiting.append(event)
        self._wakeup.set()

    def end(self) -> None:
        self._ended = True
        self._wakeup.set()

    async def __anext__(self) -> SessionEvent:
        turn = turn_of(asyncio.get_running_loop())
        while True:
            while not self._waiting:
                if self._ended:
                    raise StopAsyncIteration
                self._wakeup.clear()
                await self._wakeup.wait()
            if turn.clock() < turn.until:
                break
            await turn.wait()
            if self._waiting:
                break  # false if another loop over the same iterator was faster
        return self._waiting.popleft()


class EventStream:
    """Passes each event to all live subscribers.

    Args:
        callback: called with each event, in the event loop. Exceptions of the callback are logged;
            KeyboardInterrupt and SystemExit also end the event loop, in the next turn.
    """

    def __init__(self, callback: Callable[[SessionEvent], None] | None) -> None:
        self._callback = callback
        self._subscribers: weakref.WeakKeyDictionary[_Subscriber, None] = weakref.WeakKeyDictionary()
        self._ended = False

    def subscribe(self) -> AsyncIterator[SessionEvent]:
        """Return an iterator over the events from now on."""
        subscriber = _Subscriber(self._ended)
        if not self._ended:
            self._subscribers[subscriber] = None
        return subscriber

    def publish(self, event: SessionEvent) -> None:
        """Pass an event to the subscribers."""
        for subscriber in list(self._subscribers):
            subscriber.put(event)
        if self._callback is not None:
            try:
                self._callback(event)
            except (KeyboardInterrupt, SystemExit) as error:
                raise_soon(error)
            except BaseException:
                # Includes CancelledError: the callback may have awaited a cancelled future.
                logger.exception("the session event callback failed on %r", event)

    def end(self) -> None:
        """End the iterators of all subscribers after the last event."""
        self._ended = True
        for subscriber in list(self._subscribers):
            subscriber.end()
        self._subscribers.clear()
