# SPDX-License-Identifier: Apache-2.0
"""Negotiation: identities, features, encodings, credentials."""

from __future__ import annotations

from typing import Any

from bmq._json import orjson
from bmq.errors import StatusCategory
from bmq.wire.constants import EventType
from bmq.wire.control import AdminCommand, AdminCommandResponse, ClientLanguage, ClientType, Codec, GuidInfo
from bmq.wire.control_event import encode_event
from bmq.wire.event import pack_event_header, pack_schema_event
from conformance.bench import Bench
from conformance.case import Cases, Level, Mismatch, check, fail
from conformance.peer import JSON_FEATURES, Peer, subscription

__all__ = ["GROUP"]

GROUP = Cases(1, "Negotiation")

_M, _S, _O = Level.MUST, Level.SHOULD, Level.OBSERVED


# ---- 1.1 identities


@GROUP.case("1.1.1", "4.3")
async def _json_client(bench: Bench) -> None:
    """A JSON client is accepted.

    Sends: a clientIdentity in JSON with PROTOCOL_ENCODING:JSON.
    Expects: a brokerResponse with E_SUCCESS from a broker.
    """
    response = await (await bench.dial()).negotiate()
    check(response.result.category, StatusCategory.E_SUCCESS, "result")
    check(response.broker_identity.client_type, ClientType.E_TCPBROKER, "clientType")


@GROUP.case("1.1.2", "4.4")
async def _version(bench: Bench) -> None:
    """The answer has version 1 of the protocol.

    Sends: a clientIdentity with protocolVersion 1.
    Expects: protocolVersion 1.
    """
    check((await (await bench.dial()).negotiate()).protocol_version, 1, "protocolVersion")


@GROUP.case("1.1.3", "4.22")
async def _encodings(bench: Bench) -> None:
    """The broker offers both encodings of control messages.

    Sends: a clientIdentity.
    Expects: PROTOCOL_ENCODING with BER and JSON among the features.
    """
    check(sorted(await _features(bench, "PROTOCOL_ENCODING")), ["BER", "JSON"], "PROTOCOL_ENCODING")


async def _feature(bench: Bench, name: str, value: str) -> None:
    if value not in (found := await _features(bench, name)):
        raise fail(f"{name} with {value}", found)


GROUP.rows(_feature, [
    ("1.1.4", "4.23", _S, "The broker offers the new encoding of properties", "a clientIdentity", "MPS:MESSAGE_PROPERTIES_EX among the features", "MPS",
     "MESSAGE_PROPERTIES_EX"),
    ("1.1.5", "4.24", _S, "The broker offers subscriptions", "a clientIdentity", "SUBSCRIPTIONS:CONFIGURE_STREAM among the features", "SUBSCRIPTIONS",
     "CONFIGURE_STREAM"),
])  # fmt: skip


@GROUP.case("1.1.6", "4.4")
async def _heartbeats(bench: Bench) -> None:
    """The answer has an interval of heartbeats.

    Sends: a clientIdentity.
    Expects: heartbeatIntervalMs above 0, and maxMissedHeartbeats of 0 or more.
    """
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


def _described(changes: dict[str, Any], without: tuple[str, ...]) -> str:
    words = [*(f"{name} {str(value)[:60]!r}" for name, value in changes.items()), *without]
    return f"a clientIdentity {'without' if without and not changes else 'with'} {', '.join(words)}"


_E = "E_SUCCESS"


async def _first(bench: Bench, data: bytes, reaction: str) -> None:
    check(await _outcome(await bench.dial(), data), reaction, "reaction")


def _control(body: bytes, codec: int = Codec.JSON) -> bytes:
    return pack_schema_event(EventType.CONTROL, codec, body)


