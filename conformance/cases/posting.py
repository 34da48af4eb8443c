# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""PUT and ACK: headers, flags, padding, properties, compression, deduplication, quotas, expiry."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

from bmq import _world
from bmq.wire.constants import Compression, EventType, PropertyType, PushFlags
from bmq.wire.control import GuidInfo
from bmq.wire.crc import crc32c
from bmq.wire.properties import PropertyInput, PropertyValue, encode_properties
from conformance.bench import Bench
from conformance.case import Cases, Level, check, fail
from conformance.peer import Peer, put_event, subscription
from conformance.scene import A, B, P, play

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


_OPTION = b"\x08\x00\x00\x02abc\x01"
_UNKNOWN_OPTION = b"\x7c\x00\x00\x02abcd"
_PACKED = zlib.compress(b"payload" * 20)


async def _header(bench: Bench, event: Callable[[bytes], bytes], reaction: str) -> None:
    peer, _ = await bench.consumer(subscription(1))
    guid = peer.guids.next(0)
    check(await _reaction(peer, event(guid), guid), reaction, "reaction")


async def _version(bench: Bench, first: bytes, reaction: str) -> None:
    peer, _ = await bench.consumer(subscription(1))
    guid = first + peer.guids.next(0)[1:]
    check(await _reaction(peer, put_event(_put(guid)), guid), reaction, "reaction")


