# SPDX-License-Identifier: Apache-2.0
"""The output of the client core, in events, and the requests that it remembers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmq.protocol.framing import Framer
from bmq.wire.constants import EventType
from bmq.wire.event import Event
from bmq.wire.put import Outgoing, decode_puts, encode_put
from tests.protocol.bench import WRITE, Bench, connected, guid, held
from tests.sweeps import sweep


def events_of(data: list[bytes]) -> Iterator[Event]:
    events, error = Framer(1 << 30).feed(b"".join(data))
    assert error is None
    yield from events


def test_requests_that_timed_out_are_remembered_up_to_a_limit() -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    subscriptions = bench.subscriptions(["x == 1"])

    def time_out(count: int) -> int:
        for _ in range(count):
            bench.core.configure_queue(queue, subscriptions, None, bench.now + 1.0)
            bench.pump()
            bench.wait(1.0)
            bench.broker.requests.clear()
            bench.completed.clear()
        bench.configured.clear()
        bench.broker.log.clear()
        return held(bench.core)

    time_out(1100)
    before = time_out(100)
    assert time_out(100) == before


MIB = 1024 * 1024


def outgoing(number: int, data: bytes | None = None) -> Outgoing:
    return guid(number), b"%d" % number if data is None else data, 1, 0, 0


def everything(bench: Bench, limit: int = 10 * MIB) -> Iterator[list[bytes]]:
    """Take all output, about ``limit`` bytes at a time."""
    while data := bench.core.data_to_send(bench.now, limit):
        yield data


def test_posts_gather_into_events_of_a_megabyte() -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    messages = [outgoing(number, bytes([number]) * 300_000) for number in range(10)]
    messages.append(outgoing(99, b"y" * 5 * MIB))
    for guid_, data, *_ in messages:
        bench.core.post(queue, guid_, data, None, bench.now)
    events = list(events_of([piece for data in everything(bench) for piece in data]))
    assert [len(event.data) <= MIB for event in events] == [True] * (len(events) - 1) + [False]
    assert len(events) == 5
    assert b"".join(event.data[8:] for event in events) == b"".join(
        encode_put(queue.q_id, *message) for message in messages
    )


def test_posts_of_several_queues_share_events_in_the_order_of_posting() -> None:
    bench = connected()
    queues = [bench.open(f"bmq://d/q{number}") for number in range(4)]
    posted = [(queues[number // 3 % 4], number) for number in range(100)]
    for queue, number in posted:
        bench.core.post(queue, guid(number), b"%d" % number, None, bench.now)
    bench.pump()
    puts = [(put.queue_id, put.guid, put.data) for put in bench.broker.puts]
    assert puts == [(queue.q_id, guid(number), b"%d" % number) for queue, number in posted]
    assert bench.broker.log.count("PUT") == 1


@sweep("size", [1, 2047, 2048, 8191, 8192, 50_000, 3_000_000])
@pytest.mark.statement("3.18")
def test_payloads_of_any_size_travel_as_they_are(size: int) -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    messages = [outgoing(number, bytes([number]) * max(1, size - number % 4)) for number in range(1, 8)]
    bench.core.post_many(queue, messages, None, bench.now)
    for data in everything(bench, limit=100_000):
        bench.broker.take(data)
    assert [(put.guid, put.data) for put in bench.broker.puts] == [(m[0], m[1]) for m in messages]


def test_a_request_leaves_behind_everything_that_was_added_before() -> None:
    bench = connected()
    queue, other = bench.open("bmq://d/q"), bench.open("bmq://d/other", WRITE)
    bench.core.post(queue, guid(1), b"1", 1, bench.now)
    bench.core.confirm(queue, guid(2))
    bench.core.close_queue(other, None, bench.now, bench.now + 60)
    bench.core.post(queue, guid(3), b"3", 3, bench.now)
    kinds = [EventType(event.type) for event in events_of(bench.core.data_to_send(bench.now))]
    assert kinds.index(EventType.CONTROL) == 2
    assert set(kinds[:2]) == {EventType.PUT, EventType.CONFIRM}
    assert kinds[3:] == [EventType.PUT]


def test_a_limit_takes_no_more_than_needed_and_the_rest_keeps_its_order() -> None:
    bench = connected()
    queue = bench.open("bmq://d/q")
    for number in range(50):
        bench.core.post(queue, guid(number), b"%d" % number * 50_000, None, bench.now)
    limit = 3 * MIB // 2
    taken: list[bytes] = []
    while data := bench.core.data_to_send(bench.now, limit):
        assert sum(map(len, data)) < limit + MIB
        taken += data
    puts = [put for event in events_of(taken) for put in decode_puts(event.data, event.body)]
    assert [put.guid for put in puts] == [guid(number) for number in range(50)]
