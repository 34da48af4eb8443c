# SPDX-License-Identifier: Apache-2.0
"""``bmq top``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

import bmq
from bmq import _world
from bmq._words import number, several, size
from bmq.admin import Admin, Client
from bmq.admin.watch import BrokerWatch, QueueFigures, RateHistory
from bmq.cli.consoles import out, styled, table
from bmq.cli.output import BadInput, printable, tell_gap
from bmq.cli.records import ABSENT, Form, Records, fields_of
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

_SPARK = 12
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class _Row:
    """One queue at the time of a query."""

    time: float
    uri: str
    messages: int
    bytes: int
    posted: int
    confirmed: int
    posted_per_second: float
    confirmed_per_second: float
    writers: int
    readers: int
    unconfirmed: int
    gap: str = ABSENT


#: Fields of the records.
FIELDS = fields_of(_Row)


@dataclass(frozen=True, slots=True)
class _Line:
    """One queue on the screen."""

    row: _Row
    history: RateHistory
    clients: tuple[Client, ...]


_SORTS: dict[str, Callable[[_Line], float]] = {
    "rate": lambda line: line.history.posting + line.history.confirming,
    "depth": lambda line: line.row.messages,
    "bytes": lambda line: line.row.bytes,
    "unconfirmed": lambda line: line.row.unconfirmed,
}
#: Columns of a queue. Names with ``>`` at the end hold numbers; names of ``~`` and spaces have no title.
_COLUMNS: dict[str, Callable[[_Line], str | Text]] = {
    "queue": lambda line: line.row.uri,
    "depth>": lambda line: number(line.row.messages),
    "~": lambda line: Text(_sparkline([*line.history.depth]), style="blue", no_wrap=True),
    "bytes>": lambda line: size(line.row.bytes),
    "post/s>": lambda line: number(line.history.posting),
    "~ ": lambda line: Text(_sparkline([*line.history.posted][1:]), style="green", no_wrap=True),
    "conf/s>": lambda line: number(line.history.confirming),
    "writers>": lambda line: number(line.row.writers),
    "readers>": lambda line: number(line.row.readers),
    "unconf>": lambda line: number(line.row.unconfirmed),
}
#: Columns that a narrow terminal lacks first.
_EXPENDABLE = [[*_COLUMNS].index(name) for name in ("writers>", "bytes>", "readers>", "~", "~ ")]


@verb("top")
async def top(
    target: BrokerTarget,
    queue: str | None = argument("[QUEUE|DOMAIN]", "Only this queue with its clients, or this domain."),
    interval: float = option("--interval -i SECONDS", "Time between two queries.", 1.0, min=0.1),
    count: int | None = option("--count -n", "End after this many refreshes.", min=1),
    sort: str = option("--sort -s", f"Order: {', '.join(_SORTS)}; the largest first.", "rate"),
    limit: int = option("--limit -l", "Maximum number of queues to show.", 20, min=1),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Watch the queues of a broker: depth, rates, consumers, and unconfirmed messages.

    Rates are differences between two queries. The command runs until Ctrl-C. Without a terminal, the command
    prints each result below the previous one.

    [bold]Examples[/]

    $ bmq top
    $ bmq top bmq://bmq.test.mem.priority/orders --interval 5
    $ bmq top --json --count 60 > minute.ndjson
    """
    if sort not in _SORTS:
        raise BadInput(f"unknown order {sort!r}; use one of: {', '.join(_SORTS)}")
    only = queue.partition("?")[0] if queue else None
    watch = BrokerWatch(choose_domains=lambda names: frozenset(), left_out=lambda name, error: None)
    histories: dict[str, RateHistory] = {}
    writer = Records.of(output, FIELDS)
    live = sys.stdout.isatty() and writer is None
    console = out()
    looks = 0
    gap = ""
    async with target.admin() as admin:
        screen = Live(console=console, screen=count is None, auto_refresh=False) if live else nullcontext()
        with screen as shown:
            while True:
                view: RenderableType = ""
                try:
                    seen = await watch.look(admin)
                    gap = await admin.gap()
                    at = _world.monotonic()
                    # A queue without statistics is idle, or new: shown if asked for.
                    wanted = [
                        each
                        for each in seen.queues
                        if only in (each.uri, each.name) or (only is None and each.statistics is not None)
                    ]
                    histories = {each.uri: histories.get(each.uri) or RateHistory() for each in wanted}
                    lines = [await _line(admin, each, at, histories[each.uri], gap) for each in wanted]
                except (bmq.ConnectionFailed, bmq.RequestTimeout) as error:
                    if not live:
                        raise
                    view = styled(f"no broker: {error}; trying again", "bold red")
                else:
                    head = _head(lines, f"{seen.time:%T} UTC", admin.broker)
                    lines = sorted(lines, key=_SORTS[sort], reverse=True)[:limit]
                    if writer is not None:
                        for line in lines:
                            writer.write(line.row, flush=True)
                    else:
                        view = _view(head, lines, gap, clients=bool(queue and "://" in queue))
                if shown is not None:
                    shown.update(view, refresh=True)
                elif writer is None:
                    console.print(view)
                    sys.stdout.flush()
                looks += 1
                if count is not None and looks >= count:
                    return tell_gap(gap)
                await asyncio.sleep(interval)


