# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""A minute in one terminal: records flow, a consumer is slow, the broker crashes, and nothing is lost.

    python examples/demo.py                                  # on the embedded broker
    python examples/demo.py --fast                           # the same in some seconds, for scripts
    python examples/demo.py --broker tcp://localhost:30114   # on any broker

A producer posts four days of New York departures, read from ``examples/data``. One consumer subscribes to the
flights with a delay of more than an hour, another consumer to the rest; each confirms the handled flights. In
the second act the second consumer is slow; in the third act the broker crashes, and restarts a little later.

The embedded broker crashes by ``broker.stop(graceful=False)``: connections, sessions and bytes under way are
lost. Stored messages survive the restart, as in a real broker with a file-backed domain; here both brokers
are the same process, and its memory takes the place of the files. No other broker is crashed: the demo cuts
the connections, and no connection succeeds for the same time.

Posts are in flight in every crash: the answers to the last posts before the crash are lost on the way, so the
client sends these posts again.

At the end the books are balanced record by record. The exit status is 0 if every posted record was
acknowledged, and every acknowledged record was handled and confirmed by the right consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from producer import message, records
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import bmq
from bmq.broker import Broker
from bmq.testing import Direction, FaultProxy

LATE = "dep_delay > 60"
REST = "!exists(dep_delay) || dep_delay <= 60"
WINDOW = 40  # delivered and unconfirmed messages of a consumer, at most
UNACKED = 100  # posted and unacknowledged messages of the producer, at most
IN_FLIGHT = 10  # posts whose answers are lost in the crash, at least
BARS = " ▁▂▃▄▅▆▇█"
HISTORY = 24
WIDTH = 96
NARROWEST = 80  # a narrower terminal gets a line for each act, as a file does
LOG_LINES = 3
INTERVAL = 0.25
LAST_ACT = "All records are handled."


@dataclass(frozen=True)
class Pace:
    """The speed of the demo. One of its seconds is ``unit`` seconds of the clock."""

    count: int
    unit: float

    @property
    def rate(self) -> float:
        """Records a second: all of them are posted in 42 units."""
        return self.count / 42 / self.unit

    def acts(self) -> list[tuple[float, str]]:
        """The start of each act, and its title."""
        return [
            (0, "Flight records flow. Each consumer gets what it has subscribed to."),
            (10, "'the rest' is slow now. When its window is full, the broker keeps its messages."),
            (24, "The broker has crashed. Posts wait; when its window is full, so does the producer."),
            (29, "The broker is back: unanswered posts were sent again. 'the rest' is fast again."),
        ]


NEXT = """\
Next:
  docs/start/tutorial/1-a-message.md   write a producer and a consumer
  .venv/bin/python -m bmq broker run this broker
  make demo-spark                run a Spark pipeline that is killed on the way\
"""


@dataclass
class Party:
    """One consumer, and its confirmations of each record."""

    name: str
    expression: str
    seconds: float = 0.0
    confirmed: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=6))
    consumer: bmq.Consumer | None = None

    async def consume(self, consumer: bmq.Consumer, arrived: asyncio.Event) -> None:
        self.consumer = consumer
        async for received in consumer:
            async with received:
                record = json.loads(received.data)
                self.wrong += not bmq.Expression(self.expression).matches(received.properties)
                if self.seconds:
                    await asyncio.sleep(self.seconds)
            self.confirmed[int(received.properties["record"])] += 1
            self.last.append(described(record))
            arrived.set()


def described(record: dict[str, str | int]) -> str:
    route = f"{record['carrier']:>2} {record['flight']:>4}  {record['origin']} → {record['dest']}"
    delay = record.get("dep_delay")
    if delay is None:
        return f"{route}  {record['status']}"
    return f"{route}  {int(delay):+5} min"


class Curve:
    """A number over time, as bars."""

    def __init__(self) -> None:
        self._values: deque[float] = deque([0.0] * HISTORY, maxlen=HISTORY)

    def add(self, value: float) -> None:
        self._values.append(value)

    def bars(self, width: int = HISTORY) -> str:
        """Draw the latest values that fit."""
        values = list(self._values)[-width:]
        top = max(*values, 1)
        return "".join(BARS[max(int(v > 0), round(v / top * (len(BARS) - 1)))] for v in values)


