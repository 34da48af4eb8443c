# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments of several calls: of :func:`bmq.connect`, of consumers, and of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, TypedDict

from bmq import _checks
from bmq.client.health import HostHealthMonitor
from bmq.client.interceptors import Interceptor
from bmq.client.options import CredentialsSource, SessionFields, SessionOptions
from bmq.protocol.client.events import SessionEvent
from bmq.protocol.client.subscription import SubscriptionOptions

if TYPE_CHECKING:
    from bmq.client.queue import Queue

__all__ = ["DEFAULT_LIMITS", "ConnectOptions", "ConsumerLimits", "TablesOptions", "checked_limits"]

#: Schemas and column types of pyarrow, which has no type hints.
ArrowSchema = Any
ArrowType = Any
#: The default limits and priority of a queue.
DEFAULT_LIMITS = SubscriptionOptions(1000, 33_554_432, 0)

# The range of the SDKs: half of the field's range, to keep sums from overflowing.
_MAX_PRIORITY = 2**30
_MIN_PRIORITY = -(2**30)


class ConsumerLimits(TypedDict, total=False):
    """The limits and the priority of a consumer; an omitted value, or None, changes nothing.

    Attributes:
        priority: a message goes to the matching consumer with the highest priority; without a value, the
            priority of the queue.
        max_unconfirmed_messages: limit of delivered messages without a confirmation; without a value, the
            limit of the queue.
        max_unconfirmed_bytes: limit of delivered bytes without a confirmation; without a value, the limit of
            the queue.
    """

    priority: int | None
    max_unconfirmed_messages: int | None
    max_unconfirmed_bytes: int | None


def checked_limits(limits: ConsumerLimits, base: SubscriptionOptions) -> SubscriptionOptions:
    """Return limits as a single value, completed from ``base``.

    Raises:
        TypeError: a keyword is unknown.
        UsageError: a value is not an integer, or out of range.
    """
    given = limits.keys() - ConsumerLimits.__annotations__.keys()
    if given:
        raise TypeError(f"unexpected keyword argument {min(given)!r}")
    priority = limits.get("priority")
    messages = limits.get("max_unconfirmed_messages")
    size = limits.get("max_unconfirmed_bytes")
    integer = _checks.integer
    return SubscriptionOptions(
        base.max_unconfirmed_messages if messages is None else integer("max_unconfirmed_messages", messages),
        base.max_unconfirmed_bytes if size is None else integer("max_unconfirmed_bytes", size),
        base.priority if priority is None else integer("priority", priority, _MIN_PRIORITY, _MAX_PRIORITY),
    )


class ConnectOptions(SessionFields, total=False):
    """The keyword arguments of :func:`bmq.connect` besides the address, for type checkers."""

    credentials: CredentialsSource | None
    ssl: SSLContext | None
    server_hostname: str | None
    on_event: Callable[[SessionEvent], None] | None
    host_health: HostHealthMonitor | None
    interceptors: Iterable[Interceptor]
    options: SessionOptions | None


class TablesOptions(ConsumerLimits, total=False):
    """Columns and batch sizes, for :meth:`bmq.Queue.tables` and :mod:`bmq.arrow`.

    Attributes:
        properties: properties to become columns, with their types: a mapping of names to Arrow types or names
            of types, or a ``pyarrow.Schema``. Supported are bool, int8 to int64, string and binary. A value
            of another type becomes null. A string column accepts every value; binary becomes Base64. None,
            the default, creates a single column ``properties``, a map of strings.
        value: name of the payload column, of binary type.
        metadata: further columns: ``guid`` (the 32 digits of :attr:`bmq.Message.guid`), ``redelivered``,
            ``received_at`` (time of the arrival here), and ``error`` (only with ``on_invalid="row"``). A
            mapping renames the columns.
        max_rows: maximum number of rows in a batch; 10,000 by default.
        priority: a message goes to the matching consumer with the highest priority; None for the queue's
            priority.
        max_unconfirmed_messages: limit of delivered messages without a confirmation; None for three batches.
        max_unconfirmed_bytes: limit of delivered bytes without a confirmation; None for 256 MiB.
        on_invalid: handling of unreadable messages: malformed, or beyond the session's limit when
            decompressed. ``"skip"``, the default, omits the message from the rows, leaves the message in the
            queue, unconfirmed and outside the limits, and logs a line a minute. ``"discard"`` omits and
            confirms the message. ``"row"`` creates a row: the payload column has all bytes as transmitted,
            properties are null, and the column ``error`` has the reason (null in readable rows). ``"fail"``
            raises ProtocolError and leaves the message unconfirmed.
        dead_letters: queue for unreadable messages, open for writing; :class:`bmq.arrow.Source` takes a URI.
            Each message is confirmed after the acknowledgement of its dead letter. None for no dead letters.
            Requires ``on_invalid="skip"``.
    """

    properties: Mapping[str, ArrowType] | ArrowSchema | None
    value: str
    metadata: Iterable[str] | Mapping[str, str]
    max_rows: int
    on_invalid: str
    dead_letters: Queue | str | None
