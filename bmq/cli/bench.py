# SPDX-License-Identifier: Apache-2.0
"""``bmq bench``."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import bmq
from bmq._words import number, size
from bmq.cli.output import BadInput, ExitStatus, emit, note, progress_bar
from bmq.cli.records import ABSENT, Form, fields_of, show
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

_DOMAIN = "bmq.test.mem.priority"
_PHASES = ("produce", "consume", "roundtrip")
_WINDOW = 10_000
_WINDOW_BYTES = 256 * 1024 * 1024
_TURN = 1000
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class _PhaseRate:
    """Amount of work, and the rate."""

    messages: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    cpu_seconds: float


@dataclass(slots=True)
class _Result:
    """The figures of all phases; a phase that was not measured has no figures."""

    broker: str
    queue: str
    size: int
    properties: int
    loop: str
    python: str
    bmq: str
    produce: _PhaseRate = ABSENT
    consume: _PhaseRate = ABSENT
    ack_seconds: dict[str, float] = ABSENT
    push_seconds: dict[str, float] = ABSENT


#: Fields of the record.
FIELDS = fields_of(_Result)


@verb("bench")
async def bench(
    target: BrokerTarget,
    queue: str | None = argument(
        "[QUEUE]", f"An empty priority queue without other users; by default a new one of {_DOMAIN}."
    ),
    messages: int = option("--messages -n", "Number of messages to produce and consume.", 100_000, min=1),
    payload: int = option("--size -s", "Size of each payload in bytes.", 256, min=1),
    properties: int = option("--properties", "Number of properties of each message.", 0, min=0, max=255),
    rounds: int = option("--rounds", "Number of consecutive round trips.", 2000, min=1),
    phases: list[str] | None = option(
        "--phase PHASE", "Only this phase: produce, consume or roundtrip. Repeatable."
    ),
    rate: float = option(
        "--rate", "Round trips per second, by a schedule; 0 for one after another.", 0.0, min=0.0
    ),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Measure a broker with this client.

    produce: from the first post to the last acknowledgement. consume: the same messages, to the last
    confirmation and the end of the queue. roundtrip: one message at a time, from post to acknowledgement and
    from post to delivery.

    With --rate, roundtrip posts by a schedule that does not wait for answers, and latencies count from the
    time at which each message was due: a broker that falls behind cannot hide it.

    [bold]Examples[/]

    $ bmq bench
    $ bmq bench --size 1024 --properties 2 --json | jq .produce.messages_per_second
    $ bmq bench bmq://bmq.test.mmap.priority/bench --phase produce --phase consume
    $ bmq bench --phase roundtrip --rounds 30000 --rate 1000
    """
    chosen = phases or list(_PHASES)
    if unknown := set(chosen) - set(_PHASES):
        raise BadInput(f"unknown phase {', '.join(sorted(unknown))}; use one of: {', '.join(_PHASES)}")
    if ("produce" in chosen) is not ("consume" in chosen) and chosen != ["produce"]:
        raise BadInput(
            "consume takes the messages of produce, and a round trip needs an empty queue: select produce "
            "and consume together"
        )
    uri = queue or f"bmq://{_DOMAIN}/bench-{os.getpid()}-{time.time_ns()}"
    message = bmq.PutMessage(
        os.urandom(payload), {f"property{index}": index for index in range(properties)} or None
    )
    result = _Result(
        broker=target.uri,
        queue=uri,
        size=payload,
        properties=properties,
        loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        python=sys.version.split()[0],
        bmq=bmq.__version__,
    )
    if queue is not None and chosen != ["produce"]:
        await _refuse_used(target, uri)
    if "produce" in chosen:
        result.produce = await _produce(target, uri, message, messages)
    if "consume" in chosen:
        result.consume = await _consume(target, uri, payload, messages)
    if "roundtrip" in chosen:
        acks, pushes = await _round_trips(target, uri, message, rounds, rate)
        result.ack_seconds, result.push_seconds = _percentiles(acks), _percentiles(pushes)
    if output is not Form.TABLE:
        show(output, FIELDS, [result], {})
        return ExitStatus.OK
    for phase, work in {"produce": result.produce, "consume": result.consume}.items():
        if phase in chosen:
            emit(
                f"{phase:<8}  {number(work.messages_per_second):>9} messages/s  "
                f"{size(work.bytes_per_second):>10}/s  {work.seconds:7.2f} s, {work.cpu_seconds:.2f} s of CPU"
            )
    if "roundtrip" in chosen:
        for what, found in {"acknowledgement": result.ack_seconds, "delivery": result.push_seconds}.items():
            told = "  ".join(f"{name} {value * 1e6:,.0f}" for name, value in found.items())
            emit(f"post to {what}, microseconds: {told}")
    what = f"{number(messages)} messages of {size(payload)}, {properties} properties"
    note(f"{target.uri}, {what}, {result.loop}")
    return ExitStatus.OK