#: Number, statement, level, title, reaction, changed and missing members of the identity.
_IDENTITIES: list[tuple[str, str, Level, str, str, dict[str, Any], tuple[str, ...]]] = [
    ("1.2.1", "4.6", _M, "A client without a type is disconnected", "closed", {"clientType": "E_UNKNOWN"}, ()),
    ("1.2.2", "4.9", _O, "An unknown client type is disconnected", "closed", {"clientType": "E_TCPTOASTER"}, ()),
    ("1.2.3", "4.9", _O, "An unknown language is disconnected", "closed", {"sdkLanguage": "E_PYTHON"}, ()),
    ("1.2.4", "4.5", _M, "An admin client is accepted", _E, {"clientType": "E_TCPADMIN"}, ()),
    ("1.2.5", "4.5", _M, "A Java client is accepted", _E, {"sdkLanguage": "E_JAVA"}, ()),
    ("1.2.6", "3.9", _M, "An unknown member is skipped", _E, {"colour": "blue", "size": {"a": [1]}}, ()),
    ("1.2.7", "4.25", _M, "An unknown feature is skipped", _E, {"features": JSON_FEATURES + ";NEW:A,B"}, ()),
    ("1.2.8", "4.26", _S, "No features are needed", _E, {"features": ""}, ()),
    ("1.2.9", "4.27", _O, "Odd features are skipped", _E, {"features": ";;:;,PROTOCOL_ENCODING"}, ()),
    ("1.2.10", "4.7", _M, "userAgent is optional", _E, {}, ("userAgent",)),
    ("1.2.11", "4.7", _M, "guidInfo is optional", _E, {}, ("guidInfo",)),
    ("1.2.12", "4.7", _M, "sessionId is optional", _E, {}, ("sessionId",)),
    ("1.2.13", "4.10", _O, "sdkLanguage is optional", _E, {"sdkVersion": 999999}, ("sdkLanguage",)),
    ("1.2.14", "4.9", _O, "A text instead of a number is disconnected", "closed", {"pid": "many"}, ()),
    ("1.2.15", "4.9", _O, "A number instead of a text is disconnected", "closed", {"processName": 7}, ()),
    ("1.2.16", "4.9", _O, "A number beyond 32 bits is disconnected", "closed", {"pid": 2**40}, ()),
    ("1.2.17", "4.10", _O, "A negative process id is accepted", _E, {"pid": -1}, ()),
    ("1.2.18", "4.10", _O, "A long process name is accepted", _E, {"processName": "x" * 5000}, ()),
    ("1.2.19", "4.10", _O, "A text in Unicode is accepted", _E, {"processName": "préfixe-\u65e5\u672c"}, ()),
    ("1.2.20", "4.10", _O, "A GUID basis of a wrong length is accepted", _E, {"guidInfo": {"clientId": "0A"}}, ()),
]  # fmt: skip

GROUP.reactions(_first, (
    (number, statement, level, title, _described(changes, without), reaction, _control(_identity(changes, without)))
    for number, statement, level, title, reaction, changes, without in _IDENTITIES
))  # fmt: skip


# ---- 1.3 the first event


GROUP.reactions(_first, [
    ("1.3.1", "4.12", _O, "A body that is not JSON ends the connection", "a CONTROL event with text", "closed", _control(b"hello")),
    ("1.3.2", "4.12", _O, "An empty body ends the connection", "a CONTROL event without a body", "closed", _control(b"")),
    ("1.3.3", "4.11", _M, "A request before the negotiation ends the connection", "an openQueue as the first event", "closed", _control(b'{"rId":1,"disconnect":{}}')),
    ("1.3.4", "4.11", _M, "Messages before the negotiation end the connection", "a PUT event as the first event", "closed",
     pack_event_header(12, EventType.PUT) + bytes(4)),
    ("1.3.5", "4.12", _O, "JSON marked as BER ends the connection", "a clientIdentity in JSON with the codec BER", "closed", _control(_identity({}), Codec.BER)),
    ("1.3.6", "4.12", _O, "An unknown codec ends the connection", "a clientIdentity in JSON with the codec 7", "closed",
     pack_schema_event(EventType.CONTROL, 7, _identity({}))),
    ("1.3.7", "4.12", _O, "A brokerResponse ends the connection", "a brokerResponse as the first event", "closed",
     _control(b'{"brokerResponse":{"result":{"category":"E_SUCCESS","code":0,"message":""}}}')),
])  # fmt: skip


@GROUP.case("1.3.8", "2.4")
async def _byte_by_byte(bench: Bench) -> None:
    """An identity may arrive byte by byte.

    Sends: a clientIdentity, one byte at a time.
    Expects: a brokerResponse with E_SUCCESS.
    """
    peer = await bench.dial()
    data = encode_event(peer.identity(), Codec.JSON)
    for at in range(0, len(data), 7):
        await peer.send_piece(data[at : at + 7])
    check((await peer.response()).result.category, StatusCategory.E_SUCCESS, "result")


