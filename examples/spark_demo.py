# SPDX-License-Identifier: Apache-2.0
# pyright: basic
"""A Spark pipeline from queue to queue, killed and restarted on the way; then the books are balanced.

    make demo-spark            # or: python examples/spark_demo.py
    make demo-spark ARGS=--fast

Four days of New York departures are posted to a queue of the embedded broker, a little out of order. The
process ``spark_pipeline.py`` computes totals by hour and airline, and posts the totals to a second queue,
which this program reads. Twice the driver is killed with SIGKILL in the middle of a batch, and restarted from
its checkpoint.

At the end the totals are compared with totals counted from the file by a few lines of Python. The exit status
is 0 if every record was posted, each window came out exactly once with correct numbers, and the first queue
is empty. Throughput and lag over time are drawn into an SVG file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

from demo import Curve
from producer import message, records
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from spark_demo_picture import Sample, picture, rates

import bmq
import bmq.admin
import bmq.spark
from bmq.broker import Broker, DomainConfig, Limits, Mode

HERE = Path(__file__).parent
FLIGHTS = "bmq://departures/flights"
TOTALS = "bmq://departures/totals"
ROOM = Limits(messages=100_000, bytes=2**28)
DOMAIN = DomainConfig(
    name="departures", mode=Mode.PRIORITY, domain_limits=ROOM, queue_limits=ROOM, message_ttl=3600
)
#: Records arrive at most this much later than scheduled: less than the pipeline waits.
DISORDER = timedelta(minutes=25)
FIRST = 200  # records, with which Spark starts
CAUGHT_UP = 3.0  # seconds of records that wait
INTERVAL = 0.25
PATIENCE = 120.0
WIDTH = 96

Hour = tuple[str, str]


class Numbers(NamedTuple):
    """The totals of one hour and airline."""

    flights: int
    late: int
    cancelled: int


Record = dict[str, str | int]


def scheduled(record: Record) -> datetime:
    return datetime.fromisoformat(str(record["scheduled"]))


def truth() -> dict[Hour, Numbers]:
    """The expected totals, counted without Spark."""
    found: dict[Hour, Numbers] = {}
    for record in records():
        hour = scheduled(record).strftime("%Y-%m-%dT%H:00")
        flights, late, cancelled = found.get((hour, str(record["airline"])), (0, 0, 0))
        found[hour, str(record["airline"])] = Numbers(
            flights + 1,
            late + (int(record.get("dep_delay", 0)) > 60),
            cancelled + (record["status"] == "cancelled"),
        )
    return found


def messages() -> list[bmq.PutMessage]:
    """The records without the airline's name, and somewhat out of order."""
    chance = random.Random(1)
    found = [(scheduled(record) + chance.random() * DISORDER, record) for record in records()]
    return [flight(record) for _, record in sorted(found, key=lambda each: each[0])]


def flight(record: Record) -> bmq.PutMessage:
    plain = message({name: value for name, value in record.items() if name != "airline"})
    at = round(scheduled(record).timestamp() * 1000)
    return bmq.PutMessage(plain.data, properties={**(plain.properties or {}), "scheduled": at})


def last() -> bmq.PutMessage:
    """The end of the day: an event of the next day, which ends every earlier window."""
    at = max(scheduled(record) for record in records()) + timedelta(days=1)
    return bmq.PutMessage(b"the end", properties={"scheduled": round(at.timestamp() * 1000), "carrier": "-"})