async def _line(admin: Admin, each: QueueFigures, at: float, history: RateHistory, gap: str) -> _Line:
    # A broker counts a new queue only after a while, but reports depth and clients of the queue at once.
    counted = each.statistics
    messages, held = (counted.messages, counted.bytes) if counted else (0, 0)
    clients: tuple[Client, ...] = ()
    try:
        internals = await admin.queue(each.uri).internals()
    except (bmq.errors.AdminError, bmq.ProtocolError):
        pass  # the queue is gone, but still in the statistics; or its answer cannot be read
    else:
        messages, held = internals.depth.messages, internals.depth.bytes
        clients = internals.clients
    history.add(at, messages, counted)
    row = _Row(
        time=time.time(),
        uri=each.uri,
        messages=messages,
        bytes=held,
        posted=counted.posted if counted else 0,
        confirmed=counted.confirmed if counted else 0,
        posted_per_second=round(history.posting, 1),
        confirmed_per_second=round(history.confirming, 1),
        writers=sum(client.writers for client in clients),
        readers=sum(client.readers for client in clients),
        unconfirmed=sum(stream.unconfirmed or 0 for client in clients for stream in client.streams),
        gap=gap or ABSENT,
    )
    return _Line(row, history, clients)


def _sparkline(values: Sequence[float]) -> str:
    """Return the last values as a line of bars; the largest has the full height."""
    shown = values[-_SPARK:]
    highest = max(shown, default=0.0) or 1.0
    return "".join(_BARS[min(7, int(value / highest * 7.999))] for value in shown)


def _head(lines: list[_Line], time: str, broker: str) -> Text:
    """Return the totals over all queues, also over those without a line."""
    posting = sum(line.history.posting for line in lines)
    confirming = sum(line.history.confirming for line in lines)
    held = sum(line.row.messages for line in lines)
    return Text.assemble(
        (printable(broker), "bold"),
        f"  {time}  {several(len(lines), 'queue')}  {several(held, 'message')}  ",
        f"{number(posting)} posted/s  {number(confirming)} confirmed/s",
    )


def _view(head: Text, lines: list[_Line], gap: str, *, clients: bool) -> RenderableType:
    rows = [[cell(line) for cell in _COLUMNS.values()] for line in lines]
    parts: list[RenderableType] = [
        head,
        *([styled(gap, "bold red")] if gap else []),
        table([name.strip("~ ") for name in _COLUMNS], rows, expendable=_EXPENDABLE),
    ]
    if clients:
        parts.extend(_clients(line.clients) for line in lines)
    return Group(*parts)


def _clients(clients: tuple[Client, ...]) -> RenderableType:
    rows = [
        (
            each.description + ("" if each is client else f" (behind {client.description})"),
            stream.app_id if stream.subscriptions else "",
            number(len(stream.subscriptions)),
            "" if stream.unconfirmed is None else number(stream.unconfirmed),
            number(sum(window.max_messages for window in stream.windows)),
            Text("full", style="bold red") if any(window.full for window in stream.windows) else "",
        )
        for client in clients
        for each in client.behind or (client,)
        for stream in each.streams
    ]
    return table(["client", "application", "subscriptions>", "unconfirmed>", "limit>", ""], rows)
