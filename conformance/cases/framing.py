# SPDX-License-Identifier: Apache-2.0
"""Events, heartbeats and malformed input: what closes a connection, and what is ignored."""

from __future__ import annotations

from bmq.wire.constants import EventType
from bmq.wire.control import Codec, ControlMessage, Disconnect
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, pack_schema_event
from bmq.wire.put import encode_put
from conformance.bench import Bench
from conformance.case import Cases, Level, check
from conformance.peer import NO_ANSWER, Peer, confirm_event, open_request, put_event, subscription
from conformance.scene import A, B, play

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


async def _reads(bench: Bench, data: bytes, reaction: str) -> None:
    peer = await bench.client()
    peer.send(data)
    check(await peer.reaction(77, reaction), reaction, "reaction")


GROUP.reactions(_reads, [
    ("2.1.1", "2.10", _M, "A length of 2 closes the connection", "an event with the length 2", "closed", b"\0\0\0\2\x41\2\0\0"),
    ("2.1.2", "2.10", _M, "A length of 0 closes the connection", "an event with the length 0", "closed", bytes(8)),
    ("2.1.3", "2.10", _M, "A length of 4 closes the connection", "an event with the length 4", "closed", b"\0\0\0\4\x41\2\0\0"),
    ("2.1.4", "2.10", _M, "The fragment bit closes the connection", "an event with the fragment bit", "closed", b"\x80\0\0\x08\x4b\2\0\0"),
    ("2.1.5", "2.11", _O, "A length of 5 is ignored", "an event with the length 5", _IGNORED, b"\0\0\0\5\x41"),
    ("2.1.6", "2.11", _O, "A length of 7 is ignored", "an event with the length 7", _IGNORED, b"\0\0\0\7\x41\2\0"),
    ("2.1.7", "2.7", _M, "An event without a type is ignored", "an event of the type 0", _IGNORED, _header(8, 0, specific=0)),
    ("2.1.8", "2.7", _M, "An event of an unknown type is ignored", "an event of the type 40", _IGNORED, _header(8, 40)),
    ("2.1.9", "2.9", _O, "An event of the cluster is ignored", "an ELECTOR event", _IGNORED, _header(8, 7, specific=0)),
    ("2.1.10", "2.9", _O, "A REJECT event is ignored", "a REJECT event", _IGNORED, _header(12, 13) + b"\x16\0\0\0"),
    ("2.1.11", "2.9", _O, "A PUSH event of a client is ignored", "a PUSH event without a message", _IGNORED, _header(8, 4)),
    ("2.1.12", "2.9", _O, "An ACK event of a client is ignored", "an ACK event", _IGNORED, _header(12, 5) + b"\x16\0\0\0"),
    ("2.1.13", "2.11", _O, "A header of 0 words is ignored", "an event with headerWords 0", _IGNORED, _header(8, 11, words=0)),
    ("2.1.14", "2.11", _O, "A header longer than the event is ignored", "headerWords 9 of 8 bytes", _IGNORED, _header(8, 11, words=9)),
    ("2.1.15", "1.8", _M, "A longer header is skipped", "a request with headerWords 3", _READ, _json(_ASK, words=3, extra=bytes(4))),
    ("2.1.16", "1.7", _M, "The reserved byte is skipped", "a request with another reserved byte", _READ, _json(_ASK)[:7] + b"\xff" + _json(_ASK)[8:]),
    ("2.1.17", "2.12", _O, "Unknown bits beside the codec are skipped", "a request with more bits in typeSpecific", _READ, _json(_ASK)[:6] + b"\x3f" + _json(_ASK)[7:]),
    ("2.1.18", "2.12", _O, "Another protocol version is read", "a request with the version 2 in the header", _READ, _json(_ASK)[:4] + b"\x81" + _json(_ASK)[5:]),
])  # fmt: skip

# ---- 2.2 bodies of control events


