# SPDX-License-Identifier: Apache-2.0
"""Negotiation: identities, features, encodings, credentials."""

from __future__ import annotations

from typing import Any

from bmq._json import orjson
from bmq.errors import StatusCategory
from bmq.wire.constants import EventType
from bmq.wire.control import Codec, encode_event
from bmq.wire.control.messages import AdminCommand, AdminCommandResponse, ClientLanguage, ClientType, GuidInfo
from bmq.wire.event import pack_event_header, pack_schema_event
from conformance.bench import Bench
from conformance.case import Cases, Check, Level, Mismatch, check, fail
from conformance.peer import JSON_FEATURES, Peer, subscription

__all__ = ["GROUP"]

GROUP = Cases(1, "Negotiation")


# ---- 1.1 identities


@GROUP.case(
    "1.1.1",
    "A JSON client is accepted",
    sends="a clientIdentity in JSON with PROTOCOL_ENCODING:JSON",
    expects="a brokerResponse with E_SUCCESS from a broker",
    statement="4.3",
)
async def _json_client(bench: Bench) -> None:
    response = await (await bench.dial()).negotiate()
    check(response.result.category, StatusCategory.E_SUCCESS, "result")
    check(response.broker_identity.client_type, ClientType.E_TCPBROKER, "clientType")


@GROUP.case(
    "1.1.2",
    "The answer has version 1 of the protocol",
    sends="a clientIdentity with protocolVersion 1",
    expects="protocolVersion 1",
    statement="4.4",
)
async def _version(bench: Bench) -> None:
    check((await (await bench.dial()).negotiate()).protocol_version, 1, "protocolVersion")


@GROUP.case(
    "1.1.3",
    "The broker offers both encodings of control messages",
    sends="a clientIdentity",
    expects="PROTOCOL_ENCODING with BER and JSON among the features",
    statement="4.22",
)
async def _encodings(bench: Bench) -> None:
    check(sorted(await _features(bench, "PROTOCOL_ENCODING")), ["BER", "JSON"], "PROTOCOL_ENCODING")


def _feature_check(name: str, value: str) -> Check:
    async def run(bench: Bench) -> None:
        if value not in (found := await _features(bench, name)):
            raise fail(f"{name} with {value}", found)

    return run


for _place, _statement, _what, _name, _value in (
    (4, "4.23", "the new encoding of properties", "MPS", "MESSAGE_PROPERTIES_EX"),
    (5, "4.24", "subscriptions", "SUBSCRIPTIONS", "CONFIGURE_STREAM"),
):
    GROUP.case(
        f"1.1.{_place}",
        f"The broker offers {_what}",
        sends="a clientIdentity",
        expects=f"{_name}:{_value} among the features",
        statement=_statement,
        level=Level.SHOULD,
    )(_feature_check(_name, _value))


@GROUP.case(
    "1.1.6",
    "The answer has an interval of heartbeats",
    sends="a clientIdentity",
    expects="heartbeatIntervalMs above 0, and maxMissedHeartbeats of 0 or more",
    statement="4.4",
)
async def _heartbeats(bench: Bench) -> None:
    response = await (await bench.dial()).negotiate()
    if response.heartbeat_interval_ms <= 0 or response.max_missed_heartbeats < 0:
        raise fail("an interval", (response.heartbeat_interval_ms, response.max_missed_heartbeats))


async def _features(bench: Bench, name: str) -> list[str]:
    response = await (await bench.dial()).negotiate()
    for field in response.broker_identity.features.split(";"):
        key, _, values = field.partition(":")
        if key == name:
            return values.split(",")
    return []


async def _outcome(peer: Peer, data: bytes) -> str:
    """The reaction to a first event: closed, or the category of the answer."""
    peer.send(data)
    try:
        return (await peer.response()).result.category.name
    except Mismatch as error:
        if error.received == "the end of the connection":
            return "closed"
        raise


def _identity(changes: dict[str, Any], without: tuple[str, ...] = ()) -> bytes:
    members: dict[str, Any] = {
        "protocolVersion": 1,
        "sdkVersion": 100,
        "clientType": "E_TCPCLIENT",
        "processName": "bmq conformance",
        "pid": 1,
        "sessionId": 1,
        "hostName": "",
        "features": JSON_FEATURES,
        "clusterName": "",
        "clusterNodeId": -1,
        "sdkLanguage": "E_UNKNOWN",
        "guidInfo": {"clientId": "0A0B0C0D0E0F", "nanoSecondsFromEpoch": 0},
        "userAgent": "",
    }
    members |= changes
    for name in without:
        del members[name]
    return orjson.dumps({"clientIdentity": members})


_E = "E_SUCCESS"
_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED

#: Number, title, level, changes, members left out, reaction.
_IDENTITIES: list[tuple[int, str, str, Level, dict[str, Any], tuple[str, ...], str]] = [
    (1, "4.6", "A client without a type is disconnected", _M, {"clientType": "E_UNKNOWN"}, (), "closed"),
    (2, "4.9", "An unknown client type is disconnected", _O, {"clientType": "E_TCPTOASTER"}, (), "closed"),
    (3, "4.9", "An unknown language is disconnected", _O, {"sdkLanguage": "E_PYTHON"}, (), "closed"),
    (4, "4.5", "An admin client is accepted", _M, {"clientType": "E_TCPADMIN"}, (), _E),
    (5, "4.5", "A Java client is accepted", _M, {"sdkLanguage": "E_JAVA"}, (), _E),
    (6, "3.9", "An unknown member is skipped", _M, {"colour": "blue", "size": {"a": [1]}}, (), _E),
    (7, "4.25", "An unknown feature is skipped", _M, {"features": JSON_FEATURES + ";NEW:A,B"}, (), _E),
    (8, "4.26", "No features are needed", _S, {"features": ""}, (), _E),
    (9, "4.27", "Odd features are skipped", _O, {"features": ";;:;,PROTOCOL_ENCODING"}, (), _E),
    (10, "4.7", "userAgent is optional", _M, {}, ("userAgent",), _E),
    (11, "4.7", "guidInfo is optional", _M, {}, ("guidInfo",), _E),
    (12, "4.7", "sessionId is optional", _M, {}, ("sessionId",), _E),
    (13, "4.10", "sdkLanguage is optional", _O, {"sdkVersion": 999999}, ("sdkLanguage",), _E),
    (14, "4.9", "A text in place of a number is disconnected", _O, {"pid": "many"}, (), "closed"),
    (15, "4.9", "A number in place of a text is disconnected", _O, {"processName": 7}, (), "closed"),
    (16, "4.9", "A number beyond 32 bits is disconnected", _O, {"pid": 2**40}, (), "closed"),
    (17, "4.10", "A negative process id is accepted", _O, {"pid": -1}, (), _E),
    (18, "4.10", "A long process name is accepted", _O, {"processName": "x" * 5000}, (), _E),
    (19, "4.10", "A text in Unicode is accepted", _O, {"processName": "préfixe-\u65e5\u672c"}, (), _E),
    (20, "4.10", "A GUID basis of a wrong length is accepted", _O, {"guidInfo": {"clientId": "0A"}}, (), _E),
]


def _first_check(data: bytes, reaction: str) -> Check:
    async def run(bench: Bench) -> None:
        check(await _outcome(await bench.dial(), data), reaction, "reaction")

    return run


def _control(body: bytes, codec: int = Codec.JSON) -> bytes:
    return pack_schema_event(EventType.CONTROL, codec, body)


for _number, _statement, _title, _level, _changes, _without, _reaction in _IDENTITIES:
    _text = ", ".join([*(f"{name} {str(value)[:60]!r}" for name, value in _changes.items()), *_without])
    GROUP.case(
        f"1.2.{_number}",
        _title,
        sends=f"a clientIdentity {'without ' if _without and not _changes else 'with '}{_text}",
        expects="the connection is closed" if _reaction == "closed" else f"a brokerResponse with {_reaction}",
        statement=_statement,
        level=_level,
    )(_first_check(_control(_identity(_changes, _without)), _reaction))


# ---- 1.3 the first event


_FIRST: list[tuple[int, str, str, Level, str, bytes, str]] = [
    (1, "4.12", "A body that is not JSON ends the connection", _O, "a CONTROL event with text", _control(b"hello"), "closed"),
    (2, "4.12", "An empty body ends the connection", _O, "a CONTROL event without a body", _control(b""), "closed"),
    (3, "4.11", "A request before the negotiation ends the connection", _M, "an openQueue as the first event", _control(b'{"rId":1,"disconnect":{}}'), "closed"),
    (4, "4.11", "Messages before the negotiation end the connection", _M, "a PUT event as the first event", pack_event_header(12, EventType.PUT) + bytes(4), "closed"),
    (5, "4.12", "JSON marked as BER ends the connection", _O, "a clientIdentity in JSON with the codec BER", _control(_identity({}), Codec.BER), "closed"),
    (6, "4.12", "An unknown codec ends the connection", _O, "a clientIdentity in JSON with the codec 7", pack_schema_event(EventType.CONTROL, 7, _identity({})), "closed"),
    (7, "4.12", "A brokerResponse ends the connection", _O, "a brokerResponse as the first event", _control(b'{"brokerResponse":{"result":{"category":"E_SUCCESS","code":0,"message":""}}}'), "closed"),
]  # fmt: skip