class Driver:
    """The pipeline, in a process to be killed.

    A process that ends by itself is restarted, as in production: Spark gives its Python workers ten seconds
    to start, which is not enough on a busy machine.

    Attributes:
        state: present activity, for people.
        batches: reports of finished batches.
        repeated: batches under way at a kill.
        failures: number of times the process has ended by itself.
    """

    def __init__(self, broker: str, folder: Path) -> None:
        self._command = [str(HERE / "spark_pipeline.py"), "--broker", broker, "--folder", str(folder)]
        self._checkpoint = folder / "checkpoint"
        self._log = folder / "driver.log"
        self.state = ""
        self.batches: list[dict[str, int]] = []
        self.repeated: list[int] = []
        self.failures = 0
        self._started = False
        self._wanted = False
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process; return when its query runs.

        Raises:
            RuntimeError: the process cannot be started.
        """
        self._wanted, self._started = True, False
        self._running = asyncio.create_task(self._run())
        await until(lambda: self.alive and self._started)

    @property
    def alive(self) -> bool:
        """Whether the process runs, or is being restarted.

        Raises:
            RuntimeError: the process was given up.
        """
        if self._wanted and self._running is not None and self._running.done():
            said = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"the pipeline ends by itself: {said[-2000:]}")
        return self._wanted

    async def _run(self) -> None:
        while self._wanted and self.failures < 4:
            self.state = "[yellow]starting"
            with self._log.open("ab") as log:
                self._process = process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *self._command,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            assert process.stdout is not None
            async for line in process.stdout:
                said = json.loads(line)
                if "started" in said:
                    self._started = True
                    self.state = "[green]up"
                else:
                    self.batches.append(said)
            await process.wait()
            self.failures += self._wanted

    @property
    def half_done(self) -> int | None:
        """The batch under way: planned, and not committed."""
        return max(self._noted("offsets") - self._noted("commits"), default=None)

    @property
    def done_again(self) -> int:
        """Number of interrupted batches finished by now."""
        done = max(self._noted("commits"), default=-1)
        return sum(batch <= done for batch in self.repeated)

    def _noted(self, kind: str) -> set[int]:
        return {int(each.name) for each in (self._checkpoint / kind).glob("[0-9]*")}

    async def kill(self) -> None:
        """Kill the process and its children by SIGKILL, in the middle of a batch if possible."""
        with suppress(TimeoutError):
            async with asyncio.timeout(15):
                await until(lambda: self.alive and self.half_done is not None, 0.005)
        await self._end(signal.SIGKILL)
        batch = self.half_done
        if batch is not None:
            self.repeated.append(batch)
        self.state = "[b red]killed[/] " + (
            "between batches" if batch is None else f"in the middle of batch {batch}"
        )

    async def stop(self) -> None:
        """End the process cleanly."""
        await self._end(signal.SIGTERM)
        self.state = "ended"

    async def _end(self, number: signal.Signals) -> None:
        self._wanted = False
        process, running = self._process, self._running
        if process is None or running is None or process.returncode is not None:
            return
        if number is signal.SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        await running


@dataclass
class Books:
    """The content of the second queue."""

    windows: dict[Hour, Numbers] = field(default_factory=dict)
    times: Counter[Hour] = field(default_factory=Counter)
    newest: deque[str] = field(default_factory=lambda: deque(maxlen=6))

    def enter(self, data: bytes) -> None:
        total = json.loads(data)
        hour = str(total["hour"])[:16], str(total.get("airline", total["carrier"]))
        numbers = Numbers(total["flights"], total["late"], total["cancelled"])
        self.windows[hour] = numbers
        self.times[hour] += 1
        self.newest.append(
            f"{hour[0]}  {hour[1]:<27} {numbers.flights:3} flights, {numbers.late} of them late"
        )

    @property
    def flights(self) -> int:
        return sum(numbers.flights for numbers in self.windows.values())


class Stage:
    """The display during the demo."""

    def __init__(self, count: int, out: bmq.Queue, driver: Driver, books: Books) -> None:
        self.samples: list[Sample] = []
        self.down: list[tuple[float, float]] = []
        self.act = ""
        self._count = count
        self._out = out
        self._driver = driver
        self._books = books
        self._began = time.perf_counter()
        self._curves = [Curve() for _ in range(3)]

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._began

    def measure(self, waiting: int) -> None:
        """Note the present numbers; ``waiting`` counts messages stored and not confirmed."""
        sample = Sample(self.now, self._out.stats().acknowledged, waiting)
        before = self.samples[-1] if self.samples else Sample(0, 0, 0)
        self.samples.append(sample)
        values = (sample.posted - before.posted, waiting, sample.done - before.done)
        for curve, value in zip(self._curves, values, strict=True):
            curve.add(value)

    @property
    def waiting(self) -> int:
        return self.samples[-1].waiting if self.samples else 0

    def __rich__(self) -> RenderableType:
        driver, books = self._driver, self._books
        posted = self._out.stats().acknowledged
        table = Table.grid(padding=(0, 2))
        for width in (11, 40, 24):
            table.add_column(width=width, no_wrap=True)
        table.add_row("[b]producer", f"{posted:,} of {self._count:,} posted", str(self._curves[0]))
        table.add_row("[b]queue", f"{self.waiting:,} waiting: the lag", str(self._curves[1]))
        table.add_row("[b]Spark", driver.state, str(self._curves[2]))
        if driver.batches:
            newest = driver.batches[-1]
            table.add_row("", f"batch {newest['batch']}: {newest['rows']} records", "")
        table.add_row("[b]totals", f"{len(books.windows):,} windows, {books.flights:,} flights", "")
        lines = [f"[dim]{line}" for line in books.newest]
        body = Group(f"[b yellow]{self.act}", "", table, "", *lines, *[""] * (6 - len(lines)))
        return Panel(
            body, title=f"{self._count:,} New York departures", subtitle=f"{self.now:.0f} s", width=WIDTH
        )


async def receive(totals: bmq.Queue, books: Books) -> None:
    async for received in totals:
        async with received:
            books.enter(received.data)


async def watch(admin: bmq.admin.Admin, stage: Stage, draw: Callable[[Stage], object]) -> None:
    flights = admin.queue(FLIGHTS)
    while True:
        stage.measure((await flights.depth()).messages)
        draw(stage)
        await asyncio.sleep(INTERVAL)


async def until(done: Callable[[], bool], pause: float = INTERVAL) -> None:
    """Wait for a condition that can only be polled."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(pause)


