"""Sessions: a connection to a broker, restored when it is lost."""

from __future__ import annotations

import ssl as ssl_module
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType

from bmq.client._address import Address
from bmq.client._closing import CloseReport
from bmq.client._driver import Driver
from bmq.client._event_stream import EventStream
from bmq.client.health import HostHealthMonitor
from bmq.client.options import CredentialsSource, SessionOptions
from bmq.client.queue import (
    DEFAULT_MAX_UNCONFIRMED_BYTES,
    DEFAULT_MAX_UNCONFIRMED_MESSAGES,
    Queue,
    subscription_options,
)
from bmq.errors import UsageError
from bmq.protocol.client.events import SessionEvent
from bmq.protocol.client.tables import SessionState
from bmq.wire.control import QueueFlags
from bmq.wire.uri import QueueUri

__all__ = ["Session", "SessionStats"]


@dataclass(frozen=True, slots=True)
class SessionStats:
    """A snapshot of a session.

    Attributes:
        state: where the session is.
        queues: how many queues are registered.
        unacked_messages: posts without outcome.
        unacked_bytes: the size of their payloads and properties as they travel; this much memory they hold.
        buffered_messages: received messages that wait for the application.
        buffered_bytes: their size.
        write_buffer_bytes: what waits to be taken by the operating system.
        bytes_sent: on the present connection.
        bytes_received: on the present connection.
        reconnects: how often the connection was restored.
    """

    state: SessionState
    queues: int
    unacked_messages: int
    unacked_bytes: int
    buffered_messages: int
    buffered_bytes: int
    write_buffer_bytes: int
    bytes_sent: int
    bytes_received: int
    reconnects: int


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
    ) -> None:
        self._events = EventStream(on_event)
        self._driver = Driver(
            addresses, options, credentials, ssl, server_hostname, self._events, host_health
        )

    # life

    async def _start(self) -> Session:
        """Connect for the first time; :func:`bmq.connect` does it.

        Raises:
            ConnectionFailed: no address answered within ``connect_timeout``.
            NegotiationError: the broker refused the session.
            AuthenticationError: the broker refused the credentials.
            StateError: it was started before.
            SessionClosed: it was closed meanwhile.

        Cancelling it closes whatever was opened.
        """
        await self._driver.start()
        return self

    async def close(self, timeout: float | None = None) -> CloseReport:
        """End the session in good order.

        Delivery stops; handlers in flight (inside ``async with message``, other than the one that calls this)
        finish; posts get their outcomes and confirmations are sent; queues are closed; the session
        disconnects. While the connection is down, posts without outcome are waited for too: it may be
        restored in time. Without any, closing wins over reconnecting at once.

        Idempotent, also while an earlier call is still at it; works in every state.

        Args:
            timeout: seconds for all of it; None for ``disconnect_timeout``, 0 for at once. What is not done
                then is given up: posts without outcome fail with :class:`bmq.PostError`.

        Returns:
            What was left when the time was up; it is logged as a warning too, if it is anything.

        Raises:
            UsageError: the session belongs to another event loop.

        Cancelling it leaves the closing going on in the background; when the event loop ends before that is
        done, everything is given up at once.
        """
        return await self._driver.close(timeout)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        driver = self._driver
        if driver.state not in (SessionState.STOPPED, SessionState.CLOSED) and not driver.closing:
            warnings.warn(
                f"{self!r} was never closed: use 'async with bmq.connect(...)' or 'await session.close()'",
                ResourceWarning,
                stacklevel=1,
                source=self,
            )
            driver.abandon()

    def __repr__(self) -> str:
        return f"<bmq.Session with {self._driver.dialer.target}, {self.state.value}>"

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
        timeout: float | None = None,
    ) -> Queue:
        """Open a queue.

        Opening it for reading asks for no messages yet: they come once somebody receives from the queue
        (iterates over it, or calls ``receive``, ``receive_many``, ``receive_nowait``, ``batches``), or from a
        consumer that :meth:`Queue.subscribe` makes. On a broadcast queue, what is posted before that is
        missed: see ``default_subscription``.

        A session may open a queue for reading in one place and for writing in another: these are two queues
        then, each with a life of its own.

        Args:
            uri: ``bmq://DOMAIN[.~TIER]/QUEUE[?id=APPID]``; readers of a fanout queue name their appId.
            read: open it for reading.
            write: open it for writing.
            priority: the consumer priority; the highest is served first.
            max_unconfirmed_messages: how many messages may be delivered and unconfirmed.
            max_unconfirmed_bytes: how many bytes of them.
            suspends_on_bad_host_health: take the queue out of service while the host is unhealthy.
            default_subscription: when the queue begins to receive everything for those who receive from the
                queue itself: None when the first of them does, True now, False never (they get a
                ``UsageError``). Once begun, it stays until the queue is closed; a consumer of everything that
                can be closed is ``queue.subscribe()``.
            timeout: seconds to wait; None for the session's ``open_timeout``.

        Raises:
            OpenQueueError: the broker refused; ``broker_message`` has its reason.
            RequestTimeout: the broker did not answer in time.
            InvalidURI, UsageError: the arguments are not legal.
            StateError: the queue is already open in this session for the same side.
            SessionClosed: the session is closed.

        Cancelling it closes the queue again as soon as the broker has opened it.
        """
        parsed = QueueUri.parse(uri)
        if not (read or write):
            raise UsageError(f"open {uri} for something: read=True, write=True, or both")
        if write and parsed.app_id:
            raise UsageError(
                f"{uri} names an appId, which only a reader has: open it with read=True, "
                f"and {parsed.canonical} with write=True"
            )
        options = subscription_options(max_unconfirmed_messages, max_unconfirmed_bytes, priority)
        flags = (QueueFlags.READ if read else QueueFlags(0)) | (QueueFlags.WRITE if write else QueueFlags(0))
        queue = Queue(self, self._driver, parsed, options, default_subscription=default_subscription)
        await self._driver.open_queue(parsed, flags, queue, timeout, suspends=suspends_on_bad_host_health)
        return queue

    @property
    def queues(self) -> list[Queue]:
        """The open queues."""
        return [queue for queue in self._driver.queues if not queue.closed]

    # what happens

    def events(self) -> AsyncIterator[SessionEvent]:
        """Iterate over session events from now on; ends when the session does.

        Each iterator sees every event. One that does not keep up loses the oldest beyond 1,000.
        """
        return self._events.subscribe()

    @property
    def options(self) -> SessionOptions:
        """What it was made with."""
        return self._driver.options

    @property
    def state(self) -> SessionState:
        """Where the session is."""
        return self._driver.state

    def stats(self) -> SessionStats:
        """Return a snapshot of what the session holds and has done."""
        driver = self._driver
        channel = driver.channel
        messages, size = driver.buffered
        return SessionStats(
            state=driver.state,
            queues=len(driver.queues),
            unacked_messages=len(driver.core.window),
            unacked_bytes=driver.core.window.bytes,
            buffered_messages=messages,
            buffered_bytes=size,
            write_buffer_bytes=channel.write_buffer_size if channel else 0,
            bytes_sent=channel.bytes_sent if channel else 0,
            bytes_received=channel.bytes_received if channel else 0,
            reconnects=driver.dialer.reconnects,
        )
