# SPDX-License-Identifier: Apache-2.0
"""What the broker says of the queues of a read: how much waits, who else reads, what was dropped."""

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
    "newly_dropped",
    "other_readers",
    "queue_depths",
    "with_balance",
]

#: Seconds that an answer may take.
PATIENCE = 2.0
_DEFAULT_APP = "__default"
# The role of a queue's primary in its statistics; a replica counts what comes by way of itself.
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


class Counted(NamedTuple):
    """What a broker has counted of a queue, since it started.

    Attributes:
        dropped: messages that expired, or were delivered too often.
        posted: messages that were posted and accepted.
        missing: messages that were posted and are nowhere: neither confirmed nor dropped nor in the queue. A
            purge makes such messages. None of a queue whose messages go without being counted.
    """

    dropped: int
    posted: int = 0
    missing: int | None = None


async def with_balance(connection: ConnectionSettings, queues: Sequence[str]) -> frozenset[str]:
    """Ask the broker which queues have one reader for each message, which confirms it.

    Of other queues the totals do not tell where messages went: a fanout queue counts a message once, and each
    of its confirmations; what the subscription of an application leaves out is counted nowhere.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
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
    """Ask the broker how many messages of each queue it has dropped.

    Queues that it has no statistics of are left out.

    Args:
        connection: the broker.
        queues: their URIs.
        balanced: those of which messages can be missing.

    Raises:
        Error: the broker is not there, or does not answer the question.
        TimeoutError: not in time.
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
    """Return how much more a broker has dropped, by queue, and what is to be noted of it.

    Args:
        before: what was noted last. A broker that counts anew has begun at 0.
        now: what the broker says.
        in_hand: how many messages were received and are not confirmed. A purge takes these out of the queue,
            too, but they are not lost: it is only known later what else is missing.
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
