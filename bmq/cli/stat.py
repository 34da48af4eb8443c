"""``bmq stat``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from bmq.cli.output import emit_json, number, out, size, table
from bmq.cli.target import Target, verb

__all__ = ["command"]


@verb("stat")
async def command(
    target: Target,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE|DOMAIN]",
            help="Only this queue, or the queues of this domain.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", "-j", help="One JSON object a queue, with all the broker tells.")
    ] = False,
) -> int:
    """Show the broker's statistics by queue: what was posted, delivered and confirmed since it started.

    A broker renews them at intervals of its own. [bold]bmq top[/] shows them as they change.

    [bold]Examples[/]

    $ bmq stat
    $ bmq stat bmq://bmq.test.mem.priority/orders --json | jq .values.queue_confirm_time_max
    """
    async with target.admin() as admin:
        queues = (await admin.statistics()).queues
        if queue and "://" in queue:
            wanted = admin.queue(queue).uri
            queues = tuple(each for each in queues if each.uri == wanted)
        elif queue:
            await admin.domain(queue)  # says so when there is none
            queues = tuple(each for each in queues if each.domain == queue)
    if json:
        for each in queues:
            emit_json(asdict(each))
        return 0
    rows = [
        (
            each.uri,
            number(each.messages),
            size(each.bytes),
            number(each.producers),
            number(each.consumers),
            number(each.posted),
            number(each.refused),
            number(each.pushed),
            number(each.confirmed),
            number(each.expired),
            number(each.rejected),
        )
        for each in queues
    ]
    columns = [
        "queue",
        "msgs>",
        "bytes>",
        "writers>",
        "readers>",
        "posted>",
        "refused>",
        "pushed>",
        "confirmed>",
    ]
    out().print(table([*columns, "expired>", "rejected>"], rows))
    return 0
