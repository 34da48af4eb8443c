# SPDX-License-Identifier: Apache-2.0
"""Connections: handshake, credentials, heartbeats, silently ignored input, and legacy clients."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bmq.broker._settings import Authentication, BrokerSettings
from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.control import (
    AuthenticationRequest,
    AuthenticationResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    Codec,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    GuidInfo,
    Status,
    StatusCategory,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, pack_event_header
from bmq.wire.message import split_application_data
from bmq.wire.properties import encode_properties
from bmq.wire.put import encode_put
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient
from tests.transcripts import probes
from tests.wire.messages import encode_confirms

BASIC = {"user": "secret"}


def credentials(text: str = "user:secret", mechanism: str = "BASIC") -> AuthenticationRequest:
    return AuthenticationRequest(mechanism=mechanism, data=text.encode())


# ---- the table


# ---- negotiation


@pytest.mark.parametrize(
    "identity",
    [
        {"client_type": ClientType.E_UNKNOWN},
        {"client_type": ClientType.E_TCPBROKER},
        {"cluster_name": "local"},
    ],
)
def test_unidentified_clients_are_disconnected_silently(identity: dict[str, Any]) -> None:
    peer = Core().connect()
    with pytest.raises(ValueError, match="unpack"):
        peer.negotiate(**identity)
    assert peer.session.closed


def test_old_sdk_receives_a_notice() -> None:
    response = Core().connect().negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    assert response.is_deprecated_sdk
    assert response.result == Status(
        category=StatusCategory.E_NOT_SUPPORTED,
        code=-1,
        message="Client is using an unsupported version of libbmq (minimum supported version: 10500, "
        "client version: 1).",
    )


@pytest.mark.parametrize(
    "data",
    [
        HEARTBEAT_REQ,
        encode_confirms([(0, bytes(16), 0)]),
        encode_event(ControlMessage(r_id=1, body=Disconnect()), Codec.JSON),
        pack_event_header(12, EventType.CONTROL, 0x20) + b"{}\2\2",
        pack_event_header(8, EventType.CONTROL, 0x60),
        bytes((0, 0, 0, 8, 0x40, 2, 0, 0)),
    ],
)
def test_other_first_message_closes_the_connection(data: bytes) -> None:
    peer = Core().connect()
    peer.send(data)
    assert peer.session.closed
    assert peer.receive() == []


# ---- credentials


def authenticated(core: Core, request: AuthenticationRequest) -> tuple[CoreClient, AuthenticationResponse]:
    peer = core.connect()
    answer = peer.authenticate(request)
    assert isinstance(answer, AuthenticationResponse)
    return peer, answer


def guarded(**options: Any) -> Core:
    return Core(settings=BrokerSettings(authentication=Authentication(BASIC, **options)))


def test_right_credentials_last_ten_minutes() -> None:
    core = guarded()
    peer, answer = authenticated(core, credentials())
    assert answer.status == Status()
    assert answer.lifetime_ms == 600_000
    peer.negotiate()
    peer.session.tick(core.now + 599)
    assert not peer.session.closed
    peer.session.tick(core.now + 600)
    assert peer.session.closed


def test_renewed_credentials_last_again() -> None:
    core = guarded()
    peer, _ = authenticated(core, credentials())
    peer.negotiate()
    core.now += 500
    peer.authenticate(credentials())
    peer.session.tick(core.now + 599)
    assert not peer.session.closed
    peer.session.tick(core.now + 600)
    assert peer.session.closed


@pytest.mark.parametrize(
    ("request_", "code", "closed"),
    [
        (credentials("user:wrong"), -11, True),
        (credentials("other:secret"), -11, True),
        (credentials("user"), -11, True),
        (credentials(mechanism="NOPE"), -2, True),
    ],
)
def test_wrong_credentials_are_refused(request_: AuthenticationRequest, code: int, closed: bool) -> None:
    peer, answer = authenticated(guarded(), request_)
    assert (answer.status.category, answer.status.code) == (StatusCategory.E_REFUSED, code)
    assert peer.session.closed is closed


def test_anonymous_clients_connect_only_if_allowed() -> None:
    for allowed in (False, True):
        core = guarded(anonymous=allowed)
        _, answer = authenticated(core, AuthenticationRequest(mechanism="ANONYMOUS"))
        assert (answer.status.category is StatusCategory.E_SUCCESS) is allowed
        assert answer.lifetime_ms is None
        peer = core.connect()
        if allowed:
            assert peer.negotiate().result == Status()
        else:
            with pytest.raises(ValueError, match="unpack"):
                peer.negotiate()
            assert peer.session.closed


def test_broker_without_users_admits_all_clients_and_refuses_basic() -> None:
    _, answer = authenticated(Core(), credentials())
    assert answer.status.code == -2


def test_wrong_credentials_end_a_live_session_and_free_its_resources() -> None:
    core = guarded()
    peer, _ = authenticated(core, credentials())
    peer.negotiate()
    peer.open(PRIORITY, read=True)
    answer = peer.authenticate(credentials("user:wrong"))
    assert isinstance(answer, AuthenticationResponse)
    assert answer.status.code == -11
    assert peer.session.closed
    assert not core.node.clients


def test_another_mechanism_on_a_live_session_closes_without_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = guarded(anonymous=True)
    peer, _ = authenticated(core, credentials())
    peer.negotiate()
    with caplog.at_level(logging.INFO, "bmq"):
        peer.send(encode_event(AuthenticationRequest(mechanism="ANONYMOUS"), Codec.JSON))
    assert peer.receive() == []
    assert peer.session.closed
    assert "mechanism" in caplog.text  # the operator of the broker is informed, not the client


def test_invalid_credentials_in_a_live_session_are_ignored() -> None:
    peer, _ = authenticated(guarded(), credentials())
    peer.negotiate()
    peer.send(pack_event_header(12, EventType.AUTHENTICATION, 0x20) + b"{}\2\2")
    assert peer.receive() == []
    assert not peer.session.closed


# ---- heartbeats


@pytest.mark.parametrize(("request_first", "grace"), [(True, 0), (False, 60)])
def test_silent_clients_are_asked_and_closed(request_first: bool, grace: int) -> None:
    """Three minutes of grace end with the first event after the negotiation."""
    core = Core(settings=BrokerSettings(heartbeat_interval_ms=3000, max_missed_heartbeats=2))
    peer = core.client()
    if request_first:
        peer.open(PRIORITY, read=True)
    asked = 0
    started = core.now
    while not peer.session.closed:
        core.now += 3
        peer.session.tick(core.now)
        asked += sum(event.data == HEARTBEAT_REQ for event in peer.others)
    # The first interval was not silent after a request; then the grace, two missed intervals, and the last.
    assert core.now - started == 3 * (request_first + grace + 2 + 1)
    assert asked == grace + 2
    assert not core.node.clients


# ---- ignored input


def serving() -> tuple[Core, CoreClient]:
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, read=True, write=True)
    return core, peer


@pytest.mark.parametrize(
    "data",
    [
        pack_event_header(12, EventType.CONTROL, 0x20) + b"{{\2\2",
        pack_event_header(12, EventType.CONTROL, 0x20) + b"{}\2\2",
        pack_event_header(36, EventType.CONTROL, 0x20) + b'{"rId":-1,"disconnect":{}}\2\2',
        pack_event_header(28, EventType.CONTROL, 0x20) + b'{"disconnect":{}}\3\3\3',
        pack_event_header(28, EventType.CONTROL, 0x20) + b'{"rId":1,"later":{}}',
        encode_event(ControlMessage(r_id=1, body=Status()), Codec.JSON),
        encode_event(ControlMessage(r_id=1, body=DisconnectResponse()), Codec.JSON),
        encode_confirms([(0, bytes(range(16)), 0)]),
        encode_confirms([(9, bytes(range(16)), 0)]),
        encode_confirms([(0, bytes(range(16)), 7)]),
        encode_confirms([(0, bytes(range(16)), 0)], EventType.REJECT),
        pack_event_header(12, EventType.CONFIRM) + bytes(4),
        pack_event_header(8, EventType.CONFIRM),
        pack_event_header(8, EventType.PUT),
        pack_event_header(12, EventType.PUT) + bytes(4),
        pack_event_header(8, EventType.STORAGE),
        pack_event_header(8, 63),
        bytes((0, 0, 0, 8, 0x40, 2, 0, 0)),
        bytes((0, 0, 0, 8, 0x02, 2, 0, 0)),
        bytes((0, 0, 0, 8, 0x42, 200, 0, 0)),
        pack_event_header(8, EventType.AUTHENTICATION, 0x20),
        encode_event(credentials(), Codec.JSON),
        encode_event(ClientIdentity(client_type=ClientType.E_TCPCLIENT), Codec.JSON),
        bytes((0, 0, 0, 5, 0x42)),
        HEARTBEAT_RSP,
    ],
)
def test_mistakes_are_ignored_and_the_connection_stays(data: bytes) -> None:
    _core, peer = serving()
    peer.send(data)
    assert peer.receive() == []
    assert not peer.session.closed
    peer.put(b"fine")
    assert [ack.status for ack in peer.acks] == [0]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 0x80000008, 0xFFFFFFFF, 0x7FFFFFFF])
def test_impossible_lengths_close_the_connection(length: int, caplog: pytest.LogCaptureFixture) -> None:
    core, peer = serving()
    peer.send(length.to_bytes(4, "big"))
    assert peer.session.closed
    assert not core.node.clients
    assert ("EventHeader.fragment: " if length >> 31 else "EventHeader.length: ") in caplog.text


def test_a_malformed_message_loses_the_rest_of_its_event() -> None:
    """Earlier messages are stored; this and later messages get no answer; the next event is processed."""
    _core, peer = serving()
    good = encode_put(0, b"a" * 16, b"good")
    bad = bytearray(encode_put(0, b"b" * 16, b"bad"))
    bad[-1] = 9
    body = good + bytes(bad) + encode_put(0, b"c" * 16, b"lost")
    peer.send(pack_event_header(8 + len(body), EventType.PUT) + body)
    assert [ack.guid for ack in peer.acks] == [b"a" * 16]
    peer.put(b"next")
    assert len(peer.acks) == 1


@pytest.mark.parametrize("change", ["zero data", "only padding", "compression", "schema", "words"])
def test_malformed_messages_are_skipped_without_an_ack(change: str) -> None:
    _core, peer = serving()
    put = bytearray(encode_put(0, b"a" * 16, b"good"))
    match change:
        case "zero data":
            put[2:4] = (9).to_bytes(2, "big")
        case "only padding":
            put = bytearray(encode_put(0, b"a" * 16, b""))
        case "compression":
            put[7] |= 0b0100_0000
        case "schema":
            put[33] = 1
        case _:
            put[3] = 200
    peer.send(pack_event_header(8 + len(put), EventType.PUT) + bytes(put))
    assert peer.acks == []
    assert not peer.session.closed


def test_refused_posts() -> None:
    """Unknown qId with and without ACK asked, a zero GUID, a queue opened for reading (measured)."""
    measured = probes()["nacks"]
    core = Core()
    peer = core.client()
    peer.open(PRIORITY, read=True, write=True)
    peer.open(f"{PRIORITY}2", 1, read=True)
    peer.put(b"m", q_id=99)
    assert [[a.status, a.queue_id, a.correlation_id] for a in peer.acks] == measured["unknown qId"]
    peer.put(b"m", q_id=99, ack=False)
    assert [[a.status, a.queue_id, a.correlation_id] for a in peer.acks] == measured[
        "unknown qId, no ack asked"
    ]
    peer.put(b"m", guids=[bytes(16)])
    assert [[a.status, a.queue_id, a.correlation_id] for a in peer.acks] == measured["zero guid"]
    peer.put(b"m", q_id=1)
    assert [[a.status, a.correlation_id] for a in peer.acks] == measured["read-only queue"]


# ---- clients of old


def test_a_client_without_guids() -> None:
    core = Core()
    peer, reader = core.connect(), core.client()
    peer.negotiate(guid_info=GuidInfo())
    peer.open(PRIORITY, write=True)
    reader.consume(PRIORITY)
    peer.put(b"m", b"n", guids=[b"\0\0\0\5" + bytes(12), b"\0\1\0\0" + bytes(12)], ack=False)
    acks = peer.acks
    assert [(ack.status, ack.correlation_id) for ack in acks] == [(0, 5), (0, 65536)]
    pushed = [push.guid for push in reader.pushes]
    assert pushed == [ack.guid for ack in acks]
    assert len(set(pushed)) == 2
    assert bytes(16) not in pushed


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("new", [False, True])
def test_properties_reach_old_and_new_clients(new: bool, compression: Compression) -> None:
    """New properties are converted, decompressed, for clients without the new encoding."""
    core = Core()
    sender, modern, old = core.client(), core.client(), core.client("PROTOCOL_ENCODING:JSON")
    sender.open(FANOUT, write=True)
    modern.consume(f"{FANOUT}?id=foo")
    old.consume(f"{FANOUT}?id=bar")
    payload = b"z" * 3000
    sender.put(payload, properties={"alpha": 7, "beta": "hi"}, new=new, compression=compression)
    for peer, is_new in ((modern, new), (old, False)):
        (push,) = peer.pushes
        assert push.flags & PushFlags.MESSAGE_PROPERTIES
        assert push.schema_id == (1 if is_new else 0)
        assert push.compression == (compression if is_new else Compression.NONE)
        properties, data = split_application_data(
            push.data, has_properties=True, schema_id=push.schema_id, compression=push.compression
        )
        assert dict(properties) == {"alpha": 7, "beta": "hi"}
        assert data == payload


def test_schema_ids_of_two_producers_do_not_mix() -> None:
    """Each producer numbers its schemas from one; a consumer that remembers names by number must not mix
    them.
    """
    core = Core()
    one, two, reader = core.client(), core.client(), core.client()
    for peer in (one, two):
        peer.open(PRIORITY, write=True)
    reader.consume(PRIORITY)
    area = bytes.fromhex("1b0000060001100000000005616c706861000000070303030" + "3"[:1])
    for peer, guid in ((one, b"a"), (one, b"b"), (two, b"c"), (two, b"d")):
        wire = 3 if guid in (b"a", b"c") else 2
        put = encode_put(0, guid * 16, area + b"x", flags=3, schema_id=wire)
        peer.send(pack_event_header(8 + len(put), EventType.PUT) + put)
    ids = [push.schema_id for push in reader.pushes]
    assert ids == [3, 2, 5, 4], "learn 1, use 1, learn 2, use 2"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_conversation_in_small_pieces_is_understood(size: int) -> None:
    _core, peer = serving()
    put = encode_put(0, b"a" * 16, b"x" * 50)
    data = (pack_event_header(8 + len(put), EventType.PUT) + put) * 3
    for start in range(0, len(data), size):
        peer.send(data[start : start + size])
    assert [ack.status for ack in peer.acks] == [0, 0, 0]


def test_a_reused_schema_number_gets_a_new_number_for_consumers() -> None:
    """A consumer that remembers names by number would read the new messages with the names of the old."""
    core = Core()
    sender, reader = core.client(), core.client()
    sender.open(PRIORITY, write=True)
    reader.consume(PRIORITY)
    recycled, plain = 5 << 1 | 1, 5 << 1
    for names, wire in (
        (("price", "count"), recycled),
        (("price", "count"), plain),
        (("count", "price"), recycled),
        (("count", "price"), plain),
    ):
        area = encode_properties(dict.fromkeys(names, 7), new=True)
        put = encode_put(0, sender.guids.next(0), area + b"x", flags=3, schema_id=wire)
        sender.send(pack_event_header(8 + len(put), EventType.PUT) + put)
    ids = [push.schema_id for push in reader.pushes]
    numbers = [schema_id >> 1 for schema_id in ids]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert 0 not in numbers
    assert [schema_id & 1 for schema_id in ids] == [1, 0, 1, 0], "each is learnt when it is met first"
