# SPDX-License-Identifier: Apache-2.0
"""Posts that were encoded together: each row has one outcome, whatever the order the broker answers in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import AckStatus
from bmq.protocol.client.core import CoreOptions
from bmq.wire.ack import encode_acks
from bmq.wire.constants import ACK_STATUS_TO_WIRE
from tests.protocol.bench import Bench, connected, guid

URI = "bmq://bmq.test.mem.priority/q"
OTHER = "bmq://bmq.test.mem.priority/other"
SUCCESS, LIMIT = AckStatus.SUCCESS, AckStatus.LIMIT_MESSAGES


def sent(bench: Bench) -> list[int]:
    return [int(put.data) for put in bench.broker.puts]


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


def test_only_rows_without_outcome_are_sent_again_under_the_same_guids() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post_event(queue, *range(10))
    first = {put.data: put for put in bench.broker.puts}
    bench.send(bench.broker.ack([bench.broker.puts[n] for n in (0, 1, 4, 9)]))
    bench.lose()
    bench.connect()
    bench.answer_all()
    assert sent(bench) == [2, 3, 5, 6, 7, 8]
    assert all(put == first[put.data] for put in bench.broker.puts)
    bench.ack_all()
    assert bench.outcomes == {tuple(range(10)): [SUCCESS] * 10}
    assert settled(bench)


def test_closing_the_queue_ends_remaining_posts() -> None:
    bench = connected()
    queue = bench.open(URI)
    bench.post_event(queue, 1, 2, 3)
    bench.send(bench.broker.ack(bench.broker.puts[:1]))
    bench.close(queue)
    bench.answer_all()
    assert bench.outcomes == {(1, 2, 3): [SUCCESS, AckStatus.CANCELED, AckStatus.CANCELED]}
    assert bench.refused == [((1, 2, 3), 1), ((1, 2, 3), 2)]
    assert settled(bench)


def test_slices_fill_the_window() -> None:
    bench = connected(CoreOptions(max_unacked_messages=4, max_unacked_bytes=1 << 20))
    queue = bench.open(URI)
    posts = bench.core.posts
    bench.post_event(queue, 1, 2, 3)
    assert posts.has_room
    bench.post_event(queue, 4, 5, 6)
    assert not posts.has_room
    bench.send(bench.broker.ack(bench.broker.puts[:4]))
    assert posts.has_room
    assert len(posts) == 2


def test_longer_acknowledgements_are_read_one_by_one() -> None:
    """A newer broker may append to each."""
    bench = connected()
    queue = bench.open(URI)
    bench.post_event(queue, 1, 2)
    event = encode_acks((0, 0, guid(n), queue.q_id) for n in (1, 2))
    header, body = event[:8], event[8:]
    longer = bytes((body[0] & 0xF0 | 7,)) + body[1:4]
    longer += b"".join(body[at : at + 24] + bytes(4) for at in (4, 28))
    bench.send((8 + len(longer)).to_bytes(4, "big") + header[4:] + longer)
    assert bench.outcomes == {(1, 2): [SUCCESS] * 2}
    assert settled(bench)


STATUSES = st.sampled_from([SUCCESS, SUCCESS, SUCCESS, LIMIT, AckStatus.UNKNOWN])


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
        bench.send(encode_acks(acks))
        if data.draw(st.integers(0, 5)) == 0:
            bench.lose()
            bench.connect()
            bench.answer_all()
            assert sent(bench) == sorted(order)
    expected: dict[object, Counter[AckStatus]] = {}
    for each, status in given_to.items():
        expected.setdefault(rows[each][0], Counter())[status] += 1
    assert {token: Counter(each) for token, each in bench.outcomes.items()} == expected
    assert sorted(bench.refused, key=repr) == sorted(
        (rows[each] for each, status in given_to.items() if status is not SUCCESS), key=repr
    )
    assert settled(bench)
    assert all(queue.unacked == 0 for queue in queues)
