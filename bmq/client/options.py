# SPDX-License-Identifier: Apache-2.0
"""The options of a session, and the identity of this client in the negotiation."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import TypedDict

from bmq import _checks, _world
from bmq._version import __version__
from bmq.errors import UsageError
from bmq.protocol.client.handshake import Credentials
from bmq.protocol.deadlines import backoff
from bmq.wire.compression import DEFAULT_LEVEL
from bmq.wire.constants import (
    COMPRESSION_THRESHOLD,
    DEFAULT_MAX_INCOMING_EVENT,
    MAX_APPLICATION_DATA,
    Compression,
)
from bmq.wire.control import ClientIdentity, ClientLanguage, ClientType, GuidInfo
from bmq.wire.guid import GuidGenerator, client_id_from

__all__ = [
    "Credentials",
    "CredentialsSource",
    "SessionFields",
    "SessionOptions",
    "Trace",
    "check_compression",
    "introduce",
    "reconnect_delays",
]

#: Credentials, or a function returning credentials. Called at each authentication, to allow rotation.
CredentialsSource = Credentials | Callable[[], Credentials | Awaitable[Credentials]]


# The control messages of every broker may have this size, in bytes.
_MIN_EVENT_SIZE = 4096
_TIMES = (
    "connect_timeout",
    "open_timeout",
    "configure_timeout",
    "close_timeout",
    "disconnect_timeout",
)
_COUNTS = (
    "max_unacked_messages",
    "max_unacked_bytes",
    "max_buffered_messages",
    "max_buffered_bytes",
    "max_message_size",
)
# Brokers refuse a negotiation with a longer name.
_LONGEST_NAME = 1000
# The limit of the C++ SDK's option of the same purpose.
_LONGEST_AGENT = 127
# Features of this client in the negotiation.
_FEATURES = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"
_SWITCHES = ("drop_confirmed_redeliveries", "reconnect", "retry_first_connect")


def check_compression(value: object) -> Compression:
    """Return a checked compression.

    Raises:
        UsageError: the value is not a compression.
    """
    return _checks.instance("compression", value, Compression, "one of bmq.Compression")


def _user_agent(value: object) -> str:
    agent = _checks.text("user_agent", value, longest=_LONGEST_AGENT)
    if not (agent.isascii() and agent.isprintable()):
        raise UsageError(
            "user_agent must have printable ASCII characters only, such as 'orders/1.2', not "
            f"{_checks.shown(agent)}"
        )
    return agent


class Trace(Enum):
    """Content of the wire trace, which logs each sent and received event, field by field.

    ::

        session = await bmq.connect(broker, trace=bmq.Trace.ON)

    Attributes:
        OFF: no trace.
        ON: all fields except payloads, property values and credentials.
        PAYLOADS: all fields except credentials.
    """

    OFF = "off"
    ON = "on"
    PAYLOADS = "payloads"


def _trace() -> Trace:
    wanted = os.environ.get("BMQ_TRACE", "").strip().lower()
    if wanted in ("", "0", "off", "false", "no"):
        return Trace.OFF
    return Trace.PAYLOADS if wanted == "payloads" else Trace.ON


def reconnect_delays(
    first: float = 0.01, base: float = 0.1, factor: float = 2.0, cap: float = 1.0
) -> Iterator[float]:
    """Return delays in seconds: the first close to zero, then exponential with full jitter.

    ::

        def delays() -> Iterator[float]:
            return bmq.reconnect_delays(cap=10)

        session = await bmq.connect(broker, reconnect_delays=delays)

    Args:
        first: limit of the first delay. Random delays keep clients from reconnecting simultaneously.
        base: limit of the second delay.
        factor: growth of the limit from each delay to the next.
        cap: maximum of the limit. With the default, clients return soon after the broker.

    Raises:
        UsageError: a limit is not a duration, or ``factor`` is below 1.
    """
    return _delays(
        _checks.seconds("first", first),
        _checks.seconds("base", base),
        _checks.number("factor", factor, 1.0),
        _checks.seconds("cap", cap),
    )


def _delays(first: float, base: float, factor: float, cap: float) -> Iterator[float]:
    yield _world.rng().uniform(0, first)
    for attempt in count(1):
        yield _world.rng().uniform(0, backoff(attempt, base, cap, factor))


def _is_retryable(error: BaseException) -> bool:
    return bool(getattr(error, "retryable", True))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options of a session. Times are in seconds, sizes in bytes.

    ::

        options = bmq.SessionOptions(connect_timeout=5, max_unacked_messages=5000)
        session = await bmq.connect(broker, options=options)

    Attributes:
        process_name: name of this process in the broker's log.
        user_agent: name of a library or program that wraps bmq, for the broker's log and telemetry: at most
            127 printable ASCII characters. The broker receives the name before bmq's own, as in
            ``orders/1.2 bmq-py:0.1.0``.
        connect_timeout: timeout of an attempt to connect, for all addresses together: TCP, TLS,
            authentication and negotiation.
        liveness: tolerated silence of the broker. After a third of this time without a byte from the broker,
            the session sends a heartbeat request. After half of the time, the session is degraded; after the
            full time, the session drops the connection and reconnects. The same times apply to missing
            answers while messages arrive, but on a busy line (8 KiB/s or more) the session keeps the
            connection. A broker answers heartbeat requests regardless of its configuration. Silence does not
            count while the session pauses reading, or while the event loop is blocked. The option also
            configures the operating system's probes (``TCP_USER_TIMEOUT``, TCP keepalive). None leaves the
            detection to the broker's configuration, which has no heartbeats by default.
        open_timeout: timeout for opening or reopening a queue, including its configuration.
        configure_timeout: timeout for changing a queue's subscriptions or options.
        close_timeout: timeout for closing a queue.
        disconnect_timeout: timeout for all steps of :meth:`Session.close`.
        compression: default compression of posted payloads; queues and posts can override it.
        compression_level: zlib's level: 1 is the fastest, 9 the smallest, -1 zlib's default, 0 without
            compression.
        compression_threshold: minimum size for compression; smaller payloads are sent uncompressed.
        max_unacked_messages: limit of posts without an outcome, for all queues together; at the limit,
            ``post`` waits. Even then, each queue open for writing may use its equal share of the limit.
        max_unacked_bytes: limit of the payloads and properties of these posts, with the same rule.
        max_buffered_messages: limit of received messages waiting for the application; at the limit, reading
            from the connection pauses.
        max_buffered_bytes: limit of the bytes of these messages.
        max_event_size: largest event accepted from the broker.
        max_message_size: largest decompressed payload accepted from the broker.
        repeat_subscriptions_after: time without messages after which a queue's subscriptions with expressions
            are sent to the broker again. Under load, a real broker delivers to these subscriptions only once
            a second, until the queue changes in any way. Each repetition differs by one byte in
            ``max_unconfirmed_bytes``, and has no further effect. After a flow of messages the pause is 2 ms.
            Each repetition that brings no message multiplies the pause by four, up to a minute. The pause is
            at least four times the broker's time for the latest request, and eight times the usual time
            between two messages. 0 disables the repetition, and the grouping of confirmations.
        longest_delay: maximum delay of a post; a longer delay raises ``UsageError``. A broker deletes
            messages after the domain's ``messageTtl``, due or not, without notice. If None, delays are not
            checked. :func:`bmq.delays.longest_delay` queries a broker.
        drop_confirmed_redeliveries: whether to confirm a redelivered message again, instead of handing the
            message to the application, if this session has confirmed it before. Such redeliveries occur after
            a lost connection, and after the loss of a cluster's primary. Confirmations are remembered for one
            to two minutes, for five after a reconnect; the last 32,768 at least.
        reconnect: whether to restore a lost connection.
        reconnect_delays: creates the delays between attempts, including the first delay.
        retry_first_connect: whether to retry a failed first connection.
        reconnect_timeout: time until the session gives up reconnecting; None for no limit.
        busy_poll: time after sent or received data for which the session keeps the event loop awake, to
            handle further data at once. Waking a sleeping core adds about 40 microseconds to each round trip.
            With this option, the session keeps a whole core busy during traffic. 0 allows the core to sleep.
        trace: content of the wire trace, written by the logger ``bmq.trace`` at DEBUG; without a logging
            configuration, the trace goes to standard error. The environment variable BMQ_TRACE sets the
            default: 1, or ``payloads``. The trace is slow.
        log_stats_every: seconds between two lines of statistics in the log, written by the logger
            ``bmq.stats`` at INFO; a last line follows at the end of the session. 0 writes none.
        is_retryable: function deciding, from the error of a failed attempt, whether to make another.
    """

    process_name: str = field(default_factory=_world.program)
    user_agent: str = ""
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
    repeat_subscriptions_after: float = 0.1
    longest_delay: float | None = None
    drop_confirmed_redeliveries: bool = True
    reconnect: bool = True
    reconnect_delays: Callable[[], Iterator[float]] = reconnect_delays
    retry_first_connect: bool = False
    reconnect_timeout: float | None = None
    busy_poll: float = 0.0
    trace: Trace = field(default_factory=_trace)
    log_stats_every: float = 0.0
    is_retryable: Callable[[BaseException], bool] = _is_retryable

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "process_name": _checks.text("process_name", self.process_name, longest=_LONGEST_NAME),
            "user_agent": _user_agent(self.user_agent),
            "compression_level": _checks.integer("compression_level", self.compression_level, -1, 9),
            "compression_threshold": _checks.integer("compression_threshold", self.compression_threshold),
            "max_event_size": _checks.integer("max_event_size", self.max_event_size, _MIN_EVENT_SIZE),
        }
        for name in _TIMES:
            checked[name] = _checks.seconds(name, getattr(self, name), positive=True)
        for name in ("liveness", "reconnect_timeout", "longest_delay"):
            checked[name] = _checks.timeout(getattr(self, name), name, positive=True)
        for name in ("busy_poll", "log_stats_every", "repeat_subscriptions_after"):
            checked[name] = _checks.seconds(name, getattr(self, name))
        for name in _COUNTS:
            checked[name] = _checks.integer(name, getattr(self, name), 1)
        for name in _SWITCHES:
            checked[name] = _checks.boolean(name, getattr(self, name))
        check_compression(self.compression)
        _checks.instance("trace", self.trace, Trace, "one of bmq.Trace")
        # inspect.signature() takes a tenth of the time of a connect.
        if self.reconnect_delays is not reconnect_delays:
            _checks.function("reconnect_delays", self.reconnect_delays, 0)
        if self.is_retryable is not _is_retryable:
            _checks.function("is_retryable", self.is_retryable, 1, plain=True)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


