# SPDX-License-Identifier: Apache-2.0
"""Events, heartbeats and malformed input: what closes a connection, and what is ignored."""

from __future__ import annotations

from bmq.wire.constants import EventType
from bmq.wire.control import Codec, encode_event
from bmq.wire.control.messages import ControlMessage, Disconnect
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, pack_schema_event
from bmq.wire.put import encode_put
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, check
from conformance.peer import NO_ANSWER, Peer, confirm_event, open_request, put_event, subscription

__all__ = ["GROUP"]

GROUP = Cases(2, "Events and heartbeats")

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


def _header(
    length: int, event_type: int = 1, *, first: int = 0x40, words: int = 2, specific: int = 0x20
) -> bytes:
    return length.to_bytes(4, "big") + bytes((first | event_type, words, specific, 0))


def _json(body: bytes, *, pad: bytes | None = None, words: int = 2, extra: bytes = b"") -> bytes:
    tail = pad if pad is not None else bytes([4 - len(body) % 4]) * (4 - len(body) % 4)
    return _header(8 + len(extra) + len(body) + len(tail), words=words) + extra + body + tail


#: A request with an answer that shows that the event was read.
_ASK = b'{"rId":77,"configureStream":{"qId":99,"streamParameters":{"appId":"__default","subscriptions":[]}}}'
_READ = "E_UNKNOWN 0"
_IGNORED = NO_ANSWER

# ---- 2.1 event headers

_EVENTS: list[tuple[int, str, str, Level, str, bytes, str]] = [
    (1, "2.10", "A length of 2 closes the connection", _M, "an event with the length 2", b"\0\0\0\2\x41\2\0\0", "closed"),
    (2, "2.10", "A length of 0 closes the connection", _M, "an event with the length 0", bytes(8), "closed"),
    (3, "2.10", "A length of 4 closes the connection", _M, "an event with the length 4", b"\0\0\0\4\x41\2\0\0", "closed"),
    (4, "2.10", "The fragment bit closes the connection", _M, "an event with the fragment bit", b"\x80\0\0\x08\x4b\2\0\0", "closed"),
    (5, "2.11", "A length of 5 is ignored", _O, "an event with the length 5", b"\0\0\0\5\x41", _IGNORED),
    (6, "2.11", "A length of 7 is ignored", _O, "an event with the length 7", b"\0\0\0\7\x41\2\0", _IGNORED),
    (7, "2.7", "An event without a type is ignored", _M, "an event of the type 0", _header(8, 0, specific=0), _IGNORED),
    (8, "2.7", "An event of an unknown type is ignored", _M, "an event of the type 40", _header(8, 40), _IGNORED),
    (9, "2.9", "An event of the cluster is ignored", _O, "an ELECTOR event", _header(8, 7, specific=0), _IGNORED),
    (10, "2.9", "A REJECT event is ignored", _O, "a REJECT event", _header(12, 13) + b"\x16\0\0\0", _IGNORED),
    (11, "2.9", "A PUSH event of a client is ignored", _O, "a PUSH event without a message", _header(8, 4), _IGNORED),
    (12, "2.9", "An ACK event of a client is ignored", _O, "an ACK event", _header(12, 5) + b"\x16\0\0\0", _IGNORED),
    (13, "2.11", "A header of 0 words is ignored", _O, "an event with headerWords 0", _header(8, 11, words=0), _IGNORED),
    (14, "2.11", "A header longer than the event is ignored", _O, "headerWords 9 of 8 bytes", _header(8, 11, words=9), _IGNORED),
    (15, "1.8", "A longer header is skipped", _M, "a request with headerWords 3", _json(_ASK, words=3, extra=bytes(4)), _READ),
    (16, "1.7", "The reserved byte is skipped", _M, "a request with another reserved byte",
     _json(_ASK)[:7] + b"\xff" + _json(_ASK)[8:], _READ),
    (17, "2.12", "Unknown bits beside the codec are skipped", _O, "a request with more bits in typeSpecific",
     _json(_ASK)[:6] + b"\x3f" + _json(_ASK)[7:], _READ),
    (18, "2.12", "Another protocol version is read", _O, "a request with the version 2 in the header",
     _json(_ASK)[:4] + b"\x81" + _json(_ASK)[5:], _READ),
]  # fmt: skip