def reached(out: bmq.Queue, count: int) -> bool:
    return out.stats().acknowledged >= count


async def emptied(queue: bmq.admin.QueueAdmin) -> None:
    """Wait until a queue has no more messages."""
    while True:
        if not (await queue.depth()).messages:
            return
        await asyncio.sleep(INTERVAL)


async def patiently(done: Callable[[], bool], changes: Callable[[], object]) -> bool:
    """Wait for the end; give up after a long time without a change."""
    before, since = changes(), time.perf_counter()
    while not done():
        await asyncio.sleep(INTERVAL)
        if (now := changes()) != before:
            before, since = now, time.perf_counter()
        elif time.perf_counter() - since > PATIENCE:
            return False
    return True


async def run(
    seconds: float | None,
    kills: int,
    folder: Path,
    console: Console,
    *,
    draw: Callable[[Stage], object] = bool,
    say: Callable[[str], object] = bool,
) -> tuple[bool, Stage]:
    """Run the demo; return whether the books are balanced, and the measurements.

    Args:
        seconds: time for posting records; None for a time suited to the machine.
        kills: number of kills of the driver.
        folder: for the checkpoint.
        console: receives the books.
        draw: draws the display, several times a second.
        say: called with each change.
    """
    flights, books, expected = messages(), Books(), truth()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(port=0, domains=[DOMAIN]))
        session = await stack.enter_async_context(bmq.connect(broker.uri))
        admin = await stack.enter_async_context(bmq.admin.connect(broker.uri))
        out = await session.open_queue(FLIGHTS, write=True)
        totals = await session.open_queue(TOTALS, read=True)
        driver = Driver(broker.uri, folder)
        stack.push_async_callback(driver.stop)
        stage = Stage(len(flights), out, driver, books)
        tasks = [asyncio.create_task(watch(admin, stage, draw)), asyncio.create_task(receive(totals, books))]

        def act(text: str) -> None:
            stage.act = text
            say(f"{stage.now:4.0f} s  {text}")

        act("Spark starts, and runs its first batch.")
        first = await out.post_many(flights[:FIRST])
        await driver.start()
        await until(lambda: driver.alive and bool(driver.batches) and not stage.waiting)
        # On a slow machine Spark takes longer to start and to restart: post more slowly there.
        seconds = seconds or 2 * (kills + 1) * stage.now
        act(f"Records are posted, for {seconds:.0f} s. The pipeline computes totals by hour and airline.")
        rate = len(flights) / seconds
        posting = asyncio.create_task(out.post_many(flights[FIRST:], rate=rate))
        for number in range(1, kills + 1):
            enough = len(flights) * number // (kills + 1)
            await until(partial(reached, out, enough))
            await until(lambda: driver.alive and (posting.done() or stage.waiting <= CAUGHT_UP * rate))
            await driver.kill()
            killed = stage.now
            act(f"The driver was killed. {stage.waiting:,} records wait, and more are posted.")
            await asyncio.sleep(seconds / 15)
            await driver.start()
            stage.down.append((killed, stage.now))
            act("The driver is back, from its checkpoint: the interrupted batch runs again.")
        report = await posting
        await out.post(last().data, properties=last().properties)
        act("All records are posted. A final record, of the next day, ends the last windows.")
        total = sum(numbers.flights for numbers in expected.values())
        await patiently(
            lambda: driver.alive and books.flights >= total and not stage.waiting,
            lambda: (books.flights, stage.waiting),
        )
        stage.measure((await admin.queue(FLIGHTS).depth()).messages)
        act("All records are counted.")
        draw(stage)
        await driver.stop()
        await emptied(admin.queue(TOTALS))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    acknowledged = first.acknowledged + report.acknowledged
    console.print(speed(stage.samples), soft_wrap=True)
    return balance(console, acknowledged, expected, books, driver, stage.waiting), stage