class LastLine(logging.Handler):
    """Keeps the client's latest log line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, entry: logging.LogRecord) -> None:
        self.text = entry.getMessage()


class Stage:
    """The display during the demo."""

    def __init__(self, count: int, out: bmq.Queue, parties: Sequence[Party], log: LastLine) -> None:
        self.act = ""
        self.up = True
        self._count = count
        self._out = out
        self._parties = parties
        self._log = log
        self._began = time.perf_counter()
        self._before = (self._began, 0, *(0 for _ in parties))
        self._rates = [0.0] * (1 + len(parties))
        self._curves = [Curve() for _ in range(2 + len(parties))]

    def _numbers(self) -> tuple[int, ...]:
        return (self._out.stats().acknowledged, *(len(party.confirmed) for party in self._parties))

    @property
    def depth(self) -> int:
        """Number of records in the broker: acknowledged, and not confirmed."""
        acknowledged, *confirmed = self._numbers()
        return max(0, acknowledged - sum(confirmed))

    def measure(self) -> None:
        """Record the rates since the previous call, and the depth."""
        now, numbers = time.perf_counter(), self._numbers()
        elapsed = now - self._before[0]
        self._rates = [
            (after - before) / elapsed for before, after in zip(self._before[1:], numbers, strict=True)
        ]
        self._before = (now, *numbers)
        for curve, value in zip(self._curves, [self._rates[0], self.depth, *self._rates[1:]], strict=True):
            curve.add(value)

    async def in_flight(self, number: int, seconds: float) -> None:
        """Wait until the given number of posts is unanswered, for some seconds at most."""
        for _ in range(int(seconds / 0.005)):
            if self._out.stats().unacked_messages >= number:
                break
            await asyncio.sleep(0.005)

    def table(self, width: int = WIDTH - 4) -> Table:
        """Draw a line for each party, and a line for each window."""
        posting, posted = self._curves[0], self._out.stats()
        table = Table.grid(padding=(0, 2))
        for justify in ("left", "left", "right", "left"):
            table.add_column(justify=justify, no_wrap=True)
        fixed = (11, 36, 8)  # a consumer that catches up may reach 10,000 a second
        for column, cells in zip(table.columns, fixed, strict=False):
            column.width = cells
        room = min(HISTORY, width - sum(fixed) - 2 * len(fixed))
        waiting = full(posted.unacked_messages, UNACKED, "unacknowledged")
        table.add_row(
            "[b]producer",
            f"{posted.acknowledged:,} of {self._count:,} acknowledged",
            rate(self._rates[0]),
            posting.bars(room),
        )
        table.add_row("[dim]  window", waiting, "", "")
        state = "[green]up" if self.up else "[b red]down"
        depth = f"{self.depth:,} records in the queue"
        table.add_row(f"[b]broker[/] {state}", depth, "", self._curves[1].bars(room))
        for party, value, curve in zip(self._parties, self._rates[1:], self._curves[2:], strict=True):
            done = f"{len(party.confirmed):,} confirmed"
            table.add_row(f"[b]{party.name}", done, rate(value), curve.bars(room))
            held = party.consumer.stats().unconfirmed if party.consumer is not None else 0
            table.add_row("[dim]  window", full(held, WINDOW, "unconfirmed"), "", "")
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(WIDTH, options.max_width)
        inside = width - 4
        flights = Table.grid(padding=(0, 2), expand=True)
        for party in self._parties:
            flights.add_column(f"{party.name}: {party.expression}", ratio=1, no_wrap=True)
        flights.add_row(*(f"[dim]{party.expression}" for party in self._parties))
        for number in range(6):
            flights.add_row(*(row(party.last, number) for party in self._parties))
        # The same number of lines in every picture, so that the picture does not jump.
        log = Text(self._log.text and f"log: {self._log.text}", style="dim").wrap(console, inside)[:LOG_LINES]
        log.extend(Text() for _ in range(LOG_LINES - len(log)))
        seconds = time.perf_counter() - self._began
        title = f"{self._count:,} New York departures"
        act = Text(self.act, style="bold yellow").wrap(console, inside)
        act.extend(Text() for _ in range(2 - len(act)))
        body = Group(*act, self.table(inside), "", flights, "", *log)
        yield Panel(body, title=title, subtitle=f"{seconds:.0f} s", width=width)


def rate(value: float) -> str:
    return f"{value:,.0f}/s"


def full(number: int, limit: int, what: str) -> str:
    """The used part of a window, as a bar."""
    cells = 10
    filled = min(cells, -(-number * cells // limit))
    colour = "red" if number >= 0.8 * limit else "green"  # a broker resumes delivery at 80 %
    return f"[{colour}]{'■' * filled}[/][dim]{'·' * (cells - filled)}[/] {number} of {limit} {what}"


def row(lines: deque[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


@dataclass(frozen=True)
class BrokerAtHand:
    """The broker: the address for clients, the crash and the restart."""

    uri: str
    lose_answers: Callable[[], object]
    crash: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]


@asynccontextmanager
async def broker_at_hand(other: str | None) -> AsyncIterator[BrokerAtHand]:
    if other is None:
        async with Broker(port=0) as broker:

            async def start() -> None:
                broker.faults.clear()
                await broker.start()

            yield BrokerAtHand(
                broker.uri, broker.faults.drop_acks, lambda: broker.stop(graceful=False), start
            )
        return
    async with FaultProxy(other) as proxy:

        async def cut() -> None:
            proxy.refuse()
            proxy.cut(reset=True)
            proxy.resume(Direction.TO_CLIENT)

        yield BrokerAtHand(proxy.uri, partial(proxy.stall, Direction.TO_CLIENT), cut, proxy.accept)


@contextmanager
def last_line() -> Iterator[LastLine]:
    """The client's log, shown as a single line and written nowhere else."""
    logger, handler = logging.getLogger("bmq"), LastLine()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