# A misspelt field raises an error with the nearest name. Type checkers keep the signature of the dataclass.
setattr(SessionOptions, "__init__", _checks.known_arguments(SessionOptions.__init__))  # noqa: B010


class SessionFields(TypedDict, total=False):
    """The fields of :class:`bmq.SessionOptions` as keyword arguments, for type checkers."""

    process_name: str
    user_agent: str
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
    longest_delay: float | None
    drop_confirmed_redeliveries: bool
    reconnect: bool
    reconnect_delays: Callable[[], Iterator[float]]
    retry_first_connect: bool
    reconnect_timeout: float | None
    busy_poll: float
    trace: Trace
    log_stats_every: float
    is_retryable: Callable[[BaseException], bool]


def introduce(process_name: str, user_agent: str = "") -> tuple[ClientIdentity, GuidGenerator]:
    """Return the identity of a new session and the matching GUID generator.

    Args:
        process_name: name of this process.
        user_agent: name of the software that wraps this client; empty for none.
    """
    session_id = next(_world.current().session_ids)
    wall = _world.time_ns()
    host = _world.hostname()
    guids = GuidGenerator(client_id_from(host, wall, _world.pid(), session_id))
    identity = ClientIdentity(
        protocol_version=1,
        sdk_version=_version_number(__version__),
        client_type=ClientType.E_TCPCLIENT,
        process_name=process_name,
        pid=_world.pid(),
        session_id=session_id,
        host_name=host,
        features=_FEATURES,
        sdk_language=ClientLanguage.E_UNKNOWN,
        guid_info=GuidInfo(client_id=guids.client_id_text, nano_seconds_from_epoch=wall),
        user_agent=f"{user_agent} bmq-py:{__version__}".lstrip(" "),
    )
    return identity, guids


def _version_number(version: str) -> int:
    major, minor, patch = (
        int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3]
    )
    return major * 10000 + minor * 100 + patch