GROUP.reactions(_reads, [
    ("2.2.1", "3.29", _M, "A body that is not JSON is ignored", "text", _IGNORED, _json(b"this is not JSON")),
    ("2.2.2", "3.29", _M, "An empty body is ignored", "only padding", _IGNORED, _json(b"")),
    ("2.2.3", "3.29", _M, "A request without a choice is ignored", '{"rId":77}', _IGNORED, _json(b'{"rId":77}')),
    ("2.2.4", "3.29", _M, "A request without rId is ignored", "an openQueue without rId", _IGNORED, _json(b'{"openQueue":{"handleParameters":{}}}')),
    ("2.2.5", "3.29", _M, "An unknown request is ignored", "the request makeCoffee", _IGNORED, _json(b'{"rId":77,"makeCoffee":{}}')),
    ("2.2.6", "3.14", _O, "A JSON array is ignored", "[]", _IGNORED, _json(b"[]")),
    ("2.2.7", "3.29", _O, "A truncated body is ignored", "the first half of a request", _IGNORED, _json(_ASK[:40])),
    ("2.2.8", "3.9", _M, "An unknown member is skipped", "a request with a further member", _READ, _json(_ASK[:-1] + b',"colour":"blue"}')),
    ("2.2.9", "3.8", _M, "White space is skipped", "a request with spaces and newlines", _READ, _json(b" \n\t" + _ASK + b" \n")),
    ("2.2.10", "3.13", _O, "A number in quotes is accepted as rId", 'a request with rId "77"', _READ, _json(_ASK.replace(b"77", b'"77"'))),
    ("2.2.11", "3.30", _O, "A negative rId is answered with the same number", "a request with rId -77", _IGNORED, _json(_ASK.replace(b":77", b":-77"))),
    ("2.2.12", "3.12", _O, "An rId beyond 32 bits is ignored", "a request with rId 2**40", _IGNORED, _json(_ASK.replace(b":77", b":1099511627776"))),
    ("2.2.13", "3.14", _O, "Deep nesting is ignored", "a request with 5,000 nested arrays", _IGNORED, _json(b'{"rId":77,"x":' + b"[" * 5000 + b"]" * 5000 + b"}")),
    ("2.2.14", "3.8", _M, "Members may come in any order", "a request with rId as the last member", _READ, _json(b"{" + _ASK[10:-1] + b',"rId":77}')),
    ("2.2.15", "3.22", _O, "JSON marked as BER is ignored", "a request in JSON with the codec BER", _IGNORED, pack_schema_event(EventType.CONTROL, Codec.BER, _ASK)),
    ("2.2.16", "3.22", _O, "An unknown codec is ignored", "a request in JSON with the codec 5", _IGNORED, pack_schema_event(EventType.CONTROL, 5, _ASK)),
    ("2.2.17", "3.22", _O, "Random BER is ignored", "a CONTROL event in BER of random bytes", _IGNORED,
     pack_schema_event(EventType.CONTROL, Codec.BER, bytes(range(30, 90)))),
    ("2.2.18", "3.22", _O, "BER with an indefinite length without an end is ignored", "30 80 in BER", _IGNORED,
     pack_schema_event(EventType.CONTROL, Codec.BER, b"\x30\x80")),
], sends="a CONTROL event: {}")  # fmt: skip


@GROUP.case("2.2.19", "3.2", _O)
async def _ber_request(bench: Bench) -> None:
    """A client may send BER after a negotiation in JSON.

    Sends: a request in BER on a connection that negotiated in JSON.
    Expects: an answer.
    """
    peer = await bench.client()
    peer.codec = Codec.BER
    await peer.barrier()


# ---- 2.3 heartbeats


async def _heartbeat(bench: Bench, count: int) -> None:
    peer = await bench.client()
    peer.send(HEARTBEAT_REQ * count)
    for _ in range(count):
        await peer.event(EventType.HEARTBEAT_RSP)


GROUP.rows(_heartbeat, [
    ("2.3.1", "6.1", _M, "A heartbeat request is answered", "HEARTBEAT_REQ", "HEARTBEAT_RSP", 1),
    ("2.3.3", "6.1", _M, "Each heartbeat request is answered", "five HEARTBEAT_REQ in one write", "five HEARTBEAT_RSP", 5),
])  # fmt: skip


@GROUP.case("2.3.2", "6.2")
async def _heartbeat_bytes(bench: Bench) -> None:
    """A heartbeat response is a header alone.

    Sends: HEARTBEAT_REQ.
    Expects: the eight bytes 00 00 00 08 4c 02 00 00.
    """
    peer = await bench.client()
    peer.send(HEARTBEAT_REQ)
    check((await peer.event(EventType.HEARTBEAT_RSP)).data.hex(" "), HEARTBEAT_RSP.hex(" "), "bytes")


@GROUP.case("2.3.4", "6.3")
async def _stray_response(bench: Bench) -> None:
    """A heartbeat response without a request is ignored.

    Sends: HEARTBEAT_RSP.
    Expects: no answer; the session works.
    """
    peer = await bench.client()
    peer.send(HEARTBEAT_RSP)
    await peer.barrier()


