# SPDX-License-Identifier: Apache-2.0
"""``bmq queues``, ``bmq stat``, ``bmq peek`` and ``bmq purge``: what a broker reports about its queues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from msgspec.structs import astuple

import bmq
from bmq._words import age, listed, number, several, size
from bmq.admin import Admin, Internals, QueueStatistics
from bmq.cli.output import ExitStatus, confirmed, note, tell, tell_gap
from bmq.cli.records import ABSENT, Form, fields_of, show
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

# ---- queues


@dataclass(frozen=True, slots=True)
class _Row:
    """A queue, or one application of the queue."""

    uri: str
    application: str
    mode: str
    messages: int
    bytes: int | None
    writers: int
    readers: int
    unconfirmed: int
    apps: dict[str, dict[str, int]]


_COMMON = ("mode", "messages", "bytes", "writers", "readers", "unconfirmed")
#: Fields of the records, and of a line of CSV with --apps.
FIELDS = ("uri", *_COMMON, "apps", "gap")
APP_FIELDS = ("uri", "application", *_COMMON, "gap")
_COLUMNS: dict[str, Callable[[_Row], str]] = {
    "queue": lambda each: each.uri,
    "messages>": lambda each: number(each.messages),
    "bytes>": lambda each: "" if each.bytes is None else size(each.bytes),
    "writers>": lambda each: number(each.writers),
    "readers>": lambda each: number(each.readers),
    "unconfirmed>": lambda each: number(each.unconfirmed),
}
_APP_COLUMNS: dict[str, Callable[[_Row], str]] = {
    "queue": lambda each: each.uri,
    "application": lambda each: each.application,
    **_COLUMNS,
}

# Maximum number of omitted queues that are listed by name.
_NAMED = 5


@verb("queues")
async def queues(
    target: BrokerTarget,
    domain: str | None = argument("[DOMAIN]", "Only queues of this domain."),
    apps: bool = option("--apps -a", "Print one line for each application."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """List queues with their messages, their clients, and their unconfirmed messages.

    [bold]Examples[/]

    $ bmq queues
    $ bmq queues bmq.test.mem.fanout --apps
    $ bmq queues --json | jq 'select(.messages > 1000) | .uri'
    """
    async with target.admin() as admin:
        gap = await admin.gap()
        found: list[Internals] = []
        unknown: list[str] = []
        unreadable: list[str] = []
        for uri in await _uris(admin, domain):
            asked = admin.queue(uri)
            try:
                found.append(await asked.internals())
            except bmq.ProtocolError:
                unreadable.append(uri)
            except bmq.errors.AdminError:  # the queue has gone meanwhile, or this node has not opened it
                if (await asked.standing()).gap:
                    unknown.append(uri)
    status = tell_gap(gap)
    for left_out, why in (
        (unknown, "only a primary reports its queues"),
        (unreadable, "the answer cannot be read; bmq explain says why"),
    ):
        if left_out:
            names = listed(left_out, _NAMED)
            status = tell_gap(f"{several(len(left_out), 'queue')} not shown, because {why}: {names}")
    if apps and output is not Form.JSON:
        rows = [row for each in found for row in _by_app(each)]
        show(output, APP_FIELDS, rows, _APP_COLUMNS, gap=gap or ABSENT)
    else:
        show(output, FIELDS, [_whole(each) for each in found], _COLUMNS, gap=gap or ABSENT)
    if output is Form.TABLE:
        note(several(len(found), "queue"))
    return status


async def _uris(admin: Admin, domain: str | None) -> list[str]:
    if domain is None:
        return list(await admin.queues())
    await admin.domain(domain)  # reports an unknown domain
    return [uri for uri in await admin.queues() if uri.startswith(f"bmq://{domain}/")]


def _whole(internals: Internals) -> _Row:
    depth = internals.depth
    held: dict[str, int] = {}
    for client in internals.clients:
        for stream in client.streams:
            held[stream.app_id] = held.get(stream.app_id, 0) + (stream.unconfirmed or 0)
    return _Row(
        depth.uri,
        "",
        internals.mode,
        depth.messages,
        depth.bytes,
        sum(client.writers for client in internals.clients),
        sum(client.readers for client in internals.clients),
        sum(held.values()),
        {
            app.app_id: {"messages": app.messages, "unconfirmed": held.get(app.app_id, 0)}
            for app in depth.apps
        },
    )


def _by_app(internals: Internals) -> list[_Row]:
    whole = _whole(internals)
    consumers = {app.app_id: app.consumers for app in internals.apps}
    return [
        replace(
            whole,
            application=app.app_id,
            messages=app.messages,
            bytes=app.bytes,
            readers=consumers.get(app.app_id, 0),
            unconfirmed=whole.apps[app.app_id]["unconfirmed"],
        )
        for app in internals.depth.apps
    ]


# ---- stat

#: Fields of the records: the fields of :class:`bmq.admin.QueueStatistics`.
STAT_FIELDS = (*fields_of(QueueStatistics), "gap")
#: A narrow terminal lacks the last columns.
_STAT_COLUMNS: dict[str, Callable[[QueueStatistics], str]] = {
    "queue": lambda each: each.uri,
    "msgs>": lambda each: number(each.messages),
    "posted>": lambda each: number(each.posted),
    "confirmed>": lambda each: number(each.confirmed),
    "pushed>": lambda each: number(each.pushed),
    "readers>": lambda each: number(each.consumers),
    "writers>": lambda each: number(each.producers),
    "bytes>": lambda each: size(each.bytes),
    "refused>": lambda each: number(each.refused),
    "expired>": lambda each: number(each.expired),
    "rejected>": lambda each: number(each.rejected),
}


@verb("stat")
async def stat(
    target: BrokerTarget,
    queue: str | None = argument("[QUEUE|DOMAIN]", "Only this queue, or the queues of this domain."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Show the broker's statistics by queue: messages posted, delivered and confirmed since the start.

    For up to a minute, a broker counts nothing for a new queue. A narrow terminal shows some of the columns,
    --json all columns. [bold]bmq top[/] shows changes over time.

    [bold]Examples[/]

    $ bmq stat
    $ bmq stat bmq://bmq.test.mem.priority/orders --json | jq .values.queue_confirm_time_max
    """
    async with target.admin() as admin:
        gap = await admin.gap()
        found = (await admin.statistics()).queues
        if queue and "://" in queue:
            asked = admin.queue(queue)
            gap = (await asked.standing()).gap
            found = tuple(each for each in found if each.uri == asked.uri)
            if not found:
                await asked.depth()  # reports an unknown queue
        elif queue:
            await admin.domain(queue)  # reports an unknown domain
            found = tuple(each for each in found if each.domain == queue)
    status = tell_gap(gap)
    show(output, STAT_FIELDS, found, _STAT_COLUMNS, gap=gap or ABSENT)
    return status


