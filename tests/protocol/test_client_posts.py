# SPDX-License-Identifier: Apache-2.0
"""The client core's posts: outcomes, retransmission, expiry, and the events in which they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import AckStatus, ConnectionFailed, UsageError
from bmq.protocol.framing import Framer
from bmq.wire.ack import encode_acks
from bmq.wire.constants import ACK_STATUS_TO_WIRE, EventType
from bmq.wire.event import Event
from bmq.wire.put import Outgoing, decode_puts, encode_put
from tests.protocol.bench import WRITE, Bench, connected, guid, opened
from tests.sweeps import sweep

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"
SUCCESS, TIMEOUT = AckStatus.SUCCESS, AckStatus.TIMEOUT
MIB = 1024 * 1024


def sent(bench: Bench) -> list[int]:
    return [int(put.data) for put in bench.broker.puts]


@sweep("status", ["LIMIT_MESSAGES", "LIMIT_BYTES", "STORAGE_FAILURE", "NOT_READY", "UNKNOWN"])
@pytest.mark.statement("3.20")
def test_every_negative_acknowledgement_keeps_its_meaning(status: str) -> None:
    bench, queue = opened(URI)
    bench.post(queue, 1)
    bench.ack_all(AckStatus[status])
    assert bench.outcomes == {1: [AckStatus[status]]}


@pytest.mark.statement("3.19")
def test_the_correlation_id_of_an_acknowledgement_does_not_matter() -> None:
    bench, queue = opened(URI, WRITE)
    bench.post(queue, 1, 2)
    bench.send(encode_acks([(0, 0xABCDEF, guid(2), queue.q_id)]))
    assert bench.outcomes == {2: [SUCCESS]}


def test_a_guid_cannot_be_posted_twice_while_the_first_has_no_outcome() -> None:
    bench, queue = opened(URI)
    bench.post(queue, 1)
    with pytest.raises(UsageError, match="no outcome yet"):
        bench.post(queue, 1)
    bench.ack_all()
    bench.post(queue, 1)
    bench.ack_all()
    assert bench.outcomes == {1: [SUCCESS, SUCCESS]}


def test_only_a_whole_event_accepts_a_post() -> None:
    bench, queue = opened(URI)
    bench.post(queue, 1)
    acceptance = bench.broker.ack(bench.broker.puts)
    bench.send(acceptance[:20])
    assert bench.outcomes == {}
    bench.send(acceptance[20:])
    assert bench.outcomes == {1: [SUCCESS]}
    bench.send(acceptance)
    assert bench.outcomes == {1: [SUCCESS]}, "again, and nobody waits for it"
    bench.post(queue, 2)
    acceptance = bench.broker.ack(bench.broker.puts[1:])
    s_id = bench.broker.s_ids[queue.q_id][-1]
    message = bench.broker.push(queue.q_id, [(guid(8), acceptance)], (s_id,))
    begin = message.index(acceptance)
    end = begin + len(acceptance)
    bench.send(message[:begin], message[begin:end], message[end:])
    assert 2 not in bench.outcomes, "these bytes are the data of a message"
    assert [message.data for _, message in bench.received] == [acceptance]
    bench.send(acceptance)
    assert bench.outcomes[2] == [SUCCESS]


def test_single_post_is_resent_and_late_answers_of_the_old_connection_are_dropped() -> None:
    bench, queue = opened(URI)
    bench.post(queue, 1)
    acceptance = bench.broker.ack(bench.broker.puts)
    bench.lose()
    bench.send(acceptance)
    assert bench.outcomes == {}
    bench.open_channel()
    bench.send(acceptance)
    assert bench.outcomes == {}
    assert isinstance(bench.failures[-1], ConnectionFailed), "it has not said hello"
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert bench.ack_all() == [1]
    assert bench.outcomes == {1: [SUCCESS]}
    assert queue.counts.retransmitted == 1


@pytest.mark.parametrize("size", [1, 700_000])
def test_a_half_sent_turn_is_rebuilt_not_resumed(size: int) -> None:
    bench, queue = opened(URI)
    for number in (1, 2):
        bench.core.post(queue, guid(number), bytes(size), number, bench.now)
    assert bench.core.data_to_send(bench.now, 1)  # accepted by a transport that never sends
    bench.core.post(queue, guid(3), b"3", 3, bench.now)  # never taken
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert [put.guid for put in bench.broker.puts] == [guid(1), guid(2), guid(3)]


@pytest.mark.statement("4.29")
def test_a_post_unanswered_for_the_deduplication_time_of_its_queue_is_a_timeout() -> None:
    bench, long = opened(URI)
    queue = bench.begin_open(OTHER, WRITE)
    bench.answer(dedup_ms=10_000)
    never = bench.begin_open(f"{OTHER}2", WRITE)
    bench.answer(dedup_ms=0)
    bench.post(long, 3)
    bench.post(never, 4)
    bench.post(queue, 1)
    bench.wait(5)
    bench.post(queue, 2)
    bench.wait(4.9)
    assert bench.outcomes == {}
    bench.wait(1.2)
    assert bench.outcomes == {1: [TIMEOUT]}
    bench.wait(5)
    assert bench.outcomes == {1: [TIMEOUT], 2: [TIMEOUT]}
    bench.wait(300)
    assert bench.outcomes == {1: [TIMEOUT], 2: [TIMEOUT], 3: [TIMEOUT]}
    bench.ack_all()
    assert bench.outcomes == {1: [TIMEOUT], 2: [TIMEOUT], 3: [TIMEOUT], 4: [SUCCESS]}


def test_sent_posts_are_not_resent_without_deduplication() -> None:
    bench = connected()
    queue = bench.begin_open(URI, WRITE)
    bench.answer(dedup_ms=0)
    bench.post(queue, 1)
    bench.wait(1000)
    assert bench.outcomes == {}  # connected, the broker may take its time
    bench.lose()
    assert bench.outcomes == {1: [TIMEOUT]}
    bench.post(queue, 2)  # without a connection, the post waits
    bench.connect()
    bench.lose()  # before the queue was open again
    bench.connect()
    bench.answer_all(dedup_ms=0)
    assert sent(bench) == [2]
    bench.ack_all()
    assert bench.outcomes == {1: [TIMEOUT], 2: [SUCCESS]}


def settled(bench: Bench) -> bool:
    return len(bench.core.posts) == bench.core.posts.bytes == 0 and bench.core.posts.oldest() is None


def test_slice_keeps_its_place_among_other_posts() -> None:
    bench = connected()
    queue, other = bench.open(URI), bench.open(OTHER)
    bench.post(queue, 1)
    bench.post_event(queue, 2, 3)
    bench.post(other, 4)
    bench.post_event(other, 5, 6)
    bench.post_many(queue, 7, 8)
    assert sent(bench) == [1, 2, 3, 4, 5, 6, 7, 8]
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert sent(bench) == [1, 2, 3, 4, 5, 6, 7, 8]
    bench.ack_all()
    assert {token: set(each) for token, each in bench.outcomes.items()} == {
        token: {SUCCESS} for token in (1, (2, 3), 4, (5, 6), (7, 8))
    }
    assert settled(bench)


def test_closing_the_queue_ends_remaining_posts() -> None:
    bench, queue = opened(URI)
    bench.post_event(queue, 1, 2, 3)
    bench.send(bench.broker.ack(bench.broker.puts[:1]))
    bench.close(queue)
    bench.answer_all()
    assert bench.outcomes == {(1, 2, 3): [SUCCESS, AckStatus.CANCELED, AckStatus.CANCELED]}
    assert bench.refused == [((1, 2, 3), 1), ((1, 2, 3), 2)]
    assert settled(bench)


def test_longer_acknowledgements_are_read_one_by_one() -> None:
    """A newer broker may append to each."""
    bench, queue = opened(URI)
    bench.post_event(queue, 1, 2)
    bench.send(longer(encode_acks((0, 0, guid(n), queue.q_id) for n in (1, 2))))
    assert bench.outcomes == {(1, 2): [SUCCESS] * 2}
    assert settled(bench)


def longer(event: bytes) -> bytes:
    """An ACK event with four more bytes for each post."""
    header, body = event[:8], event[8:]
    body = (
        bytes((body[0] & 0xF0 | 7,))
        + body[1:4]
        + b"".join(body[at : at + 24] + bytes(4) for at in range(4, len(body), 24))
    )
    return (8 + len(body)).to_bytes(4, "big") + header[4:] + body


STATUSES = st.sampled_from([SUCCESS, SUCCESS, SUCCESS, AckStatus.LIMIT_MESSAGES, AckStatus.UNKNOWN])


@given(data=st.data())
def test_each_row_has_exactly_the_brokers_outcome(data: st.DataObject) -> None:
    bench = connected()
    queues = bench.open(URI), bench.open(OTHER)
    number = 0
    rows: dict[int, tuple[object, int]] = {}  # whose it is
    for _ in range(data.draw(st.integers(1, 6))):
        queue = data.draw(st.sampled_from(queues))
        count = data.draw(st.integers(1, 12))
        numbers = tuple(range(number, number + count))
        number += count
        if data.draw(st.booleans()):
            bench.post_event(queue, *numbers)
            rows |= {each: (numbers, at) for at, each in enumerate(numbers)}
        else:
            bench.post(queue, *numbers)
            rows |= {each: (each, 0) for each in numbers}
    waiting = {int(put.data): put for put in bench.broker.puts}
    order = data.draw(st.permutations(sorted(waiting))) if data.draw(st.booleans()) else sorted(waiting)
    given_to: dict[int, AckStatus] = {}
    while order:
        count = data.draw(st.integers(1, 15))
        some, order = order[:count], order[count:]
        acks = []
        for each in some:
            given_to[each] = data.draw(STATUSES)
            put = waiting[each]
            acks.append((ACK_STATUS_TO_WIRE.get(given_to[each], 5), 0, put.guid, put.queue_id))
        # A read has several events, some of them of a newer broker.
        ends = [0, *sorted(data.draw(st.sets(st.integers(1, count), max_size=4))), count]
        events = [encode_acks(acks[a:b]) for a, b in pairwise(ends) if acks[a:b]]
        bench.send(b"".join(longer(event) if data.draw(st.booleans()) else event for event in events))
        if data.draw(st.integers(0, 5)) == 0:
            bench.lose()
            bench.connect()
            bench.answer_all()
            assert bench.broker.puts == [waiting[each] for each in sorted(order)], "under the same GUIDs"
    expected: dict[object, Counter[AckStatus]] = {}
    for each, status in given_to.items():
        expected.setdefault(rows[each][0], Counter())[status] += 1
    assert {token: Counter(each) for token, each in bench.outcomes.items()} == expected
    assert sorted(bench.refused, key=repr) == sorted(
        (rows[each] for each, status in given_to.items() if status is not SUCCESS), key=repr
    )
    assert settled(bench)
    assert all(queue.unacked == 0 for queue in queues)


def events_of(data: list[bytes]) -> Iterator[Event]:
    events, error = Framer(1 << 30).feed(b"".join(data))
    assert error is None
    yield from events


def outgoing(number: int, data: bytes | None = None) -> Outgoing:
    return guid(number), b"%d" % number if data is None else data, 1, 0, 0


def everything(bench: Bench, limit: int = 10 * MIB) -> Iterator[list[bytes]]:
    """Take all output, about ``limit`` bytes at a time."""
    while data := bench.core.data_to_send(bench.now, limit):
        yield data


def test_posts_gather_into_events_of_a_megabyte() -> None:
    bench, queue = opened("bmq://d/q")
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
    bench, queue = opened("bmq://d/q")
    for number in range(50):
        bench.core.post(queue, guid(number), b"%d" % number * 50_000, None, bench.now)
    limit = 3 * MIB // 2
    taken: list[bytes] = []
    while data := bench.core.data_to_send(bench.now, limit):
        assert sum(map(len, data)) < limit + MIB
        taken += data
    puts = [put for event in events_of(taken) for put in decode_puts(event.data, event.body)]
    assert [put.guid for put in puts] == [guid(number) for number in range(50)]