GROUP.reactions(_header, [
    ("4.1.1", "11.1", _M, "A post is acknowledged and delivered", "a PUT with ACK_REQUESTED", _STORED, lambda g: put_event(_put(g))),
    ("4.1.2", "11.1", _M, "A post without ACK_REQUESTED is not acknowledged", "a PUT without flags", _SILENT, lambda g: put_event(_put(g, flags=0))),
    ("4.1.3", "10.24", _O, "The unused flag 4 is skipped", "a PUT with the flags 5", _STORED, lambda g: put_event(_put(g, flags=5))),
    ("4.1.4", "10.24", _O, "The unused flag 8 is skipped", "a PUT with the flags 9", _STORED, lambda g: put_event(_put(g, flags=9))),
    ("4.1.5", "10.23", _M, "A post to an unknown queue is refused", "a PUT with qId 99", _REFUSED, lambda g: put_event(_put(g, q_id=99))),
    ("4.1.6", "11.2", _M, "A refusal comes without ACK_REQUESTED, too", "a PUT with qId 99 without flags", _REFUSED, lambda g: put_event(_put(g, q_id=99, flags=0))),
    ("4.1.7", "10.23", _O, "A negative queue id is refused", "a PUT with qId -5", _REFUSED, lambda g: put_event(_put(g, q_id=-5))),
    ("4.1.8", "10.23", _M, "A GUID of zeros is refused", "a PUT with a GUID of zeros", _REFUSED, lambda g: put_event(_put(bytes(16)))),
    ("4.1.9", "10.7", _O, "A wrong checksum is accepted", "a PUT with another CRC32-C", _STORED, lambda g: put_event(_put(g, crc=1))),
    ("4.1.10", "10.20", _M, "A post without data is ignored", "a PUT with nothing but padding", _NOTHING, lambda g: put_event(_put(g, b""))),
    ("4.1.11", "1.8", _M, "A longer header is skipped", "a PUT with headerWords 10", _STORED, lambda g: put_event(_put(g, more=bytes(4)))),
    ("4.1.12", "10.24", _O, "A header without schemaId is read", "a PUT with headerWords 8", _STORED, lambda g: put_event(_put(g, cut=32))),
    ("4.1.13", "10.20", _M, "A header of 0 words is ignored", "a PUT with headerWords 0", _NOTHING, lambda g: put_event(_put(g, header_words=0))),
    ("4.1.14", "10.20", _M, "A header of 1 word is ignored", "a PUT with headerWords 1", _NOTHING, lambda g: put_event(_put(g, header_words=1))),
    ("4.1.15", "10.20", _M, "A header longer than the message is ignored", "a PUT with headerWords 31", _NOTHING, lambda g: put_event(_put(g, header_words=31))),
    ("4.1.16", "10.20", _M, "A message longer than its event is ignored", "a PUT with messageWords 1000", _NOTHING, lambda g: put_event(_put(g, words=1000))),
    ("4.1.17", "10.20", _M, "A message of 0 words is ignored", "a PUT with messageWords 0", _NOTHING, lambda g: put_event(_put(g, words=0))),
    ("4.1.18", "10.20", _M, "A message shorter than its header is ignored", "a PUT with messageWords 5", _NOTHING, lambda g: put_event(_put(g, words=5))),
    ("4.1.19", "10.20", _M, "Options longer than the message are ignored", "a PUT with optionsWords 1000", _NOTHING, lambda g: put_event(_put(g, option_words=1000))),
    ("4.1.20", "10.24", _O, "A group option is skipped", "a PUT with the option MSG_GROUP_ID", _STORED, lambda g: put_event(_put(g, options=_OPTION))),
    ("4.1.21", "10.24", _O, "An unknown option is skipped", "a PUT with an option of the type 31", _STORED, lambda g: put_event(_put(g, options=_UNKNOWN_OPTION))),
    ("4.1.22", "2.17", _M, "Padding of 0 bytes is ignored", "a PUT whose last byte is 0", _NOTHING, lambda g: put_event(_put(g, b"payl", pad=bytes(4)))),
    ("4.1.23", "2.17", _M, "Padding of 5 bytes is ignored", "a PUT whose last byte is 5", _NOTHING, lambda g: put_event(_put(g, b"payl", pad=b"\5\5\5\5"))),
    ("4.1.24", "2.18", _O, "Only the last byte of the padding counts", "a PUT with the padding 00 00 00 04", _STORED,
     lambda g: put_event(_put(g, b"payl", pad=b"\0\0\0\4"))),
    ("4.1.25", "1.7", _M, "Reserved bytes are skipped", "a PUT with other reserved bytes", _STORED, lambda g: put_event(_put(g, reserved=b"\xff\xff"))),
    ("4.1.26", "10.14", _M, "A compressed payload is stored", "a PUT compressed by zlib", _STORED, lambda g: put_event(_put(g, _PACKED, compression=1))),
    ("4.1.27", "10.15", _O, "A payload that does not decompress is stored", "a PUT with compression 1 and other bytes", _STORED,
     lambda g: put_event(_put(g, compression=1))),
    ("4.1.28", "10.15", _O, "An unknown compression is ignored", "a PUT with compression 7", _NOTHING, lambda g: put_event(_put(g, compression=7))),
    ("4.1.29", "10.21", _O, "A schema id without properties is ignored", "a PUT with schemaId 1 without properties", _NOTHING, lambda g: put_event(_put(g, schema_id=1))),
    ("4.1.33", "10.24", _O, "Bytes after the last message are ignored", "a PUT event with four more bytes", _STORED, lambda g: put_event(_put(g), bytes(4))),
    ("4.1.34", "10.20", _M, "An event without messages is ignored", "a PUT event with a header alone", _NOTHING, lambda g: put_event()),
    ("4.1.35", "10.22", _M, "A good message before a malformed one is stored", "two messages, the second with messageWords 0", _STORED,
     lambda g: put_event(_put(g), _put(bytes(15) + b"\1", words=0))),
    ("4.1.36", "10.21", _O, "A malformed message ends its event", "two messages, the first with messageWords 0", _NOTHING,
     lambda g: put_event(_put(bytes(15) + b"\1", words=0), _put(g))),
    ("4.1.37", "10.23", _M, "A refused message does not end its event", "two messages, the first with qId 99", "ACK 5, ACK 0, delivered",
     lambda g: put_event(_put(bytes(15) + b"\1", q_id=99), _put(g))),
], sends="{}, and a good PUT")  # fmt: skip
GROUP.reactions(_version, [
    ("4.1.30", "10.11", _S, "GUIDs with the version bits 00 are accepted", "a PUT with a GUID of the version 0", _STORED, b"\x01"),
    ("4.1.31", "10.11", _S, "GUIDs with the version bits 10 are accepted", "a PUT with a GUID of the version 2", _STORED, b"\x81"),
    ("4.1.32", "10.11", _S, "GUIDs with the version bits 11 are accepted", "a PUT with a GUID of the version 3", _STORED, b"\xc1"),
], sends="{}, and a good PUT")  # fmt: skip

# ---- 4.2 posts


async def _payload(bench: Bench, size: int) -> None:
    peer, _ = await bench.consumer(subscription(1))
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    peer.post(payload)
    check((await peer.ack()).status, 0, "status")
    got = (await peer.push()).payload
    if got != payload:
        raise fail(f"the payload of {size} bytes", f"{len(got)} other bytes")


