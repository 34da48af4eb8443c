# SPDX-License-Identifier: Apache-2.0
"""The broker's view of the queues of a read: backlog, other readers, and dropped messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from bmq import admin
from bmq.admin import Admin
from bmq.spark._portal import ConnectionSettings
from bmq.wire.uri import QueueUri

__all__ = [
    "PATIENCE",
    "Counted",
    "dropped_totals",
    "newer_messages",
    "newly_dropped",
    "other_readers",
    "queue_depths",
    "with_balance",
]

#: Timeout of a query, in seconds.
PATIENCE = 2.0
_DEFAULT_APP = "__default"
_PAGE = 1000
# Role of a queue's primary in its statistics; a replica counts only its own clients.
_PRIMARY = 1


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
    """Query the number of unconfirmed messages in each queue.

    Queues that keep no messages (broadcast) are omitted, and queues of other nodes of a cluster: a node that
    only forwards a queue does not know its messages.

    Args:
        connection: connection to the broker.
        queues: URIs; for a fanout queue with the application.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    found: dict[str, int] = {}
    async with _asking(connection) as asked:
        for uri in queues:
            known = await asked.queue(uri).internals()
            if known.mode not in ("priority", "fanout"):
                continue
            app = QueueUri.parse(uri).app_id
            of_app = [each.messages for each in known.depth.apps if each.app_id == app]
            found[uri] = of_app[0] if of_app else known.depth.messages
    return found


async def newer_messages(connection: ConnectionSettings, uri: str, offset: int) -> set[str]:
    """Query the GUIDs of some messages behind the first ``offset`` unconfirmed messages of a queue.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    async with _asking(connection) as asked:
        return {each.guid for each in (await asked.queue(uri).messages(offset, _PAGE)).messages}


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
        missing: posted messages that were neither confirmed nor dropped, and are not in the queue; the result
            of a purge. None for queues whose messages can disappear without being counted.
    """

    dropped: int
    posted: int = 0
    missing: int | None = None


async def with_balance(connection: ConnectionSettings, queues: Sequence[str]) -> frozenset[str]:
    """Query which queues have exactly one reader for each message, which confirms the message.

    The totals of other queues do not show where messages went: a fanout queue counts a message once, but each
    of its confirmations; and messages excluded by an application's subscription are not counted at all.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    async with _asking(connection) as asked:
        domains = {uri: QueueUri.parse(uri).domain for uri in queues}
        simple: set[str] = set()
        for name in dict.fromkeys(domains.values()):
            about = await asked.domain(name)
            if about.mode == "priority" and not about.configuration.get("subscriptions"):
                simple.add(name)
    return frozenset(uri for uri, name in domains.items() if name in simple)


async def dropped_totals(
    connection: ConnectionSettings, queues: Sequence[str], balanced: Collection[str] = ()
) -> dict[str, Counted]:
    """Query the number of dropped messages of each queue.

    Queues without statistics are omitted.

    Args:
        connection: connection to the broker.
        queues: URIs.
        balanced: queues whose missing messages can be counted.

    Raises:
        Error: the broker cannot be reached, or does not answer the query.
        TimeoutError: no answer in time.
    """
    async with _asking(connection) as asked:
        statistics = {each.uri: each for each in (await asked.statistics()).queues}
        known = {uri: statistics.get(asked.queue(uri).uri) for uri in queues}
    found: dict[str, Counted] = {}
    for uri, each in known.items():
        if each is None:
            continue
        dropped, missing = each.expired + each.rejected, None
        if uri in balanced and each.values.get("queue_role", _PRIMARY) == _PRIMARY:
            missing = each.posted - each.confirmed - dropped - each.values.get("queue_msgs_current", 0)
        found[uri] = Counted(dropped, each.posted, missing)
    return found


def newly_dropped(
    before: Mapping[str, Counted], now: Mapping[str, Counted], in_hand: int = 0
) -> tuple[dict[str, int], dict[str, Counted]]:
    """Return the newly dropped messages by queue, and the new record.

    Args:
        before: previous record. A restarted broker counts from 0.
        now: present counts of the broker.
        in_hand: number of received messages without a confirmation. A purge removes these from the queue,
            too, but they are not lost: only later counts show which other messages are missing.
    """
    more: dict[str, int] = {}
    noted: dict[str, Counted] = {}
    for uri, each in now.items():
        noted[uri] = each
        known = before.get(uri)
        if known is None:
            continue
        if each.dropped < known.dropped or each.posted < known.posted:
            more[uri] = each.dropped
            continue
        more[uri] = each.dropped - known.dropped
        if each.missing is not None and known.missing is not None and each.missing > known.missing:
            purged = max(0, each.missing - known.missing - in_hand)
            more[uri] += purged
            noted[uri] = each._replace(missing=known.missing + purged)
    return {uri: count for uri, count in more.items() if count}, noted
