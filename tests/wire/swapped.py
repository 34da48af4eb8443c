# SPDX-License-Identifier: Apache-2.0
"""Swap two neighbouring fields of a declaration, and compare every codec with Construct.

``python -m tests.wire.swapped`` swaps each pair of neighbours in a separate process. There the Construct
declaration is changed before the codecs are imported. The changed declaration is also the oracle: Construct
reads the bytes of the codecs, and the codecs read the bytes of Construct. The program prints a line for each
pair: the swapped fields, and the names of the compared codecs. Tracebacks of pairs that fail go to stderr.

:func:`users` lists the functions that depend on a declaration, and :func:`called` the functions called by the
comparisons. A test requires a call of each function.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from construct import BitStruct

import bmq
from bmq._caches import clear_caches

PACKAGE = Path(bmq.__file__).parent
#: The modules that turn a declaration into codecs.
_GENERATORS = ("layout.py", "codec.py", "columns.py")
_GUIDS = [bytes(range(at, at + 16)) for at in (1, 40, 90)]


class Swapped:
    """The declarations with two fields of a structure swapped; with ``first`` None, unchanged.

    Attributes:
        pair: the names of the swapped fields.
    """

    def __init__(self, name: str, first: int | None) -> None:
        layout = importlib.import_module("bmq.wire.layout")
        self._declared: dict[str, Any] = dict(layout.LAYOUTS)
        self.pair: tuple[str, ...] = ()
        if first is not None:
            members = list(self._declared[name].subcon.subcons)
            self.pair = members[first].name, members[first + 1].name
            members[first : first + 2] = members[first + 1], members[first]
            self._declared[name] = BitStruct(*members)
        self._fields = {each: layout.fields_of(made) for each, made in self._declared.items()}
        layout.LAYOUTS.update(self._declared)  # the codecs are made of these when they are imported

    def build(self, structure: str, **values: Any) -> bytes:
        """The bytes of a structure, written by Construct; omitted fields are 0."""
        zero = {
            name: bytes(bits // 8) if kind == "bytes" else 0 for name, bits, kind in self._fields[structure]
        }
        return bytes(self._declared[structure].build(zero | values))

    def parse(self, structure: str, data: bytes, at: int = 0) -> dict[str, Any]:
        """The fields of a structure, read by Construct."""
        size = self._declared[structure].sizeof()
        found = self._declared[structure].parse(data[at : at + size])
        return {name: found[name] for name, _, _ in self._fields[structure]}

    def size(self, structure: str) -> int:
        return int(self._declared[structure].sizeof())

    def end(self, structure: str, *names: str) -> int:
        """The size in bytes of the beginning of a structure, up to the last of these fields."""
        at, end = 0, 0
        for name, bits, _ in self._fields[structure]:
            at += bits
            end = max(end, at) if name in names else end
        return -(-end // 8)

    def event(self, kind: int, body: bytes) -> bytes:
        length = self.size("EventHeader") + len(body)
        header = self.build(
            "EventHeader", length=length, protocolVersion=1, type=kind, headerWords=2, typeSpecific=0
        )
        return header + body


def _dissected(event: bytes, **expected: object) -> None:
    """Check the fields that ``bmq decode`` shows."""
    from bmq.wire.anatomy import dissect

    found: dict[str, str] = {}
    for part in dissect(event):
        found.setdefault(part.name, part.value.partition(" ")[0].replace(",", ""))
    _equal(found, **{name: str(value) for name, value in expected.items()})


def _equal(found: dict[str, Any], **expected: Any) -> None:
    there = {name: found[name] for name in expected}
    assert there == expected, f"{there} is not {expected}"


def _events(declared: Swapped) -> Iterator[str]:
    import pytest

    from bmq.errors import ProtocolError
    from bmq.protocol.framing import Framer
    from bmq.testing._pipe import EventCounter
    from bmq.wire.control import Codec, ControlMessage, Disconnect, MessageKind, decode_event, encode_event
    from bmq.wire.event import (
        TWO_WORDS,
        pack_event_header,
        read_event,
        second_word,
        type_of,
    )

    expected = {
        "fragment": 0,
        "length": 12,
        "protocolVersion": 1,
        "type": 5,
        "headerWords": 2,
        "typeSpecific": 3,
    }
    raw = pack_event_header(12, 5, 3) + b"body"
    _equal(declared.parse("EventHeader", raw), **expected)
    assert TWO_WORDS.pack(12, second_word(5)) == pack_event_header(12, 5)
    yield "pack_event_header"
    raw = declared.build("EventHeader", **expected) + b"body"
    event = read_event(raw)
    assert (event.type, event.type_specific, event.body) == (5, 3, 8), event
    assert (type_of(raw), type_of(raw[:1])) == (5, 0)
    _dissected(raw, length=12, protocolVersion=1, headerWords=2, typeSpecific=3)
    yield "read_event"
    counter = EventCounter()
    counter.feed(raw * 2 + raw[:5])
    assert (counter.events, counter.needed) == (2, 7)
    yield "EventCounter"
    for codec in Codec:
        message = ControlMessage(7, Disconnect())
        whole_event = encode_event(message, codec)
        _equal(
            declared.parse("EventHeader", whole_event),
            length=len(whole_event), type=1, headerWords=2, typeSpecific=codec << 5,
        )  # fmt: skip
        assert decode_event(read_event(whole_event), MessageKind.CONTROL) == message
    yield "encode_event"
    framer, whole = Framer(), []
    for at in range(len(raw)):
        events, error = framer.feed(raw[at : at + 1])
        assert error is None, error
        whole += events
    together, error = Framer().feed(raw * 3)
    assert error is None, error
    for piece in (raw[:5], raw[5:], raw):
        framer.space()[: len(piece)] = piece
        events, error = framer.feed(framer.space()[: len(piece)])
        assert error is None, error
        together += events
    assert [tuple(each) for each in whole + together] == [tuple(event)] * 6
    for wrong, text in (({"length": 3}, "cannot hold"), ({"fragment": 1}, "fragmented")):
        _, error = Framer().feed(declared.build("EventHeader", **expected | wrong))
        assert text in str(error)
        with pytest.raises(ProtocolError):
            read_event(declared.build("EventHeader", **expected | wrong) + b"body")
    yield "Framer"


def _puts(declared: Swapped) -> Iterator[str]:
    import pytest

    from bmq.errors import ProtocolError
    from bmq.wire.crc import crc32c
    from bmq.wire.properties import encode_properties
    from bmq.wire.put import PutRun, decode_put_runs, decode_puts, encode_put, encode_put_event, encode_puts

    size = declared.size("PutHeader")
    data = [b"a", b"four", b"more than that", b"x" * 9000]
    words = [size // 4 + len(each) // 4 + 1 for each in data]

    def check(raw: bytes, at: int, place: int, guid: bytes, **more: int) -> None:
        fields = {
            "flags": 7, "messageWords": words[place], "compressionAlgorithmType": 1, "headerWords": size // 4,
            "queueId": -2, "messageGUID": guid, "crc32c": crc32c(data[place]), "schemaId": 77,
        }  # fmt: skip
        _equal(declared.parse("PutHeader", raw, at), **fields | more)

    messages = [(guid, each, 7, 77, 1) for guid, each in zip([*_GUIDS, _GUIDS[0]], data, strict=True)]
    check(encode_put(-2, _GUIDS[0], data[0], 7, 77, 1), 0, 0, _GUIDS[0])
    event = encode_put_event(-2, messages[1])
    assert declared.parse("EventHeader", event)["length"] == len(event)
    check(event, declared.size("EventHeader"), 1, _GUIDS[1])
    pieces, count, total = encode_puts(-2, messages)
    raw = b"".join(pieces)
    assert (count, total) == (4, len(raw))
    at = 0
    for place, message in enumerate(messages):
        check(raw, at, place, message[0])
        at += words[place] * 4
    yield "encode_puts"
    body = b"".join(
        declared.build(
            "PutHeader", flags=7, messageWords=size // 4 + 1, compressionAlgorithmType=1,
            headerWords=size // 4, queueId=queue_id, messageGUID=guid, crc32c=99, schemaId=77,
        )
        + b"a\3\3\3"
        for queue_id, guid in zip((-2, -2, 3), _GUIDS, strict=True)
    )  # fmt: skip
    event = declared.event(2, body)
    assert [tuple(put) for put in decode_puts(event, len(event) - len(body))] == [
        (queue_id, guid, 7, 77, 1, 99, b"a") for queue_id, guid in zip((-2, -2, 3), _GUIDS, strict=True)
    ]
    _dissected(event[:-4], compressionAlgorithmType="1", messageWords=size // 4 + 1)
    yield "decode_puts"
    area = encode_properties({"n": 3}, new=True)
    raw = encode_put(-2, _GUIDS[0], area + b"payload", 2, 1)
    event = declared.event(2, raw)
    runs: list[PutRun] = []
    decode_put_runs(event, len(event) - len(raw), runs, checks_area=True)
    assert [put[2] for _, puts in runs for put in puts] == _GUIDS[:1]
    claims = declared.parse("MessagePropertiesHeader", area) | {"areaWords": 1000}
    area = declared.build("MessagePropertiesHeader", **claims)
    event = declared.event(2, encode_put(-2, _GUIDS[0], area + b"payload", 2, 1))
    with pytest.raises(ProtocolError, match="claims 4000 bytes"):
        decode_put_runs(event, declared.size("EventHeader"), [], checks_area=True)
    few = declared.build("PutHeader", messageWords=size // 4 + 1, headerWords=1) + b"a\3\3\3"
    with pytest.raises(ProtocolError, match="1 words are too few"):
        decode_puts(declared.event(2, few), declared.size("EventHeader"))
    yield "decode_put_runs"


def _tables(declared: Swapped) -> Iterator[str]:
    import numpy as np
    import pyarrow as pa

    from bmq.protocol.client.slices import PostSlice
    from bmq.wire.ack import ACK_SIZE, encode_queue_acks
    from bmq.wire.properties import encode_properties
    from bmq.wire.put import decode_puts, encode_puts
    from bmq.wire.table import EncodedPosts, TableEncoder

    rows = 5
    table = pa.table(
        {
            "value": [b"p" * at for at in range(1, rows + 1)],
            "n": pa.array([3, -1, 2**40, 0, 7], pa.int64()),
            "s": ["a", "", "ccc", "dd", "e"],
        }
    )
    (batch,) = table.to_batches()
    (part,) = TableEncoder(table.schema, "value", ("n", "s")).slices(batch)
    posts = EncodedPosts.of(part.messages, part.messages.rows(), part.payload_bytes)
    guids = b"".join(bytes([at]) * 16 for at in range(1, rows + 1))
    made = posts.bind(-2, lambda _: 5, lambda _: guids)
    expected = [
        (
            bytes([at + 1]) * 16,
            encode_properties({"n": row["n"], "s": row["s"]}, new=True) + row["value"],
            5,
            5 if at == 0 else 4,
            0,
        )
        for at, row in enumerate(table.to_pylist())
    ]
    flags = declared.parse("PutHeader", made.event, declared.size("EventHeader"))["flags"]
    pieces, _, _ = encode_puts(
        -2, [(guid, data, flags, schema, kind) for guid, data, _, schema, kind in expected]
    )
    assert made.event[declared.size("EventHeader") :] == b"".join(pieces)
    assert made.acks == encode_queue_acks(-2, [each[0] for each in expected])
    given = EncodedPosts.of(
        part.messages, part.messages.rows(), part.payload_bytes, guids=np.frombuffer(guids, "V16")
    )
    assert given.bind(-2, lambda _: 5, lambda _: b"").event == made.event
    assert [(payload, guid) for payload, _, guid in given.decoded()] == [
        (b"p" * (at + 1), bytes([at + 1]) * 16) for at in range(rows)
    ]
    yield "TableEncoder"
    queue: Any = None
    waiting = PostSlice(queue, made, None, 0)
    assert waiting.event() == made.event
    assert waiting.accepted(made.acks[:ACK_SIZE], 0) == 1
    assert waiting.take(bytes([4]) * 16) == 3
    assert [guid[0] for _, guid in waiting.rows()] == [2, 3, 5]
    _dissected(waiting.event(), queueId="-2")
    assert [put.guid[0] for put in decode_puts(waiting.event(), declared.size("EventHeader"))] == [2, 3, 5]
    yield "PostSlice"


def _received_tables(declared: Swapped) -> Iterator[str]:
    import pyarrow as pa

    from bmq.wire.properties import encode_properties
    from bmq.wire.push import encode_push
    from bmq.wire.push_columns import decode_push_columns
    from bmq.wire.push_table import TableDecoder

    values = [{"n": at - 2, "s": "x" * at} for at in range(40)]
    area = [encode_properties(each, new=True) for each in values]
    pushes = [encode_push(-2, _GUIDS[0], each + b"abc\1", flags=2, schema_id=1) for each in area]
    event = declared.event(4, b"".join(pushes))
    decoder = TableDecoder({"n": pa.int64(), "s": pa.string()})
    found = decoder.decode(decode_push_columns(event, declared.size("EventHeader")))
    assert found.payload.to_pylist() == [b"abc"] * 40, found.errors
    numbers, texts = (each.to_pylist() for each in found.properties)
    assert [{"n": n, "s": s} for n, s in zip(numbers, texts, strict=True)] == values
    yield "TableDecoder"


def _pushes(declared: Swapped) -> Iterator[str]:
    from bmq.wire.options import encode_sub_queue_ids
    from bmq.wire.push import decode_pushes, encode_push, encode_push_head, encode_push_run
    from bmq.wire.push_columns import read_push_columns

    size = declared.size("PushHeader")
    options = encode_sub_queue_ids((7,))
    data = b"abc\1"
    fields = {
        "flags": 2, "messageWords": (size + len(options) + len(data)) // 4, "optionsWords": len(options) // 4,
        "compressionAlgorithmType": 1, "headerWords": size // 4, "queueId": -2, "messageGUID": _GUIDS[0],
        "schemaId": 77,
    }  # fmt: skip
    run, total = encode_push_run(-2, [(_GUIDS[0], data, options, 2, 77, 1)] * 2)
    for raw in (
        encode_push(-2, _GUIDS[0], data, options, 2, 77, 1),
        encode_push_head(-2, _GUIDS[0], len(data), options, 2, 77, 1) + data,
        b"".join(run),
    ):
        _equal(declared.parse("PushHeader", raw), **fields)
        assert raw[size:].startswith(options + data)
    assert total == 2 * fields["messageWords"] * 4
    yield "encode_push"
    # Enough messages of one length for the comparison of columns, then a longer message.
    bodies = [
        declared.build("PushHeader", **fields | {"queueId": queue_id, "messageGUID": guid}) + options + data
        for queue_id, guid in [(-2, guid) for guid in _GUIDS] * 30 + [(3, _GUIDS[1])]
    ]
    longer = fields | {"messageWords": fields["messageWords"] + 1}
    bodies.append(declared.build("PushHeader", **longer) + options + b"abcdefg\1")
    event = declared.event(4, b"".join(bodies))
    body = declared.size("EventHeader")
    expected = [(-2, (7,), guid, 2, 77, 1, b"abc") for guid in _GUIDS] * 30
    expected += [(3, (7,), _GUIDS[1], 2, 77, 1, b"abc"), (-2, (7,), _GUIDS[0], 2, 77, 1, b"abcdefg")]
    assert [tuple(each) for each in decode_pushes(event, body)] == expected
    for payload in (b"abc", b"abc" * 2001):
        pushed = encode_push(-2, _GUIDS[0], payload + b"\1", options, 2, 77, 1)
        event_of_one = memoryview(bytearray(declared.event(4, pushed)))
        assert [each.data for each in decode_pushes(event_of_one, body)] == [payload]
    yield "decode_pushes"
    _dissected(event, optionsWords=fields["optionsWords"], schemaId=77, id=7)
    # Headers of an older broker, flags of a newer broker, and messages too short for a GUID.
    short, notices = size - 4, list[str]()
    words = -(-declared.end("PushHeader", "flags", "messageWords") // 4)
    cut = declared.build("PushHeader", **fields | {"messageWords": words})[: words * 4]
    old = fields | {"headerWords": short // 4, "messageWords": (short + len(options) + len(data)) // 4}
    bodies = [declared.build("PushHeader", **fields | {"flags": 9}) + options + data, cut, cut]
    expected_guids = [_GUIDS[0]]
    if declared.end("PushHeader", "messageGUID", "queueId") <= short:
        bodies.insert(0, declared.build("PushHeader", **old)[:short] + options + data)
        expected_guids *= 2
    odd = declared.event(4, b"".join(bodies))
    assert [each.guid for each in decode_pushes(odd, body, notices.append)] == expected_guids
    assert len(notices) == 3, notices
    columns = read_push_columns(event, body)
    assert columns is not None
    assert list(columns.pushes()) == expected
    yield "read_push_columns"


def _options(declared: Swapped) -> Iterator[str]:
    from bmq.wire.options import encode_sub_queue_ids, read_sub_queue_ids

    raw = encode_sub_queue_ids((7, 1 << 20))
    header, entry = declared.size("OptionHeader"), declared.size("SubQueueId")
    _equal(declared.parse("OptionHeader", raw), type=1, packed=0, typeSpecific=0, words=3)
    assert [declared.parse("SubQueueId", raw, header + at * entry)["id"] for at in (0, 1)] == [7, 1 << 20]
    assert read_sub_queue_ids(raw) == (7, 1 << 20)
    yield "encode_sub_queue_ids"
    info = {"unlimited": 0, "potentiallyPoisonous": 1, "remainingDeliveryAttempts": 9}
    raw = declared.build("OptionHeader", type=3, packed=0, typeSpecific=2, words=5)
    raw += b"".join(declared.build("SubQueueInfo", id=each, **info) for each in (7, 1 << 20))
    found: Any = read_sub_queue_ids(raw)
    assert (tuple(found), found.attempts_left) == ((7, 1 << 20), 9)
    raw = declared.build("OptionHeader", type=3, packed=0, typeSpecific=2, words=3)
    raw += declared.build(
        "SubQueueInfo", id=7, unlimited=1, potentiallyPoisonous=0, remainingDeliveryAttempts=0
    )
    found = read_sub_queue_ids(raw)
    assert found == (7,)
    assert not hasattr(found, "attempts_left")
    raw = declared.build("OptionHeader", type=3, packed=1, typeSpecific=0, words=5)
    found = read_sub_queue_ids(raw)
    assert (tuple(found), found.attempts_left) == ((0,), 5)
    yield "read_sub_queue_ids"


def _acks(declared: Swapped) -> Iterator[str]:
    from bmq.wire import ack

    acks = [(status, 0x123456, guid, -2) for status, guid in zip((0, 4, 9), _GUIDS, strict=True)]
    header, each = declared.size("AckHeader"), declared.size("AckMessage")
    start = declared.size("EventHeader") + header
    accepted = [(0, 0, guid, -2) for guid in _GUIDS]
    for raw, wanted in (
        (ack.encode_acks(acks), acks),
        (ack.pack_acks([ack.encode_queue_acks(-2, _GUIDS)]), accepted),
    ):
        _equal(declared.parse("AckHeader", raw, start - header), headerWords=1, perMessageWords=each // 4)
        for at, (status, correlation_id, guid, queue_id) in enumerate(wanted):
            _equal(
                declared.parse("AckMessage", raw, start + at * each),
                status=status, correlationId=correlation_id, messageGUID=guid, queueId=queue_id,
            )  # fmt: skip
    yield "encode_acks"
    for words in (each // 4, each // 4 + 1):
        body = declared.build("AckHeader", headerWords=1, perMessageWords=words) + b"".join(
            declared.build(
                "AckMessage", status=status, correlationId=correlation_id, messageGUID=guid, queueId=queue_id
            ).ljust(words * 4, b"\0")
            for status, correlation_id, guid, queue_id in acks
        )
        event = declared.event(5, body)
        assert [tuple(each) for each in ack.decode_acks(event, start - header)] == acks
        assert [
            (number & ack.STATUS_MASK, guid) for number, guid in ack.iter_acks(event, start - header)
        ] == [(status, guid) for status, _, guid, _ in acks]
        _dissected(event, perMessageWords=words, queueId=-2, correlationId=0x123456)
    number, guid = ack.read_ack(event, start)
    assert (number & ack.STATUS_MASK, guid) == (0, _GUIDS[0])
    yield "decode_acks"


def _confirms(declared: Swapped) -> Iterator[str]:
    from bmq.wire import confirm

    header, each = declared.size("ConfirmHeader"), declared.size("ConfirmMessage")
    start = declared.size("EventHeader") + header
    confirms = [(-2, guid, 9) for guid in _GUIDS]
    raw = confirm.pack_confirms([confirm.encode_queue_confirms(-2, _GUIDS, 9)])
    assert raw == confirm.pack_confirms([confirm.encode_confirm(*each) for each in confirms])
    _equal(declared.parse("ConfirmHeader", raw, start - header), headerWords=1, perMessageWords=each // 4)
    for at, (queue_id, guid, sub_queue_id) in enumerate(confirms):
        _equal(
            declared.parse("ConfirmMessage", raw, start + at * each),
            queueId=queue_id, messageGUID=guid, subQueueId=sub_queue_id,
        )  # fmt: skip
    yield "encode_confirms"
    for words in (each // 4, each // 4 + 1):
        body = declared.build("ConfirmHeader", headerWords=1, perMessageWords=words) + b"".join(
            declared.build("ConfirmMessage", queueId=queue_id, messageGUID=guid, subQueueId=sub).ljust(
                words * 4, b"\0"
            )
            for queue_id, guid, sub in confirms
        )
        event = declared.event(3, body)
        assert list(confirm.iter_confirms(event, start - header)) == confirms
        assert [tuple(found) for found in confirm.decode_confirms(event, start - header)] == confirms
        _dissected(
            event, perMessageWords=words, queueId=-2, subQueueId=9, messageGUID=_GUIDS[0].hex().upper()
        )
    assert confirm.confirmed_guids(raw[start:]) == _GUIDS
    yield "decode_confirms"


def _rejects(declared: Swapped) -> Iterator[str]:
    words = declared.size("RejectMessage") // 4
    body = declared.build("RejectHeader", headerWords=1, perMessageWords=words) + declared.build(
        "RejectMessage", queueId=-2, messageGUID=_GUIDS[0], subQueueId=9
    )
    event = declared.event(13, body)
    _dissected(event, perMessageWords=words, queueId=-2, subQueueId=9, messageGUID=_GUIDS[0].hex().upper())
    yield "dissect"


def _properties(declared: Swapped) -> Iterator[str]:
    from bmq.wire.message import properties_size, read_beginning
    from bmq.wire.properties import (
        SchemaIds,
        encode_properties,
        plain_values,
        properties_length,
        property_column,
        split_properties,
    )

    values = {"n": 3, "s": "text", "t": "more"}
    sizes = {"n": 8, "s": 4, "t": 4}
    types = {"n": 5, "s": 6, "t": 6}
    area, head = declared.size("MessagePropertiesHeader"), declared.size("MessagePropertyHeader")

    def build(new: bool) -> bytes:
        heads, parts, offset = b"", b"", 0
        for name, value in values.items():
            raw = value.encode() if isinstance(value, str) else value.to_bytes(8, "big")
            field = offset if new else sizes[name]
            heads += declared.build("MessagePropertyHeader", type=types[name], valueField=field, nameLength=1)
            parts += name.encode() + raw
            offset += 1 + sizes[name]
        length = area + len(heads) + len(parts)
        pad = 4 - length % 4
        header = declared.build(
            "MessagePropertiesHeader", propertyHeaderSize2x=head // 2, headerSize2x=area // 2,
            areaWords=(length + pad) // 4, numProperties=3,
        )  # fmt: skip
        return header + heads + parts + bytes([pad]) * pad

    for new in (False, True):
        expected = build(new)
        assert encode_properties(values, new=new) == expected
        for _ in range(4):  # the first area is indexed, the next areas are read by their shape
            assert encode_properties(values, new=new) == expected
            properties, length = split_properties(expected + b"payload", new)
            assert (dict(properties), length) == (values, len(expected))
            assert plain_values(expected, new) in (None, values)
            assert property_column([expected] * 80, new, "s") == ["text"] * 80
            other = encode_properties({"s": "x"}, new=new)
            assert property_column([expected, other] * 40, new, "s") == ["text", "x"] * 40
            assert properties_length(expected) == len(expected)
            assert properties_size(zlib.compress(expected + b"payload")) == len(expected)
            read = read_beginning(expected, has_properties=True, schema_id=int(new), compression=0, most=100)
            assert dict(read.properties) == values
    yield "encode_properties split_properties property_column"
    ids = SchemaIds()
    for _ in range(4):
        assert ids.encode(values, b"payload")[0] == build(True) + b"payload"
    yield "SchemaIds"


def _guid(declared: Swapped) -> Iterator[str]:
    from bmq.wire.guid import GuidGenerator

    for count in (1, 5):
        one, other = GuidGenerator(b"client"), GuidGenerator(b"client")
        one._counter = other._counter = (1 << 22) - 3
        guids = [one.next(0x123456789ABCD) for _ in range(count)]
        many = GuidGenerator(b"client")
        many._counter = one._counter - count & (1 << 22) - 1
        assert b"".join(guids) == other.next_many(0x123456789ABCD, count)
        assert many.next_list(0x123456789ABCD, count) == guids
        for at, guid in enumerate(guids):
            _equal(
                declared.parse("MessageGUID", guid),
                version=1, counter=(1 << 22) - 3 + at & (1 << 22) - 1, timerTick=0x123456789ABCD,
                clientId=b"client",
            )  # fmt: skip
    yield "GuidGenerator"


#: The comparisons for each structure: its own codecs, and the codecs containing the structure.
CHECKS: dict[str, tuple[Callable[[Swapped], Iterator[str]], ...]] = {
    "EventHeader": (_events, _puts, _pushes, _acks, _confirms),
    "PutHeader": (_puts, _tables),
    "PushHeader": (_pushes, _received_tables),
    "OptionHeader": (_options, _pushes),
    "SubQueueId": (_options,),
    "SubQueueInfo": (_options,),
    "AckHeader": (_acks,),
    "AckMessage": (_acks, _tables),
    "ConfirmHeader": (_confirms,),
    "ConfirmMessage": (_confirms,),
    "RejectHeader": (_rejects,),
    "RejectMessage": (_rejects,),
    "MessagePropertiesHeader": (_properties, _tables, _received_tables),
    "MessagePropertyHeader": (_properties, _tables, _received_tables),
    "MessageGUID": (_guid,),
}


def compare(name: str, first: int) -> str:
    """Swap a pair of neighbours in this process; return the pair, and the compared codecs."""
    declared = Swapped(name, first)
    codecs = [codec for check in CHECKS[name] for codec in check(declared)]
    return f"{name} {' '.join(declared.pair)}: {' '.join(codecs)}"


def users() -> set[str]:
    """Return the functions of the codecs whose code uses a declaration, as ``file.py:name``.

    A name depends on the declarations if it is imported from the codecs, or is computed at module level from
    a name that depends on them.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    # Only modules that import from these packages depend on a declaration; parsing takes most of the time.
    trees = {
        path: ast.parse(text)
        for path, text in texts.items()
        if "bmq.wire" in text or "bmq.protocol" in text or path.parent.name == "wire"
    }
    modules = {".".join(("bmq", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in trees}
    declared = {path: set[str]() for path in trees}
    source = declared[modules["bmq.wire.codec"]] = {"CODECS"}
    source |= {name for name in importlib.import_module("bmq.wire.codec").__dict__ if name.isupper()}
    known = -1
    while known != (known := sum(map(len, declared.values()))):
        for path, tree in trees.items():
            if path.name in _GENERATORS:
                continue
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and node.module in modules:
                    there = declared[modules[node.module]]
                    declared[path] |= {each.asname or each.name for each in node.names if each.name in there}
                elif isinstance(node, ast.Assign | ast.AnnAssign):
                    used, made = _names(node.value or node.target), _names(node) - _names(node.value or node)
                    declared[path] |= made if used & declared[path] else set()
    return {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}"
        for path, tree in trees.items()
        if path.name not in _GENERATORS
        for name, function in _functions(tree)
        if _names(function) & declared[path]
    }


def called() -> set[str]:
    """Return the functions of the library that the comparisons call, as ``file.py:name``."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            path = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            found.add(f"{path}:{code.co_qualname}")

    clear_caches()  # cached results are not computed again
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for check in dict.fromkeys(check for checks in CHECKS.values() for check in checks):
            list(check(Swapped("", None)))
    finally:
        sys.setprofile(before)
    return found


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _functions(node: ast.AST, before: str = "") -> Iterator[tuple[str, ast.AST]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + each.name, each
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{before}{each.name}.")


def main() -> int:
    """Compare every pair of every structure, each in a separate process; return the exit status."""
    if sys.argv[1:]:
        print(compare(sys.argv[1], int(sys.argv[2])), flush=True)
        return 0
    # Forked processes share slow imports that do not depend on a declaration.
    for slow in ("numpy", "pyarrow", "pyarrow.compute", "pytest", "bmq.wire.layout"):
        importlib.import_module(slow)
    importlib.import_module("pyarrow").scalar(1)  # the first value imports pandas
    assert "bmq.wire.codec" not in sys.modules, "codecs are made from the changed declaration"
    failed = False
    for name, declaration in importlib.import_module("bmq.wire.layout").LAYOUTS.items():
        for first in range(len(declaration.subcon.subcons) - 1):
            failed |= not _compared_aside(name, first)
    return int(failed)


def _compared_aside(name: str, first: int) -> bool:
    """Swap a pair in a separate process; return whether all codecs agree with Construct."""
    if not hasattr(os, "fork"):
        command = [sys.executable, "-m", "tests.wire.swapped", name, str(first)]
        return subprocess.run(command, check=False).returncode == 0
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    try:
        print(compare(name, first), flush=True)
        os._exit(0)
    finally:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
