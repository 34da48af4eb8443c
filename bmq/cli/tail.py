# SPDX-License-Identifier: Apache-2.0
"""``bmq tail``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from bmq.admin.words import number
from bmq.cli.completion import queues
from bmq.cli.messages import BadInput, property_text, text_or_base64, to_json
from bmq.cli.output import emit, emit_json, note, out, printable
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget, verb

if TYPE_CHECKING:
    import bmq

__all__ = ["command"]

_IDLE = 1.0
_BATCH = 1000


@verb("tail")
async def command(
    target: BrokerTarget,
    queue: Annotated[
        str,
        typer.Argument(
            autocompletion=queues,
            metavar="QUEUE",
            help="bmq://DOMAIN/QUEUE, with ?id=APPID for a fanout queue",
        ),
    ],
    expression: Annotated[
        str | None,
        typer.Option(
            "--expression",
            "-e",
            metavar="EXPR",
            help="Only messages that match this expression, such as 'x > 1'.",
        ),
    ] = None,
    old_name: Annotated[str | None, typer.Option("--subscription", "--filter", hidden=True)] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="TAG", help="Only messages with one of these tags."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, help="End after this number of messages; the status is 1 if fewer arrive."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until Ctrl-C (or --count, or --idle).")
    ] = False,
    idle: Annotated[
        float | None,
        typer.Option(
            "--idle",
            metavar="SECONDS",
            min=0,
            help="End after this time without a message.",
            show_default="1",
        ),
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm/--no-confirm", help="Confirm the printed messages, which removes them from the queue."
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", "-j", help="Print one JSON object for each message.")
    ] = False,
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields",
            metavar="LIST",
            help="Print only these fields, separated by tabs: guid, queue, size, data, properties, "
            "redelivered, or names of properties.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="The consumer's priority.")] = 0,
    max_unconfirmed: Annotated[
        int,
        typer.Option("--max-unconfirmed", min=1, help="Maximum number of unconfirmed messages."),
    ] = 1000,
) -> int:
    """Print the messages of a queue.

    Without --confirm, all printed messages return to the queue at the end. While the command runs, other
    consumers of the queue do not receive the printed messages. Afterwards the broker delivers the returned
    messages first: if no subscription matches a returned message, later messages wait too. [bold]bmq peek[/]
    takes no message.

    [bold]Examples[/]

    $ bmq tail bmq://bmq.test.mem.priority/orders
    $ bmq tail bmq://bmq.test.mem.priority/orders -e 'CustomerId == 1234' --follow
    $ bmq tail bmq://bmq.test.mem.fanout/orders?id=foo --json --count 10 | jq .properties
    """
    import bmq

    if old_name is not None:
        raise BadInput("the option is now called --expression")
    if expression and tags:
        raise BadInput("give an expression or tags, not both")
    wanted: Any = bmq.TagFilter(any_of=tags) if tags else expression or None
    names = [name.strip() for name in fields.split(",")] if fields else []
    limit = min(max_unconfirmed, count) if count is not None else max_unconfirmed
    wait = idle if idle is not None else None if follow else _IDLE
    printer = _Printer(json=json, fields=names)
    shown = 0
    async with target.connect() as session:
        opened = await session.open_queue(queue, read=True, priority=priority, max_unconfirmed_messages=limit)
        async with opened if wanted is None else opened.subscribe(wanted) as consumer:
            while count is None or shown < count:
                try:
                    batch = await consumer.receive_many(
                        min(_BATCH, (count or _BATCH) - shown or _BATCH), wait
                    )
                except TimeoutError:
                    break
                for message in batch:
                    printer.show(message)
                sys.stdout.flush()
                shown += len(batch)
                if confirm:
                    batch.confirm()
                elif shown >= limit and shown != count:
                    note(
                        f"bmq tail: {number(shown)} messages are unconfirmed, which is the limit: no more "
                        "messages arrive. Raise --max-unconfirmed, or give --confirm"
                    )
                    if wait is not None:
                        break
    if shown and not confirm:
        note(
            f"bmq tail: {number(shown)} messages returned to the queue. Until a consumer takes them again, "
            "other subscriptions may receive no messages; bmq peek takes no messages"
        )
    return ExitStatus.OK if count is None or shown >= count else ExitStatus.FAILED


class _Printer:
    """Prints messages in one of the formats."""

    def __init__(self, *, json: bool, fields: list[str]) -> None:
        self._json = json
        self._fields = fields
        self._console: Console | None = out() if sys.stdout.isatty() and not json and not fields else None

    def show(self, message: bmq.Message) -> None:
        """Print one message; report an undecodable message without an error."""
        import bmq

        try:
            self._show(message)
        except bmq.ProtocolError as error:
            note(f"bmq tail: {message.guid} cannot be decoded: {error}")

    def _show(self, message: bmq.Message) -> None:
        if self._fields:
            values = {name: _field(message, name) for name in self._fields}
            if self._json:
                emit_json(values)
            else:
                emit("\t".join(_plain(value) for value in values.values()))
        elif self._json:
            emit_json(to_json(message))
        else:
            self._line(message)

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


def _field(message: bmq.Message, name: str) -> Any:
    match name:
        case "guid":
            return message.guid
        case "queue":
            return message.queue_uri
        case "size":
            return len(message.data)
        case "data":
            return next(iter(text_or_base64(message.data).values()))
        case "properties":
            return {k: v.hex() if isinstance(v, bytes) else v for k, v in message.properties.items()}
        case "redelivered":
            return message.redelivered
        case _:
            value = message.properties.get(name)
            return value.hex() if isinstance(value, bytes) else value


def _plain(value: Any) -> str:
    match value:
        case None:
            return ""
        case dict():
            return property_text(value)  # pyright: ignore[reportUnknownArgumentType]
        case bool():
            return str(value).lower()
        case _:
            return printable(str(value))