async def play(
    pace: Pace, stage: Stage, broker: BrokerAtHand, slow: Party, say: Callable[[str], object]
) -> None:
    """Start each act at its time."""
    began = time.perf_counter()
    for number, (begins, act) in enumerate(pace.acts()):
        await asyncio.sleep(began + begins * pace.unit - time.perf_counter())
        if number == 1:
            slow.seconds = 2.5 / pace.rate
        elif number == 2:
            broker.lose_answers()
            await stage.in_flight(IN_FLIGHT, seconds=3 * pace.unit)
            await broker.crash()
            stage.up = False
        elif number == 3:
            await stage.in_flight(UNACKED, seconds=3 * pace.unit)
            await asyncio.sleep(2 * INTERVAL)  # show the full window
            slow.seconds = 0
            await broker.start()
            stage.up = True
        stage.act = act
        say(act)


async def show(stage: Stage, draw: Callable[[Stage], object]) -> None:
    while True:
        await asyncio.sleep(INTERVAL)
        stage.measure()
        draw(stage)


async def run(
    broker: BrokerAtHand,
    pace: Pace,
    console: Console,
    *,
    draw: Callable[[Stage], object] = bool,
    say: Callable[[str], object] = bool,
) -> bool:
    """Run the demo; return whether the books are balanced.

    Args:
        broker: the broker.
        pace: the speed.
        console: receives the books.
        draw: draws the display, several times a second.
        say: called with the title of each act.
    """
    uri = f"bmq://bmq.test.persistent.priority/demo-{os.getpid()}"
    late, rest = parties = [Party("late", LATE), Party("the rest", REST)]
    messages = []
    for number, (record, _) in enumerate(zip(records(), range(pace.count), strict=False)):
        plain = message(record)
        messages.append(bmq.PutMessage(plain.data, properties={**(plain.properties or {}), "record": number}))
    arrived = asyncio.Event()
    async with AsyncExitStack() as stack:
        log = stack.enter_context(last_line())
        producing = await stack.enter_async_context(
            bmq.connect(broker.uri, max_unacked_messages=UNACKED, reconnect_delays=delays)
        )
        consuming = await stack.enter_async_context(bmq.connect(broker.uri, reconnect_delays=delays))
        out = await producing.open_queue(uri, write=True)
        into = await consuming.open_queue(
            uri, read=True, default_subscription=False, max_unconfirmed_messages=WINDOW
        )
        tasks = []
        for party in parties:
            consumer = await into.subscribe(party.expression)
            tasks.append(asyncio.create_task(party.consume(consumer, arrived)))
        stage = Stage(len(messages), out, parties, log)
        tasks.append(asyncio.create_task(show(stage, draw)))
        acts = asyncio.create_task(play(pace, stage, broker, rest, say))
        report = await out.post_many(messages, rate=pace.rate)
        await acts
        failed = {failure.index for failure in report.failures}
        acknowledged = set(range(len(messages))) - failed
        while not acknowledged <= late.confirmed.keys() | rest.confirmed.keys():
            await arrived.wait()
            arrived.clear()
        stage.act = LAST_ACT
        stage.measure()
        draw(stage)
        posted, reconnects = out.stats(), producing.stats().reconnects + consuming.stats().reconnects
        await into.close()
        for task in tasks[2:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return balance(console, len(messages), acknowledged, parties, posted, reconnects)


def delays() -> Iterator[float]:
    """Delays between attempts to connect, for a broker on this machine."""
    while True:
        yield 0.2


def balance(
    console: Console,
    count: int,
    acknowledged: set[int],
    parties: Sequence[Party],
    posted: bmq.stats.QueueStats,
    reconnects: int,
) -> bool:
    """Print the books, and return whether they are balanced."""
    confirmed = sum((party.confirmed for party in parties), Counter[int]())
    lost = acknowledged - confirmed.keys()
    unknown = confirmed.keys() - acknowledged
    wrong = sum(party.wrong for party in parties)
    table = Table(title="the books", title_justify="left")
    table.add_column("records", no_wrap=True)
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("which means")
    for what, number, meaning in [
        ("posted", count, "departures read from examples/data"),
        ("acknowledged", len(acknowledged), "stored by the broker"),
        *(
            (f"confirmed: {party.name}", len(party.confirmed), f"handled; {party.expression}")
            for party in parties
        ),
        ("lost", len(lost), "acknowledged, and never handled"),
        (
            "handled twice",
            sum(times > 1 for times in confirmed.values()),
            "delivered again after the crash, which lost the confirmations",
        ),
        ("wrong consumer", wrong, "handled by a consumer whose expression does not match"),
        (
            "sent again",
            posted.retransmitted,
            "the crash lost their answers; the broker knows their GUIDs and keeps one copy of each",
        ),
        ("connections restored", reconnects, "the producer's and the consumers'"),
    ]:
        table.add_row(what, f"{number:,}", meaning)
    console.print(table)
    balanced = len(acknowledged) == count and not (lost or unknown or wrong)
    console.print(
        "The books are balanced: nothing was lost." if balanced else "[b red]The books are not balanced.",
    )
    return balanced


async def main() -> int:
    parser = argparse.ArgumentParser(description="Records flow, a consumer is slow, the broker crashes.")
    parser.add_argument("--broker", help="a broker to use instead of the embedded one")
    parser.add_argument("--count", type=int, default=4015, help="at most this many records")
    parser.add_argument("--fast", action="store_true", help="twelve times as fast")
    options = parser.parse_args()
    pace = Pace(min(options.count, sum(1 for _ in records())), 1 / 12 if options.fast else 1.0)
    console = Console()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(broker_at_hand(options.broker))
        console.print(f"broker: {options.broker or broker.uri + ' (embedded)'}")
        if console.is_terminal and console.width >= NARROWEST:
            live = stack.enter_context(Live(console=console, auto_refresh=False))

            def draw(shown: Stage) -> None:
                live.update(shown, refresh=True)
                if shown.act == LAST_ACT:
                    live.stop()  # the books come below

            balanced = await run(broker, pace, console, draw=draw)
        else:
            balanced = await run(broker, pace, console, say=console.print)
    console.print(NEXT, markup=False, highlight=False)
    return 0 if balanced else 1


if __name__ == "__main__":
    try:
        sys.exit(bmq.run(main()))
    except bmq.Error as error:
        sys.exit(f"{type(error).__name__}: {error}")
