# SPDX-License-Identifier: Apache-2.0
"""The JSON form of control messages: output, tolerated input, refused input."""

import pytest

from bmq.errors import ProtocolError, UsageError
from bmq.wire.control import (
    AuthenticationResponse,
    ClientIdentity,
    ClientLanguage,
    ClientType,
    Codec,
    ConfigureStream,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    OpenQueueResponse,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
    StatusCategory,
    decode_json,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from tests.sweeps import sweep

CONTROL = MessageKind.CONTROL


def test_an_unknown_codec_is_refused():
    event = read_event(bytes.fromhex("0000000c 41024000 7b7d0202"))
    with pytest.raises(ProtocolError, match=r"expected codec 0 \(BER\) or 1 \(JSON\), got 2"):
        decode_event(event, CONTROL)


TOLERATED = {
    "padding": (b'{"rId":1,"disconnect":{}}\3\3\3', ControlMessage(1, Disconnect())),
    "no padding": (b'{"rId":1,"disconnect":{}}', ControlMessage(1, Disconnect())),
    "anything after the brace": (b'{"rId":1,"disconnect":{}}{"x":}', ControlMessage(1, Disconnect())),
    "unknown members": (
        b'{"rId":1,"x":[{"y":null}],"disconnect":{"z":1.5}}',
        ControlMessage(1, Disconnect()),
    ),
    "null where it is allowed": (
        b'{"rId":null,"openQueue":{"handleParameters":{"subIdInfo":null}}}',
        ControlMessage(None, OpenQueue()),
    ),
    "enumerators by number": (
        b'{"rId":1,"status":{"category":-6}}',
        ControlMessage(1, Status(StatusCategory.E_REFUSED)),
    ),
    "two selections": (
        b'{"rId":1,"disconnect":{},"disconnectResponse":{}}', ControlMessage(1, DisconnectResponse()),
    ),
    "nothing": (b"{}", ControlMessage()),
    "flags not known here": (
        b'{"rId":1,"openQueueResponse":{"routingConfiguration":{"flags":18446744073709551615}}}',
        ControlMessage(1, OpenQueueResponse(routing_configuration=RoutingConfiguration(2**64 - 1))),
    ),
    "an escaped solidus": (
        rb'{"rId":1,"openQueue":{"handleParameters":{"uri":"bmq:\/\/d\/q"}}}',
        ControlMessage(1, OpenQueue(QueueHandleParameters("bmq://d/q"))),
    ),
}  # fmt: skip


@sweep("body, expected", TOLERATED.values())
def test_irregular_json_is_tolerated(body: bytes, expected: ControlMessage):
    assert decode_json(body, CONTROL) == expected
    assert decode_json(memoryview(body), CONTROL) == expected


@pytest.mark.statement("3.22")
def test_missing_members_take_the_defaults_of_the_schema():
    identity = decode_json(b'{"clientIdentity":{"guidInfo":{}}}', MessageKind.NEGOTIATION)
    assert isinstance(identity, ClientIdentity)
    assert identity.client_type is ClientType.E_UNKNOWN
    assert identity.sdk_language is ClientLanguage.E_CPP
    assert (identity.sdk_version, identity.session_id, identity.cluster_node_id) == (999999, 1, -1)
    info = decode_json(
        b'{"configureStream":{"streamParameters":{"subscriptions":[{"consumers":[{}]}]}}}', CONTROL
    )
    assert isinstance(info.body, ConfigureStream)
    consumer = info.body.stream_parameters.subscriptions[0].consumers[0]
    assert consumer.consumer_priority == -2147483648
    assert info.body.stream_parameters.app_id == "__default"
    response = decode_json(b'{"authenticationResponse":{"status":{}}}', MessageKind.AUTHENTICATION)
    assert response == AuthenticationResponse(Status(StatusCategory.E_SUCCESS, 0, ""), None)


def open_queue(member: str) -> bytes:
    return b'{"rId":1,"openQueue":{"handleParameters":{%s}}}' % member.encode()


REFUSED = {
    # name: (body, field, what the message says)
    "not JSON": (b"not json\2\2", "ControlMessage", "expected a JSON object, got 10 bytes that are not JSON"),
    "nothing": (b"", "ControlMessage", "got 0 bytes that are not JSON"),
    "not UTF-8": (b'{"rId":1,"status":{"message":"\xff"}}', "ControlMessage", "not JSON"),
    "BER": (bytes.fromhex("308080 0103 a180a1800000 00000000 02 02"), "ControlMessage", "not JSON"),
    "nested too deep": (b'{"x":' + b"[" * 5000, "ControlMessage", "not JSON"),
    "an array": (b"[1]\1", "ControlMessage", "expected an object, got an array"),
    "a string": (b'"rId"\3\3\3', "ControlMessage", "expected an object, got a string"),
    "a string for an int": (
        b'{"rId":"1","disconnect":{}}', "rId", "expected int . null, got str",
    ),
    "an int out of range": (b'{"rId":2147483648}', "rId", "expected int <= 2147483647"),
    "a negative unsignedInt": (
        open_queue('"qId":-1'), "openQueue.handleParameters.qId",
        "expected int >= 0",
    ),
    "an unsignedLong of 65 bits": (
        b'{"openQueueResponse":{"routingConfiguration":{"flags":18446744073709551616}}}',
        "openQueueResponse.routingConfiguration.flags",
        "expected int, got float",
    ),
    "null for an int": (open_queue('"qId":null'), "openQueue.handleParameters.qId", "got null"),
    "null for an object": (b'{"openQueue":null}', "openQueue", "expected an object, got null"),
    "an int in an array of objects": (
        b'{"configureStream":{"streamParameters":{"subscriptions":[{},7]}}}',
        "configureStream.streamParameters.subscriptions[1]", "expected an object, got an integer",
    ),
    "an unknown enumerator": (
        b'{"status":{"category":"E_NEW"}}', "status.category", r"E_SUCCESS \(0\), .*, got 'E_NEW'",
    ),
    "a boolean for an enumerator": (b'{"status":{"category":false}}', "status.category", "got a boolean"),
    "more array elements than any honest peer sends": (
        b'{"configureStream":{"streamParameters":{"subscriptions":[' + b"{}," * 131_072 + b"{}]}}}",
        "configureStream.streamParameters.subscriptions", "more than 131072 array elements",
    ),
    "longer than any honest peer's": (
        bytes(16 * 1024 * 1024 + 1), "ControlMessage", "at most 16777216 bytes, got 16777217",
    ),
}  # fmt: skip


@sweep("body, field, problem", REFUSED.values())
def test_malformed_json_is_refused(body: bytes, field: str, problem: str):
    with pytest.raises(ProtocolError, match=problem) as caught:
        decode_json(body, CONTROL)
    assert caught.value.field == field


SECRET = "hunter2"


@sweep(
    "body",
    [
        '{"authenticationRequest":{"mechanism":"BASIC","data":"%s!"}}',
        '{"authenticationRequest":{"mechanism":"BASIC","data":{"x":"%s"}}}',
        '{"authenticationRequest":"%s"}',
        '{"authenticationRequest":{"mechanism":"BASIC","data":"%s"',
        '"%s"',
    ],
)
def test_errors_never_show_credentials(body: str):
    with pytest.raises(ProtocolError) as caught:
        decode_json((body % SECRET).encode(), MessageKind.AUTHENTICATION)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {vars(error)} {getattr(error, 'doc', '')}"
        error = error.__cause__ or error.__context__


def test_error_points_at_the_first_byte_that_is_not_json():
    with pytest.raises(ProtocolError) as caught:
        decode_json(b'{"rId":x}', CONTROL)
    assert caught.value.offset == 8 + len(b'{"rId":')


def test_text_without_a_form_in_utf_8_is_refused_by_name() -> None:
    request = ControlMessage(1, OpenQueue(QueueHandleParameters(uri="bmq://a.b/\ud800")))
    with pytest.raises(UsageError, match=r"'bmq://a\.b/\\ud800' has no form in UTF-8"):
        encode_event(request, Codec.JSON)
