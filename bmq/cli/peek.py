# SPDX-License-Identifier: Apache-2.0
"""``bmq peek``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from bmq.admin.words import age, number, size
from bmq.cli.cluster import tell
from bmq.cli.completion import queues
from bmq.cli.consoles import out, table
from bmq.cli.options import argument, option
from bmq.cli.output import note
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.target import BrokerTarget, verb

__all__ = ["FIELDS", "command"]

#: Fields of the records.
FIELDS = ("place", "guid", "size", "arrival", "gap")


@verb("peek")
async def command(
    target: BrokerTarget,
    queue: Annotated[
        str,
        argument("QUEUE", "bmq://DOMAIN/QUEUE, with ?id=APPID for one application", autocompletion=queues),
    ],
    count: Annotated[int, option("--count -n", "Maximum number of messages to list.", min=1)] = 20,
    offset: Annotated[
        int, option("--offset", "Number of messages to skip; -20 begins with the last 20.")
    ] = 0,
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
    gap = {"gap": standing.gap} if standing.gap else {}
    now = datetime.now(UTC)
    if output is not Form.TABLE:
        writer = Records(output, FIELDS)
        for place, message in enumerate(page.messages, page.offset):
            writer.write(
                {"place": place, "guid": message.guid, "size": message.size, "arrival": message.arrival} | gap
            )
        return status
    rows = [
        (
            number(place),
            message.guid,
            size(message.size),
            age(message.arrival, now),
            f"{message.arrival:%F %T}",
        )
        for place, message in enumerate(page.messages, page.offset)
    ]
    if rows:
        out().print(table(["#>", "GUID", "size>", "age>", "arrival (UTC)"], rows))
    note(f"{number(len(rows))} of {number(page.total)} messages")
    return status