async def _refuse_used(target: BrokerTarget, uri: str) -> None:
    """Refuse a queue with messages: bench would take and confirm the messages."""
    try:
        async with target.admin() as admin:
            depth = await admin.queue(uri).depth()
    except bmq.errors.AdminError:
        return  # the queue does not exist yet
    if depth.messages:
        raise BadInput(
            f"{uri} has {number(depth.messages)} other messages, and bench would take these messages: name "
            "an empty queue, or omit the name for a new queue"
        )


def _rate(messages: int, payload: int, started: tuple[float, float]) -> _PhaseRate:
    seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return _PhaseRate(messages, seconds, messages / seconds, messages * payload / seconds, cpu)


async def _produce(target: BrokerTarget, uri: str, message: bmq.PutMessage, count: int) -> _PhaseRate:
    def items(show: Callable[[int], None]) -> Iterator[bmq.PutMessage]:
        for start in range(0, count, _TURN):
            turn = min(_TURN, count - start)
            yield from [message] * turn
            show(start + turn)

    async with target.connect() as session:
        opened = await session.open_queue(uri, write=True)
        with progress_bar("produce", count, quiet=False) as show:
            started = time.perf_counter(), time.process_time()
            report = await opened.post_many(items(show))
            rate = _rate(count, len(message.data), started)
    report.raise_for_failures()
    return rate


async def _consume(target: BrokerTarget, uri: str, payload: int, count: int) -> _PhaseRate:
    async with target.connect() as session:
        opened = await session.open_queue(
            uri, read=True, max_unconfirmed_messages=_WINDOW, max_unconfirmed_bytes=_WINDOW_BYTES
        )
        with progress_bar("consume", count, quiet=False) as show:
            started = time.perf_counter(), time.process_time()
            left = count
            while left > 0:
                batch = await opened.receive_many(_TURN, target.timeout)
                batch.confirm()
                left -= len(batch)
                show(count - left)
            await opened.close()
            return _rate(count, payload, started)


async def _round_trips(
    target: BrokerTarget, uri: str, message: bmq.PutMessage, rounds: int, rate: float
) -> tuple[list[float], list[float]]:
    """Return the seconds from each post to the acknowledgement, and to the delivery.

    With a rate, no post waits for an answer, and the seconds count from the time at which each message was
    due.
    """
    acks: list[float] = []
    pushes: list[float] = []
    clock = time.perf_counter

    def acknowledged(due: float, _: asyncio.Future[bmq.Ack]) -> None:
        acks.append(clock() - due)

    async with target.connect() as session, asyncio.TaskGroup() as receiving:
        opened = await session.open_queue(uri, read=True, write=True, max_unconfirmed_messages=_WINDOW)
        begin = clock() + 0.05

        async def receive() -> None:
            while len(pushes) < rounds:  # an only consumer has the order of the posts
                batch = await opened.receive_many(_TURN, target.timeout)
                now = clock()
                first = len(pushes)
                pushes.extend(now - begin - (first + place) / rate for place in range(len(batch)))
                batch.confirm()

        if rate:
            receiving.create_task(receive())
        for place in range(rounds):
            due = begin + place / rate if rate else clock()
            if rate:
                await asyncio.sleep(max(0.0, due - clock()))
            while True:
                try:
                    posted = opened.post_nowait(message.data, properties=message.properties)
                except bmq.BufferFull:
                    await asyncio.sleep(0.001)
                else:
                    break
            posted.add_done_callback(partial(acknowledged, due))
            if not rate:
                received = await opened.receive(target.timeout)
                pushes.append(clock() - due)
                if received.guid != (await posted).guid:
                    raise BadInput(
                        f"{uri} has other messages, or other consumers: bench cannot measure round trips"
                    )
                received.confirm()
        await opened.flush()
    return acks, pushes


def _percentiles(values: list[float]) -> dict[str, float]:
    """Return ``{"p50": ..., ..., "max": ...}``: the smallest value that this percentage does not exceed."""
    ordered = sorted(values)
    places = {f"p{percent:g}": math.ceil(len(ordered) * percent / 100) for percent in _PERCENTILES}
    return {name: ordered[place - 1] for name, place in places.items()} | {"max": ordered[-1]}