for _place, _size in enumerate((1, 2, 3, 4, 65_537, 1 << 20, 16 << 20), 1):
    GROUP.add(
        f"4.2.{_place}",
        "10.3",
        _M,
        f"A payload of {_size:,} bytes arrives unchanged",
        f"a PUT of {_size:,} bytes",
        "an ACK with the status 0, and a PUSH with the same bytes",
        _payload,
        _size,
        heavy=_size >= 1 << 20,
    )


@GROUP.case("4.2.8", "10.8")
async def _in_order(bench: Bench) -> None:
    """The messages of one event are stored in order.

    Sends: a PUT event of 20 messages.
    Expects: 20 ACK messages and 20 deliveries in the order of the event.
    """
    peer, _ = await bench.consumer(subscription(1))
    guids = [peer.guids.next(0) for _ in range(20)]
    peer.send(put_event(*(_put(guid, b"%d" % n) for n, guid in enumerate(guids))))
    check([ack.guid for ack in await peer.acks(20)], guids, "GUIDs of the acknowledgements")
    check(await peer.payloads(20), [b"%d" % n for n in range(20)], "payloads")


@GROUP.case("4.2.9", "10.8")
async def _several_queues(bench: Bench) -> None:
    """An event may post to several queues.

    Sends: a PUT event with messages for qId 0 and qId 1.
    Expects: each message in its queue.
    """
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri(), q_id)
        await peer.configure(q_id, subscription(q_id + 1))
    guids = [peer.guids.next(0) for _ in range(4)]
    peer.send(put_event(*(_put(guid, b"%d" % n, q_id=n % 2) for n, guid in enumerate(guids))))
    got = sorted((each.push.queue_id, each.payload) for each in await peer.pushes(4))
    check(got, [(0, b"0"), (0, b"2"), (1, b"1"), (1, b"3")], "deliveries")


GROUP.rows(play, [
    ("4.2.10", "10.23", _M, "A post to a queue opened for reading is refused",
     "a PUT to a queue opened for reading", "an ACK with a status other than 0",
     A.opens(write=False), A.posts(1), A.acks(5)),
    ("4.2.11", "10.23", _M, "A post to a closed queue is refused", "a PUT after closeQueue", "an ACK with a status other than 0",
     A.opens(), A.leaves(), A.posts(1), A.acks(5)),
    ("4.2.13", "10.16", _M, "A message waits for a consumer",
     "a PUT, then configureStream in another session", "the message in the other session",
     P.writes(), P.posts(1), P.acks(0), A.reads(), A.gets(1)),
    ("4.2.14", "10.16", _M, "A message outlives its producer",
     "a PUT, then the end of the connection; configureStream in another session", "the message in the other session",
     A.opens(write=False), P.writes(), P.posts(1), P.acks(0), P.drops(), A.configures(subscription(1)), A.gets(1)),
])  # fmt: skip


@GROUP.case("4.2.12", "10.23", domains=())
async def _early(bench: Bench) -> None:
    """A post before the queue is open is refused.

    Sends: a PUT without openQueue.
    Expects: an ACK with a status other than 0.
    """
    peer = await bench.client()
    peer.post(b"x")
    check((await peer.ack()).status, 5, "status")


GROUP.rows(partial(play, kind="durable"), [
    ("4.2.15", "10.16", _M, "A file-backed queue stores messages", "a PUT in a file-backed domain", "an ACK with the status 0, and the message",
     A.opens(subscription(1)), A.posts(1), A.acks(0), A.gets(1)),
], domains=("durable",))  # fmt: skip


# ---- 4.3 acknowledgements


@GROUP.case("4.3.1", "11.3")
async def _acknowledged(bench: Bench) -> None:
    """An acknowledgement has the status, the GUID and the qId.

    Sends: a PUT with qId 5 of a client with guidInfo.
    Expects: an ACK with the status 0, correlationId 0, the GUID and qId 5.
    """
    peer = await bench.client()
    await peer.open(bench.uri(), 5)
    guid = peer.post(b"x", 5)
    check(tuple(await peer.ack()), (0, 0, guid, 5), "status, correlationId, GUID, qId")


@GROUP.case("4.3.2", "4.30")
async def _correlation(bench: Bench) -> None:
    """A client without guidInfo is answered by its correlation id.

    Sends: a PUT with the correlation id 42 instead of the GUID.
    Expects: an ACK with the correlation id 42, and a GUID made by the broker.
    """
    peer = await bench.client(guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0))
    await peer.open(bench.uri())
    peer.send(put_event(_put(b"\x00\x00\x00\x2a" + bytes(12))))
    ack = await peer.ack()
    check((ack.status, ack.correlation_id), (0, 42), "status, correlationId")
    if ack.guid == bytes(16):
        raise fail("a GUID", "zeros")


