# SPDX-License-Identifier: Apache-2.0
"""PUT and ACK: headers, flags, padding, properties, compression, deduplication, quotas, expiry."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

from bmq import _world
from bmq.wire.constants import Compression, EventType, PropertyType, PushFlags
from bmq.wire.control.messages import GuidInfo
from bmq.wire.crc import crc32c
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check, fail
from conformance.peer import Peer, put_event, subscription

__all__ = ["GROUP"]

GROUP = Cases(4, "Posting", domains=("priority",))

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED

_STORED = "ACK 0, delivered"
_SILENT = "delivered"
_REFUSED = "ACK 5"
_NOTHING = "nothing"


def _put(
    guid: bytes,
    data: bytes = b"payload",
    *,
    q_id: int = 0,
    flags: int = 1,
    words: int | None = None,
    option_words: int | None = None,
    options: bytes = b"",
    compression: int = 0,
    header_words: int | None = None,
    crc: int | None = None,
    schema_id: int = 0,
    reserved: bytes = b"\0\0",
    pad: bytes | None = None,
    more: bytes = b"",
    cut: int = 36,
) -> bytes:
    """A PUT message with any fields, right unless told otherwise."""
    if pad is None:
        count = 4 - len(data) % 4
        pad = bytes([count]) * count
    rest = (
        q_id.to_bytes(4, "big", signed=True)
        + guid
        + (crc32c(data) if crc is None else crc).to_bytes(4, "big")
    )
    header = (rest + schema_id.to_bytes(2, "big") + reserved)[: cut - 8] + more
    own = (8 + len(header)) // 4
    size = own + (len(options) + len(data) + len(pad)) // 4
    first = flags << 28 | (size if words is None else words)
    second = (
        (len(options) // 4 if option_words is None else option_words) << 8
        | compression << 5
        | (own if header_words is None else header_words)
    )
    return first.to_bytes(4, "big") + second.to_bytes(4, "big") + header + options + data + pad


async def _reaction(peer: Peer, event: bytes, guid: bytes) -> str:
    """Send an event and a good post; the reaction to the event, until the good post is stored and delivered."""
    peer.send(event)
    marker = peer.post(b"marker")
    seen: list[str] = []
    while (ack := await peer.ack()).guid != marker:
        if ack.guid == guid or ack.status:
            seen.append(f"ACK {ack.status}")
    while (push := await peer.push()).push.guid != marker:
        if push.push.guid == guid:
            seen.append("delivered")
    return ", ".join(seen) or _NOTHING


_Event = Callable[[bytes], bytes]
_OPTION = b"\x08\x00\x00\x02abc\x01"
_UNKNOWN_OPTION = b"\x7c\x00\x00\x02abcd"
_PACKED = zlib.compress(b"payload" * 20)

#: Number, title, level, what is sent, the event from a GUID, reaction.
_HEADERS: list[tuple[int, str, str, Level, str, _Event, str]] = [
    (1, "11.1", "A post is acknowledged and delivered", _M, "a PUT with ACK_REQUESTED", lambda g: put_event(_put(g)), _STORED),
    (2, "11.1", "A post without ACK_REQUESTED is not acknowledged", _M, "a PUT without flags", lambda g: put_event(_put(g, flags=0)), _SILENT),
    (3, "10.24", "The unused flag 4 is skipped", _O, "a PUT with the flags 5", lambda g: put_event(_put(g, flags=5)), _STORED),
    (4, "10.24", "The unused flag 8 is skipped", _O, "a PUT with the flags 9", lambda g: put_event(_put(g, flags=9)), _STORED),
    (5, "10.23", "A post to an unknown queue is refused", _M, "a PUT with qId 99", lambda g: put_event(_put(g, q_id=99)), _REFUSED),
    (6, "11.2", "A refusal comes without ACK_REQUESTED, too", _M, "a PUT with qId 99 without flags", lambda g: put_event(_put(g, q_id=99, flags=0)), _REFUSED),
    (7, "10.23", "A negative queue id is refused", _O, "a PUT with qId -5", lambda g: put_event(_put(g, q_id=-5)), _REFUSED),
    (8, "10.23", "A GUID of zeros is refused", _M, "a PUT with a GUID of zeros", lambda g: put_event(_put(bytes(16))), _REFUSED),
    (9, "10.7", "A wrong checksum is accepted", _O, "a PUT with another CRC32-C", lambda g: put_event(_put(g, crc=1)), _STORED),
    (10, "10.20", "A post without data is ignored", _M, "a PUT with nothing but padding", lambda g: put_event(_put(g, b"")), _NOTHING),
    (11, "1.8", "A longer header is skipped", _M, "a PUT with headerWords 10", lambda g: put_event(_put(g, more=bytes(4))), _STORED),
    (12, "10.24", "A header without schemaId is read", _O, "a PUT with headerWords 8", lambda g: put_event(_put(g, cut=32)), _STORED),
    (13, "10.20", "A header of 0 words is ignored", _M, "a PUT with headerWords 0", lambda g: put_event(_put(g, header_words=0)), _NOTHING),
    (14, "10.20", "A header of 1 word is ignored", _M, "a PUT with headerWords 1", lambda g: put_event(_put(g, header_words=1)), _NOTHING),
    (15, "10.20", "A header longer than the message is ignored", _M, "a PUT with headerWords 31", lambda g: put_event(_put(g, header_words=31)), _NOTHING),
    (16, "10.20", "A message longer than its event is ignored", _M, "a PUT with messageWords 1000", lambda g: put_event(_put(g, words=1000)), _NOTHING),
    (17, "10.20", "A message of 0 words is ignored", _M, "a PUT with messageWords 0", lambda g: put_event(_put(g, words=0)), _NOTHING),
    (18, "10.20", "A message shorter than its header is ignored", _M, "a PUT with messageWords 5", lambda g: put_event(_put(g, words=5)), _NOTHING),
    (19, "10.20", "Options longer than the message are ignored", _M, "a PUT with optionsWords 1000", lambda g: put_event(_put(g, option_words=1000)), _NOTHING),
    (20, "10.24", "A group option is skipped", _O, "a PUT with the option MSG_GROUP_ID", lambda g: put_event(_put(g, options=_OPTION)), _STORED),
    (21, "10.24", "An unknown option is skipped", _O, "a PUT with an option of the type 31", lambda g: put_event(_put(g, options=_UNKNOWN_OPTION)), _STORED),
    (22, "2.17", "Padding of 0 bytes is ignored", _M, "a PUT whose last byte is 0", lambda g: put_event(_put(g, b"payl", pad=bytes(4))), _NOTHING),
    (23, "2.17", "Padding of 5 bytes is ignored", _M, "a PUT whose last byte is 5", lambda g: put_event(_put(g, b"payl", pad=b"\5\5\5\5")), _NOTHING),
    (24, "2.18", "Only the last byte of the padding counts", _O, "a PUT with the padding 00 00 00 04", lambda g: put_event(_put(g, b"payl", pad=b"\0\0\0\4")), _STORED),
    (25, "1.7", "Reserved bytes are skipped", _M, "a PUT with other reserved bytes", lambda g: put_event(_put(g, reserved=b"\xff\xff")), _STORED),
    (26, "10.14", "A compressed payload is stored", _M, "a PUT compressed by zlib", lambda g: put_event(_put(g, _PACKED, compression=1)), _STORED),
    (27, "10.15", "A payload that does not decompress is stored", _O, "a PUT with compression 1 and other bytes", lambda g: put_event(_put(g, compression=1)), _STORED),
    (28, "10.15", "An unknown compression is ignored", _O, "a PUT with compression 7", lambda g: put_event(_put(g, compression=7)), _NOTHING),
    (29, "10.21", "A schema id without properties is ignored", _O, "a PUT with schemaId 1 without properties", lambda g: put_event(_put(g, schema_id=1)), _NOTHING),
    (30, "10.11", "GUIDs with the version bits 00 are accepted", _S, "a PUT with a GUID of the version 0", lambda g: put_event(_put(g)), _STORED),
    (31, "10.11", "GUIDs with the version bits 10 are accepted", _S, "a PUT with a GUID of the version 2", lambda g: put_event(_put(g)), _STORED),
    (32, "10.11", "GUIDs with the version bits 11 are accepted", _S, "a PUT with a GUID of the version 3", lambda g: put_event(_put(g)), _STORED),
    (33, "10.24", "Bytes after the last message are ignored", _O, "a PUT event with four more bytes", lambda g: put_event(_put(g), bytes(4)), _STORED),
    (34, "10.20", "An event without messages is ignored", _M, "a PUT event with a header alone", lambda g: put_event(), _NOTHING),
    (35, "10.22", "A good message before a malformed one is stored", _M, "two messages, the second with messageWords 0", lambda g: put_event(_put(g), _put(bytes(15) + b"\1", words=0)), _STORED),
    (36, "10.21", "A malformed message ends its event", _O, "two messages, the first with messageWords 0", lambda g: put_event(_put(bytes(15) + b"\1", words=0), _put(g)), _NOTHING),
    (37, "10.23", "A refused message does not end its event", _M, "two messages, the first with qId 99", lambda g: put_event(_put(bytes(15) + b"\1", q_id=99), _put(g)), "ACK 5, ACK 0, delivered"),
]  # fmt: skip


def _header_check(number: int, event: _Event, reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.consumer(subscription(1))
        guid = peer.guids.next(0)
        if number in _VERSIONS:
            guid = _VERSIONS[number] + guid[1:]
        check(await _reaction(peer, event(guid), guid), reaction, "reaction")

    return run


#: Cases with a first byte of their own in the GUID.
_VERSIONS = {30: b"\x01", 31: b"\x81", 32: b"\xc1"}

for _number, _statement, _title, _level, _sends, _event, _expected in _HEADERS:
    GROUP.case(
        f"4.1.{_number}",
        _title,
        sends=f"{_sends}, and a good PUT",
        expects=_expected,
        statement=_statement,
        level=_level,
    )(_header_check(_number, _event, _expected))

# ---- 4.2 posts


def _size_check(size: int) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.consumer(subscription(1))
        payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
        peer.post(payload)
        check((await peer.ack()).status, 0, "status")
        got = (await peer.push()).payload
        if got != payload:
            raise fail(f"the payload of {size} bytes", f"{len(got)} other bytes")

    return run


for _number, (_size, _heavy) in enumerate(
    ((1, False), (2, False), (3, False), (4, False), (65_537, False), (1 << 20, True), (16 << 20, True)), 1
):
    GROUP.case(
        f"4.2.{_number}",
        f"A payload of {_size:,} bytes arrives unchanged",
        sends=f"a PUT of {_size:,} bytes",
        expects="an ACK with the status 0, and a PUSH with the same bytes",
        statement="10.3",
        heavy=_heavy,
    )(_size_check(_size))


@GROUP.case(
    "4.2.8",
    "The messages of one event are stored in order",
    sends="a PUT event of 20 messages",
    expects="20 ACK messages and 20 deliveries in the order of the event",
    statement="10.8",
)
async def _in_order(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    guids = [peer.guids.next(0) for _ in range(20)]
    peer.send(put_event(*(_put(guid, b"%d" % n) for n, guid in enumerate(guids))))
    check([ack.guid for ack in await peer.acks(20)], guids, "GUIDs of the acknowledgements")
    check(await peer.payloads(20), [b"%d" % n for n in range(20)], "payloads")


@GROUP.case(
    "4.2.9",
    "An event may post to several queues",
    sends="a PUT event with messages for qId 0 and qId 1",
    expects="each message in its queue",
    statement="10.8",
)
async def _several_queues(bench: Bench) -> None:
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri(), q_id)
        await peer.configure(q_id, subscription(q_id + 1))
    guids = [peer.guids.next(0) for _ in range(4)]
    peer.send(put_event(*(_put(guid, b"%d" % n, q_id=n % 2) for n, guid in enumerate(guids))))
    got = sorted((each.push.queue_id, each.payload) for each in await peer.pushes(4))
    check(got, [(0, b"0"), (0, b"2"), (1, b"1"), (1, b"3")], "deliveries")


@GROUP.case(
    "4.2.10",
    "A post to a queue opened for reading is refused",
    sends="a PUT to a queue opened for reading",
    expects="an ACK with a status other than 0",
    statement="10.23",
)
async def _reader_posts(bench: Bench) -> None:
    peer, _ = await bench.queue(write=False)
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")


@GROUP.case(
    "4.2.11",
    "A post to a closed queue is refused",
    sends="a PUT after closeQueue",
    expects="an ACK with a status other than 0",
    statement="10.23",
)
async def _closed_queue(bench: Bench) -> None:
    peer, uri = await bench.queue()
    await peer.close(uri)
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")


@GROUP.case(
    "4.2.12",
    "A post before the queue is open is refused",
    sends="a PUT without openQueue",
    expects="an ACK with a status other than 0",
    statement="10.23",
    domains=(),
)
async def _early(bench: Bench) -> None:
    peer = await bench.client()
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")


@GROUP.case(
    "4.2.13",
    "A message waits for a consumer",
    sends="a PUT, then configureStream in another session",
    expects="the message in the other session",
    statement="10.16",
)
async def _waits(bench: Bench) -> None:
    peer, uri = await bench.queue(read=False)
    peer.post(b"early")
    await peer.ack()
    reader = await bench.reader(uri, subscription(1))
    check(await reader.payloads(1), [b"early"], "payloads")


@GROUP.case(
    "4.2.14",
    "A message outlives its producer",
    sends="a PUT, then the end of the connection; configureStream in another session",
    expects="the message in the other session",
    statement="10.16",
)
async def _outlives(bench: Bench) -> None:
    keeper, uri = await bench.queue(write=False)
    peer = await bench.client()
    await peer.open(uri, read=False)
    peer.post(b"left")
    await peer.ack()
    peer.drop()
    await keeper.configure(0, subscription(1))
    check(await keeper.payloads(1), [b"left"], "payloads")


@GROUP.case(
    "4.2.15",
    "A file-backed queue stores messages",
    sends="a PUT in a file-backed domain",
    expects="an ACK with the status 0, and the message",
    statement="10.16",
    domains=("durable",),
)
async def _durable(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1), kind="durable")
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")
    check(await peer.payloads(1), [b"x"], "payloads")


# ---- 4.3 acknowledgements


@GROUP.case(
    "4.3.1",
    "An acknowledgement has the status, the GUID and the qId",
    sends="a PUT with qId 5 of a client with guidInfo",
    expects="an ACK with the status 0, correlationId 0, the GUID and qId 5",
    statement="11.3",
)
async def _acknowledged(bench: Bench) -> None:
    peer = await bench.client()
    await peer.open(bench.uri(), 5)
    guid = peer.post(b"x", 5)
    check(tuple(await peer.ack()), (0, 0, guid, 5), "status, correlationId, GUID, qId")


@GROUP.case(
    "4.3.2",
    "A client without guidInfo is answered by its correlation id",
    sends="a PUT with the correlation id 42 in place of the GUID",
    expects="an ACK with the correlation id 42, and a GUID made by the broker",
    statement="4.30",
)
async def _correlation(bench: Bench) -> None:
    peer = await bench.client(guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0))
    await peer.open(bench.uri())
    peer.send(put_event(_put(b"\x00\x00\x00\x2a" + bytes(12))))
    ack = await peer.ack()
    check((ack.status, ack.correlation_id), (0, 42), "status, correlationId")
    if ack.guid == bytes(16):
        raise fail("a GUID", "zeros")


@GROUP.case(
    "4.3.3",
    "A refusal repeats the unknown qId and the GUID",
    sends="a PUT with qId 99",
    expects="an ACK with the status 5, qId 99 and the GUID",
    statement="11.3",
    domains=(),
)
async def _refusal(bench: Bench) -> None:
    peer = await bench.client()
    guid = peer.post(b"x", 99)
    ack = await peer.ack()
    check((ack.status, ack.queue_id, ack.guid), (5, 99, guid), "status, qId, GUID")


@GROUP.case(
    "4.3.4",
    "Acknowledgements go to the producer alone",
    sends="a PUT of one of two sessions",
    expects="no ACK in the other session",
    statement="11.4",
)
async def _own_ack(bench: Bench) -> None:
    peer, uri = await bench.queue(read=False)
    other = await bench.client()
    await other.open(uri, read=False)
    peer.post(b"x")
    await peer.ack()
    await other.no_ack()


@GROUP.case(
    "4.3.5",
    "ACK events have a header of one word",
    sends="a PUT",
    expects="an ACK event whose AckHeader is 16 00 00 00",
    statement="11.5",
)
async def _ack_header(bench: Bench) -> None:
    peer, _ = await bench.queue(read=False)
    peer.post(b"x")
    await peer.ack()
    (data,) = peer.bytes_of(EventType.ACK)
    check(data[8:12].hex(" "), "16 00 00 00", "AckHeader")
    check(len(data), 36, "length")


# ---- 4.4 properties

_Value = dict[str, PropertyInput]
_PROPERTY_SETS: list[tuple[int, str, _Value]] = [
    (1, "a BOOL", {"p": True}),
    (2, "a CHAR", {"p": PropertyValue(PropertyType.CHAR, b"A")}),
    (3, "a SHORT", {"p": PropertyValue(PropertyType.SHORT, -3)}),
    (4, "an INT32", {"p": PropertyValue(PropertyType.INT32, -(2**31))}),
    (5, "an INT64", {"p": 2**63 - 1}),
    (6, "a STRING", {"p": "text in Unicode: \u00e9"}),
    (7, "an empty STRING", {"p": ""}),
    (8, "a BINARY", {"p": b"\0\xff"}),
    (9, "an empty BINARY", {"p": b""}),
    (10, "all types", {"a": True, "b": 1, "c": "x", "d": b"y", "e": PropertyValue(PropertyType.SHORT, 5)}),
    (11, "255 properties", {f"p{n}": n for n in range(255)}),
    (12, "a name of 4,095 bytes", {"p" * 4095: 1}),
    (13, "a value of 100,000 bytes", {"p": "v" * 100_000}),
]  # fmt: skip


def _properties_check(properties: _Value, *, new: bool, compression: Compression) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.consumer(subscription(1))
        peer.post(b"payload" * 400, properties=properties, new=new, compression=compression)
        check((await peer.ack()).status, 0, "status")
        got = await peer.push()
        check(got.properties, {n: _plain(v) for n, v in properties.items()}, "properties")
        check(got.payload, b"payload" * 400, "payload")
        check(bool(got.push.flags & PushFlags.MESSAGE_PROPERTIES), True, "the flag MESSAGE_PROPERTIES")

    return run


def _plain(value: PropertyInput) -> object:
    return value.value if isinstance(value, PropertyValue) else value


for _number, _what, _values in _PROPERTY_SETS:
    GROUP.case(
        f"4.4.{_number}",
        f"Properties in the new encoding arrive unchanged: {_what}",
        sends=f"a PUT in the new encoding with {_what}",
        expects="an ACK with the status 0, and a PUSH with the same properties",
        statement="12.9",
    )(_properties_check(_values, new=True, compression=Compression.NONE))
for _number, (_what, _new, _compression) in enumerate(
    (
        ("in the old encoding", False, Compression.NONE),
        ("in the new encoding with compression", True, Compression.ZLIB),
        ("in the old encoding with compression", False, Compression.ZLIB),
    ),
    14,
):
    GROUP.case(
        f"4.4.{_number}",
        f"Properties {_what} arrive",
        sends=f"a PUT {_what} with two properties",
        expects="an ACK with the status 0, and a PUSH with the same properties",
        statement="12.9",
    )(_properties_check({"x": 1, "s": "text"}, new=_new, compression=_compression))

_AREA = encode_properties(
    {"x": PropertyValue(PropertyType.INT32, 1), "y": PropertyValue(PropertyType.INT32, 2)}, new=True
)


def _edited(at: int, value: int) -> bytes:
    return _AREA[:at] + bytes([value]) + _AREA[at + 1 :]


#: Malformed areas: number, what, area.
_AREAS: list[tuple[int, str, str, Level, bytes, str]] = [
    (17, "12.14", "without properties", _O, b"\x1b\0\0\2\0\0\2\2", _STORED),
    (18, "12.14", "with headers of another size", _O, _edited(0, 0x24), _STORED),
    (19, "10.21", "longer than the data", _O, _edited(3, 200), _NOTHING),
    (20, "12.14", "with the count 200", _O, _edited(5, 200), _STORED),
    (21, "12.14", "with the type 0", _O, _edited(6, 0), _STORED),
    (22, "12.14", "with the type 31", _O, _edited(6, 31 << 2), _STORED),
    (23, "12.14", "with a name of 0 bytes", _O, _edited(11, 0), _STORED),
    (24, "12.14", "with an offset beyond the area", _O, _edited(15, 250), _STORED),
    (25, "10.21", "of random bytes", _O, bytes(range(100, 140)), _NOTHING),
]


def _area_check(area: bytes, reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.consumer(subscription(1))
        guid = peer.guids.next(0)
        event = put_event(_put(guid, area + b"payload", flags=3, schema_id=1))
        check(await _reaction(peer, event, guid), reaction, "reaction")

    return run


for _number, _statement, _what, _level, _area, _expected in _AREAS:
    GROUP.case(
        f"4.4.{_number}",
        f"A properties area {_what} is {'not checked' if _expected == _STORED else 'ignored'}",
        sends=f"a PUT with a properties area {_what}, and a good PUT",
        expects=_expected,
        statement=_statement,
        level=_level,
    )(_area_check(_area, _expected))

# ---- 4.5 deduplication


@GROUP.case(
    "4.5.1",
    "A GUID is stored once",
    sends="two PUT with one GUID, the second after the first ACK",
    expects="two ACK messages with the status 0, one delivery",
    statement="10.17",
)
async def _once(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    guid = peer.post(b"one")
    check((await peer.ack()).status, 0, "status")
    peer.post(b"two", guid=guid)
    check((await peer.ack()).status, 0, "status")
    check(await peer.payloads(1), [b"one"], "payloads")
    await peer.no_push()


@GROUP.case(
    "4.5.2",
    "A GUID is recognised after its confirmation, in another session",
    sends="a PUT, a CONFIRM, and the same PUT in a new session",
    expects="an ACK with the status 0, no delivery",
    statement="10.17",
)
async def _after_confirm(bench: Bench) -> None:
    peer, uri = await bench.consumer(subscription(1))
    guid = peer.post(b"one")
    await peer.push()
    peer.confirm(guid)
    await peer.barrier()
    again = await bench.client()
    await again.open(uri)
    await peer.close(uri)
    await again.configure(0, subscription(1))
    again.post(b"one", guid=guid)
    check((await again.ack()).status, 0, "status")
    await again.no_push()


@GROUP.case(
    "4.5.3",
    "Each queue recognises its own GUIDs",
    sends="one GUID in two queues",
    expects="a delivery from each queue",
    statement="10.17",
)
async def _each_queue(bench: Bench) -> None:
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri(), q_id)
        await peer.configure(q_id, subscription(q_id + 1))
    guid = peer.post(b"in 0")
    await peer.ack()
    peer.post(b"in 1", 1, guid=guid)
    await peer.ack()
    check(sorted(await peer.payloads(2)), [b"in 0", b"in 1"], "payloads")


@GROUP.case(
    "4.5.4",
    "A repeated GUID succeeds on a full queue",
    sends="12 PUT in a queue with a quota of 10, then the first again",
    expects="an ACK with the status 0",
    statement="10.18",
    level=_O,
    domains=("small",),
)
async def _full(bench: Bench) -> None:
    peer, _ = await bench.queue("small")
    guids = [peer.post(b"x") for _ in range(12)]
    await peer.acks(12)
    peer.post(b"x", guid=guids[0])
    check((await peer.ack()).status, 0, "status")


# ---- 4.6 quotas


class _Quota(NamedTuple):
    """The sizes of messages posted to a queue with a quota, and the statuses of the last of them."""

    number: str
    statement: str
    title: str
    level: Level
    sends: str
    expects: str
    sizes: tuple[int, ...]
    statuses: list[int]


_QUOTAS = [
    _Quota("4.6.1", "11.11", "A quota of 10 messages admits 11", _O,
           "14 PUT", "11 ACK messages with the status 0, 3 with the status 1", (1,) * 14, [0] * 11 + [1] * 3),
    _Quota("4.6.2", "11.10", "A full queue refuses messages", _M,
           "30 PUT in a queue with a quota of 10", "the last has the status 1", (1,) * 30, [1]),
    _Quota("4.6.3", "11.11", "A full queue refuses bytes", _O,
           "PUT of 4,000, 4,000 and 1 bytes in a queue with a quota of 4,096 bytes", "the statuses 0, 0, 2",
           (4000, 4000, 1), [0, 0, 2]),
]  # fmt: skip


def _quota_check(row: _Quota) -> Check:
    async def run(bench: Bench) -> None:
        peer, _ = await bench.queue("small")
        for size in row.sizes:
            peer.post(bytes(size))
        check((await peer.statuses(len(row.sizes)))[-len(row.statuses) :], row.statuses, "statuses")

    return run


for _quota in _QUOTAS:
    GROUP.case(
        _quota.number,
        _quota.title,
        sends=_quota.sends,
        expects=_quota.expects,
        statement=_quota.statement,
        level=_quota.level,
        domains=("small",),
    )(_quota_check(_quota))


@GROUP.case(
    "4.6.4",
    "A refused post is answered without ACK_REQUESTED",
    sends="12 PUT without ACK_REQUESTED",
    expects="one ACK with the status 1",
    statement="11.2",
    domains=("small",),
)
async def _unasked(bench: Bench) -> None:
    peer, _ = await bench.queue("small")
    for _ in range(12):
        peer.post(b"x", ack=False)
    check((await peer.ack()).status, 1, "status")


@GROUP.case(
    "4.6.5",
    "A confirmation makes room",
    sends="11 PUT, 11 CONFIRM, and a PUT",
    expects="an ACK with the status 0",
    statement="14.9",
    domains=("small",),
)
async def _room(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1), kind="small")
    for _ in range(11):
        peer.post(b"x")
    await peer.acks(11)
    peer.confirm(*[each.push.guid for each in await peer.pushes(11)])
    await peer.barrier()
    peer.post(b"x")
    check((await peer.ack()).status, 0, "status")


@GROUP.case(
    "4.6.6",
    "Each queue has a quota of its own",
    sends="11 PUT in each of two queues",
    expects="22 ACK messages with the status 0",
    statement="11.10",
    domains=("small",),
)
async def _own_quota(bench: Bench) -> None:
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri("small"), q_id)
        for _ in range(11):
            peer.post(b"x", q_id)
    check(await peer.statuses(22), [0] * 22, "statuses")


# ---- 4.7 expiry


@GROUP.case(
    "4.7.1",
    "A message expires",
    sends="a PUT in a domain with messageTtl 2; one consumer after the other, each of which closes its queue",
    expects="deliveries at first, and none after some seconds",
    statement="10.19",
    domains=("ttl",),
    seconds=40.0,
)
async def _expires(bench: Bench) -> None:
    producer, uri = await bench.queue("ttl", read=False)
    producer.post(b"old")
    check((await producer.ack()).status, 0, "status")
    reader = await bench.client()
    delivered, end = 0, _world.monotonic() + 20
    while _world.monotonic() < end:
        await reader.open(uri, write=False)
        await reader.configure(0, subscription(1))
        arrived = await reader.some_push(0.5)
        await reader.close(uri, write=False)
        if not arrived:
            check(delivered > 0, True, "whether the message was delivered at first:")
            return
        delivered += 1
    raise fail("no delivery", f"{delivered} deliveries in 20 s")


@GROUP.case(
    "4.7.2",
    "A confirmation after the expiry does nothing",
    sends="a CONFIRM of an expired message, and a PUT",
    expects="the new message",
    statement="14.12",
    domains=("ttl",),
    seconds=40.0,
)
async def _late_confirm(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1), kind="ttl")
    guid = peer.post(b"old")
    await peer.push()
    await peer.wait(4)
    peer.confirm(guid)
    peer.post(b"new")
    check(await peer.payloads(1), [b"new"], "payloads")
