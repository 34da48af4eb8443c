# SPDX-License-Identifier: Apache-2.0
"""Connections: credentials, heartbeats, and older clients."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bmq.broker._settings import Authentication, BrokerSettings
from bmq.errors import StatusCategory
from bmq.wire.constants import Compression, EventType, PushFlags
from bmq.wire.control import AuthenticationRequest, Codec, Status
from bmq.wire.control_event import encode_event
from bmq.wire.event import HEARTBEAT_REQ, pack_event_header
from bmq.wire.message import split_application_data
from bmq.wire.properties import encode_properties
from bmq.wire.put import encode_put
from tests.broker.core import FANOUT, PRIORITY, Core
from tests.sweeps import sweep

RIGHT = AuthenticationRequest(mechanism="BASIC", data=b"user:secret")
ANONYMOUS = AuthenticationRequest(mechanism="ANONYMOUS")


def guarded(**options: Any) -> Core:
    return Core(settings=BrokerSettings(authentication=Authentication({"user": "secret"}, **options)))


def test_anonymous_clients_connect_only_if_allowed() -> None:
    for allowed in (False, True):
        core = guarded(anonymous=allowed)
        answer = core.connect().authenticate(ANONYMOUS)
        assert (answer.status.category is StatusCategory.E_SUCCESS) is allowed
        assert answer.lifetime_ms is None
        peer = core.connect()
        if allowed:
            assert peer.negotiate().result == Status()
        else:
            with pytest.raises(ValueError, match="unpack"):
                peer.negotiate()
            assert peer.session.closed


def test_a_broker_without_users_refuses_basic() -> None:
    assert Core().connect().authenticate(RIGHT).status.code == -2


def test_another_mechanism_on_a_live_session_closes_without_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer = guarded(anonymous=True).connect()
    peer.authenticate(RIGHT)
    peer.negotiate()
    with caplog.at_level(logging.INFO, "bmq"):
        peer.send(encode_event(ANONYMOUS, Codec.JSON))
    assert peer.receive() == []
    assert peer.session.closed
    assert "mechanism" in caplog.text  # the operator of the broker is informed, not the client


def test_invalid_credentials_in_a_live_session_are_ignored() -> None:
    peer = guarded().connect()
    peer.authenticate(RIGHT)
    peer.negotiate()
    peer.send(pack_event_header(12, EventType.AUTHENTICATION, 0x20) + b"{}\2\2")
    assert peer.receive() == []
    assert not peer.session.closed


def test_credentials_out_of_place_get_no_answer() -> None:
    """Twice before the identity, or in a session that began without."""
    twice, late = guarded().connect(), guarded(anonymous=True).client()
    twice.authenticate(RIGHT)
    for peer, closed in ((twice, True), (late, False)):
        peer.send(encode_event(RIGHT, Codec.JSON))
        assert peer.receive() == []
        assert peer.session.closed is closed


@pytest.mark.parametrize(("request_first", "grace"), [(True, 0), (False, 60)])
def test_silent_clients_are_asked_and_closed(request_first: bool, grace: int) -> None:
    """Three minutes of grace end with the first event after the negotiation."""
    core = Core(settings=BrokerSettings(heartbeat_interval_ms=3000, max_missed_heartbeats=2))
    peer = core.client()
    if request_first:
        peer.consume(PRIORITY)
    other = core.consumer(priority=-1)
    core.producer().put(b"m")
    asked = 0
    started = core.now
    while not peer.session.closed:
        core.now += 3
        peer.session.tick(core.now)
        asked += sum(event.data == HEARTBEAT_REQ for event in peer.others)
    # The first interval was not silent after a request; then the grace, two missed intervals, and the last.
    assert core.now - started == 3 * (request_first + grace + 2 + 1)
    assert asked == grace + 2
    assert other.payloads == [b"m"]


@sweep("compression", list(Compression))
@sweep("new", [False, True])
def test_properties_reach_old_and_new_clients(new: bool, compression: Compression) -> None:
    """New properties are converted, decompressed, for clients without the new encoding."""
    core = Core()
    sender, modern, old = core.producer(FANOUT), core.client(), core.client("PROTOCOL_ENCODING:JSON")
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


def test_consumers_never_meet_one_schema_number_for_two_schemas() -> None:
    """Producers number their schemas from one and reuse numbers; a consumer remembers names by number."""
    core = Core()
    one, two, reader = core.producer(), core.producer(), core.consumer()
    names = {"abc": ("price", "count"), "xyz": ("count", "price")}
    recycled, plain = 5 << 1 | 1, 5 << 1
    for peer, schema, wire in (
        *((one, "abc", recycled), (one, "abc", plain), (two, "abc", recycled), (two, "abc", plain)),
        *((one, "xyz", recycled), (one, "xyz", plain)),
    ):
        area = encode_properties(dict.fromkeys(names[schema], 7), new=True)
        peer.put_encoded(encode_put(0, peer.guids.next(0), area + b"x", flags=3, schema_id=wire))
    ids = [push.schema_id for push in reader.pushes]
    assert ids == [3, 2, 5, 4, 7, 6], "each is learnt when it is met first, and then used"