@GROUP.case("4.3.3", "11.3", domains=())
async def _refusal(bench: Bench) -> None:
    """A refusal repeats the unknown qId and the GUID.

    Sends: a PUT with qId 99.
    Expects: an ACK with the status 5, qId 99 and the GUID.
    """
    peer = await bench.client()
    guid = peer.post(b"x", 99)
    ack = await peer.ack()
    check((ack.status, ack.queue_id, ack.guid), (5, 99, guid), "status, qId, GUID")


@GROUP.case("4.3.4", "11.4")
async def _own_ack(bench: Bench) -> None:
    """Acknowledgements go to the producer alone.

    Sends: a PUT of one of two sessions.
    Expects: no ACK in the other session.
    """
    peer, uri = await bench.queue(read=False)
    other = await bench.client()
    await other.open(uri, read=False)
    peer.post(b"x")
    await peer.ack()
    await other.no_ack()


@GROUP.case("4.3.5", "11.5")
async def _ack_header(bench: Bench) -> None:
    """ACK events have a header of one word.

    Sends: a PUT.
    Expects: an ACK event whose AckHeader is 16 00 00 00.
    """
    peer, _ = await bench.queue(read=False)
    peer.post(b"x")
    await peer.ack()
    (data,) = peer.bytes_of(EventType.ACK)
    check(data[8:12].hex(" "), "16 00 00 00", "AckHeader")
    check(len(data), 36, "length")


# ---- 4.4 properties

_Values = dict[str, PropertyInput]
_SAME = "an ACK with the status 0, and a PUSH with the same properties"
_TWO: _Values = {"x": 1, "s": "text"}


async def _properties(
    bench: Bench, properties: _Values, new: bool = True, compression: Compression = Compression.NONE
) -> None:
    peer, _ = await bench.consumer(subscription(1))
    peer.post(b"payload" * 400, properties=properties, new=new, compression=compression)
    check((await peer.ack()).status, 0, "status")
    got = await peer.push()
    check(got.properties, {n: _plain(v) for n, v in properties.items()}, "properties")
    check(got.payload, b"payload" * 400, "payload")
    check(bool(got.push.flags & PushFlags.MESSAGE_PROPERTIES), True, "the flag MESSAGE_PROPERTIES")


def _plain(value: PropertyInput) -> object:
    return value.value if isinstance(value, PropertyValue) else value


GROUP.rows(_properties, [
    ("4.4.1", "12.9", _M, "Properties in the new encoding arrive unchanged: a BOOL", "a PUT in the new encoding with a BOOL", _SAME, {"p": True}),
    ("4.4.2", "12.9", _M, "Properties in the new encoding arrive unchanged: a CHAR", "a PUT in the new encoding with a CHAR", _SAME,
     {"p": PropertyValue(PropertyType.CHAR, b"A")}),
    ("4.4.3", "12.9", _M, "Properties in the new encoding arrive unchanged: a SHORT", "a PUT in the new encoding with a SHORT", _SAME,
     {"p": PropertyValue(PropertyType.SHORT, -3)}),
    ("4.4.4", "12.9", _M, "Properties in the new encoding arrive unchanged: an INT32", "a PUT in the new encoding with an INT32", _SAME,
     {"p": PropertyValue(PropertyType.INT32, -(2**31))}),
    ("4.4.5", "12.9", _M, "Properties in the new encoding arrive unchanged: an INT64", "a PUT in the new encoding with an INT64", _SAME, {"p": 2**63 - 1}),
    ("4.4.6", "12.9", _M, "Properties in the new encoding arrive unchanged: a STRING", "a PUT in the new encoding with a STRING", _SAME,
     {"p": "text in Unicode: \u00e9"}),
    ("4.4.7", "12.9", _M, "Properties in the new encoding arrive unchanged: an empty STRING", "a PUT in the new encoding with an empty STRING", _SAME, {"p": ""}),
    ("4.4.8", "12.9", _M, "Properties in the new encoding arrive unchanged: a BINARY", "a PUT in the new encoding with a BINARY", _SAME, {"p": b"\0\xff"}),
    ("4.4.9", "12.9", _M, "Properties in the new encoding arrive unchanged: an empty BINARY", "a PUT in the new encoding with an empty BINARY", _SAME, {"p": b""}),
    ("4.4.10", "12.9", _M, "Properties in the new encoding arrive unchanged: all types", "a PUT in the new encoding with all types", _SAME,
     {"a": True, "b": 1, "c": "x", "d": b"y", "e": PropertyValue(PropertyType.SHORT, 5)}),
    ("4.4.11", "12.9", _M, "Properties in the new encoding arrive unchanged: 255 properties", "a PUT in the new encoding with 255 properties", _SAME,
     {f"p{n}": n for n in range(255)}),
    ("4.4.12", "12.9", _M, "Properties in the new encoding arrive unchanged: a name of 4,095 bytes", "a PUT in the new encoding with a name of 4,095 bytes", _SAME,
     {"p" * 4095: 1}),
    ("4.4.13", "12.9", _M, "Properties in the new encoding arrive unchanged: a value of 100,000 bytes", "a PUT in the new encoding with a value of 100,000 bytes", _SAME,
     {"p": "v" * 100_000}),
    ("4.4.14", "12.9", _M, "Properties in the old encoding arrive", "a PUT in the old encoding with two properties", _SAME, _TWO, False),
    ("4.4.15", "12.9", _M, "Properties in the new encoding with compression arrive", "a PUT in the new encoding with compression with two properties", _SAME, _TWO, True,
     Compression.ZLIB),
    ("4.4.16", "12.9", _M, "Properties in the old encoding with compression arrive", "a PUT in the old encoding with compression with two properties", _SAME, _TWO, False,
     Compression.ZLIB),
])  # fmt: skip

