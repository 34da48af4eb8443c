# SPDX-License-Identifier: Apache-2.0
"""What can be set for a session."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypedDict

from bmq import _checks, _world
from bmq.engine.retry import exponential_backoff
from bmq.protocol.client.handshake import Credentials
from bmq.wire.compression import DEFAULT_LEVEL
from bmq.wire.constants import (
    COMPRESSION_THRESHOLD,
    DEFAULT_MAX_INCOMING_EVENT,
    MAX_APPLICATION_DATA,
    Compression,
)

__all__ = [
    "Credentials",
    "CredentialsSource",
    "SessionFields",
    "SessionOptions",
    "Trace",
    "check_compression",
]

#: Credentials, or something to call for them at every authentication (so that they can rotate).
CredentialsSource = Credentials | Callable[[], Credentials | Awaitable[Credentials]]


# The control messages of any broker may be this large, in bytes.
_MIN_EVENT_SIZE = 4096
_TIMES = (
    "connect_timeout",
    "open_timeout",
    "configure_timeout",
    "close_timeout",
    "disconnect_timeout",
    "repeat_subscriptions_every",
)
_COUNTS = (
    "max_unacked_messages",
    "max_unacked_bytes",
    "max_buffered_messages",
    "max_buffered_bytes",
    "max_message_size",
)
# Longer names make a negotiation that brokers refuse.
_LONGEST_NAME = 1000
_SWITCHES = ("drop_confirmed_redeliveries", "reconnect", "retry_first_connect")


def check_compression(value: object) -> Compression:
    """Return a compression.

    Raises:
        InvalidArgument: the value is none.
    """
    return _checks.instance("compression", value, Compression, "one of bmq.Compression")


class Trace(Enum):
    """What the wire trace logs: every event that is sent and received, field by field.

    Attributes:
        OFF: nothing.
        ON: everything but payloads, the values of properties, and credentials.
        PAYLOADS: everything but credentials.
    """

    OFF = "off"
    ON = "on"
    PAYLOADS = "payloads"


def _trace() -> Trace:
    wanted = os.environ.get("BMQ_TRACE", "").strip().lower()
    if wanted in ("", "0", "off", "false", "no"):
        return Trace.OFF
    return Trace.PAYLOADS if wanted == "payloads" else Trace.ON


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options of a session. Times are in seconds, sizes in bytes.

    Attributes:
        process_name: how the broker's log names this process.
        connect_timeout: for one attempt to connect, all addresses together: TCP, TLS, authentication and
            negotiation.
        liveness: how long the broker may be silent. After a third of this time without a byte from the broker
            the session asks for a heartbeat; after half of it the session is degraded; after all of it the
            connection is dropped and made again. A broker answers these requests whatever its configuration.
            While the session itself pauses reading, or the event loop is blocked, silence does not count. The
            operating system's probes (``TCP_USER_TIMEOUT``, TCP keepalive) follow from it too. None leaves
            the detection to the broker's configuration, which has no heartbeats by default.
        open_timeout: for opening a queue, configuring it included; also for reopening it.
        configure_timeout: for changing a queue's subscriptions or options.
        close_timeout: for closing a queue.
        disconnect_timeout: for the whole of :meth:`Session.close`.
        compression: how payloads are compressed when posted, unless the queue or the post says otherwise.
        compression_level: zlib's level: 1 is the fastest, 9 the smallest, -1 zlib's default, 0 stores only.
        compression_threshold: payloads of fewer bytes are not compressed.
        max_unacked_messages: how many posts of all queues may be without outcome before ``post`` waits. At
            the limit each queue that is open for writing may still use its equal share of the limit.
        max_unacked_bytes: how many bytes of payloads and properties they may have; the same holds.
        max_buffered_messages: how many received messages may wait for the application before reading from
            the connection pauses.
        max_buffered_bytes: how many bytes of them.
        max_event_size: the largest event accepted from the broker.
        max_message_size: the largest payload, decompressed, accepted from the broker.
        repeat_subscriptions_after: how long a queue's subscriptions with expressions may receive nothing
            before they are sent to the broker again. A real broker under load stops delivering to such
            subscriptions until something happens to the queue; sending it what it has changes nothing else.
            The pauses between repetitions grow, and are short again once one has helped: 10 ms where messages
            had waited behind a full window. 0 switches this off.
        repeat_subscriptions_every: the longest of these pauses.
        longest_delay: a post that is to wait for longer is a ``UsageError``: a broker deletes what has waited
            for the ``messageTtl`` of its domain, due or not, and tells nobody. None does not look.
            :func:`bmq.delays.longest_delay` asks a broker.
        drop_confirmed_redeliveries: whether a message that is delivered again although this session had
            confirmed it is confirmed again instead of being handed to the application. That happens after a
            lost connection, and after the loss of a cluster's primary. Confirmations are remembered for one
            to two minutes, five after a reconnect, and the last 32,768 at least.
        reconnect: whether a lost connection is restored.
        reconnect_delays: makes the delays between attempts, the first included.
        retry_first_connect: whether a first connection that fails is retried too.
        reconnect_timeout: how long to try before the session gives up; None for ever.
        busy_poll: for how long after it sent or received something the session keeps the event loop from
            sleeping, so that what comes meanwhile is handled at once. Resuming a sleeping core takes some 40
            microseconds of each round trip; this keeps a whole core busy for as long as there is traffic.
            0 lets it sleep.
        trace: what is logged of every event, by the logger ``bmq.trace`` at DEBUG; where logging is not
            configured, it is written to standard error. The environment variable BMQ_TRACE sets the default:
            1, or ``payloads``. It is slow.
        is_retryable: says whether an attempt that failed with this error is worth another one.
    """

    process_name: str = field(default_factory=_world.program)
    connect_timeout: float = 30.0
    liveness: float | None = 10.0
    open_timeout: float = 60.0
    configure_timeout: float = 60.0
    close_timeout: float = 60.0
    disconnect_timeout: float = 30.0
    compression: Compression = Compression.NONE
    compression_level: int = DEFAULT_LEVEL
    compression_threshold: int = COMPRESSION_THRESHOLD
    max_unacked_messages: int = 200_000
    max_unacked_bytes: int = 128 * 1024 * 1024
    max_buffered_messages: int = 200_000
    max_buffered_bytes: int = 128 * 1024 * 1024
    max_event_size: int = DEFAULT_MAX_INCOMING_EVENT
    max_message_size: int = MAX_APPLICATION_DATA
    repeat_subscriptions_after: float = 1.0
    repeat_subscriptions_every: float = 60.0
    longest_delay: float | None = None
    drop_confirmed_redeliveries: bool = True
    reconnect: bool = True
    reconnect_delays: Callable[[], Iterator[float]] = exponential_backoff
    retry_first_connect: bool = False
    reconnect_timeout: float | None = None
    busy_poll: float = 0.0
    trace: Trace = field(default_factory=_trace)
    is_retryable: Callable[[BaseException], bool] = lambda error: getattr(error, "retryable", True)

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "process_name": _checks.text("process_name", self.process_name, longest=_LONGEST_NAME),
            "compression_level": _checks.integer("compression_level", self.compression_level, -1, 9),
            "compression_threshold": _checks.integer("compression_threshold", self.compression_threshold),
            "max_event_size": _checks.integer("max_event_size", self.max_event_size, _MIN_EVENT_SIZE),
        }
        for name in _TIMES:
            checked[name] = _checks.seconds(name, getattr(self, name), positive=True)
        for name in ("liveness", "reconnect_timeout", "longest_delay"):
            checked[name] = _checks.timeout(getattr(self, name), name, positive=True)
        for name in ("busy_poll", "repeat_subscriptions_after"):
            checked[name] = _checks.seconds(name, getattr(self, name))
        for name in _COUNTS:
            checked[name] = _checks.integer(name, getattr(self, name), 1)
        for name in _SWITCHES:
            checked[name] = _checks.boolean(name, getattr(self, name))
        check_compression(self.compression)
        _checks.instance("trace", self.trace, Trace, "one of bmq.Trace")
        _checks.function("reconnect_delays", self.reconnect_delays, 0)
        _checks.function("is_retryable", self.is_retryable, 1, plain=True)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


class SessionFields(TypedDict, total=False):
    """The fields of :class:`bmq.SessionOptions` as keywords, for type checkers."""

    process_name: str
    connect_timeout: float
    liveness: float | None
    open_timeout: float
    configure_timeout: float
    close_timeout: float
    disconnect_timeout: float
    compression: Compression
    compression_level: int
    compression_threshold: int
    max_unacked_messages: int
    max_unacked_bytes: int
    max_buffered_messages: int
    max_buffered_bytes: int
    max_event_size: int
    max_message_size: int
    repeat_subscriptions_after: float
    repeat_subscriptions_every: float
    longest_delay: float | None
    drop_confirmed_redeliveries: bool
    reconnect: bool
    reconnect_delays: Callable[[], Iterator[float]]
    retry_first_connect: bool
    reconnect_timeout: float | None
    busy_poll: float
    trace: Trace
    is_retryable: Callable[[BaseException], bool]
