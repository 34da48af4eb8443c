# SPDX-License-Identifier: Apache-2.0
"""``bmq queues``."""

from __future__ import annotations

from typing import Annotated

from bmq.admin import Admin, Internals, QueueAdmin
from bmq.admin.words import number, several, size
from bmq.cli.cluster import tell_gap
from bmq.cli.completion import domains
from bmq.cli.consoles import out, table
from bmq.cli.options import argument, option
from bmq.cli.output import note
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.target import BrokerTarget, verb

__all__ = ["APP_FIELDS", "FIELDS", "command"]

#: Fields of the records.
FIELDS = ("uri", "mode", "messages", "bytes", "writers", "readers", "unconfirmed", "apps", "gap")
#: Fields of a line of CSV with --apps.
APP_FIELDS = (
    *("uri", "application", "mode", "messages", "bytes", "writers", "readers", "unconfirmed", "gap"),
)

# Maximum number of omitted queues that are listed by name.
_NAMED = 5


@verb("queues")
async def command(
    target: BrokerTarget,
    domain: Annotated[
        str | None, argument("[DOMAIN]", "Only queues of this domain.", autocompletion=domains)
    ] = None,
    apps: Annotated[bool, option("--apps -a", "Print one line for each application.")] = False,
    output: OUTPUT = Form.TABLE,
) -> int:
    """List queues with their messages, their clients, and their unconfirmed messages.

    [bold]Examples[/]

    $ bmq queues
    $ bmq queues bmq.test.mem.fanout --apps
    $ bmq queues --json | jq 'select(.messages > 1000) | .uri'
    """
    import bmq

    async with target.admin() as admin:
        gap = await admin.gap()
        found: list[Internals] = []
        unknown: list[str] = []
        unreadable: list[str] = []
        for uri in await _uris(admin, domain):
            asked = admin.queue(uri)
            try:
                internals = await _internals(asked)
            except bmq.ProtocolError:
                unreadable.append(uri)
                continue
            if internals is not None:
                found.append(internals)
            elif (await asked.standing()).gap:
                unknown.append(uri)
    status = tell_gap(gap)
    if unknown:
        status = tell_gap(
            f"{several(len(unknown), 'queue')} not shown, because only a primary reports its queues: "
            f"{_some(unknown)}"
        )
    if unreadable:
        status = tell_gap(
            f"{several(len(unreadable), 'queue')} not shown, because the answer cannot be read; bmq explain "
            f"says why: {_some(unreadable)}"
        )
    if output is not Form.TABLE:
        writer = Records(output, APP_FIELDS if apps else FIELDS)
        for each in found:
            for record in _by_app(each) if apps and output is Form.CSV else [_object(each)]:
                writer.write(record | ({"gap": gap} if gap else {}))
        return status
    rows = [row for each in found for row in _rows(each, by_app=apps)]
    columns = ["queue", *(["application"] if apps else []), "messages>", "bytes>", "writers>", "readers>"]
    if rows:
        out().print(table([*columns, "unconfirmed>"], rows))
    note(several(len(found), "queue"))
    return status


async def _uris(admin: Admin, domain: str | None) -> list[str]:
    if domain is None:
        return list(await admin.queues())
    await admin.domain(domain)  # reports an unknown domain
    return [uri for uri in await admin.queues() if uri.startswith(f"bmq://{domain}/")]


async def _internals(queue: QueueAdmin) -> Internals | None:
    import bmq

    try:
        return await queue.internals()
    except bmq.errors.AdminError:
        return None  # the queue has gone meanwhile, or this node has not opened it


def _some(uris: list[str]) -> str:
    more = len(uris) - _NAMED
    return ", ".join(uris[:_NAMED]) + (f" and {number(more)} more" if more > 0 else "")


def _unconfirmed(internals: Internals, app_id: str | None = None) -> int:
    streams = [stream for client in internals.clients for stream in client.streams]
    return sum(stream.unconfirmed or 0 for stream in streams if app_id in (None, stream.app_id))


def _rows(internals: Internals, *, by_app: bool) -> list[tuple[str, ...]]:
    depth = internals.depth
    writers = sum(client.writers for client in internals.clients)
    if not by_app:
        readers = sum(client.readers for client in internals.clients)
        held = (number(depth.messages), size(depth.bytes), number(writers), number(readers))
        return [(depth.uri, *held, number(_unconfirmed(internals)))]
    consumers = {app.app_id: app.consumers for app in internals.apps}
    return [
        (
            depth.uri,
            app.app_id,
            number(app.messages),
            "" if app.bytes is None else size(app.bytes),
            number(writers),
            number(consumers.get(app.app_id, 0)),
            number(_unconfirmed(internals, app.app_id)),
        )
        for app in depth.apps
    ]


def _by_app(internals: Internals) -> list[dict[str, object]]:
    """Return one record for each application."""
    record = _object(internals)
    consumers = {app.app_id: app.consumers for app in internals.apps}
    return [
        record
        | {
            "application": app.app_id,
            "messages": app.messages,
            "bytes": app.bytes,
            "readers": consumers.get(app.app_id, 0),
            "unconfirmed": _unconfirmed(internals, app.app_id),
        }
        for app in internals.depth.apps
    ]


def _object(internals: Internals) -> dict[str, object]:
    depth = internals.depth
    return {
        "uri": depth.uri,
        "mode": internals.mode,
        "messages": depth.messages,
        "bytes": depth.bytes,
        "writers": sum(client.writers for client in internals.clients),
        "readers": sum(client.readers for client in internals.clients),
        "unconfirmed": _unconfirmed(internals),
        "apps": {
            app.app_id: {"messages": app.messages, "unconfirmed": _unconfirmed(internals, app.app_id)}
            for app in depth.apps
        },
    }