@GROUP.case("1.3.9", "4.15", _O, domains=("priority",))
async def _pipelined(bench: Bench) -> None:
    """Requests may follow the identity at once.

    Sends: a clientIdentity and an openQueue in one write.
    Expects: both answers, in order.
    """
    peer = await bench.dial()
    peer.send(encode_event(peer.identity(), Codec.JSON))
    await peer.response()
    await peer.open(bench.uri())


# ---- 1.4 encodings


@GROUP.case("1.4.1", "3.3")
async def _ber(bench: Bench) -> None:
    """A BER client is answered in BER.

    Sends: a clientIdentity in BER with PROTOCOL_ENCODING:BER,JSON.
    Expects: a brokerResponse in BER.
    """
    peer = await bench.dial()
    peer.codec = Codec.BER
    await peer.negotiate(features="PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX")
    check(peer.codecs, [Codec.BER], "codec")


@GROUP.case("1.4.2", "3.3")
async def _json(bench: Bench) -> None:
    """A JSON client is answered in JSON.

    Sends: a clientIdentity in JSON with PROTOCOL_ENCODING:JSON.
    Expects: a brokerResponse in JSON.
    """
    peer = await bench.client()
    check(peer.codecs, [Codec.JSON], "codec")


@GROUP.case("1.4.3", "3.3", _O, domains=("priority",))
async def _mixed(bench: Bench) -> None:
    """Requests in JSON with features of BER are answered in BER.

    Sends: a clientIdentity in JSON with PROTOCOL_ENCODING:BER, and an openQueue in JSON.
    Expects: answers in BER.
    """
    peer = await bench.dial()
    await peer.negotiate(features="PROTOCOL_ENCODING:BER")
    await peer.open(bench.uri())
    check(peer.codecs[1:], [Codec.BER], "codec")


@GROUP.case("1.4.4", "3.2", domains=("priority",))
async def _ber_queue(bench: Bench) -> None:
    """A BER client opens, configures and closes a queue.

    Sends: openQueue, configureStream, closeQueue in BER.
    Expects: the three answers, in BER.
    """
    peer = await bench.dial()
    peer.codec = Codec.BER
    await peer.negotiate(features="PROTOCOL_ENCODING:BER,JSON;MPS:MESSAGE_PROPERTIES_EX")
    uri = bench.uri()
    await peer.open(uri)
    await peer.close(uri)
    check(set(peer.codecs), {Codec.BER}, "codecs")


@GROUP.case("1.4.5", "12.7", domains=("priority",))
async def _old_encoding(bench: Bench) -> None:
    """A client without MPS receives the old encoding of properties.

    Sends: a PUT in the new encoding, and a consumer without MESSAGE_PROPERTIES_EX.
    Expects: a PUSH with schemaId 0 and the same properties.
    """
    producer, uri = await bench.queue(read=False)
    old = await bench.client(features="PROTOCOL_ENCODING:JSON")
    await old.open(uri, write=False)
    await old.configure(0, subscription(1))
    producer.post(b"payload", properties={"x": 1, "s": "text"})
    got = await old.push()
    check(got.push.schema_id, 0, "schemaId")
    check(got.properties, {"x": 1, "s": "text"}, "properties")
    check(got.payload, b"payload", "payload")


@GROUP.case("1.4.6", "4.16", _O)
async def _second(bench: Bench) -> None:
    """A second identity does not end the session.

    Sends: a clientIdentity after the negotiation.
    Expects: no answer; the session works.
    """
    peer = await bench.client()
    peer.send(encode_event(peer.identity(), Codec.JSON))
    await peer.barrier()


# ---- 1.5 old clients


@GROUP.case("1.5.1", "4.14", _O)
async def _outdated(bench: Bench) -> None:
    """An outdated C++ client is refused with a reason.

    Sends: a clientIdentity with E_CPP and sdkVersion 1.
    Expects: E_NOT_SUPPORTED with a text.
    """
    response = await (await bench.dial()).negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    check(response.result.category, StatusCategory.E_NOT_SUPPORTED, "result")
    if not response.result.message:
        raise fail("a message", "none")


