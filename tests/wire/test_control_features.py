# SPDX-License-Identifier: Apache-2.0
"""The features string of an identity, and the codec that a broker chooses by it."""

from bmq.wire.control import (
    CONFIGURE_STREAM,
    MESSAGE_PROPERTIES_EX,
    BrokerResponse,
    Codec,
    parse_features,
)
from bmq.wire.control_event import decode_event
from tests.sweeps import sweep
from tests.wire.control_recordings import recorded_in

CLIENT = "PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX"


def test_features_of_a_recorded_broker_are_read():
    responses = [decode_event(r.event, r.kind) for r in recorded_in(Codec.JSON) if r.from_broker][:20]
    broker = next(r for r in responses if isinstance(r, BrokerResponse))
    features = parse_features(broker.broker_identity.features)
    assert features.has("MPS", "MESSAGE_PROPERTIES_EX")
    assert features.has(*MESSAGE_PROPERTIES_EX)
    assert features.has(*CONFIGURE_STREAM)
    assert features.values("HA") == ("GRACEFUL_SHUTDOWN", "GRACEFUL_SHUTDOWN_V2", "BROADCAST_TO_PROXIES")
    assert not features.has("HA", "GRACEFUL")
    assert features.text == broker.broker_identity.features


@sweep(
    "text, found",
    [
        (CLIENT, True),
        ("MPS:A,MESSAGE_PROPERTIES_EX,B", True),
        (";;MPS:,MESSAGE_PROPERTIES_EX;", True),
        ("BARE;MPS:MESSAGE_PROPERTIES_EX", True),
        ("", False),
        ("MPS", False),
        ("mps:MESSAGE_PROPERTIES_EX", False),
        ("MPS: MESSAGE_PROPERTIES_EX", False),
        ("MPS:MESSAGE_PROPERTIES_EX_2", False),
        ("MPS:A;MPS:MESSAGE_PROPERTIES_EX", False),
        # A field that promises values and has none ends the search.
        ("X:;MPS:MESSAGE_PROPERTIES_EX", False),
        ("MPS:MESSAGE_PROPERTIES_EX;X:", True),
    ],
)
def test_features_are_looked_up_by_name(text: str, found: bool):
    assert parse_features(text).has("MPS", "MESSAGE_PROPERTIES_EX") is found
