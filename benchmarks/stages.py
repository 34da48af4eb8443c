# SPDX-License-Identifier: Apache-2.0
"""The cost of each microsecond: every stage of a message's path, timed separately.

    python benchmarks/stages.py [--output NAME]

No broker, no socket: each stage is called with the output of the previous stage, thousands of messages at a
time. The shortest of many runs counts, to exclude other load on the machine. In a real run, a message costs
more than the sum: the event loop, system calls, and shared caches.

Each stage has a floor, measured in the same run: the least Python code with the same result, on the same
data, without checks, limits or counters (:func:`floors`).
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

from google_crc32c import value as checksum
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
from bmq.wire.confirm import encode_queue_confirms
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
TAGS = "TagFilter.matches, properties read before"
MAKE_GUID, CRC = "make a GUID", "CRC32-C of 256 bytes"
PUT = "header, data, padding: one PUT message"
WINDOW = "a place in the window"
COPY = "copy into the PUT event"
READ_ACK = "read the ACK, take the post out of the window, count it"
ENCODE = "with two properties: encode them in front"
CUT = "cut the stream into events"
READ_PUSH = "read PUSH header and options, cut out the data"
IN_LINE, OUT_OF_LINE = "into the consumer's line", "out of the line, as a Message"
DATA = "message.data"
CONFIRM, CONFIRM_BATCH = "encode the confirmation, one by one", "the same for a batch"
#: The least code of each stage, in a few words.
LEAST = {
    MAKE_GUID: "a slice of 16 prepared bytes",
    CRC: "google_crc32c alone",
    PUT: "one pack, one join",
    WINDOW: "a tuple into a dictionary",
    COPY: "one join",
    READ_ACK: "a slice, and del from the dictionary",
    ENCODE: "one pack, one concatenation",
    CUT: "one unpack an event",
    READ_PUSH: "one unpack of all",
    IN_LINE: "deque.extend",
    OUT_OF_LINE: "popleft, and an object of three attributes",
    DATA: "an attribute",
    CONFIRM: "list.append, and one join of all",
    CONFIRM_BATCH: "one join of all",
    READ: "one unpack, checked, a dictionary, an object",
    READ_BOTH: "one unpack, a dictionary",
    NUMBERS: "one unpack of all",
    TEXTS: "one decode of all",
    MATCHES: "one unpack, a dictionary, a comparison",
    MATCHES_AGAIN: "a function that compares",
    TAGS: "a function that looks into the dictionary",
}


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
        (MAKE_GUID, guid),
        (CRC, crc),
        (PUT, encode - crc),
        (WINDOW, Timed(post, empty)),
        (COPY, Timed(lambda outbox: outbox.take(), filled) - encode),
        (READ_ACK, Timed(answer, posted)),
        (ENCODE, Timed(repeat(lambda: ids.encode(PROPERTIES, PAYLOAD)))),
    ]


class Handle:
    """The part of a queue that confirmations need."""

    q_id = sub_id = 0
    in_session = True
    confirmed = None


def consuming(loop: asyncio.AbstractEventLoop) -> Stages:
    guids = [number.to_bytes(16, "big") for number in range(1, COUNT + 1)]
    options = encode_sub_queue_ids((1,))
    body = b"".join(encode_push(0, guid, PAYLOAD + padding(len(PAYLOAD)), options) for guid in guids)
    event = pack_event_header(HEADER_SIZE + len(body), EventType.PUSH) + body
    pushes = decode_push_runs(event, HEADER_SIZE)[0]
    driver: Any = SimpleNamespace(
        options=SimpleNamespace(max_message_size=2**26),
        backlog=SimpleNamespace(count=lambda messages, size: None),
        connection=SimpleNamespace(loop=loop),
    )
    end: Any = SimpleNamespace(
        driver=driver,
        confirming=None,
        subscriptions=None,
        uri="bmq://d/q",
        counts=ReceiveCounts(),
        max_message_size=2**26,
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
        (CUT, Timed(lambda _: Framer().feed(event))),
        (READ_PUSH, Timed(lambda _: decode_push_runs(event, 8))),
        (IN_LINE, Timed(lambda _: consumer.deliver(pushes, [(0, 0)], arrival), nothing_in_line)),
        (OUT_OF_LINE, Timed(pop, line)),
        (DATA, Timed(lambda _: [message.data for message in received])),
        (CONFIRM, Timed(one_by_one)),
        (CONFIRM_BATCH, Timed(in_bulk)),
        (READ, Timed(only_read, fresh)),
        (READ_BOTH, Timed(read_properties, fresh)),
        (NUMBERS, Timed(column("CustomerId"), fresh)),
        (TEXTS, Timed(column("OrderType"), fresh)),
        (MATCHES, Timed(matches(expression), fresh)),
        (MATCHES_AGAIN, Timed(matches(expression), read)),
        (TAGS, Timed(matches(tags), read)),
    ]


def floors() -> Stages:
    """Measure the minimum of each stage in Python."""
    return [*floors_of_producing(), *floors_of_consuming(), *floors_of_reading()]


def floors_of_producing() -> Stages:
    """Measure the pieces of a post: each is one call of the interpreter, or two."""
    guids = [number.to_bytes(16, "big") for number in range(1, COUNT + 1)]
    prepared = b"".join(guids)
    messages = [(guid, PAYLOAD, 1, 0, 0) for guid in guids]
    pack, end = Struct(">II i16sII").pack, padding(len(PAYLOAD))
    pieces = [b"".join((pack(1, 9, 0, guid, 0, 0), PAYLOAD, end)) for guid in guids]
    acks = read_event(encode_acks([(0, 0, guid, 0) for guid in guids]))
    first = acks.data.index(guids[0])
    stride = acks.data.index(guids[1]) - first
    area = encode_properties(PROPERTIES, new=True)
    order = b"EXPRESS"
    number, text = area.index((1234).to_bytes(8, "big")), area.index(order)
    head, between, tail = area[:number], area[number + 8 : text], area[text + len(order) :]
    pack_area = Struct(f">{len(head)}sq{len(between)}s{len(order)}s{len(tail)}s").pack

    def put(_: Any) -> None:
        made: list[bytes] = []
        for guid, data, flags, schema_id, _compression in messages:
            made.append(b"".join((pack(flags << 28 | len(data), 9, 0, guid, 0, schema_id), data, end)))

    def window(entries: dict[bytes, Any]) -> None:
        for message in messages:
            entries[message[0]] = message, 1, 0

    def filled() -> dict[bytes, Any]:
        entries: dict[bytes, Any] = {}
        window(entries)
        return entries

    def answer(entries: dict[bytes, Any]) -> None:
        data = acks.data
        for at in range(first, len(data), stride):
            del entries[data[at : at + 16]]

    def properties(_: Any) -> None:
        for _ in messages:
            values = PROPERTIES
            made = pack_area(head, values["CustomerId"], between, values["OrderType"].encode(), tail)
            assert made + PAYLOAD

    def checksums(_: Any) -> None:
        for _ in messages:
            checksum(PAYLOAD)

    return [
        (MAKE_GUID, Timed(lambda _: [prepared[at : at + 16] for at in range(0, 16 * COUNT, 16)])),
        (CRC, Timed(checksums)),
        (PUT, Timed(put)),
        (WINDOW, Timed(window, dict)),
        (COPY, Timed(lambda _: b"".join(pieces))),
        (READ_ACK, Timed(answer, filled)),
        (ENCODE, Timed(properties)),
    ]


def floors_of_consuming() -> Stages:
    """Measure the pieces of a received message without properties, up to the confirmation."""
    guids = [number.to_bytes(16, "big") for number in range(1, COUNT + 1)]
    options, end = encode_sub_queue_ids((1,)), padding(len(PAYLOAD))
    pushes = [encode_push(0, guid, PAYLOAD + end, options) for guid in guids]
    event = pack_event_header(HEADER_SIZE + sum(map(len, pushes)), EventType.PUSH) + b"".join(pushes)
    unpack_header, header = Struct(">IBBBB").unpack_from, Struct(">II i16sI")
    between = len(pushes[0]) - header.size - len(PAYLOAD) - len(end)
    messages = Struct(f"{header.format}{between}x{len(PAYLOAD)}s{len(end)}x").iter_unpack
    received = [(0, (1,), guid, 0, 0, 0, PAYLOAD) for guid in guids]
    confirmation = encode_queue_confirms(0, guids[:1], 0)
    at = confirmation.index(guids[0])
    before, after = confirmation[:at], confirmation[at + 16 :]

    class Record:
        __slots__ = ("arrival", "line", "push")

        def __init__(self, line: Any, push: Any, arrival: Any) -> None:
            self.line, self.push, self.arrival = line, push, arrival

    class Payload:
        __slots__ = ("data",)

    def with_data() -> list[Any]:
        made = [Payload() for _ in guids]
        for each in made:
            each.data = PAYLOAD
        return made

    holders = with_data()

    def cut(_: Any) -> None:
        (size, *_rest) = unpack_header(event, 0)
        assert size == len(event)

    def read(_: Any) -> None:
        # Messages of equal length are cut by one call.
        assert len(list(messages(memoryview(event)[HEADER_SIZE:]))) == COUNT

    def pop(messages: deque[Any]) -> None:
        while messages:
            Record(None, messages.popleft(), 0.0)

    def one_by_one(_: Any) -> None:
        waiting: list[bytes] = []
        for guid in guids:
            waiting.append(guid)  # noqa: PERF402  a program confirms one message at a time
        assert before + (after + before).join(waiting) + after

    return [
        (CUT, Timed(cut)),
        (READ_PUSH, Timed(read)),
        (IN_LINE, Timed(lambda line: line.extend(received), deque)),
        (OUT_OF_LINE, Timed(pop, lambda: deque(received))),
        (DATA, Timed(lambda _: [each.data for each in holders])),
        (CONFIRM, Timed(one_by_one)),
        (CONFIRM_BATCH, Timed(lambda _: before + (after + before).join(guids) + after)),
    ]


def floors_of_reading() -> Stages:
    """Measure reading properties in Python, on the same bytes, with full advance knowledge.

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

    def tagged(values: dict[str, Any]) -> bool:
        return "bmq_tags" in values

    def looked(holders: list[Any]) -> None:
        for holder in holders:
            tagged(holder.values)

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
        (TAGS, Timed(looked, fresh)),
    ]


def run(console: Console, output: Path) -> None:
    """Make all measurements, print them, and write them to ``output``."""
    loop = asyncio.new_event_loop()
    measured = {"Producing": producing(), "Consuming": consuming(loop), "floors": floors()}
    for _ in range(TURNS):
        for stages in measured.values():
            for _, stage in stages:
                stage.again()
    loop.close()
    least_of = {name: stage.us for name, stage in measured.pop("floors")}
    document: dict[str, Any] = {"machine": machine(), "floors": least_of, "least": LEAST}
    for title, stages in measured.items():
        table = Table(title=f"{title}, us a message of 256 bytes")
        table.add_column("stage")
        table.add_column("us", justify="right")
        table.add_column("floor", justify="right")
        table.add_column("the floor's code")
        for name, stage in stages:
            table.add_row(name, f"{stage.us:.2f}", f"{least_of[name]:.2f}", LEAST[name])
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
