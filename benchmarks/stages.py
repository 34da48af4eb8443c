# SPDX-License-Identifier: Apache-2.0
"""The cost of each microsecond: every stage of a message's path, timed separately.

    python benchmarks/stages.py [--output NAME]

No broker, no socket: each stage is called with the output of the previous stage, thousands of messages at a
time. The shortest of many runs counts, to exclude other load on the machine. In a real run, a message costs
more than the sum: the event loop, system calls, and shared caches.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any

from harness import machine
from report import SAFELY
from rich.console import Console
from rich.table import Table

from bmq.client._line import ConsumerInput
from bmq.client._outcomes import PostBatch
from bmq.client.interceptors import Hooks
from bmq.client.message import Message, MessageBatch, MessageLine
from bmq.engine.counting import ReceiveCounts
from bmq.protocol.client.outbox import Outbox
from bmq.protocol.client.posts import Posts
from bmq.protocol.client.redelivery import Confirmations
from bmq.protocol.client.subscription import SubscriptionOptions
from bmq.protocol.framing import Framer
from bmq.subscriptions import Expression, TagFilter
from bmq.wire.ack import encode_acks
from bmq.wire.constants import EventType, PushFlags, PutFlags
from bmq.wire.crc import crc32c
from bmq.wire.event import HEADER_SIZE, pack_event_header, read_event
from bmq.wire.guid import GuidGenerator
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.properties import SchemaIds, encode_properties
from bmq.wire.push import decode_push_runs, encode_push
from bmq.wire.put import encode_puts

COUNT, RUNS, TURNS = 2000, 10, 6
PAYLOAD = bytes(256)
PROPERTIES = {"CustomerId": 1234, "OrderType": "EXPRESS"}
READ_BOTH = "with two properties: find and read both"
READ = "with two properties: message.properties alone"
NUMBERS, TEXTS = 'batch.column("CustomerId")', 'batch.column("OrderType")'
MATCHES = "Expression.matches, one comparison, properties not read before"
MATCHES_AGAIN = "the same, properties read before"


class Timed:
    """A measurement: the shortest time of many runs over COUNT messages, in microseconds a message.

    Other load on a machine comes in phases, so all measurements take turns (:meth:`again`).
    """

    def __init__(self, run: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> None:
        self._run, self._prepare = run, prepare
        self._best = float("inf")
        self._without: Timed | None = None

    def __sub__(self, other: Timed) -> Timed:
        """Return the difference to a measurement of a part."""
        rest = Timed(self._run, self._prepare)
        rest._without = other
        return rest

    def again(self) -> None:
        """Make more runs."""
        for _ in range(RUNS):
            ready = self._prepare()
            gc.collect()
            gc.disable()
            begin = time.perf_counter()
            self._run(ready)
            self._best = min(self._best, time.perf_counter() - begin)
            gc.enable()
        if self._without is not None:
            self._without.again()

    @property
    def us(self) -> float:
        """Microseconds a message."""
        least = self._best / COUNT * 1e6
        return least if self._without is None else least - self._without.us


Stages = list[tuple[str, Timed]]


def least(run: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> float:
    """Measure one stage: microseconds a message."""
    timed = Timed(run, prepare)
    for _ in range(TURNS):
        timed.again()
    return timed.us


def repeat(call: Callable[[], object]) -> Callable[[Any], None]:
    def run(_: Any) -> None:
        for _ in range(COUNT):
            call()

    return run


def producing() -> Stages:
    generator = GuidGenerator(b"abcdef")
    guids = [generator.next(1) for _ in range(COUNT)]
    outgoing = [(guid, PAYLOAD, int(PutFlags.ACK_REQUESTED), 0, 0) for guid in guids]
    queue: Any = SimpleNamespace(
        q_id=0,
        unacked_bytes=0,
        admit=lambda count: True,
        posts_answered=lambda count, size, seconds: None,
        uri_text="bmq://d/q",
    )
    batch = PostBatch()

    def empty() -> Posts:
        return Posts(Outbox(Confirmations(enabled=True)), COUNT, 2**30)

    def posted() -> Posts:
        posts = empty()
        batch.pending = COUNT
        posts.post_many(queue, list(outgoing), batch, 0.0)
        return posts

    def filled() -> Outbox:
        outbox = Outbox(Confirmations(enabled=True))
        outbox.put_many(0, list(outgoing))
        return outbox

    acks = read_event(encode_acks([(0, 0, guid, 0) for guid in guids]))

    def answer(posts: Posts) -> None:
        posts.acked(acks, 0.0)
        for token, count in posts.take_accepted():
            token.accepted(count)

    def post(posts: Posts) -> None:
        posts.post_many(queue, list(outgoing), batch, 0.0)

    ids = SchemaIds()
    ids.encode(PROPERTIES)
    guid, crc, encode = (
        Timed(lambda _: generator.next_list(1, COUNT)),
        Timed(repeat(lambda: crc32c(PAYLOAD))),
        Timed(lambda _: encode_puts(0, outgoing)),
    )
    return [
        ("make a GUID", guid),
        ("CRC32-C of 256 bytes", crc),
        ("header, data, padding: one PUT message", encode - crc),
        ("a place in the window", Timed(post, empty)),
        ("copy into the PUT event", Timed(lambda outbox: outbox.take(), filled) - encode),
        ("read the ACK, take the post out of the window, count it", Timed(answer, posted)),
        ("with two properties: encode them in front", Timed(repeat(lambda: ids.encode(PROPERTIES, PAYLOAD)))),
    ]


class Handle:
    """The part of a queue that confirmations need."""

    q_id = sub_id = 0
    in_session = True
    confirmed = None


def consuming() -> Stages:
    guids = [number.to_bytes(16, "big") for number in range(1, COUNT + 1)]
    options = encode_sub_queue_ids((1,))
    body = b"".join(encode_push(0, guid, PAYLOAD + padding(len(PAYLOAD)), options) for guid in guids)
    event = pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body
    pushes = decode_push_runs(event, HEADER_SIZE)[0]
    driver: Any = SimpleNamespace(
        options=SimpleNamespace(max_message_size=2**26),
        backlog=SimpleNamespace(count=lambda messages, size: None),
        connection=SimpleNamespace(loop=asyncio.new_event_loop()),
    )
    end: Any = SimpleNamespace(
        driver=driver, subscriptions=None, uri="bmq://d/q", counts=ReceiveCounts(), max_message_size=2**26
    )
    arrival = 0.0, 0
    consumer = MessageLine(end, Hooks(()), None, [None], SubscriptionOptions(1000, 2**30, 0), None)
    consumer.fire(ConsumerInput.BEGIN)

    def line() -> deque[Any]:
        consumer.clear()
        consumer.deliver(pushes, [(0, 0)], arrival)
        return consumer.messages

    def nothing_in_line() -> None:
        consumer.clear()

    def pop(messages: deque[Any]) -> None:
        while messages:
            consumer.pop()

    received = [Message(consumer, push, arrival) for push in pushes]
    data = encode_properties(PROPERTIES, new=True) + PAYLOAD
    flags = int(PushFlags.MESSAGE_PROPERTIES)
    with_properties: list[Any] = [(0, (1,), guid, flags, 2, 0, data) for guid in guids]

    def fresh() -> list[Message]:
        return [Message(consumer, push, arrival) for push in with_properties]

    def read_properties(messages: list[Message]) -> None:
        for message in messages:
            properties = message.properties
            properties["CustomerId"]
            properties["OrderType"]

    def only_read(messages: list[Message]) -> None:
        for message in messages:
            assert message.properties is not None

    def column(name: str) -> Callable[[list[Message]], object]:
        return lambda messages: MessageBatch(consumer, messages).column(name)

    expression, tags = Expression("CustomerId > 1000"), TagFilter(any_of=["urgent"])

    def read() -> list[Message]:
        messages = fresh()
        for message in messages:
            assert message.properties
        return messages

    def matches(selector: Any) -> Callable[[list[Message]], None]:
        def run(messages: list[Message]) -> None:
            for message in messages:
                selector.matches(message.properties)

        return run

    confirms = Confirmations(enabled=True)
    outbox = Outbox(confirms)
    handle: Any = Handle()

    def one_by_one(_: Any) -> None:
        for guid in guids:
            confirms.add(handle, (guid,))
        outbox.take()

    def in_bulk(_: Any) -> None:
        confirms.add(handle, guids)
        outbox.take()

    return [
        ("cut the stream into events", Timed(lambda _: Framer().feed(event))),
        ("read PUSH header and options, cut out the data", Timed(lambda _: decode_push_runs(event, 8))),
        (
            "into the consumer's line",
            Timed(lambda _: consumer.deliver(pushes, [(0, 0)], arrival), nothing_in_line),
        ),
        ("out of the line, as a Message", Timed(pop, line)),
        ("message.data", Timed(lambda _: [message.data for message in received])),
        ("encode the confirmation, one by one", Timed(one_by_one)),
        ("the same for a batch", Timed(in_bulk)),
        (READ, Timed(only_read, fresh)),
        (READ_BOTH, Timed(read_properties, fresh)),
        (NUMBERS, Timed(column("CustomerId"), fresh)),
        (TEXTS, Timed(column("OrderType"), fresh)),
        (MATCHES, Timed(matches(expression), fresh)),
        (MATCHES_AGAIN, Timed(matches(expression), read)),
        ("TagFilter.matches, properties read before", Timed(matches(tags), read)),
    ]


def floors() -> Stages:
    """Measure the minimum of some stages in Python, on the same bytes, with full advance knowledge.

    Nothing is checked, and only the values are created: every decoder in Python does this much. For columns,
    the data is already a tuple, which a batch must first collect from its messages.
    """
    area = encode_properties(PROPERTIES, new=True)
    data = [area + PAYLOAD for _ in range(COUNT)]
    order = b"EXPRESS"
    at = area.index((1234).to_bytes(8, "big"))
    text = area.index(order)
    unpack = Struct(f">{at}xq{text - at - 8}x{len(order)}s").unpack_from
    every = tuple(data)

    def cut(start: int, width: int, zeros: int) -> bytearray:
        areas = b"%%.%db" % len(area) * COUNT % every
        cut = bytearray(COUNT * (width + zeros))
        for place in range(width):
            cut[place :: width + zeros] = areas[start + place :: len(area)]
        return cut

    class Holder:
        __slots__ = ("data", "values")

    def fresh() -> list[Any]:
        holders = [Holder() for _ in data]
        for holder, each in zip(holders, data, strict=True):
            holder.data = each
            holder.values = {"CustomerId": 1234}
        return holders

    def both(_: Any) -> None:
        for each in data:
            number, raw = unpack(each)
            values = {"CustomerId": number, "OrderType": raw.decode()}
            values["CustomerId"]
            values["OrderType"]

    def properties(holder: Any) -> dict[str, Any]:
        number, raw = unpack(holder.data)
        return {"CustomerId": number, "OrderType": raw.decode()}

    # With the necessary checks, and an object to return, as for a property of another type.
    first, second = area[:at], area[at + 8 : text]
    last = area[-1]
    unpack_all = Struct(f">{at}sq{len(second)}s{len(order)}s{last - 1}xB").unpack_from

    class Owner(Holder):
        __slots__ = ()

        @property
        def properties(self) -> Holder | None:
            data = self.data
            start, number, name, raw, pad = unpack_all(data)
            if start == first and name == second and pad == last:
                made = Holder()
                made.data, made.values = data, {"CustomerId": number, "OrderType": raw.decode()}
                return made
            return None

    def owners() -> list[Owner]:
        made = [Owner() for _ in data]
        for owner, each in zip(made, data, strict=True):
            owner.data = each
        return made

    def only_read(owners: list[Owner]) -> None:
        for owner in owners:
            assert owner.properties is not None

    def matches(values: dict[str, Any]) -> bool:
        return bool(values["CustomerId"] > 1000)

    def found(holders: list[Any]) -> None:
        for holder in holders:
            matches(properties(holder))

    def known(holders: list[Any]) -> None:
        for holder in holders:
            matches(holder.values)

    def found_safely(owners: list[Owner]) -> None:
        for owner in owners:
            read = owner.properties
            if read is not None:
                matches(read.values)

    return [
        (READ, Timed(only_read, owners)),
        (READ_BOTH, Timed(both)),
        (NUMBERS, Timed(lambda _: list(Struct(f">{COUNT}q").unpack(cut(at, 8, 0))))),
        (TEXTS, Timed(lambda _: cut(text, len(order), 1).decode().split("\0"))),
        (MATCHES, Timed(found, fresh)),
        (MATCHES + SAFELY, Timed(found_safely, owners)),
        (MATCHES_AGAIN, Timed(known, fresh)),
    ]


def run(console: Console, output: Path) -> None:
    """Make all measurements, print them, and write them to ``output``."""
    measured = {"Producing": producing(), "Consuming": consuming(), "floors": floors()}
    for _ in range(TURNS):
        for stages in measured.values():
            for _, stage in stages:
                stage.again()
    least_of = {name: stage.us for name, stage in measured.pop("floors")}
    document: dict[str, Any] = {"machine": machine(), "floors": least_of}
    for title, stages in measured.items():
        table = Table(title=f"{title}, us a message of 256 bytes")
        table.add_column("stage")
        table.add_column("us", justify="right")
        table.add_column("floor", justify="right")
        for name, stage in stages:
            table.add_row(name, f"{stage.us:.2f}", f"{least_of[name]:.2f}" if name in least_of else "")
        console.print(table)
        document[title.lower()] = {name: stage.us for name, stage in stages}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("build/stages"), metavar="NAME")
    run(Console(), parser.parse_args().output)


if __name__ == "__main__":
    main()