# ---- peek


@dataclass(frozen=True, slots=True)
class _Waiting:
    place: int
    guid: str
    size: int
    arrival: datetime


PEEK_FIELDS = (*fields_of(_Waiting), "gap")
_PEEK_COLUMNS: dict[str, Callable[[_Waiting], str]] = {
    "#>": lambda each: number(each.place),
    "GUID": lambda each: each.guid,
    "size>": lambda each: size(each.size),
    "age>": lambda each: age(each.arrival),
    "arrival (UTC)": lambda each: f"{each.arrival:%F %T}",
}


@verb("peek")
async def peek(
    target: BrokerTarget,
    queue: str = argument("QUEUE", "bmq://DOMAIN/QUEUE, with ?id=APPID for one application"),
    count: int = option("--count -n", "Maximum number of messages to list.", 20, min=1),
    offset: int = option("--offset", "Number of messages to skip; -20 begins with the last 20.", 0),
    output: OUTPUT = Form.TABLE,
) -> int:
    """List the messages that wait in a queue, oldest first, without receiving them.

    The broker lists GUIDs, sizes and times. Only a consumer sees the content of a message: [bold]bmq tail[/]
    prints messages and returns them, if the queue has no readers.

    [bold]Examples[/]

    $ bmq peek bmq://bmq.test.mem.priority/orders
    $ bmq peek bmq://bmq.test.mem.fanout/orders?id=foo --offset -5 --count 5
    """
    async with target.admin() as admin:
        asked = admin.queue(queue)
        standing = await asked.standing()
        page = await asked.messages(offset, count)
    status = tell(standing)
    rows = [_Waiting(place, *astuple(each)) for place, each in enumerate(page.messages, page.offset)]
    show(output, PEEK_FIELDS, rows, _PEEK_COLUMNS, gap=standing.gap or ABSENT)
    if output is Form.TABLE:
        note(f"{number(len(rows))} of {number(page.total)} messages")
    return status


# ---- purge


@dataclass(frozen=True, slots=True)
class _Deleted:
    queue: str
    appId: str
    messages: int
    bytes: int


PURGE_FIELDS = fields_of(_Deleted)
_PURGE_COLUMNS: dict[str, Callable[[_Deleted], str]] = {
    "queue": lambda each: each.queue,
    "application": lambda each: each.appId or "(all)",
    "purged>": lambda each: number(each.messages),
    "bytes>": lambda each: size(each.bytes),
}


@verb("purge")
async def purge(
    target: BrokerTarget,
    what: str = argument("QUEUE|DOMAIN", "bmq://DOMAIN/QUEUE, with ?id=APPID for one application"),
    yes: bool = option("--yes -y", "Do not ask."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Delete all messages of a queue, of one application of a queue, or of a whole domain.

    The command asks for confirmation on a terminal, and requires --yes elsewhere. The deletion cannot be
    undone.

    [bold]Examples[/]

    $ bmq purge bmq://bmq.test.mem.priority/orders
    $ bmq purge bmq://bmq.test.mem.fanout/orders?id=foo --yes
    $ bmq purge bmq.test.mem.priority --yes
    """
    is_queue = "://" in what
    async with target.admin() as admin:
        broker = admin.broker
        if is_queue:
            asked = admin.queue(what)
            broker = (await asked.standing()).broker
            depth = await asked.depth()
            held = sum(app.messages for app in depth.apps if app.app_id == asked.app_id)
            there = held if asked.app_id else depth.messages
        else:
            there = (await admin.domain(what)).usage.messages
        if not (yes or confirmed(f"{what} on {broker} has {number(there)} messages. Delete them?")):
            return ExitStatus.FAILED
        purged = await (admin.queue(what).purge() if is_queue else admin.purge_domain(what))
    rows = [_Deleted(each.uri, each.app_id, each.messages, each.bytes) for each in purged]
    show(output, PURGE_FIELDS, rows, _PURGE_COLUMNS)
    return ExitStatus.OK