for _number, _statement, _title, _level, _sends, _data, _reaction in _FIRST:
    GROUP.case(
        f"1.3.{_number}",
        _title,
        sends=_sends,
        expects="the connection is closed" if _reaction == "closed" else f"a brokerResponse with {_reaction}",
        statement=_statement,
        level=_level,
    )(_first_check(_data, _reaction))


@GROUP.case(
    "1.3.8",
    "An identity may arrive byte by byte",
    sends="a clientIdentity, one byte at a time",
    expects="a brokerResponse with E_SUCCESS",
    statement="2.4",
)
async def _byte_by_byte(bench: Bench) -> None:
    peer = await bench.dial()
    data = encode_event(peer.identity(), Codec.JSON)
    for at in range(0, len(data), 7):
        await peer.send_piece(data[at : at + 7])
    check((await peer.response()).result.category, StatusCategory.E_SUCCESS, "result")


@GROUP.case(
    "1.3.9",
    "Requests may follow the identity at once",
    sends="a clientIdentity and an openQueue in one write",
    expects="both answers, in order",
    statement="4.15",
    level=Level.OBSERVED,
    domains=("priority",),
)
async def _pipelined(bench: Bench) -> None:
    peer = await bench.dial()
    peer.send(encode_event(peer.identity(), Codec.JSON))
    await peer.response()
    await peer.open(bench.uri())


# ---- 1.4 encodings


@GROUP.case(
    "1.4.1",
    "A BER client is answered in BER",
    sends="a clientIdentity in BER with PROTOCOL_ENCODING:BER,JSON",
    expects="a brokerResponse in BER",
    statement="3.3",
)
async def _ber(bench: Bench) -> None:
    peer = await bench.dial()
    peer.codec = Codec.BER
    await peer.negotiate(features="PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX")
    check(peer.codecs, [Codec.BER], "codec")


@GROUP.case(
    "1.4.2",
    "A JSON client is answered in JSON",
    sends="a clientIdentity in JSON with PROTOCOL_ENCODING:JSON",
    expects="a brokerResponse in JSON",
    statement="3.3",
)
async def _json(bench: Bench) -> None:
    peer = await bench.client()
    check(peer.codecs, [Codec.JSON], "codec")


@GROUP.case(
    "1.4.3",
    "Requests in JSON with features of BER are answered in BER",
    sends="a clientIdentity in JSON with PROTOCOL_ENCODING:BER, and an openQueue in JSON",
    expects="answers in BER",
    statement="3.3",
    level=Level.OBSERVED,
    domains=("priority",),
)
async def _mixed(bench: Bench) -> None:
    peer = await bench.dial()
    await peer.negotiate(features="PROTOCOL_ENCODING:BER")
    await peer.open(bench.uri())
    check(peer.codecs[1:], [Codec.BER], "codec")


@GROUP.case(
    "1.4.4",
    "A BER client opens, configures and closes a queue",
    sends="openQueue, configureStream, closeQueue in BER",
    expects="the three answers, in BER",
    statement="3.2",
    domains=("priority",),
)
async def _ber_queue(bench: Bench) -> None:
    peer = await bench.dial()
    peer.codec = Codec.BER
    await peer.negotiate(features="PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX")
    uri = bench.uri()
    await peer.open(uri)
    await peer.close(uri)
    check(set(peer.codecs), {Codec.BER}, "codecs")


@GROUP.case(
    "1.4.5",
    "A client without MPS receives the old encoding of properties",
    sends="a PUT in the new encoding, and a consumer without MESSAGE_PROPERTIES_EX",
    expects="a PUSH with schemaId 0 and the same properties",
    statement="12.7",
    domains=("priority",),
)
async def _old_encoding(bench: Bench) -> None:
    producer, uri = await bench.queue(read=False)
    old = await bench.client(features="PROTOCOL_ENCODING:JSON")
    await old.open(uri, write=False)
    await old.configure(0, subscription(1))
    producer.post(b"payload", properties={"x": 1, "s": "text"})
    got = await old.push()
    check(got.push.schema_id, 0, "schemaId")
    check(got.properties, {"x": 1, "s": "text"}, "properties")
    check(got.payload, b"payload", "payload")


@GROUP.case(
    "1.4.6",
    "A second identity does not end the session",
    sends="a clientIdentity after the negotiation",
    expects="no answer; the session works",
    statement="4.16",
    level=Level.OBSERVED,
)
async def _second(bench: Bench) -> None:
    peer = await bench.client()
    peer.send(encode_event(peer.identity(), Codec.JSON))
    await peer.barrier()


# ---- 1.5 old clients


