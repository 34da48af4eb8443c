# SPDX-License-Identifier: Apache-2.0
"""What the broker says of the queues of a read: how much waits, who else reads, what was dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from bmq import admin
from bmq.admin import Admin
from bmq.spark._portal import ConnectionSettings
from bmq.wire.uri import QueueUri

__all__ = ["PATIENCE", "dropped_totals", "newly_dropped", "other_readers", "queue_depths"]

#: Seconds that an answer may take.
PATIENCE = 2.0
_DEFAULT_APP = "__default"


@asynccontextmanager
async def _asking(connection: ConnectionSettings) -> AsyncGenerator[Admin]:
    security = connection.security
    async with (
        asyncio.timeout(PATIENCE),
        admin.connect(
            connection.broker,
            credentials=security.source(),
            ssl=security.context(),
            server_hostname=security.tls_server_name or None,
            timeout=PATIENCE,
            process_name="bmq.spark",
        ) as asked,
    ):
        yield asked


async def queue_depths(connection: ConnectionSettings, queues: Sequence[str]) -> dict[str, int]:
    """Ask the broker how many messages it holds in each queue that are not confirmed.

    Args:
        connection: the broker.
        queues: their URIs; of a fanout queue with the application.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
    """
    found: dict[str, int] = {}
    async with _asking(connection) as asked:
        for uri in queues:
            depth = await asked.queue(uri).depth()
            app = QueueUri.parse(uri).app_id
            of_app = [each.messages for each in depth.apps if each.app_id == app]
            found[uri] = of_app[0] if of_app else depth.messages
    return found


async def other_readers(connection: ConnectionSettings, queues: Sequence[str]) -> dict[str, list[str]]:
    """Ask the broker who reads these queues, by queue; of a fanout queue for the application.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
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


async def dropped_totals(connection: ConnectionSettings, queues: Sequence[str]) -> dict[str, int]:
    """Ask the broker how many messages of each queue it has dropped: expired, or delivered too often.

    The broker counts from when it started. Queues that it has no statistics of are left out.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
    """
    async with _asking(connection) as asked:
        dropped = {each.uri: each.expired + each.rejected for each in (await asked.statistics()).queues}
        known = {uri: dropped.get(asked.queue(uri).uri) for uri in queues}
    return {uri: total for uri, total in known.items() if total is not None}


def newly_dropped(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return how much more a broker has dropped, by queue; a broker that counts anew has begun at 0."""
    found: dict[str, int] = {}
    for uri, total in now.items():
        known = before.get(uri)
        if known is None:
            continue
        more = total - known if total >= known else total
        if more:
            found[uri] = more
    return found