_AREA = encode_properties(
    {"x": PropertyValue(PropertyType.INT32, 1), "y": PropertyValue(PropertyType.INT32, 2)}, new=True
)


def _edited(at: int, value: int) -> bytes:
    return _AREA[:at] + bytes([value]) + _AREA[at + 1 :]


async def _area(bench: Bench, area: bytes, reaction: str) -> None:
    peer, _ = await bench.consumer(subscription(1))
    guid = peer.guids.next(0)
    event = put_event(_put(guid, area + b"payload", flags=3, schema_id=1))
    check(await _reaction(peer, event, guid), reaction, "reaction")


GROUP.reactions(_area, [
    ("4.4.17", "12.14", _O, "A properties area without properties is not checked", "a PUT with a properties area without properties", _STORED, b"\x1b\0\0\2\0\0\2\2"),
    ("4.4.18", "12.14", _O, "A properties area with headers of another size is not checked", "a PUT with a properties area with headers of another size", _STORED,
     _edited(0, 0x24)),
    ("4.4.19", "10.21", _O, "A properties area longer than the data is ignored", "a PUT with a properties area longer than the data", _NOTHING, _edited(3, 200)),
    ("4.4.20", "12.14", _O, "A properties area with the count 200 is not checked", "a PUT with a properties area with the count 200", _STORED, _edited(5, 200)),
    ("4.4.21", "12.14", _O, "A properties area with the type 0 is not checked", "a PUT with a properties area with the type 0", _STORED, _edited(6, 0)),
    ("4.4.22", "12.14", _O, "A properties area with the type 31 is not checked", "a PUT with a properties area with the type 31", _STORED, _edited(6, 31 << 2)),
    ("4.4.23", "12.14", _O, "A properties area with a name of 0 bytes is not checked", "a PUT with a properties area with a name of 0 bytes", _STORED, _edited(11, 0)),
    ("4.4.24", "12.14", _O, "A properties area with an offset beyond the area is not checked", "a PUT with a properties area with an offset beyond the area", _STORED,
     _edited(15, 250)),
    ("4.4.25", "10.21", _O, "A properties area of random bytes is ignored", "a PUT with a properties area of random bytes", _NOTHING, bytes(range(100, 140))),
], sends="{}, and a good PUT")  # fmt: skip

# ---- 4.5 deduplication


GROUP.rows(play, [
    ("4.5.1", "10.17", _M, "A GUID is stored once",
     "two PUT with one GUID, the second after the first ACK", "two ACK messages with the status 0, one delivery",
     A.opens(subscription(1)), A.posts(1), A.acks(0), A.posts(2, again=1), A.acks(0), A.gets(1), A.gets_nothing()),
    ("4.5.2", "10.17", _M, "A GUID is recognised after its confirmation, in another session",
     "a PUT, a CONFIRM, and the same PUT in a new session", "an ACK with the status 0, no delivery",
     A.opens(subscription(1)), A.posts(1), A.gets(1), A.confirms(1), B.opens(), A.leaves(), B.configures(subscription(1)),
     B.posts(1, again=1), B.acks(0), B.gets_nothing()),
])  # fmt: skip


