# SPDX-License-Identifier: Apache-2.0
"""``bmq tail``."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.text import Text

import bmq
from bmq import _world
from bmq._words import number, several
from bmq.cli.consoles import out
from bmq.cli.messages import MESSAGE_FIELDS, property_text, text_or_base64, to_json
from bmq.cli.output import BadInput, ExitStatus, emit, note, printable
from bmq.cli.records import Form, Records, cell
from bmq.cli.taking import FORCE, open_consumer, refuse_to_take, take
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

_IDLE = 1.0
_BATCH = 1000
# Maximum number of messages before --since that the command receives and returns.
_MOST_EARLIER = 100_000
_DURATION = re.compile(
    r"(?:(?P<days>\d{1,6})d)?(?:(?P<hours>\d{1,6})h)?(?:(?P<minutes>\d{1,9})m)?(?:(?P<seconds>\d{1,9})s)?"
)


@verb("tail")
async def tail(
    target: BrokerTarget,
    queue: str = argument("QUEUE", "bmq://DOMAIN/QUEUE, with ?id=APPID for a fanout queue"),
    expression: str | None = option(
        "--expression -e EXPR", "Only messages that match this expression, such as 'x > 1'."
    ),
    tags: list[str] | None = option("--tag -t TAG", "Only messages with one of these tags."),
    count: int | None = option(
        "--count -n", "End after this number of messages; the status is 1 if fewer arrive.", min=1
    ),
    since: str | None = option(
        "--since TIME",
        "Only messages that arrived at the broker since: 10m, 1h30m, 2d, or a time such as "
        "2026-05-01T12:00 (UTC without a zone).",
    ),
    follow: bool = option("--follow -f", "Continue until Ctrl-C (or --count, or --idle)."),
    idle: float | None = option(
        "--idle SECONDS", "End after this time without a message.", min=0, show_default="1"
    ),
    confirm: bool = option(
        "--confirm/--no-confirm", "Confirm the printed messages, which removes them from the queue."
    ),
    output: OUTPUT = Form.TABLE,
    fields: str | None = option(
        "--fields LIST",
        "Print only these fields, separated by tabs: guid, queue, size, data, properties, "
        "redelivered, or names of properties.",
    ),
    priority: int = option("--priority", "The consumer's priority.", 0),
    max_unconfirmed: int = option(
        "--max-unconfirmed", "Maximum number of unconfirmed messages.", 1000, min=1
    ),
    force: FORCE = False,
) -> int:
    """Print the messages of a queue.

    Without --confirm, all printed messages return to the queue at the end. The broker then delivers the
    returned messages first, and delivers no later message while no subscription matches a returned message.
    The command therefore refuses a queue with readers, unless --force is given. [bold]bmq peek[/] and
    [bold]bmq explain[/] receive no message. With --confirm, the command takes messages away from the readers.

    A broker keeps no history: --since prints the messages that are still in the queue and arrived at the
    broker at this time or later. The command also receives the older messages, prints and confirms
    none of these messages, and returns all of them at the end: --since is refused like the command without
    --confirm.

    [bold]Examples[/]

    $ bmq tail bmq://bmq.test.mem.priority/orders
    $ bmq tail bmq://bmq.test.mem.priority/orders -e 'CustomerId == 1234' --follow
    $ bmq tail bmq://bmq.test.mem.priority/orders --since 10m
    $ bmq tail bmq://bmq.test.mem.fanout/orders?id=foo --json --count 10 | jq .properties
    """
    if expression and tags:
        raise BadInput("give an expression or tags, not both")
    wanted = bmq.TagFilter(any_of=tags) if tags else expression or None
    names = [name.strip() for name in fields.split(",")] if fields is not None else []
    if fields is not None and not all(names):
        raise BadInput(f"--fields needs names with commas between them, such as guid,size, not {fields!r}")
    limit = min(max_unconfirmed, count) if count is not None else max_unconfirmed
    wait = idle if idle is not None else None if follow else _IDLE
    printer = _Printer(output, fields=names)
    shown = taken = 0
    earlier: set[str] = set()
    begin = _time(since) if since is not None else None
    if not force and (not confirm or begin is not None):
        await refuse_to_take(
            target,
            queue,
            f"Use bmq peek {queue} and bmq explain {queue}, which receive no message, or stop the readers",
        )
    if begin is not None:
        earlier = await _arrived_before(target, queue, begin)
        limit += len(earlier)
    full = False

    async def receive() -> bmq.MessageBatch:
        return await consumer.receive_many(_BATCH if count is None else min(_BATCH, count - shown), wait)

    async def handle(batch: list[bmq.Message]) -> list[bmq.Message]:
        nonlocal shown, taken, full
        chosen = [m for m in batch if m.guid not in earlier and printer.show(m)]
        sys.stdout.flush()
        shown += len(chosen)
        taken += len(batch)
        if confirm:
            return chosen
        if taken >= limit and shown != count:
            note(
                f"bmq tail: {several(taken, 'message')} unconfirmed, which is the limit: no more "
                "messages arrive. Raise --max-unconfirmed, or give --confirm"
            )
            full = wait is not None
        return []

    def left() -> int | None:
        return 0 if full else None if count is None else count - shown

    async with target.connect() as session:
        consumer = await open_consumer(session, queue, wanted, window=limit, priority=priority)
        await take("tail", consumer, receive, handle, left, all_delivered=confirm)
    return ExitStatus.OK if count is None or shown >= count else ExitStatus.FAILED


def _time(text: str) -> datetime:
    """Return the time of ``--since``.

    Raises:
        BadInput: the text is neither a duration nor a time.
    """
    now = datetime.fromtimestamp(_world.time(), UTC)
    if text and (found := _DURATION.fullmatch(text)):
        parts = {unit: int(value) for unit, value in found.groupdict().items() if value}
        try:
            return now - timedelta(**parts)
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            "--since takes a duration such as 90s, 10m, 1h30m or 2d, or a time such as 2026-05-01T12:00, "
            f"not {text!r}"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if moment > now:
        note(
            f"bmq tail: --since {text} is in the future ({moment:%F %T} UTC): only later messages are printed"
        )
    return moment


async def _arrived_before(target: BrokerTarget, queue: str, begin: datetime) -> set[str]:
    """Return the GUIDs of stored messages that arrived earlier.

    Raises:
        BadInput: there are too many, or another node than the queue's primary answers.
    """
    found: set[str] = set()
    try:
        async with target.admin() as admin:
            asked = admin.queue(queue)
            if gap := (await asked.standing()).gap:
                raise BadInput(f"--since needs the queue's primary: {gap}")
            async for message in asked.all_messages():
                if message.arrival >= begin:
                    break  # the listing has the order of arrival
                found.add(message.guid)
                if len(found) > _MOST_EARLIER:
                    raise BadInput(
                        f"more than {number(_MOST_EARLIER)} earlier messages wait in the queue, and bmq tail "
                        "would have to take them all: choose an earlier time, or bmq peek --offset -20"
                    )
    except bmq.errors.AdminError:
        return set()  # no program has opened the queue yet
    return found


class _Printer:
    """Prints messages in one of the formats."""

    def __init__(self, output: Form, *, fields: list[str]) -> None:
        table = output is Form.TABLE
        self._records = None if table else Records(output, fields or MESSAGE_FIELDS)
        self._fields = fields
        self._console: Console | None = out() if sys.stdout.isatty() and table and not fields else None

    def show(self, message: bmq.Message) -> bool:
        """Print one message; report an undecodable message, and return False."""
        try:
            values = _fields(message, self._fields) if self._fields else {}
            if self._records is not None:
                self._records.write(values or to_json(message))
            elif values:
                texts = [
                    property_text(value) if name == "properties" else cell(value)
                    for name, value in values.items()
                ]
                emit("\t".join(texts))
            else:
                self._line(message)
        except bmq.ProtocolError as error:
            note(f"bmq tail: {message.guid} cannot be decoded, and stays in the queue: {error}")
            return False
        return True

    def _line(self, message: bmq.Message) -> None:
        payload = printable(message.data.decode("utf-8", "backslashreplace"))
        properties = property_text(message.properties)
        if self._console is None:
            emit("  ".join(filter(None, (message.guid, properties, payload))))
            return
        text = Text(message.guid, style="dim")
        if properties:
            text.append("  ").append(properties, style="not dim cyan")
        text.append("  ").append(payload, style="not dim")
        self._console.print(text, soft_wrap=True)


def _fields(message: bmq.Message, names: list[str]) -> dict[str, Any]:
    """Return the chosen fields of a message, and the properties with these names."""
    properties = {
        name: value.hex() if isinstance(value, bytes) else value for name, value in message.properties.items()
    }
    known = {
        "guid": message.guid,
        "queue": message.queue_uri,
        "size": len(message.data),
        "data": next(iter(text_or_base64(message.data).values())),
        "properties": properties,
        "redelivered": message.redelivered,
    }
    return {name: known[name] if name in known else properties.get(name) for name in names}