@GROUP.case(
    "1.5.1",
    "An outdated C++ client is refused with a reason",
    sends="a clientIdentity with E_CPP and sdkVersion 1",
    expects="E_NOT_SUPPORTED with a text",
    statement="4.14",
    level=Level.OBSERVED,
)
async def _outdated(bench: Bench) -> None:
    response = await (await bench.dial()).negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    check(response.result.category, StatusCategory.E_NOT_SUPPORTED, "result")
    if not response.result.message:
        raise fail("a message", "none")


@GROUP.case(
    "1.5.2",
    "A refused client has no session",
    sends="a clientIdentity with E_CPP and sdkVersion 1, then a request",
    expects="no answer to the request",
    statement="4.14",
    level=Level.OBSERVED,
)
async def _outdated_request(bench: Bench) -> None:
    peer = await bench.dial()
    await peer.negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    await peer.no_answer(peer.request(AdminCommand(command="HELP")))


@GROUP.case(
    "1.5.3",
    "A client without guidInfo negotiates",
    sends="a clientIdentity with an empty clientId",
    expects="a brokerResponse with E_SUCCESS",
    statement="4.30",
)
async def _no_guid(bench: Bench) -> None:
    await bench.client(guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0))


# ---- 1.6 credentials


@GROUP.case(
    "1.6.1",
    "An anonymous client negotiates",
    sends="authenticationRequest ANONYMOUS, then a clientIdentity",
    expects="E_SUCCESS without lifetimeMs, then a brokerResponse with E_SUCCESS",
    statement="5.3",
    level=Level.SHOULD,
)
async def _anonymous(bench: Bench) -> None:
    peer = await bench.dial()
    response = await peer.authenticate("ANONYMOUS", b"")
    check(response.status.category, StatusCategory.E_SUCCESS, "category")
    check(response.lifetime_ms, None, "lifetimeMs")
    check((await peer.negotiate()).result.category, StatusCategory.E_SUCCESS, "result")


@GROUP.case(
    "1.6.2",
    "An unknown mechanism is refused",
    sends="authenticationRequest with the mechanism NO_SUCH",
    expects="E_REFUSED, and the end of the connection",
    statement="5.4",
)
async def _mechanism(bench: Bench) -> None:
    peer = await bench.dial()
    response = await peer.authenticate("NO_SUCH", b"x")
    check(response.status.category, StatusCategory.E_REFUSED, "category")
    await peer.closed()


@GROUP.case(
    "1.6.3",
    "Credentials may be in BER",
    sends="authenticationRequest ANONYMOUS in BER",
    expects="an authenticationResponse with E_SUCCESS",
    statement="3.4",
    level=Level.SHOULD,
)
async def _ber_credentials(bench: Bench) -> None:
    peer = await bench.dial()
    peer.codec = Codec.BER
    check((await peer.authenticate("ANONYMOUS", b"")).status.category, StatusCategory.E_SUCCESS, "category")


@GROUP.case(
    "1.6.4",
    "Credentials that do not decode end the connection",
    sends="an AUTHENTICATION event with text",
    expects="the connection is closed",
    statement="5.6",
    level=Level.OBSERVED,
)
async def _bad_credentials(bench: Bench) -> None:
    peer = await bench.dial()
    peer.send(pack_schema_event(EventType.AUTHENTICATION, Codec.JSON, b"hello"))
    await peer.closed()


@GROUP.case(
    "1.6.5",
    "A session may authenticate again",
    sends="authenticationRequest ANONYMOUS after the negotiation",
    expects="E_SUCCESS; the session works",
    statement="5.8",
    level=Level.OBSERVED,
)
async def _again(bench: Bench) -> None:
    peer = await bench.dial()
    await peer.authenticate("ANONYMOUS", b"")
    await peer.negotiate()
    check((await peer.authenticate("ANONYMOUS", b"")).status.category, StatusCategory.E_SUCCESS, "category")
    await peer.barrier()


# ---- 1.7 admin clients


def _admin_check(command: str, part: str) -> Check:
    async def run(bench: Bench) -> None:
        peer = await bench.client(client_type=ClientType.E_TCPADMIN)
        reply = await peer.ask(AdminCommand(command=command))
        if not isinstance(reply, AdminCommandResponse) or not reply.text or part not in reply.text:
            raise fail(f"a text with {part!r}", reply)

    return run


for _place, _title, _sends, _expects, _command, _part in (
    (1, "An admin client gets the list of commands", "HELP from a client of the type E_TCPADMIN", "commands for domains",
     "HELP", "DOMAINS DOMAIN <name> PURGE"),
    (2, "An unknown admin command is answered", "MAKE COFFEE", "a text", "MAKE COFFEE", ""),
):  # fmt: skip
    GROUP.case(
        f"1.7.{_place}",
        _title,
        sends=f"adminCommand {_sends}",
        expects=f"an adminCommandResponse with {_expects}",
        statement="17.1",
        level=Level.SHOULD,
    )(_admin_check(_command, _part))