@GROUP.case("4.5.3", "10.17")
async def _each_queue(bench: Bench) -> None:
    """Each queue recognises its own GUIDs.

    Sends: one GUID in two queues.
    Expects: a delivery from each queue.
    """
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri(), q_id)
        await peer.configure(q_id, subscription(q_id + 1))
    guid = peer.post(b"in 0")
    await peer.ack()
    peer.post(b"in 1", 1, guid=guid)
    await peer.ack()
    check(sorted(await peer.payloads(2)), [b"in 0", b"in 1"], "payloads")


@GROUP.case("4.5.4", "10.18", _O, domains=("small",))
async def _full(bench: Bench) -> None:
    """A repeated GUID succeeds on a full queue.

    Sends: 12 PUT in a queue with a quota of 10, then the first again.
    Expects: an ACK with the status 0.
    """
    peer, _ = await bench.queue("small")
    guids = [peer.post(b"x") for _ in range(12)]
    await peer.acks(12)
    peer.post(b"x", guid=guids[0])
    check((await peer.ack()).status, 0, "status")


# ---- 4.6 quotas


async def _quota(bench: Bench, sizes: tuple[int, ...], statuses: list[int]) -> None:
    peer, _ = await bench.queue("small")
    for size in sizes:
        peer.post(bytes(size))
    check((await peer.statuses(len(sizes)))[-len(statuses) :], statuses, "last statuses")


GROUP.rows(_quota, [
    ("4.6.1", "11.11", _O, "A quota of 10 messages admits 11", "14 PUT", "11 ACK messages with the status 0, 3 with the status 1", (1,) * 14, [0] * 11 + [1] * 3),
    ("4.6.2", "11.10", _M, "A full queue refuses messages", "30 PUT in a queue with a quota of 10", "the last has the status 1", (1,) * 30, [1]),
    ("4.6.3", "11.11", _O, "A full queue refuses bytes", "PUT of 4,000, 4,000 and 1 bytes in a queue with a quota of 4,096 bytes", "the statuses 0, 0, 2",
     (4000, 4000, 1), [0, 0, 2]),
], domains=("small",))  # fmt: skip


@GROUP.case("4.6.4", "11.2", domains=("small",))
async def _unasked(bench: Bench) -> None:
    """A refused post is answered without ACK_REQUESTED.

    Sends: 12 PUT without ACK_REQUESTED.
    Expects: one ACK with the status 1.
    """
    peer, _ = await bench.queue("small")
    for _ in range(12):
        peer.post(b"x", ack=False)
    check((await peer.ack()).status, 1, "status")


GROUP.rows(partial(play, kind="small"), [
    ("4.6.5", "14.9", _M, "A confirmation makes room", "11 PUT, 11 CONFIRM, and a PUT", "an ACK with the status 0",
     A.opens(subscription(1)), A.posts(*range(11)), A.acks(*[0] * 11), A.gets(*range(11)), A.confirms(*range(11)), A.posts(11),
     A.acks(0)),
], domains=("small",))  # fmt: skip


@GROUP.case("4.6.6", "11.10", domains=("small",))
async def _own_quota(bench: Bench) -> None:
    """Each queue has a quota of its own.

    Sends: 11 PUT in each of two queues.
    Expects: 22 ACK messages with the status 0.
    """
    peer = await bench.client()
    for q_id in (0, 1):
        await peer.open(bench.uri("small"), q_id)
        for _ in range(11):
            peer.post(b"x", q_id)
    check(await peer.statuses(22), [0] * 22, "statuses")


# ---- 4.7 expiry


@GROUP.case("4.7.1", "10.19", domains=("ttl",), seconds=40.0)
async def _expires(bench: Bench) -> None:
    """A message expires.

    Sends: a PUT in a domain with messageTtl 2; one consumer after the other, each of which closes its queue.
    Expects: deliveries at first, and none after some seconds.
    """
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


@GROUP.case("4.7.2", "14.12", domains=("ttl",), seconds=40.0)
async def _late_confirm(bench: Bench) -> None:
    """A confirmation after the expiry does nothing.

    Sends: a CONFIRM of an expired message, and a PUT.
    Expects: the new message.
    """
    peer, _ = await bench.consumer(subscription(1), kind="ttl")
    guid = peer.post(b"old")
    await peer.push()
    await peer.wait(4)
    peer.confirm(guid)
    peer.post(b"new")
    check(await peer.payloads(1), [b"new"], "payloads")
