# SPDX-License-Identifier: Apache-2.0
"""Methods of a queue and a session implemented by higher modules: the only place for upward imports.

Queues and sessions are below these modules. A program pays for the import of a module on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from bmq.client._extras import importing_arrow

if TYPE_CHECKING:
    from bmq.arrow.tables import Tables as Tables
    from bmq.client.keywords import TablesOptions as TablesOptions
    from bmq.client.queue import Queue
    from bmq.client.requests import Requests as Requests
    from bmq.client.session import Session
    from bmq.client.typed import TypedQueue as TypedQueue
    from bmq.codecs import Codec as Codec
    from bmq.groups import Group as Group
    from bmq.groups import GroupOptions as GroupOptions
    from bmq.groups import GroupStats as GroupStats
    from bmq.protocol.client.events import SessionEvent
    from bmq.subscriptions import ExpressionInput

__all__ = ["group_of", "log_stats", "requests_of", "tables_of", "typed_queue"]

T = TypeVar("T")


def typed_queue(queue: Queue, of: type[T], codec: str | Codec[Any]) -> TypedQueue[T]:
    """Return a typed view of a queue; see :meth:`bmq.Queue.typed`."""
    from bmq.client.typed import TypedQueue

    return TypedQueue(queue, of, codec)


def tables_of(queue: Queue, expression: ExpressionInput, **options: Unpack[TablesOptions]) -> Tables:
    """Receive tables; see :meth:`bmq.Queue.tables`."""
    with importing_arrow():
        from bmq.arrow.tables import Tables

    return Tables(queue, expression, **options)


def group_of(
    queue: Queue,
    key: str | None,
    *,
    buckets: int,
    member: str | None,
    weight: float,
    expression: ExpressionInput,
    **options: Unpack[GroupOptions],
) -> Group:
    """Join the consumer group of a queue; see :meth:`bmq.Queue.group`."""
    from bmq.groups import Group

    return Group(queue, key, buckets=buckets, member=member, weight=weight, expression=expression, **options)


def requests_of(session: Session) -> Requests:
    """Return the requests of a session; see :meth:`bmq.Queue.request`."""
    from bmq.client.requests import Requests

    return Requests(session)


def log_stats(
    session: Session, every: float, on_event: Callable[[SessionEvent], None] | None
) -> Callable[[SessionEvent], None]:
    """Log the statistics of a session; return the callback for the session's events."""
    from bmq.client._stats_log import StatsLog

    return StatsLog(session, every, on_event).note
