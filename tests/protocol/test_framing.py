# SPDX-License-Identifier: Apache-2.0
"""The stream is split into events regardless of chunks; a peer's mistakes end it with bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.protocol import framing
from bmq.protocol.framing import Framer
from bmq.wire.constants import EventType
from bmq.wire.event import HEARTBEAT_REQ, Event, pack_event_header
from tests.hostile import damaged
from tests.transcripts import RECORDINGS, recorded, stream

EVERY = recorded()


def event(size: int, event_type: int = EventType.PUSH) -> bytes:
    return pack_event_header(size, event_type) + bytes(size - 8)


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


# Any chunks


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_recorded_connection_arrives_whole_and_byte_by_byte(recording: str) -> None:
    for direction in ("c2b", "b2c"):
        data = stream(recording, 1, direction)
        sent = [e.data for e in recorded(recording=recording, direction=direction) if e.connection == 1]
        for chunks in ([data], [data[i : i + 1] for i in range(len(data))]):
            framer = Framer()
            assert feed_all(framer, chunks) == (sent, None)
            assert framer.buffered == 0


@given(
    st.lists(st.sampled_from(EVERY), max_size=12),
    st.lists(st.integers(0, 40) | st.integers(0, 1500), max_size=60),
)
def test_any_chunks_make_the_same_events(events: list, sizes: list[int]) -> None:
    sent = [e.data for e in events]
    framer = Framer()
    assert feed_all(framer, cut(b"".join(sent), sizes)) == (sent, None)
    assert framer.buffered == 0


@given(st.lists(st.sampled_from(EVERY), min_size=1, max_size=5), st.integers(1, 200))
def test_an_unfinished_event_is_kept(events: list, missing: int) -> None:
    data = b"".join(e.data for e in events)
    missing = min(missing, len(events[-1].data))
    framer = Framer()
    done, error = framer.feed(data[:-missing])
    assert error is None
    assert [e.data for e in done] == [e.data for e in events[:-1]]
    assert framer.buffered == len(events[-1].data) - missing
    done, error = framer.feed(data[-missing:])
    assert error is None
    assert [e.data for e in done] == [events[-1].data]


def test_events_have_readable_descriptions() -> None:
    events, error = Framer().feed(HEARTBEAT_REQ + event(20, EventType.ACK))
    assert error is None
    assert events == [
        Event(EventType.HEARTBEAT_REQ, 0, HEARTBEAT_REQ, 8),
        Event(EventType.ACK, 0, event(20, EventType.ACK), 8),
    ]
    assert all(type(e.data) is bytes for e in events)


def test_empty_input_has_no_events() -> None:
    framer = Framer()
    assert framer.feed(b"") == ([], None)
    assert framer.feed(b"\0") == ([], None)
    assert framer.feed(b"") == ([], None)
    assert framer.buffered == 1


# Bounded work and memory


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_small_chunks_of_a_large_event_are_joined_once(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffered bytes are examined only when they can change a decision, not with every chunk."""
    looks = 0
    unpack = framing._unpack

    def counting(data: bytes, start: int) -> tuple:
        nonlocal looks
        looks += 1
        return unpack(data, start)

    monkeypatch.setattr(framing, "_unpack", counting)
    size = 200_000
    events, error = feed_all(Framer(), cut(event(size) * 2, [chunk] * (2 * size // chunk)))
    assert (len(events), error) == (2, None)
    # Per event: when its header is there, and when the rest is.
    assert looks <= 2 * 2


def test_tiny_chunks_take_no_more_memory_than_their_bytes() -> None:
    size = 300_000
    data = event(size)
    framer = Framer()
    tracemalloc.start()
    try:
        for i in range(0, size - 2, 2):
            framer.feed(data[i : i + 2])
        assert tracemalloc.get_traced_memory()[1] < 2 * size
    finally:
        tracemalloc.stop()
    assert framer.buffered == size - 2


def test_memory_is_released_after_a_large_event() -> None:
    size = 1_000_000
    tracemalloc.start()
    try:
        framer = Framer()
        feed_all(framer, cut(event(size) + b"\0", [size // 10] * 10))
        assert tracemalloc.get_traced_memory()[0] < size // 2
    finally:
        tracemalloc.stop()


# What ends the stream


def header(length: int, byte4: int = 0x44, words: int = 2) -> bytes:
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + bytes([byte4, words, 0, 0])


@pytest.mark.parametrize(
    ("bad", "field", "offset", "message"),
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
        (header(8, words=0), "EventHeader.headerWords", 5, "0 words do not fit an event of 8 bytes"),
        (header(8, words=1), "EventHeader.headerWords", 5, "1 words do not fit"),
        (header(8, words=3), "EventHeader.headerWords", 5, "3 words do not fit"),
        (b"GET / HTTP/1.1\r\n", "EventHeader.length", 0, "exceeds the limit"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "EventHeader.length", 0, "exceeds the limit"),
    ],
)
@pytest.mark.parametrize("whole", [True, False], ids=["at once", "byte by byte"])
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


def test_length_is_refused_before_buffering() -> None:
    framer = Framer(max_event_size=1000)
    _, error = framer.feed(b"\x7f\xff\xff\xff")
    assert error is not None
    assert framer.buffered == 0


def test_the_largest_event_is_accepted() -> None:
    framer = Framer(max_event_size=1000)
    assert feed_all(framer, [event(999), event(1000)]) == ([event(999), event(1000)], None)


def test_by_default_a_message_of_the_largest_size_fits() -> None:
    largest_put = 8 + 36 + 64 * 1024 * 1024 + 4
    assert Framer().max_event_size >= largest_put
    assert Framer().max_event_size >= 66 * 1024 * 1024, "the largest PUT event"


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


# As a broker reads


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_broker_skips_events_with_an_invalid_header(size: int) -> None:
    senseless = [
        header(5)[:5],
        header(7)[:7],
        header(8, byte4=0x40),
        header(8, words=0),
        header(8, words=1),
        header(8, words=3),
    ]
    data = b"".join(piece for each in senseless for piece in (each, HEARTBEAT_REQ))
    framer = Framer(max_event_size=1000, tolerant=True)
    events: list[Event] = []
    for chunk in cut(data, [size] * (len(data) // size)):
        some, error = framer.feed(chunk)
        assert error is None
        events += some
    assert [e.data for e in events] == [piece for each in senseless for piece in (each, HEARTBEAT_REQ)]
    assert [e.type for e in events] == [EventType.UNDEFINED, EventType.HEARTBEAT_REQ] * len(senseless)


@pytest.mark.parametrize("length", [0, 4, 1001, 8 | 1 << 31])
def test_a_broker_closes_on_an_impossible_length(length: int) -> None:
    framer = Framer(max_event_size=1000, tolerant=True)
    events, error = framer.feed(HEARTBEAT_REQ + header(length))
    assert [e.data for e in events] == [HEARTBEAT_REQ]
    assert error is not None
    assert framer.feed(b"")[1] is not None
    assert framer.feed(HEARTBEAT_REQ * 100) == framer.feed(b""), "nothing more is accepted"
    assert framer.buffered == 0


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


@pytest.mark.parametrize("chunk", [1, 6, 1000])
def test_only_events_with_messages_may_be_as_large_as_messages(chunk: int) -> None:
    framer = Framer(max_event_size=1000, max_request_size=100)
    data = event(500, EventType.PUT) + event(500, EventType.CONFIRM) + event(100, EventType.CONTROL)
    events, error = feed_all(framer, cut(data, [chunk] * (len(data) // chunk)))
    assert (len(events), error) == (3, None)
    _, error = feed_all(framer, cut(event(101, EventType.CONTROL), [chunk] * 8))
    assert error is not None
    assert "a request of 101 bytes exceeds the limit of 100" in str(error)
    assert framer.buffered == 0


def test_events_have_bytes_if_the_event_loop_passes_a_bytearray() -> None:
    """On Windows, it does. A bytearray is no key of a cache."""
    sent = event(12) * 2
    for size in range(1, len(sent) + 1):
        framer = Framer()
        found = [
            each
            for start in range(0, len(sent), size)
            for each in framer.feed(bytearray(sent[start : start + size]))[0]
        ]
        assert [(each.data, type(each.data)) for each in found] == [(event(12), bytes)] * 2
