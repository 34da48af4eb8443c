# SPDX-License-Identifier: Apache-2.0
"""``bmq peek``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import astuple

from bmq.admin.words import age, number, size
from bmq.cli.completion import queues
from bmq.cli.dialog import tell
from bmq.cli.options import argument, option
from bmq.cli.output import note
from bmq.cli.records import ABSENT, OUTPUT, Form, fields_of, show
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import verb

__all__ = ["FIELDS", "command"]


@dataclass(frozen=True, slots=True)
class _Waiting:
    place: int
    guid: str
    size: int
    arrival: datetime


#: Fields of the records.
FIELDS = (*fields_of(_Waiting), "gap")
_COLUMNS: dict[str, Callable[[_Waiting], str]] = {
    "#>": lambda each: number(each.place),
    "GUID": lambda each: each.guid,
    "size>": lambda each: size(each.size),
    "age>": lambda each: age(each.arrival),
    "arrival (UTC)": lambda each: f"{each.arrival:%F %T}",
}


@verb("peek")
async def command(
    target: BrokerTarget,
    queue: str = argument(
        "QUEUE", "bmq://DOMAIN/QUEUE, with ?id=APPID for one application", autocompletion=queues
    ),
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
    show(output, FIELDS, rows, _COLUMNS, gap=standing.gap or ABSENT)
    if output is Form.TABLE:
        note(f"{number(len(rows))} of {number(page.total)} messages")
    return status