def speed(samples: Sequence[Sample]) -> str:
    """Throughput and lag in a sentence."""
    done = max(rates(samples, lambda sample: sample.done))
    lag = max(sample.waiting for sample in samples)
    whole = samples[-1].done / samples[-1].at
    return (
        f"Throughput: {whole:,.0f} records a second with the start of Spark, and {done:,.0f} in the best "
        f"second. Lag: {lag:,} records at most, {samples[-1].waiting:,} at the end."
    )


def balance(
    console: Console,
    acknowledged: int,
    expected: dict[Hour, Numbers],
    books: Books,
    driver: Driver,
    left: int,
) -> bool:
    """Print the books, and return whether they are balanced."""
    total = sum(numbers.flights for numbers in expected.values())
    missing = expected.keys() - books.windows.keys()
    wrong = {hour for hour, numbers in books.windows.items() if expected.get(hour) != numbers}
    twice = sum(times > 1 for times in books.times.values())
    table = Table(title="the books", title_justify="left")
    table.add_column("records and windows")
    table.add_column("number", justify="right")
    for what, number in [
        ("records in the file", total),
        ("posted, and acknowledged by the broker", acknowledged),
        ("counted in the resulting windows", books.flights),
        ("left in the first queue", left),
        ("left out by Spark as too late", sum(each["too late"] for each in driver.batches)),
        ("windows, counted without Spark", len(expected)),
        ("resulting windows", len(books.windows)),
        ("windows missing", len(missing)),
        ("windows with wrong numbers", len(wrong)),
        ("windows posted twice", twice),
        ("batches interrupted by a kill", len(driver.repeated)),
        ("batches repeated after the restart", driver.done_again),
        ("unplanned ends of a driver", driver.failures),
    ]:
        table.add_row(what, f"{number:,}")
    console.print(table)
    balanced = acknowledged == total == books.flights and not (missing or wrong or twice or left)
    console.print(
        "The books are balanced: no record was lost, and none was counted twice."
        if balanced
        else "[b red]The books are not balanced.",
        soft_wrap=True,
    )
    return balanced


async def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A Spark pipeline, killed on the way, loses nothing.")
    parser.add_argument("--fast", action="store_true", help="posted in ten seconds, killed once: for scripts")
    parser.add_argument("--kills", type=int, help="number of kills of the driver (default: 2)")
    parser.add_argument(
        "--seconds", type=float, help="time for posting the records (default: by the machine)"
    )
    parser.add_argument("--picture", default="build/demo-spark.svg", help="default: %(default)s")
    options = parser.parse_args(arguments)
    seconds = options.seconds or (10.0 if options.fast else None)
    kills = options.kills if options.kills is not None else 1 if options.fast else 2
    bmq.spark.check_java()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bmq-demo-spark-") as name:
        folder = Path(name)
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                balanced, stage = await run(
                    seconds, kills, folder, console, draw=partial(live.update, refresh=True)
                )
        else:
            balanced, stage = await run(
                seconds, kills, folder, console, say=partial(console.print, soft_wrap=True)
            )
    target = save(stage, options.picture)
    console.print(f"Throughput and lag over time: {target}", soft_wrap=True)
    return 0 if balanced else 1


def save(stage: Stage, name: str) -> Path:
    """Draw the measurements, and return the path of the picture."""
    target = Path(name).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(picture(stage.samples, stage.down), encoding="utf-8")
    return target


if __name__ == "__main__":
    try:
        sys.exit(bmq.run(main()))
    except (bmq.Error, RuntimeError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
