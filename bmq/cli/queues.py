# SPDX-License-Identifier: Apache-2.0
"""``bmq queues``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bmq.admin import Admin, Internals, QueueAdmin
from bmq.admin.words import number, several, size
from bmq.cli.completion import domains
from bmq.cli.dialog import tell_gap
from bmq.cli.options import argument, option
from bmq.cli.output import note
from bmq.cli.records import ABSENT, OUTPUT, Form, show
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["APP_FIELDS", "FIELDS", "command"]


@dataclass(frozen=True, slots=True)
class _Row:
    """A queue, or one application of the queue."""

    uri: str
    mode: str
    messages: int
    bytes: int | None
    writers: int
    readers: int
    unconfirmed: int
    apps: dict[str, dict[str, int]]
    application: str = ""


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
async def command(
    target: BrokerTarget,
    domain: str | None = argument("[DOMAIN]", "Only queues of this domain.", None, autocompletion=domains),
    apps: bool = option("--apps -a", "Print one line for each application.", False),
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


def _whole(internals: Internals) -> _Row:
    depth = internals.depth
    return _Row(
        depth.uri,
        internals.mode,
        depth.messages,
        depth.bytes,
        sum(client.writers for client in internals.clients),
        sum(client.readers for client in internals.clients),
        _unconfirmed(internals),
        {
            app.app_id: {"messages": app.messages, "unconfirmed": _unconfirmed(internals, app.app_id)}
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
