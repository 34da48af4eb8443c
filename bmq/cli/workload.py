# SPDX-License-Identifier: Apache-2.0
"""``bmq bench --workload``: producers and consumers of a file, and the latencies under this load.

Each producer has a schedule that does not depend on answers: message number N is due N divided by the rate
seconds after the start. Latencies count from this time, also for a message that left late. A slow broker
therefore cannot slow the measurement down and hide its own delay (coordinated omission).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
import tomllib
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from msgspec import Meta, Struct, convert

from bmq import _world
from bmq._version import install
from bmq.admin.words import number
from bmq.cli.consoles import out, table
from bmq.cli.messages import BadInput, parse_properties
from bmq.cli.output import emit, note
from bmq.cli.records import Form, fields_of, show
from bmq.cli.status import ExitStatus
from bmq.cli.template import Template

if TYPE_CHECKING:
    import bmq
    from bmq.cli.target import BrokerTarget

__all__ = ["WORKLOAD_FIELDS", "run_workload"]

_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9, 99.99)
_LATENCIES: Final = ("ack_ms", "delivery_ms")
#: Property with the time at which a message was due, and property with the name of the run.
_DUE, _RUN = "bmqLoadDue", "bmqLoadRun"
_LONGEST: Final = 7 * 86_400.0
# Bounds of the histograms in microseconds: an hour.
_HIGHEST: Final = 3_600_000_000
_PATIENCE: Final = 5.0


_Count = Annotated[int, Meta(ge=1, le=1000)]


class _Producer(Struct, forbid_unknown_fields=True):
    queue: str
    rate: Annotated[float, Meta(ge=0.001, le=1_000_000)]
    count: _Count = 1
    size: Annotated[int, Meta(ge=0, le=32 * 1024 * 1024)] = 256
    properties: dict[str, bool | int | float | str] = {}

    def templates(self, where: str) -> list[Template]:
        """Return the templates of the properties."""
        return [
            Template(f"{name}={str(value).lower() if isinstance(value, bool) else value}", where)
            for name, value in self.properties.items()
        ]


class _Consumer(Struct, forbid_unknown_fields=True):
    queue: str
    count: _Count = 1
    expression: str = ""
    max_unconfirmed: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000


class _Workload(Struct, forbid_unknown_fields=True):
    duration: Annotated[float, Meta(ge=0.1, le=_LONGEST)]
    warmup: Annotated[float, Meta(ge=0.0, le=_LONGEST)] = 0.0
    producers: list[_Producer] = []
    consumers: list[_Consumer] = []


@dataclass(slots=True)
class _Run:
    """What one run measures; ``behind`` is the largest delay in seconds of a post behind its schedule."""

    name: str
    ack: Any
    delivery: Any
    measured_from: float = 0.0
    posted: int = 0
    accepted: int = 0
    refused: int = 0
    delivered: int = 0
    behind: float = 0.0


@dataclass(frozen=True, slots=True)
class _Result:
    workload: str
    broker: str
    bmq: str
    seconds: float
    posted: int
    accepted: int
    refused: int
    delivered: int
    posted_per_second: float
    delivered_per_second: float
    behind_ms: float
    ack_ms: dict[str, float]
    delivery_ms: dict[str, float]


#: Fields of the result; ``ack_ms`` and ``delivery_ms`` are objects with p50 to p99.99, max, mean and count.
WORKLOAD_FIELDS: Final = fields_of(_Result)


async def run_workload(
    target: BrokerTarget, file: str, save: str | None, compare: str | None, output: Form
) -> ExitStatus:
    """Run the workload of a file, and show its figures; FAILED if a message was refused."""
    import bmq

    workload = _read(file, target.domain)
    earlier = _earlier(compare) if compare is not None else None
    _check_folder(save)
    run = _Run(_world.token_hex(8), _histogram(), _histogram())
    try:
        await _run(target, workload, run)
    except ExceptionGroup as failures:  # the other producers and consumers have ended, too
        failure: Any = failures
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        raise failure from None
    seconds = workload.duration - workload.warmup
    result = _Result(
        workload=Path(file).name,
        broker=target.uri,
        bmq=bmq.__version__,
        seconds=seconds,
        posted=run.posted,
        accepted=run.accepted,
        refused=run.refused,
        delivered=run.delivered,
        posted_per_second=round(run.posted / seconds, 1),
        delivered_per_second=round(run.delivered / seconds, 1),
        behind_ms=round(run.behind * 1000, 3),
        ack_ms=_latency(run.ack),
        delivery_ms=_latency(run.delivery),
    )
    if save is not None:
        content = json.dumps(asdict(result), indent=1) + "\n"
        await asyncio.to_thread(Path(save).write_text, content, encoding="utf-8")
    if output is not Form.TABLE:
        show(output, WORKLOAD_FIELDS, [result], {})
    else:
        _show(result, earlier)
    if run.behind > 0.1:
        note(
            f"bmq bench: posts left up to {run.behind:.1f} s behind their schedule, because this process "
            "or the broker is too slow for the rates; the latencies include the delay"
        )
    return ExitStatus.FAILED if run.refused else ExitStatus.OK


def _check_folder(save: str | None) -> None:
    if save is not None and not Path(save).absolute().parent.is_dir():
        raise BadInput(f"--save {save}: the folder does not exist")


# ---- the workload


def _read(name: str, domain: str) -> _Workload:
    try:
        text = Path(name).read_text(encoding="utf-8")
        made = convert(tomllib.loads(text), _Workload)
    except (OSError, ValueError) as error:  # a ValidationError too
        raise BadInput(f"the workload {name} cannot be read: {error}") from error
    if made.warmup >= made.duration:
        raise BadInput(f"{name}: warmup must be less than duration, {made.duration:g} seconds")
    if not made.producers:
        raise BadInput(f"{name} has no [[producers]]")
    for place, producer in enumerate(made.producers, 1):
        where = f"{name}, producer {place}"
        producer.queue = _queue(where, producer.queue, domain)
        parse_properties([each.fill(0, {}) for each in producer.templates(where)])
    for place, consumer in enumerate(made.consumers, 1):
        consumer.queue = _queue(f"{name}, consumer {place}", consumer.queue, domain)
    return made


def _queue(where: str, given: str, domain: str) -> str:
    import bmq

    uri = f"bmq://{domain}/{given}" if domain and "://" not in given else given
    try:
        bmq.QueueUri.parse(uri)
    except bmq.InvalidURI as error:
        raise BadInput(f"{where}: {error}") from None
    return uri


# ---- the run


def _histogram() -> Any:
    """Return a histogram of microseconds with three significant digits."""
    try:
        library: Any = importlib.import_module("hdrh.histogram")
    except ModuleNotFoundError:
        raise BadInput(f"bmq bench --workload needs an extra: {install('bench')}") from None
    return library.HdrHistogram(1, _HIGHEST, 3)


def _record(histogram: Any, seconds: float) -> None:
    histogram.record_value(min(_HIGHEST, max(1, round(seconds * 1e6))))


async def _run(target: BrokerTarget, workload: _Workload, run: _Run) -> None:
    async with AsyncExitStack() as stack:

        async def connect() -> bmq.Session:
            return await stack.enter_async_context(target.connect(reconnect_timeout=target.timeout))

        readers: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as reading:
            for consumer in workload.consumers:
                for _ in range(consumer.count):
                    queue = await (await connect()).open_queue(
                        consumer.queue, read=True, max_unconfirmed_messages=consumer.max_unconfirmed
                    )
                    chosen = queue.subscribe(consumer.expression) if consumer.expression else queue
                    readers.append(reading.create_task(_consume(chosen, run)))
            writers = [
                (producer, await (await connect()).open_queue(producer.queue, write=True))
                for producer in workload.producers
                for _ in range(producer.count)
            ]
            begin = time.perf_counter() + 0.05
            run.measured_from = begin + workload.warmup
            async with asyncio.TaskGroup() as writing:
                for producer, queue in writers:
                    writing.create_task(_produce(queue, producer, begin, workload.duration, run))
            if readers:
                await _drain(run)
            for task in readers:
                task.cancel()


async def _produce(queue: bmq.Queue, producer: _Producer, begin: float, duration: float, run: _Run) -> None:
    """Post by the schedule, whatever the broker answers; then wait for all answers."""
    import bmq

    payload = b"x" * producer.size
    templates = producer.templates("the workload")
    waiting: set[asyncio.Future[bmq.Ack]] = set()

    def answered(due: float, future: asyncio.Future[bmq.Ack]) -> None:
        waiting.discard(future)
        if future.cancelled():
            return
        measured = due >= run.measured_from
        if future.exception() is not None:
            run.refused += 1
        elif measured:
            run.accepted += 1
            _record(run.ack, time.perf_counter() - due)

    for place in range(int(duration * producer.rate)):
        due = begin + place / producer.rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        properties = parse_properties([each.fill(place, {}) for each in templates])
        properties |= {_DUE: int(due * 1e9), _RUN: run.name}
        while True:
            try:
                future = queue.post_nowait(payload, properties=properties)
            except bmq.BufferFull:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                continue
            break
        if due >= run.measured_from:
            run.posted += 1
            run.behind = max(run.behind, time.perf_counter() - due)
        waiting.add(future)
        future.add_done_callback(partial(answered, due))
        if not place % 100:
            await asyncio.sleep(0)
    if waiting:
        await asyncio.wait(waiting)


async def _consume(consumer: bmq.Queue | bmq.Consumer, run: _Run) -> None:
    while True:
        batch = await consumer.receive_many(1000)
        now = time.perf_counter()
        for message in batch:
            due = message.properties.get(_DUE)
            mine = message.properties.get(_RUN) == run.name
            if mine and isinstance(due, int) and due >= int(run.measured_from * 1e9):
                run.delivered += 1
                _record(run.delivery, now - due / 1e9)
        batch.confirm()


async def _drain(run: _Run) -> None:
    """Wait until the consumers have all messages, or receive none for a second."""
    end = time.perf_counter() + _PATIENCE
    before, quiet = -1, 0
    while time.perf_counter() < end and quiet < 10:
        quiet = quiet + 1 if run.delivered == before else 0
        before = run.delivered
        await asyncio.sleep(0.1)


# ---- the result


def _latency(histogram: Any) -> dict[str, float]:
    count = int(histogram.get_total_count())
    if not count:
        return {"count": 0}
    found = {
        f"p{percent:g}": round(histogram.get_value_at_percentile(percent) / 1000, 3)
        for percent in _PERCENTILES
    }
    highest = histogram.get_value_at_percentile(100.0)
    mean = histogram.get_mean_value()
    return {**found, "max": round(highest / 1000, 3), "mean": round(mean / 1000, 3), "count": count}


def _earlier(name: str) -> dict[str, Any]:
    try:
        decoded: Any = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"the earlier result {name} cannot be read: {error}") from None
    found = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    if not all(isinstance(found.get(each), dict) for each in _LATENCIES):
        raise BadInput(f"{name} is not a result of bmq bench --save")
    return found


def _show(result: _Result, earlier: dict[str, Any] | None) -> None:
    refused = f", {number(result.refused)} refused" if result.refused else ""
    emit(
        f"{number(result.posted)} messages posted in {result.seconds:g} s "
        f"({number(result.posted_per_second)} a second), {number(result.accepted)} accepted{refused}, "
        f"{number(result.delivered)} delivered"
    )
    rows: list[list[str]] = []
    for kind, title in zip(_LATENCIES, ("due to acknowledgement", "due to delivery"), strict=True):
        latency: dict[str, float] = getattr(result, kind)
        for name, value in latency.items():
            if name == "count":
                continue
            row = [title if name == "p50" else "", name, f"{value:,.3f}"]
            if earlier is not None:
                before: Any = earlier[kind].get(name)
                known = isinstance(before, int | float) and before > 0
                row += [f"{before:,.3f}", f"{(value / before - 1) * 100:+.0f} %"] if known else ["", ""]
            rows.append(row)
    if rows:
        more = ["before>", "change>"] if earlier is not None else []
        out().print(table(["latency", "", "ms>", *more], rows))
