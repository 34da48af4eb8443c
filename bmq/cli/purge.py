# SPDX-License-Identifier: Apache-2.0
"""``bmq purge``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bmq.admin.words import number, size
from bmq.cli.completion import queues_or_domains
from bmq.cli.dialog import confirmed
from bmq.cli.options import argument, option
from bmq.cli.records import OUTPUT, Form, fields_of, show
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["FIELDS", "command"]


@dataclass(frozen=True, slots=True)
class _Deleted:
    queue: str
    appId: str
    messages: int
    bytes: int


#: Fields of the records.
FIELDS = fields_of(_Deleted)
_COLUMNS: dict[str, Callable[[_Deleted], str]] = {
    "queue": lambda each: each.queue,
    "application": lambda each: each.appId or "(all)",
    "purged>": lambda each: number(each.messages),
    "bytes>": lambda each: size(each.bytes),
}


@verb("purge")
async def command(
    target: BrokerTarget,
    what: str = argument(
        "QUEUE|DOMAIN",
        "bmq://DOMAIN/QUEUE, with ?id=APPID for one application",
        autocompletion=queues_or_domains,
    ),
    yes: bool = option("--yes -y", "Do not ask.", False),
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
            held = {app.app_id: app.messages for app in depth.apps}
            there = held.get(asked.app_id, 0) if asked.app_id else depth.messages
        else:
            there = (await admin.domain(what)).usage.messages
        if not (yes or confirmed(f"{what} on {broker} has {number(there)} messages. Delete them?")):
            return ExitStatus.FAILED
        purged = await (admin.queue(what).purge() if is_queue else admin.purge_domain(what))
    rows = [_Deleted(each.uri, each.app_id, each.messages, each.bytes) for each in purged]
    show(output, FIELDS, rows, _COLUMNS)
    return ExitStatus.OK
