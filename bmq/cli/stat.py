# SPDX-License-Identifier: Apache-2.0
"""``bmq stat``."""

from __future__ import annotations

from collections.abc import Callable

from bmq.admin import QueueStatistics
from bmq.admin.words import number, size
from bmq.cli.completion import queues_or_domains
from bmq.cli.dialog import tell_gap
from bmq.cli.options import argument
from bmq.cli.records import ABSENT, OUTPUT, Form, fields_of, show
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["FIELDS", "command"]

#: Fields of the records: the fields of :class:`bmq.admin.QueueStatistics`.
FIELDS = (*fields_of(QueueStatistics), "gap")

#: Columns; ``>`` at the end of a name marks numbers. A narrow terminal lacks the last columns.
_COLUMNS: dict[str, Callable[[QueueStatistics], str]] = {
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
async def command(
    target: BrokerTarget,
    queue: str | None = argument(
        "[QUEUE|DOMAIN]",
        "Only this queue, or the queues of this domain.",
        None,
        autocompletion=queues_or_domains,
    ),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Show the broker's statistics by queue: messages posted, delivered and confirmed since the start.

    A narrow terminal shows some of the columns, --json all columns. [bold]bmq top[/] shows changes over time.

    [bold]Examples[/]

    $ bmq stat
    $ bmq stat bmq://bmq.test.mem.priority/orders --json | jq .values.queue_confirm_time_max
    """
    async with target.admin() as admin:
        gap = await admin.gap()
        queues = (await admin.statistics()).queues
        if queue and "://" in queue:
            asked = admin.queue(queue)
            wanted = asked.uri
            gap = (await asked.standing()).gap
            queues = tuple(each for each in queues if each.uri == wanted)
        elif queue:
            await admin.domain(queue)  # reports an unknown domain
            queues = tuple(each for each in queues if each.domain == queue)
    status = tell_gap(gap)
    show(output, FIELDS, queues, _COLUMNS, gap=gap or ABSENT)
    return status
