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
    ClientLanguage,
    Codec,
    Status,
    StatusCategory,
)
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEARTBEAT_REQ, pack_event_header
from bmq.wire.message import split_application_data
from bmq.wire.properties import encode_properties
from bmq.wire.put import encode_put
from tests.broker.core import FANOUT, PRIORITY, Core, CoreClient
from tests.sweeps import sweep

BASIC = {"user": "secret"}


def credentials(text: str = "user:secret", mechanism: str = "BASIC") -> AuthenticationRequest:
    return AuthenticationRequest(mechanism=mechanism, data=text.encode())


# ---- the table


# ---- negotiation


def test_old_sdk_receives_a_notice() -> None:
    response = Core().connect().negotiate(sdk_language=ClientLanguage.E_CPP, sdk_version=1)
    assert response.is_deprecated_sdk
    assert response.result == Status(
        category=StatusCategory.E_NOT_SUPPORTED,
        code=-1,
        message="Client is using an unsupported version of libbmq (minimum supported version: 10500, "
        "client version: 1).",
    )


# ---- credentials


def authenticated(core: Core, request: AuthenticationRequest) -> tuple[CoreClient, AuthenticationResponse]:
    peer = core.connect()
    answer = peer.authenticate(request)
    assert isinstance(answer, AuthenticationResponse)
    return peer, answer


def guarded(**options: Any) -> Core:
    return Core(settings=BrokerSettings(authentication=Authentication(BASIC, **options)))


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


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 0x80000008, 0xFFFFFFFF, 0x7FFFFFFF])
def test_impossible_lengths_close_the_connection(length: int, caplog: pytest.LogCaptureFixture) -> None:
    core, peer = serving()
    peer.send(length.to_bytes(4, "big"))
    assert peer.session.closed
    assert not core.node.clients
    assert ("EventHeader.fragment: " if length >> 31 else "EventHeader.length: ") in caplog.text


# ---- clients of old


@sweep("compression", list(Compression))
@sweep("new", [False, True])
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