def _reads(data: bytes, reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        peer = await bench.client()
        peer.send(data)
        check(await peer.reaction(77, reaction), reaction, "reaction")

    return run


def _meaning(reaction: str) -> str:
    if reaction == "closed":
        return "the connection is closed"
    return "no answer; the session works" if reaction == _IGNORED else f"the answer {reaction}"


for _number, _statement, _title, _level, _sends, _data, _reaction in _EVENTS:
    GROUP.case(
        f"2.1.{_number}",
        _title,
        sends=_sends,
        expects=_meaning(_reaction),
        statement=_statement,
        level=_level,
    )(_reads(_data, _reaction))

# ---- 2.2 bodies of control events

_BODIES: list[tuple[int, str, str, Level, str, bytes, str]] = [
    (1, "3.29", "A body that is not JSON is ignored", _M, "text", _json(b"this is not JSON"), _IGNORED),
    (2, "3.29", "An empty body is ignored", _M, "only padding", _json(b""), _IGNORED),
    (3, "3.29", "A request without a choice is ignored", _M, '{"rId":77}', _json(b'{"rId":77}'), _IGNORED),
    (4, "3.29", "A request without rId is ignored", _M, "an openQueue without rId",
     _json(b'{"openQueue":{"handleParameters":{}}}'), _IGNORED),
    (5, "3.29", "An unknown request is ignored", _M, "the request makeCoffee", _json(b'{"rId":77,"makeCoffee":{}}'), _IGNORED),
    (6, "3.14", "A JSON array is ignored", _O, "[]", _json(b"[]"), _IGNORED),
    (7, "3.29", "A truncated body is ignored", _O, "the first half of a request", _json(_ASK[:40]), _IGNORED),
    (8, "3.9", "An unknown member is skipped", _M, "a request with a further member",
     _json(_ASK[:-1] + b',"colour":"blue"}'), _READ),
    (9, "3.8", "White space is skipped", _M, "a request with spaces and newlines", _json(b" \n\t" + _ASK + b" \n"), _READ),
    (10, "3.13", "A number in quotes is accepted as rId", _O, 'a request with rId "77"', _json(_ASK.replace(b"77", b'"77"')), _READ),
    (11, "3.30", "A negative rId is answered with the same number", _O, "a request with rId -77", _json(_ASK.replace(b":77", b":-77")), _IGNORED),
    (12, "3.12", "An rId beyond 32 bits is ignored", _O, "a request with rId 2**40",
     _json(_ASK.replace(b":77", b":1099511627776")), _IGNORED),
    (13, "3.14", "Deep nesting is ignored", _O, "a request with 5,000 nested arrays",
     _json(b'{"rId":77,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"), _IGNORED),
    (14, "3.8", "Members may come in any order", _M, "a request with rId as the last member",
     _json(b"{" + _ASK[10:-1] + b',"rId":77}'), _READ),
    (15, "3.22", "JSON marked as BER is ignored", _O, "a request in JSON with the codec BER",
     pack_schema_event(EventType.CONTROL, Codec.BER, _ASK), _IGNORED),
    (16, "3.22", "An unknown codec is ignored", _O, "a request in JSON with the codec 5",
     pack_schema_event(EventType.CONTROL, 5, _ASK), _IGNORED),
    (17, "3.22", "Random BER is ignored", _O, "a CONTROL event in BER of random bytes",
     pack_schema_event(EventType.CONTROL, Codec.BER, bytes(range(30, 90))), _IGNORED),
    (18, "3.22", "BER with an indefinite length without an end is ignored", _O, "30 80 in BER",
     pack_schema_event(EventType.CONTROL, Codec.BER, b"\x30\x80"), _IGNORED),
]  # fmt: skip

for _number, _statement, _title, _level, _sends, _data, _reaction in _BODIES:
    GROUP.case(
        f"2.2.{_number}",
        _title,
        sends=f"a CONTROL event: {_sends}",
        expects=_meaning(_reaction),
        statement=_statement,
        level=_level,
    )(_reads(_data, _reaction))


@GROUP.case(
    "2.2.19",
    "A client may send BER after a negotiation in JSON",
    sends="a request in BER on a connection that negotiated in JSON",
    expects="an answer",
    statement="3.2",
    level=_O,
)
async def _ber_request(bench: Bench) -> None:
    peer = await bench.client()
    peer.codec = Codec.BER
    await peer.barrier()


# ---- 2.3 heartbeats


def _heartbeat_check(count: int) -> Check:
    async def run(bench: Bench) -> None:
        peer = await bench.client()
        peer.send(HEARTBEAT_REQ * count)
        for _ in range(count):
            await peer.event(EventType.HEARTBEAT_RSP)

    return run


for _place, _title, _sends, _expects, _count in (
    (1, "A heartbeat request is answered", "HEARTBEAT_REQ", "HEARTBEAT_RSP", 1),
    (3, "Each heartbeat request is answered", "five HEARTBEAT_REQ in one write", "five HEARTBEAT_RSP", 5),
):
    GROUP.case(f"2.3.{_place}", _title, sends=_sends, expects=_expects, statement="6.1")(
        _heartbeat_check(_count)
    )


@GROUP.case(
    "2.3.2",
    "A heartbeat response is a header alone",
    sends="HEARTBEAT_REQ",
    expects="the eight bytes 00 00 00 08 4c 02 00 00",
    statement="6.2",
)
async def _heartbeat_bytes(bench: Bench) -> None:
    peer = await bench.client()
    peer.send(HEARTBEAT_REQ)
    check((await peer.event(EventType.HEARTBEAT_RSP)).data.hex(" "), HEARTBEAT_RSP.hex(" "), "bytes")


@GROUP.case(
    "2.3.4",
    "A heartbeat response without a request is ignored",
    sends="HEARTBEAT_RSP",
    expects="no answer; the session works",
    statement="6.3",
)
async def _stray_response(bench: Bench) -> None:
    peer = await bench.client()
    peer.send(HEARTBEAT_RSP)
    await peer.barrier()


@GROUP.case(
    "2.3.5",
    "Heartbeats are answered between messages",
    sends="PUT events with HEARTBEAT_REQ between them",
    expects="all acknowledgements and all responses",
    statement="6.1",
    domains=("priority",),
)
async def _between(bench: Bench) -> None:
    peer, _ = await bench.queue()
    for number in range(5):
        peer.post(b"%d" % number)
        peer.send(HEARTBEAT_REQ)
    check(await peer.statuses(5), [0] * 5, "acknowledgements")
    for _ in range(5):
        await peer.event(EventType.HEARTBEAT_RSP)


# ---- 2.4 the stream


@GROUP.case(
    "2.4.1",
    "Events may be cut anywhere",
    sends="a PUT event in pieces of 5 bytes",
    expects="an acknowledgement, and the message",
    statement="2.4",
    domains=("priority",),
)
async def _pieces(bench: Bench) -> None:
    peer, _ = await bench.consumer(subscription(1))
    data = put_event(encode_put(0, peer.guids.next(0), b"payload in pieces"))
    for at in range(0, len(data), 5):
        await peer.send_piece(data[at : at + 5])
    check((await peer.ack()).status, 0, "status")
    check((await peer.push()).payload, b"payload in pieces", "payload")


@GROUP.case(
    "2.4.2",
    "Many events may arrive in one write",
    sends="100 PUT events and a CONFIRM event in one write",
    expects="100 acknowledgements, in order",
    statement="2.4",
    domains=("priority",),
)
async def _many(bench: Bench) -> None:
    peer, _ = await bench.queue()
    guids = [peer.guids.next(0) for _ in range(100)]
    events = [put_event(encode_put(0, guid, b"x")) for guid in guids]
    peer.send(b"".join([*events, confirm_event((0, guids[0], 0))]))
    check([ack.guid for ack in await peer.acks(100)], guids, "GUIDs")


@GROUP.case(
    "2.4.3",
    "A lost connection in the middle of an event harms nobody",
    sends="half of a PUT event, then the end of the connection",
    expects="nothing is stored; other sessions work",
    statement="2.6",
    domains=("priority",),
)
async def _half(bench: Bench) -> None:
    peer, uri = await bench.queue()
    data = put_event(encode_put(0, peer.guids.next(0), b"never" * 10))
    await peer.send_piece(data[: len(data) // 2])
    peer.drop()
    other = await bench.client()
    await other.open(uri)
    await other.configure(0, subscription(1))
    other.post(b"whole")
    check(await other.payloads(1), [b"whole"], "payloads")


@GROUP.case(
    "2.4.4",
    "A broker pads its answers",
    sends="requests with answers of different lengths",
    expects="1 to 4 bytes of padding, each with the number of padding bytes",
    statement="2.16",
    domains=("priority",),
)
async def _padding(bench: Bench) -> None:
    peer = await bench.client()
    for number in range(5):
        uri = bench.uri() + "x" * number
        await peer.open(uri, number)
    for data in peer.bytes_of(EventType.CONTROL):
        count = data[-1]
        check(
            1 <= count <= 4 and data[-count:] == bytes([count]) * count, True, f"padding {data[-4:].hex()}:"
        )
        check(len(data) % 4, 0, "length modulo 4")


# ---- 2.5 disconnecting


@GROUP.case(
    "2.5.1",
    "A disconnect is answered",
    sends="disconnect",
    expects="disconnectResponse",
    statement="15.8",
)
async def _disconnect(bench: Bench) -> None:
    peer = await bench.client()
    check(await _parted(peer), "DisconnectResponse", "answer")


async def _parted(peer: Peer) -> str:
    return type(await peer.ask(Disconnect())).__name__


@GROUP.case(
    "2.5.2",
    "Nothing follows the answer to a disconnect",
    sends="disconnect, then an openQueue",
    expects="no answer to the openQueue",
    statement="15.8",
    domains=("priority",),
)
async def _after_disconnect(bench: Bench) -> None:
    peer = await bench.client()
    await _parted(peer)
    peer.send(encode_event(ControlMessage(r_id=99, body=open_request(bench.uri())), Codec.JSON))
    await peer.no_answer(99)


@GROUP.case(
    "2.5.3",
    "A disconnect with open queues is answered",
    sends="disconnect with an open queue and an unconfirmed message",
    expects="disconnectResponse; the message is delivered to another client",
    statement="15.8",
    domains=("priority",),
)
async def _disconnect_open(bench: Bench) -> None:
    peer, uri = await bench.consumer(subscription(1))
    peer.post(b"x")
    await peer.push()
    await _parted(peer)
    peer.drop()
    other = await bench.reader(uri, subscription(1))
    check(await other.payloads(1), [b"x"], "payloads")


@GROUP.case(
    "2.5.4",
    "No message arrives after the answer to a disconnect",
    sends="disconnect with a subscription; another client posts",
    expects="no PUSH after disconnectResponse",
    statement="15.8",
    domains=("priority",),
)
async def _push_after_disconnect(bench: Bench) -> None:
    peer, uri = await bench.consumer(subscription(1))
    producer = await bench.client()
    await producer.open(uri, read=False)
    await _parted(peer)
    producer.post(b"x")
    await producer.ack()
    await peer.quiet()