@GROUP.case("2.3.5", "6.1", domains=("priority",))
async def _between(bench: Bench) -> None:
    """Heartbeats are answered between messages.

    Sends: PUT events with HEARTBEAT_REQ between them.
    Expects: all acknowledgements and all responses.
    """
    peer, _ = await bench.queue()
    for number in range(5):
        peer.post(b"%d" % number)
        peer.send(HEARTBEAT_REQ)
    check(await peer.statuses(5), [0] * 5, "acknowledgements")
    for _ in range(5):
        await peer.event(EventType.HEARTBEAT_RSP)


# ---- 2.4 the stream


@GROUP.case("2.4.1", "2.4", domains=("priority",))
async def _pieces(bench: Bench) -> None:
    """Events may be cut anywhere.

    Sends: a PUT event in pieces of 5 bytes.
    Expects: an acknowledgement, and the message.
    """
    peer, _ = await bench.consumer(subscription(1))
    data = put_event(encode_put(0, peer.guids.next(0), b"payload in pieces"))
    for at in range(0, len(data), 5):
        await peer.send_piece(data[at : at + 5])
    check((await peer.ack()).status, 0, "status")
    check((await peer.push()).payload, b"payload in pieces", "payload")


@GROUP.case("2.4.2", "2.4", domains=("priority",))
async def _many(bench: Bench) -> None:
    """Many events may arrive in one write.

    Sends: 100 PUT events and a CONFIRM event in one write.
    Expects: 100 acknowledgements, in order.
    """
    peer, _ = await bench.queue()
    guids = [peer.guids.next(0) for _ in range(100)]
    events = [put_event(encode_put(0, guid, b"x")) for guid in guids]
    peer.send(b"".join([*events, confirm_event((0, guids[0], 0))]))
    check([ack.guid for ack in await peer.acks(100)], guids, "GUIDs")


@GROUP.case("2.4.3", "2.6", domains=("priority",))
async def _half(bench: Bench) -> None:
    """A lost connection in the middle of an event harms nobody.

    Sends: half of a PUT event, then the end of the connection.
    Expects: nothing is stored; other sessions work.
    """
    peer, uri = await bench.queue()
    data = put_event(encode_put(0, peer.guids.next(0), b"never" * 10))
    await peer.send_piece(data[: len(data) // 2])
    peer.drop()
    other = await bench.client()
    await other.open(uri)
    await other.configure(0, subscription(1))
    other.post(b"whole")
    check(await other.payloads(1), [b"whole"], "payloads")


@GROUP.case("2.4.4", "2.16", domains=("priority",))
async def _padding(bench: Bench) -> None:
    """A broker pads its answers.

    Sends: requests with answers of different lengths.
    Expects: 1 to 4 bytes of padding, each with the number of padding bytes.
    """
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


@GROUP.case("2.5.1", "15.8")
async def _disconnect(bench: Bench) -> None:
    """A disconnect is answered.

    Sends: disconnect.
    Expects: disconnectResponse.
    """
    peer = await bench.client()
    check(await _parted(peer), "DisconnectResponse", "answer")


async def _parted(peer: Peer) -> str:
    return type(await peer.ask(Disconnect())).__name__


@GROUP.case("2.5.2", "15.8", domains=("priority",))
async def _after_disconnect(bench: Bench) -> None:
    """Nothing follows the answer to a disconnect.

    Sends: disconnect, then an openQueue.
    Expects: no answer to the openQueue.
    """
    peer = await bench.client()
    await _parted(peer)
    peer.send(encode_event(ControlMessage(r_id=99, body=open_request(bench.uri())), Codec.JSON))
    await peer.no_answer(99)


GROUP.rows(play, [
    ("2.5.3", "15.8", _M, "A disconnect with open queues is answered",
     "disconnect with an open queue and an unconfirmed message", "disconnectResponse; the message is delivered to another client",
     A.opens(subscription(1)), A.posts(1), A.gets(1), A.disconnects(), A.drops(), B.reads(), B.gets(1)),
], domains=("priority",))  # fmt: skip


@GROUP.case("2.5.4", "15.8", domains=("priority",))
async def _push_after_disconnect(bench: Bench) -> None:
    """No message arrives after the answer to a disconnect.

    Sends: disconnect with a subscription; another client posts.
    Expects: no PUSH after disconnectResponse.
    """
    peer, uri = await bench.consumer(subscription(1))
    producer = await bench.client()
    await producer.open(uri, read=False)
    await _parted(peer)
    producer.post(b"x")
    await producer.ack()
    await peer.quiet()