@GROUP.case("1.5.2", "4.14", _O)
async def _outdated_request(bench: Bench) -> None:
    """A refused client has no session.

    Sends: a clientIdentity with E_CPP and sdkVersion 1, then a request.
    Expects: no answer to the request.
    """
    peer = await bench.dial()
    await peer.negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    await peer.no_answer(peer.request(AdminCommand(command="HELP")))


@GROUP.case("1.5.3", "4.30")
async def _no_guid(bench: Bench) -> None:
    """A client without guidInfo negotiates.

    Sends: a clientIdentity with an empty clientId.
    Expects: a brokerResponse with E_SUCCESS.
    """
    await bench.client(guid_info=GuidInfo(client_id="", nano_seconds_from_epoch=0))


# ---- 1.6 credentials


@GROUP.case("1.6.1", "5.3", _S)
async def _anonymous(bench: Bench) -> None:
    """An anonymous client negotiates.

    Sends: authenticationRequest ANONYMOUS, then a clientIdentity.
    Expects: E_SUCCESS without lifetimeMs, then a brokerResponse with E_SUCCESS.
    """
    peer = await bench.dial()
    response = await peer.authenticate("ANONYMOUS", b"")
    check(response.status.category, StatusCategory.E_SUCCESS, "category")
    check(response.lifetime_ms, None, "lifetimeMs")
    check((await peer.negotiate()).result.category, StatusCategory.E_SUCCESS, "result")


@GROUP.case("1.6.2", "5.4")
async def _mechanism(bench: Bench) -> None:
    """An unknown mechanism is refused.

    Sends: authenticationRequest with the mechanism NO_SUCH.
    Expects: E_REFUSED, and the end of the connection.
    """
    peer = await bench.dial()
    response = await peer.authenticate("NO_SUCH", b"x")
    check(response.status.category, StatusCategory.E_REFUSED, "category")
    await peer.closed()


@GROUP.case("1.6.3", "3.4", _S)
async def _ber_credentials(bench: Bench) -> None:
    """Credentials may be in BER.

    Sends: authenticationRequest ANONYMOUS in BER.
    Expects: an authenticationResponse with E_SUCCESS.
    """
    peer = await bench.dial()
    peer.codec = Codec.BER
    check((await peer.authenticate("ANONYMOUS", b"")).status.category, StatusCategory.E_SUCCESS, "category")


@GROUP.case("1.6.4", "5.6", _O)
async def _bad_credentials(bench: Bench) -> None:
    """Credentials that do not decode end the connection.

    Sends: an AUTHENTICATION event with text.
    Expects: the connection is closed.
    """
    peer = await bench.dial()
    peer.send(pack_schema_event(EventType.AUTHENTICATION, Codec.JSON, b"hello"))
    await peer.closed()


@GROUP.case("1.6.5", "5.8", _O)
async def _again(bench: Bench) -> None:
    """A session may authenticate again.

    Sends: authenticationRequest ANONYMOUS after the negotiation.
    Expects: E_SUCCESS; the session works.
    """
    peer = await bench.dial()
    await peer.authenticate("ANONYMOUS", b"")
    await peer.negotiate()
    check((await peer.authenticate("ANONYMOUS", b"")).status.category, StatusCategory.E_SUCCESS, "category")
    await peer.barrier()


# ---- 1.7 admin clients


async def _admin(bench: Bench, command: str, part: str) -> None:
    peer = await bench.client(client_type=ClientType.E_TCPADMIN)
    reply = await peer.ask(AdminCommand(command=command))
    if not isinstance(reply, AdminCommandResponse) or not reply.text or part not in reply.text:
        raise fail(f"a text with {part!r}", reply)


GROUP.rows(_admin, [
    ("1.7.1", "17.1", _S, "An admin client gets the list of commands", "HELP from a client of the type E_TCPADMIN", "commands for domains", "HELP",
     "DOMAINS DOMAIN <name> PURGE"),
    ("1.7.2", "17.1", _S, "An unknown admin command is answered", "MAKE COFFEE", "a text", "MAKE COFFEE", ""),
], sends="adminCommand {}", expects="an adminCommandResponse with {}")  # fmt: skip
