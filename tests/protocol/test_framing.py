# SPDX-License-Identifier: Apache-2.0
"""The stream is split into events regardless of chunks; a peer's mistakes end it with bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.protocol.framing import Framer
from bmq.wire.ack import encode_acks
from bmq.wire.confirm import encode_confirm, pack_confirms
from bmq.wire.constants import EventType
from bmq.wire.event import HEARTBEAT_REQ, pack_event_header
from bmq.wire.push import decode_push_runs, encode_push
from bmq.wire.put import encode_put
from tests.hostile import damaged
from tests.sweeps import sweep
from tests.transcripts import recorded
from tests.wire.messages import push_message

EVERY = recorded()


def event(size: int, event_type: int = EventType.PUSH) -> bytes:
    return pack_event_header(size, event_type) + bytes(size - 8)


def header(length: int, byte4: int = 0x44, words: int = 2) -> bytes:
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + bytes([byte4, words, 0, 0])


def cut(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
    yield data[start:]


def feed_all(framer: Framer, chunks: Iterable[bytes]) -> tuple[list[bytes], ProtocolError | None]:
    """Feed chunk by chunk, checking the bound after each."""
    events: list[bytes] = []
    error = None
    for chunk in chunks:
        some, error = framer.feed(chunk)
        assert framer.buffered <= framer.max_event_size
        events.extend(e.data for e in some)
        if error:
            break
    return events, error


@sweep("sizes", [[2], [1, 4096], [4095]])
def test_chunks_take_no_more_memory_than_their_bytes(sizes: list[int]) -> None:
    size = 300_000
    data, count = event(size)[: size - 2], len(sizes) * size // sum(sizes)
    framer = Framer()
    tracemalloc.start()
    try:
        for piece in cut(data, islice(cycle(sizes), count)):
            framer.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 2 * size
    finally:
        tracemalloc.stop()
    assert framer.buffered == size - 2


def written(framer: Framer, data: bytes) -> int:
    """Write as much as fits; return the number of bytes, to be passed to :meth:`Framer.feed`."""
    space = framer.space()
    size = min(len(space), len(data))
    assert size > 0, "a space is never empty"
    space[:size] = data[:size]
    return size


def pushes(size: int, payload: int, seed: int = 0) -> bytes:
    """A PUSH event of about ``size`` bytes."""
    noise = random.Random(seed)
    body = b""
    while len(body) < size:
        body += push_message(0, noise.randbytes(16), noise.randbytes(payload))
    return pack_event_header(8 + len(body), EventType.PUSH) + body


LARGE = [
    HEARTBEAT_REQ,
    event(300, EventType.ACK),
    pushes(1_000, 100),
    pushes(70_000, 100),
    pushes(70_000, 30_000),
    pushes(300_000, 7_000),
    pushes(1_000_000, 1_000_000),
    event(100_000, EventType.ACK),
]


@given(
    st.lists(st.sampled_from(LARGE), min_size=1, max_size=6),
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([1, 3, 7, 4096, 65_536, 262_144, 2**20])),
        min_size=1,
        max_size=40,
    ),
)
def test_bytes_written_in_place_make_the_same_events(
    sent: list[bytes], steps: list[tuple[bool, int]]
) -> None:
    """In any mixture with bytes of the caller, and in pieces of any size."""
    data = b"".join(sent)
    framer, found, at = Framer(), list[bytes](), 0
    for in_place, size in chain(steps, repeat((True, 2**20))):
        piece = data[at : at + size]
        if in_place:
            size = written(framer, piece)
            events, error = framer.feed(framer.space()[:size])
        else:
            size = len(piece)
            events, error = framer.feed(piece)
        at += size
        assert error is None
        for each in events:
            whole = bytes(each.data)
            assert each.type == EventType.PUSH or type(each.data) is bytes
            assert each.type != EventType.PUSH or decode_push_runs(each.data, 8) == decode_push_runs(whole, 8)
            found.append(whole)
        assert framer.unfinished() == data[sum(map(len, found)) : at]
        assert framer.buffered == len(framer.unfinished())
        if at == len(data):
            break
    assert found == sent


@sweep("step", [1, 100, 65_536])
def test_memory_grows_with_the_bytes_that_arrive_and_not_with_the_announced_length(step: int) -> None:
    framer = Framer()
    arrived, piece = 8, b"x" * step
    framer.feed(header(60_000_000))
    assert framer.bulky
    tracemalloc.start()
    try:
        for _ in range(20):
            size = written(framer, piece)
            framer.feed(framer.space()[:size])
            arrived += size
        assert tracemalloc.get_traced_memory()[1] <= 1.3 * max(65_536, 4 * arrived) + 10_000
    finally:
        tracemalloc.stop()
    assert framer.buffered == arrived


@sweep("sizes", [[6_000_000], [1_000_000, 100], [1_000_000, 70_000, 100]])
def test_the_space_is_given_up_after_a_huge_event_and_at_the_next_small_one(sizes: list[int]) -> None:
    data = b"".join(pushes(size, size) for size in sizes)
    framer = Framer()
    tracemalloc.start()
    try:
        while data:
            size = written(framer, data)
            framer.feed(framer.space()[:size])
            data = data[size:]
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert framer.bulky is (len(sizes) == 1)


@sweep(
    "bad, field, offset, message",
    [
        (header(0), "EventHeader.length", 0, "an event of 0 bytes cannot hold its header of 8"),
        (header(2), "EventHeader.length", 0, "an event of 2 bytes"),
        (header(4), "EventHeader.length", 0, "an event of 4 bytes"),
        (header(7), "EventHeader.length", 0, "an event of 7 bytes"),
        (header(1001), "EventHeader.length", 0, "an event of 1,001 bytes exceeds the limit of 1,000"),
        (header(2**31 - 1), "EventHeader.length", 0, "an event of 2,147,483,647 bytes exceeds the limit"),
        (header(-1), "EventHeader.fragment", 0, "fragmented events are not allowed"),
        (header(8 | 1 << 31), "EventHeader.fragment", 0, "fragmented events are not allowed"),
        (header(8, byte4=0x84), "EventHeader.protocolVersion", 4, "version 2 of the protocol is unknown"),
        (b"GET / HTTP/1.1\r\n", "EventHeader.length", 0, "exceeds the limit"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "EventHeader.length", 0, "exceeds the limit"),
    ],
)
@sweep("whole", [True, False])
def test_an_impossible_header_ends_the_stream(
    bad: bytes, field: str, offset: int, message: str, whole: bool
) -> None:
    good = [HEARTBEAT_REQ, event(1000)]
    data = b"".join(good) + bad + event(100)
    framer = Framer(max_event_size=1000)
    events, error = feed_all(framer, [data] if whole else [data[i : i + 1] for i in range(len(data))])
    assert events == good, "what came before the mistake is good"
    assert error is not None
    assert (error.field, error.offset) == (field, offset)
    assert message in str(error)
    assert framer.buffered == 0
    assert framer.feed(HEARTBEAT_REQ) == ([], error), "nothing more is accepted"
    assert framer.buffered == 0


@sweep("words", [0, 1, 3, 255])
@sweep("tolerant", [False, True])
def test_an_event_whose_header_does_not_fit_is_marked_and_the_next_found(words: int, tolerant: bool) -> None:
    bad = header(8, words=words)
    events, error = Framer(tolerant=tolerant).feed(bad + HEARTBEAT_REQ)
    assert error is None
    assert [(each.type, each.body, each.data) for each in events] == [
        (EventType.UNDEFINED, 0, bad),
        (EventType.HEARTBEAT_REQ, 8, HEARTBEAT_REQ),
    ]


@settings(max_examples=settings().max_examples * 2)
@given(
    st.lists(damaged(EVERY) | st.sampled_from(EVERY).map(lambda e: e.data), min_size=1, max_size=6),
    st.lists(st.integers(1, 2000), max_size=20),
)
def test_a_damaged_stream_is_events_or_an_error(pieces: list[bytes], sizes: list[int]) -> None:
    data = b"".join(pieces)
    framer = Framer(max_event_size=4096)
    events, error = feed_all(framer, cut(data, sizes))
    assert data.startswith(b"".join(events))
    assert all(8 <= len(e) <= 4096 for e in events)
    if error:
        assert error.field.startswith("EventHeader.")
        assert error.offset is not None
        assert 0 <= error.offset < 8
    else:
        assert sum(map(len, events)) + framer.buffered == len(data)
    once = Framer(max_event_size=4096)
    again, same = once.feed(data)
    assert [e.data for e in again] == events, "chunks change nothing"
    assert str(same) == str(error)


@pytest.mark.parametrize("whole", [True, False])
def test_limit_may_be_raised_by_preceding_data(whole: bool) -> None:
    large = event(500, EventType.PUT)
    framer = Framer(max_event_size=100, tolerant=True)
    events, error = framer.feed(HEARTBEAT_REQ + (large if whole else large[:20]))
    assert [e.data for e in events] == [HEARTBEAT_REQ]
    assert error is not None
    framer.max_event_size = framer.max_request_size = 1000
    events, error = framer.feed(b"")
    assert error is None
    if not whole:
        events, error = framer.feed(large[20:])
    assert [e.data for e in events] == [large]


@sweep("chunk", [1, 6, 1000])
def test_only_events_with_messages_may_be_as_large_as_messages(chunk: int) -> None:
    framer = Framer(max_event_size=1000, max_request_size=100)
    data = event(500, EventType.PUT) + event(500, EventType.CONFIRM) + event(100, EventType.CONTROL)
    events, error = feed_all(framer, cut(data, [chunk] * (len(data) // chunk)))
    assert (len(events), error) == (3, None)
    _, error = feed_all(framer, cut(event(101, EventType.CONTROL), [chunk] * 8))
    assert error is not None
    assert "a request of 101 bytes exceeds the limit of 100" in str(error)
    assert framer.buffered == 0


GUID = bytes(range(0x10, 0x20))
KEY = "101112131415161718191a1b1c1d1e1f"
#: What writes structures, and the bytes written by hand.
BIG_ENDIAN: list[tuple[bytes, str]] = [
    (pack_event_header(0x01020304, EventType.PUT, 0xA0), "01020304 4202a000"),
    (
        encode_put(0x01020304, GUID, b"x", flags=1),
        f"1000000a 00000009 01020304 {KEY} a93c5f93 00000000 78030303",
    ),
    (
        encode_push(0x01020304, GUID, b"x\3\3\3", bytes.fromhex("0400000205060708"), 4, 0x0102),
        f"4000000b 00000208 01020304 {KEY} 01020000 04000002 05060708 78030303",
    ),
    (
        encode_acks([(6, 0x010203, GUID, 0x04050607)]),
        f"00000024 45020000 16000000 06010203 {KEY} 04050607",
    ),
    (
        pack_confirms([encode_confirm(0x01020304, GUID, 0x05060708)]),
        f"00000024 43020000 16000000 01020304 {KEY} 05060708",
    ),
]


@sweep("data, text", BIG_ENDIAN)
@pytest.mark.statement("3.15")
def test_integers_are_big_endian(data: bytes, text: str) -> None:
    assert data.hex() == text.replace(" ", "")
