# SPDX-License-Identifier: Apache-2.0
"""PUT and PUSH messages: their fields, peers of other versions, and inconsistent headers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from construct import Construct
from hypothesis import given
from hypothesis import strategies as st

from bmq.errors import ProtocolError
from bmq.wire import push as push_module
from bmq.wire.constants import OptionType, PushFlags
from bmq.wire.crc import crc32c
from bmq.wire.layout import PushHeader, PutHeader
from bmq.wire.message import split_application_data
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.push import PushMessage, decode_pushes
from bmq.wire.put import DecodedPut, PutRun, decode_put_runs, decode_puts, encode_put, encode_puts
from bmq.wire.shape import Flaw
from tests.hostile import attempt
from tests.sweeps import sweep
from tests.wire.messages import push_message

GUID = bytes.fromhex("40000100000000003039CD8101020304")
EVENT_HEADER = bytes(8)
AT = len(EVENT_HEADER)

guids = st.binary(min_size=16, max_size=16)
queue_ids = st.integers(0, 2**31 - 1)
datas = st.binary(min_size=1, max_size=70)
schema_ids = st.integers(0, 2**16 - 1)


def pad(data: bytes) -> bytes:
    count = 4 - len(data) % 4
    return data + bytes([count]) * count


def message(
    declaration: Construct,
    data: bytes,
    *,
    options: bytes = b"",
    header_words: int | None = None,
    raw: bool = False,
    **fields: Any,
) -> bytes:
    """Write a message with Construct alone, legal or not; headers differ by version."""
    words = declaration.sizeof() // 4 if header_words is None else header_words
    body = options + (data if raw else pad(data))
    right = {
        "flags": 0,
        "messageWords": words + len(body) // 4,
        "optionsWords": len(options) // 4,
        "compressionAlgorithmType": 0,
        "headerWords": words,
        "queueId": 3,
        "messageGUID": GUID,
        "crc32c": 0xDEADBEEF,
        "schemaId": 0,
        "reserved": 0,
    }
    header = declaration.build(right | fields)
    return header[: words * 4].ljust(words * 4, b"\xee") + body


def put(data: bytes = b"payload", **fields: Any) -> bytes:
    return message(PutHeader, data, **fields)


def push(data: bytes = b"payload", **fields: Any) -> bytes:
    return message(PushHeader, data, **fields)


Decoder = Callable[[bytes, int], list[Any]]
KINDS = [
    pytest.param(put, decode_puts, "Put", id="PUT"),
    pytest.param(push, decode_pushes, "Push", id="PUSH"),
]
kinds = pytest.mark.parametrize(("build", "decode", "kind"), KINDS)


# Values in, bytes out, and back


def expected_bytes(build: Any, m: DecodedPut | PushMessage, **more: Any) -> bytes:
    """Write a message with Construct alone."""
    fields = {"flags": m.flags, "queueId": m.queue_id, "messageGUID": m.guid, "schemaId": m.schema_id}
    return build(m.data, **fields, compressionAlgorithmType=m.compression, **more)


@given(
    st.lists(
        st.builds(
            DecodedPut,
            queue_id=queue_ids,
            guid=guids,
            flags=st.sampled_from([2, 3]),
            schema_id=schema_ids,
            compression=st.integers(0, 1),
            crc=st.just(0),
            data=datas,
        ).map(lambda m: m._replace(crc=crc32c(m.data))),
        max_size=5,
    )
)
@pytest.mark.statement("3.4")
def test_puts_arrive_as_they_were_sent(messages: list[DecodedPut]) -> None:
    encoded = [
        encode_put(
            m.queue_id, m.guid, m.data, flags=m.flags, schema_id=m.schema_id, compression=m.compression
        )
        for m in messages
    ]
    assert encoded == [expected_bytes(put, m, crc32c=m.crc) for m in messages]
    several = [(m.guid, m.data, m.flags, m.schema_id, m.compression) for m in messages]
    for i, (m, each) in enumerate(zip(messages, encoded, strict=True)):
        pieces, count, size = encode_puts(m.queue_id, several[i:], len(each) + 3)
        assert (b"".join(pieces), count, size) == (each, 1, len(each))
        assert encode_puts(m.queue_id, several[i:], len(each) - 1) == ([], 0, 0)
    assert decode_puts(EVENT_HEADER + b"".join(encoded), AT) == messages


@given(
    st.lists(
        st.builds(
            PushMessage,
            queue_id=queue_ids,
            sub_ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20).map(tuple),
            guid=guids,
            flags=st.sampled_from([0, 2, 4, 6, 8, 14]),
            schema_id=schema_ids,
            compression=st.integers(0, 1),
            data=datas,
        ),
        max_size=5,
    )
)
@pytest.mark.statement("3.6")
def test_pushes_arrive_as_they_were_sent(messages: list[PushMessage]) -> None:
    encoded = [
        push_message(
            m.queue_id,
            m.guid,
            m.data,
            encode_sub_queue_ids(m.sub_ids),
            flags=m.flags,
            schema_id=m.schema_id,
            compression=m.compression,
        )
        for m in messages
    ]
    assert encoded == [expected_bytes(push, m, options=encode_sub_queue_ids(m.sub_ids)) for m in messages]
    assert decode_pushes(EVENT_HEADER + b"".join(encoded), AT) == messages


@pytest.mark.statement("3.5")
def test_options_of_a_put_are_skipped() -> None:
    group = bytes.fromhex("08000002") + pad(b"grp")
    [decoded] = decode_puts(EVENT_HEADER + put(options=group), AT)
    assert decoded.data == b"payload"


def test_the_options_of_each_push_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Parsed options are cached; the cache is small and may be emptied at any time.
    monkeypatch.setattr(push_module._options, "size", 4)
    expected = [(n % 9,) for n in range(200)] + [(n, n + 1) for n in range(20)] + [(0,)]
    pushes = [push(options=encode_sub_queue_ids(ids)) for ids in expected[:-1]] + [push()]
    assert [m.sub_ids for m in decode_pushes(EVENT_HEADER + b"".join(pushes), AT)] == expected
    assert len(push_module._options) <= 4


def test_implicit_payload_has_no_data() -> None:
    implicit = push(b"", raw=True, flags=1)
    event = EVENT_HEADER + implicit + push(b"next") + implicit
    assert [(m.flags, m.data) for m in decode_pushes(event, AT)] == [(1, b""), (0, b"next"), (1, b"")]


# Peers of other versions


@kinds
def test_an_older_header_has_no_schema_id(build: Any, decode: Decoder, kind: str) -> None:
    words = 8 if kind == "Put" else 7
    old = build(b"x", header_words=words, flags=2) + build(b"y", header_words=words, flags=2)
    messages = decode(EVENT_HEADER + old + build(b"z", flags=2, schemaId=5), AT)
    assert [(m.data, m.schema_id) for m in messages] == [(b"x", 0), (b"y", 0), (b"z", 5)]


@sweep(
    "bad, field, at, why",
    [
        (put(header_words=7, data=b"x" * 20), "headerWords", 7, "7 words are too few"),
        (put(schemaId=1), "schemaId", 32, "1 on a message without properties"),
    ],
)
def test_a_put_without_a_checksum_or_with_a_useless_schema_id_is_refused(
    bad: bytes, field: str, at: int, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        decode_puts(EVENT_HEADER + put() + bad, AT)
    assert (caught.value.field, caught.value.offset) == (f"PutHeader.{field}", AT + len(put()) + at)


@kinds
@pytest.mark.parametrize("words", [10, 11, 20, 31])
@pytest.mark.statement("3.2")
def test_longer_headers_are_honoured(build: Any, decode: Decoder, kind: str, words: int) -> None:
    options = encode_sub_queue_ids((4,)) if kind == "Push" else b""
    longer = build(b"x", header_words=words, options=options, flags=2, schemaId=7)
    [first, second] = decode(EVENT_HEADER + longer + build(b"y"), AT)
    assert (first.data, first.schema_id, first.queue_id, first.guid) == (b"x", 7, 3, GUID)
    assert second.data == b"y"


# Inconsistent headers

WRONG = {
    "one byte": (lambda build: build()[:1], "", 0),
    "header cut": (lambda build: build()[:27], "", 0),
    "header alone": (lambda build: build()[:32], None, 0),
    "data cut": (lambda build: build()[:-1], "messageWords", 0),
    "last word missing": (lambda build: build()[:-4], "messageWords", 0),
    "zero words": (lambda build: build(messageWords=0), "messageWords", 0),
    "one word": (lambda build: build(messageWords=1), "messageWords", 0),
    "fewer words than the header": (lambda build: build(messageWords=7), "messageWords", 0),
    "words beyond the event": (lambda build: build(messageWords=12), "messageWords", 0),
    "most words": (lambda build: build(messageWords=2**28 - 1), "messageWords", 0),
    "options beyond the message": (lambda build: build(optionsWords=3), "messageWords", 0),
    "most options": (lambda build: build(optionsWords=2**24 - 1), "messageWords", 0),
    "header of no words": (lambda build: build(headerWords=0), "headerWords", 7),
    "header of six words": (lambda build: build(headerWords=6), "headerWords", 7),
    "header of 31 words": (lambda build: build(headerWords=31), "messageWords", 0),
    "compression 2": (lambda build: build(compressionAlgorithmType=2), "compressionAlgorithmType", 7),
    "compression 7": (lambda build: build(compressionAlgorithmType=7), "compressionAlgorithmType", 7),
    "no data": (lambda build: build(b""), "messageWords", 0),
    "no data, no padding": (lambda build: build(b"", raw=True).ljust(36, b"\4"), "messageWords", 0),
}


# An unreadable PUSH message with a valid length is delivered: the message has a GUID.
FLAWED = {
    "fewer words than the header": Flaw.PARTS,
    "options beyond the message": Flaw.PARTS,
    "most options": Flaw.PARTS,
    "header of 31 words": Flaw.PARTS,
    "compression 2": 2,
    "compression 7": 7,
    "no data": Flaw.NO_DATA,
    "no data, no padding": Flaw.NO_DATA,
}
# Messages without a GUID.
SKIPPED = {"one word", "header of no words", "header of six words"}


# The bytes of a message, up to its own length.
FITTING = {"one word": 4, "fewer words than the header": 28, "no data, no padding": 32}
LIES = [
    *(("Put", name) for name in WRONG),
    *(("Push", name) for name in WRONG if name not in {*FLAWED, *SKIPPED}),
]


@sweep("kind, name", LIES)
@sweep("before", [b"", b"a", b"four"])
def test_inconsistent_headers_are_refused(kind: str, name: str, before: bytes) -> None:
    build: Any = put if kind == "Put" else push
    decode: Decoder = decode_puts if kind == "Put" else decode_pushes
    bad, field, at = WRONG[name]
    good = build(before) if before else b""
    with pytest.raises(ProtocolError) as caught:
        decode(EVENT_HEADER + good + bad(build), AT)
    if field is None or name == "header cut":  # the header's length determines the reported error
        assert caught.value.field in (f"{kind}Header", f"{kind}Header.messageWords")
    else:
        assert caught.value.field == (f"{kind}Header.{field}" if field else f"{kind}Header")
    assert caught.value.offset == AT + len(good) + at


@sweep("name", FLAWED)
@pytest.mark.statement("4.23")
def test_an_unreadable_push_is_delivered_in_its_place(name: str) -> None:
    options = encode_sub_queue_ids((4,))
    good, bad = partial(push, options=options), WRONG[name][0](push)[: FITTING.get(name)]
    event = EVENT_HEADER + good(b"one") + bad + good(b"two")
    first, flawed, last = decode_pushes(event, AT)
    assert (first.data, last.data) == (b"one", b"two")
    assert first.sub_ids == last.sub_ids == (4,)
    assert (flawed.compression, flawed.guid, flawed.queue_id) == (FLAWED[name], GUID, 3)
    assert flawed.sub_ids == (0,)
    with pytest.raises(ProtocolError):
        split_application_data(flawed.data, has_properties=False, schema_id=0, compression=flawed.compression)


@sweep("name", sorted(SKIPPED))
def test_a_push_without_a_guid_is_skipped_with_a_notice(name: str) -> None:
    bad = WRONG[name][0](push)[: FITTING.get(name)]
    noticed: list[str] = []
    event = EVENT_HEADER + push(b"one") + bad + push(b"two") + bad
    assert [m.data for m in decode_pushes(event, AT, noticed.append)] == [b"one", b"two"]
    assert set(noticed) == {"PUSH messages that are too short to have a GUID"}


@sweep("kind", sorted(set(range(64)) - set(OptionType)))
@sweep("packed", [0, 1])
def test_an_unknown_option_of_a_push_is_skipped_with_a_notice(kind: int, packed: int) -> None:
    # The length follows from the words; a packed message consists of its header only.
    words, body = (2, b"what") if not packed else (77, b"")
    unknown = (kind << 26 | packed << 25 | words).to_bytes(4, "big") + body
    event = EVENT_HEADER + push(b"one", options=unknown + encode_sub_queue_ids((4,))) + push(b"two")
    for _ in range(2):  # the options are not cached
        noticed: list[str] = []
        messages = decode_pushes(event, AT, noticed.append)
        assert [(m.data, m.sub_ids) for m in messages] == [(b"one", (4,)), (b"two", (0,))]
        assert noticed == [f"options of type {kind} in PUSH messages"]


#: Messages with the header, the length or the options of the first one; each differs in one part.
SIMILAR = [
    push(b"one one"),
    push(b"two two", messageGUID=bytes(16)),
    push(b"longer than one"),
    push(b"one one", queueId=4),
    push(b"one one", schemaId=2),
    push(b"one one", flags=int(PushFlags.OUT_OF_ORDER)),
    push(b"one one", compressionAlgorithmType=1),
    push(b"one", options=bytes.fromhex("08000001")),
    push(b"one one", options=encode_sub_queue_ids((4,))),
    push(b"one one", options=encode_sub_queue_ids((5,))),
    push(b"one one and", header_words=7),
    push(b"three \2\2", raw=True),
    push(b"three \xee\2", raw=True),
    push(b"three \0\7", raw=True),
    push(b"one one", flags=8),
    push(b"one one", flags=int(PushFlags.IMPLICIT_PAYLOAD)),
]


@given(
    st.lists(st.tuples(st.sampled_from([*SIMILAR, push(b"large" * 2000)]), st.integers(1, 5)), max_size=10),
    st.integers(0, 40),
    st.booleans(),
)
def test_a_memoryview_is_read_like_bytes(parts: list[tuple[bytes, int]], left: int, large: bool) -> None:
    """Of large messages in place; of small ones after a copy."""
    event = EVENT_HEADER + push(b"first" * 2000) * large + b"".join(part * count for part, count in parts)
    event += push(b"incomplete")[:left]
    expected, error = attempt(decode_pushes, event, AT)
    messages, same = attempt(decode_pushes, memoryview(bytearray(event)), AT)
    assert (messages, str(same)) == (expected, str(error))
    assert all(type(message.data) is bytes for message in messages or ())


def test_unknown_flags_of_a_push_are_ignored() -> None:
    noticed: list[str] = []
    messages = decode_pushes(EVENT_HEADER + push(b"one", flags=8) + push(b"two"), AT, noticed.append)
    assert [(m.data, m.flags) for m in messages] == [(b"one", 8), (b"two", 0)]
    assert noticed == ["flag 8 of PUSH messages"]


@sweep("last", [0, 5, 255])
def test_invalid_padding_is_refused(last: int) -> None:
    good = EVENT_HEADER + put(b"good")
    event = good + put(b"bad bad" + bytes([last]), raw=True)
    with pytest.raises(ProtocolError, match=f"the padding byte is {last}; it must be 1 to 4") as caught:
        decode_puts(event, AT)
    assert (caught.value.field, caught.value.offset) == ("PUT padding", len(event) - 1)
    event = EVENT_HEADER + push(b"one") + push(b"bad bad" + bytes([last]), raw=True) + push(b"two")
    first, flawed, second = decode_pushes(event, AT)
    assert (first.data, second.data) == (b"one", b"two")
    assert (flawed.compression, flawed.data) == (Flaw.PADDING, b"bad bad" + bytes([last]))


def test_a_push_with_malformed_options_is_for_subscription_0() -> None:
    options = bytes.fromhex("08000002") + pad(b"grp") + bytes.fromhex("04000009")
    event = EVENT_HEADER + push(b"one") + push(b"bad", options=options) + push(b"two")
    first, flawed, second = decode_pushes(event, AT)
    assert (first.data, second.data) == (b"one", b"two")
    assert (flawed.compression, flawed.sub_ids, flawed.guid) == (Flaw.OPTIONS, (0,), GUID)


def test_messages_before_a_mistake_are_read() -> None:
    runs: list[PutRun] = []
    decode_put_runs(EVENT_HEADER + put(b"one") + put(b"two", queueId=5), AT, runs)
    with pytest.raises(ProtocolError):
        decode_put_runs(
            EVENT_HEADER + put(b"three", queueId=5) + put(b"four", compressionAlgorithmType=2), AT, runs
        )
    read = [(queue_id, [data[:size] for *_, size, data in puts]) for queue_id, puts in runs]
    assert read == [(3, [b"one"]), (5, [b"two", b"three"])]


@given(
    st.lists(st.tuples(st.sampled_from(SIMILAR), st.integers(1, 5)), max_size=10),
    st.integers(0, len(push(b"one one")) - 1),
)
def test_equal_messages_in_a_row_are_read_as_if_alone(parts: list[tuple[bytes, int]], left: int) -> None:
    event = EVENT_HEADER + b"".join(part * count for part, count in parts)
    expected = [m for part, count in parts for m in decode_pushes(EVENT_HEADER + part, AT) * count]
    assert decode_pushes(event, AT) == expected
    if left:
        with pytest.raises(ProtocolError) as caught:
            decode_pushes(event + push(b"one one")[:left], AT)
        assert caught.value.offset is not None
        assert caught.value.offset >= len(event)


def test_short_series_of_equal_messages_are_copied_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile peer changes the length as soon as the decoder has begun to cut several messages.

    The copies cannot be seen from outside but by their time, so the test counts them.
    """
    copied, cut = 0, push_module._cut

    def counting(messages: bytes, length: int, prefix: int, pad: int) -> Iterator[tuple[bytes, ...]]:
        nonlocal copied
        copied += len(messages)
        return cut(messages, length, prefix, pad)

    monkeypatch.setattr(push_module, "_cut", counting)
    event = EVENT_HEADER + (push(b"one one") * 3 + push(b"one and two") * 3) * 500
    assert len(decode_pushes(event, AT)) == 3000
    assert 0 < copied < 8 * len(event)


def test_an_error_after_equal_messages_can_be_collected() -> None:
    """Collecting an iterator over a memoryview, and the memoryview with it, crashes CPython."""
    one = push(b"one one")
    with pytest.raises(ProtocolError) as caught:
        decode_pushes(EVENT_HEADER + one * 4 + push(b"one one", queueId=4) + one[:16], AT)
    caught.value.args += (caught.value,)  # a cycle: only the garbage collector frees the frames
    del caught
    gc.collect()
