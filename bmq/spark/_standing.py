# SPDX-License-Identifier: Apache-2.0
"""The broker's view of the queues of a read: backlog, other readers, and dropped messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from bmq import admin
from bmq.admin import Admin
from bmq.arrow.backlog import ANSWER_TIMEOUT, asking
from bmq.spark._portal import ConnectionSettings

__all__ = [
    "PATIENCE",
    "Counted",
    "admin_of",
    "dropped_totals",
    "newly_dropped",
    "other_readers",
]

#: Timeout of a query, in seconds.
PATIENCE = ANSWER_TIMEOUT
_DEFAULT_APP = "__default"


def admin_of(connection: ConnectionSettings) -> admin.connect:
    """Prepare a connection for admin commands."""
    security = connection.security
    return admin.connect(
        connection.broker,
        credentials=security.source(),
        ssl=security.context(),
        server_hostname=security.tls_server_name or None,
        timeout=PATIENCE,
        process_name="bmq.spark",
    )


@asynccontextmanager
async def _asking(connection: ConnectionSettings) -> AsyncGenerator[Admin]:
    async with asking(partial(admin_of, connection)) as asked:
        yield asked


async def other_readers(connection: ConnectionSettings, queues: Sequence[str]) -> dict[str, list[str]]:
    """Query the other readers of each queue; for a fanout queue, of the application.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    found: dict[str, list[str]] = {}
    async with _asking(connection) as asked:
        there = set(await asked.queues())
        for uri in queues:
            queue = asked.queue(uri)
            if queue.uri not in there:
                continue
            app = queue.app_id or _DEFAULT_APP
            readers = [
                client.description
                for client in (await queue.internals()).clients
                if any(each.app_id == app and each.subscriptions for each in client.streams)
            ]
            if readers:
                found[uri] = readers
    return found


class Counted(NamedTuple):
    """A broker's counts of a queue since the broker's start.

    Attributes:
        dropped: messages that expired, or were delivered too often.
        posted: accepted posts.
    """

    dropped: int
    posted: int = 0


async def dropped_totals(connection: ConnectionSettings, queues: Sequence[str]) -> dict[str, Counted]:
    """Query the number of dropped messages of each queue; queues without statistics are omitted.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    async with _asking(connection) as asked:
        statistics = {each.uri: each for each in (await asked.statistics()).queues}
        known = {uri: statistics.get(asked.queue(uri).uri) for uri in queues}
    return {
        uri: Counted(each.expired + each.rejected, each.posted)
        for uri, each in known.items()
        if each is not None
    }


def newly_dropped(before: Mapping[str, Counted], now: Mapping[str, Counted]) -> dict[str, int]:
    """Return the number of newly dropped messages by queue. A restarted broker counts from 0."""
    more: dict[str, int] = {}
    for uri, each in now.items():
        known = before.get(uri, each)
        restarted = each.dropped < known.dropped or each.posted < known.posted
        more[uri] = each.dropped - (0 if restarted else known.dropped)
    return {uri: count for uri, count in more.items() if count}
