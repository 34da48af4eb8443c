# SPDX-License-Identifier: Apache-2.0
"""The BER form of control messages: examples, tolerated variants, refused input, and the errors."""

from __future__ import annotations

import base64
import json

import pytest

from bmq.errors import ProtocolError, UsageError
from bmq.wire.ber import decode_ber, encode_ber
from bmq.wire.control import (
    AuthenticationRequest,
    CloseQueue,
    Codec,
    ConfigureStream,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    MessageKind,
    OpenQueue,
    QueueHandleParameters,
    RoutingConfiguration,
    Status,
    StreamParameters,
    Subscription,
    decode_json,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from tests.sweeps import sweep


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def element(tag: int, *contents: bytes) -> bytes:
    """A constructed element of indefinite length, as brokers and clients write it."""
    return bytes((tag, 0x80)) + b"".join(contents) + b"\0\0"


def definite(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    assert len(content) < 0x80
    return bytes((tag, len(content))) + content


def value(tag: int, content: bytes | int | str) -> bytes:
    if isinstance(content, int):
        content = bytes((content,))
    elif isinstance(content, str):
        content = content.encode()
    return bytes((tag, len(content))) + content


RID = value(0x80, 3)


def control(*selections: bytes) -> bytes:
    return element(0x30, RID, element(0xA1, *selections))


def open_queue(*members: bytes) -> bytes:
    return control(element(0xAA, element(0xA0, *members)))


def opened(**members: object) -> ControlMessage:
    return ControlMessage(3, OpenQueue(QueueHandleParameters(**members)))  # type: ignore[arg-type]


def configure(*subscriptions: bytes) -> bytes:
    """Return a configureStream whose streamParameters contain these elements."""
    return control(element(0xB0, value(0x80, 7), element(0xA1, *subscriptions)))


def configured(*s_ids: int) -> ControlMessage:
    subscriptions = tuple(Subscription(s_id) for s_id in s_ids)
    return ControlMessage(3, ConfigureStream(7, StreamParameters(subscriptions=subscriptions)))


def subscription(s_id: int) -> bytes:
    return element(0x30, value(0x80, s_id))


URI = value(0x80, "bmq://d/q")


# ---- accepted

#: The message as JSON, with bytes unencoded, and the whole event; recorded.
EXAMPLES = {
    "a subscription": (
        '{"rId":1,"openQueue":{"handleParameters":{"uri":"bmq://bmq.test.mem.fanout/q-aa50b699?id=foo'
        '","qId":0,"subIdInfo":{"subId":1,"appId":"foo"},"flags":2,"readCount":1,"writeCount":0,"admi'
        'nCount":0}}}',
        "00000064 41020000 30808001 01a180aa 80a08080 2b626d71 3a2f2f62 6d712e74 6573742e 6d656d2e "
        "66616e6f 75742f71 2d616135 30623639 393f6964 3d666f6f 810100a2 80800101 8103666f 6f000083 "
        "01028401 01850100 86010000 00000000 00000001",
    ),
    "expressions": (
        '{"rId":2,"configureStream":{"qId":0,"streamParameters":{"appId":"__default","subscriptions":'
        '[{"sId":1,"expression":{"version":"E_VERSION_1","text":"CustomerId >= 2000 && DestinationId '
        '== \\"ABC\\""},"consumers":[{"maxUnconfirmedMessages":100,"maxUnconfirmedBytes":1048576,"consu'
        'merPriority":1,"consumerPriorityCount":1}]},{"sId":2,"expression":{"version":"E_VERSION_1","'
        'text":"CustomerId == 1000"},"consumers":[{"maxUnconfirmedMessages":100,"maxUnconfirmedBytes"'
        ':1048576,"consumerPriority":2,"consumerPriorityCount":1}]}]}}}',
        "000000b8 41020000 30808001 02a180b0 80800100 a1808009 5f5f6465 6661756c 74a18030 80800101 "
        "a1808001 01812c43 7573746f 6d657249 64203e3d 20323030 30202626 20446573 74696e61 74696f6e "
        "4964203d 3d202241 42432200 00a28030 80800164 81031000 00820101 83010100 00000000 00308080 "
        "0102a180 80010181 12437573 746f6d65 72496420 3d3d2031 30303000 00a28030 80800164 81031000 "
        "00820102 83010100 00000000 00000000 00000000 00000001",
    ),
    "authentication": (
        '{"authenticationRequest":{"mechanism":"BASIC","data":"bertest:scratch"}}',
        "00000030 4f020000 3080a080 a0808005 42415349 43810f62 65727465 73743a73 63726174 63680000 "
        "00000000 04040404",
    ),
    "negative numbers": (
        '{"rId":3,"configureQueueStreamResponse":{"request":{"qId":0,"streamParameters":{"subIdInfo":'
        '{"subId":1,"appId":"foo"},"maxUnconfirmedMessages":0,"maxUnconfirmedBytes":0,"consumerPriori'
        'ty":-2147483648,"consumerPriorityCount":0}}}}',
        "00000040 41020000 30808001 03a180af 80a08080 0100a180 a0808001 01810366 6f6f0000 81010082 "
        "01008304 80000000 84010000 00000000 00000000 00030303",
    ),
}


@sweep("name", EXAMPLES)
def test_worked_examples_are_decoded_and_encoded(name: str) -> None:
    text, hexadecimal = EXAMPLES[name]
    data = octets(hexadecimal)
    fields = json.loads(text)
    kind = MessageKind.CONTROL if "rId" in fields else MessageKind.AUTHENTICATION
    if "authenticationRequest" in fields:
        request = fields["authenticationRequest"]
        request["data"] = base64.b64encode(request["data"].encode()).decode()
    message = decode_json(json.dumps(fields).encode(), kind)

    assert decode_event(read_event(data), kind) == message
    assert encode_event(message, Codec.BER) == data


UNKNOWN = {
    "primitive": octets("98 02 0102"),
    "constructed, indefinite": element(0xB9, value(0x80, 1), element(0xA1, value(0x02, 5))),
    "constructed, definite": definite(0xB9, b"\xff\xff\xff"),
    "of a long tag": octets("9f 83 7f 01 05"),
    "of a long tag, constructed": octets("bf 1f 80 80 01 05 00 00"),
    "of a long length": octets("98 83 000001 05"),
    "nested 500 deep": octets("b9 80") * 500 + b"\0\0" * 500,
    "an array length hint": octets("9f 87 ff ff ff 7f 01 02"),
}


@sweep("unknown", UNKNOWN.values())
def test_unknown_members_are_skipped(unknown: bytes) -> None:
    assert decode_ber(open_queue(unknown, URI, unknown), MessageKind.CONTROL) == opened(uri="bmq://d/q")
    assert decode_ber(control(element(0xA2, unknown)), MessageKind.CONTROL) == ControlMessage(
        3, DisconnectResponse()
    )


TOLERATED = {
    "members in any order": (open_queue(value(0x86, 1), URI), opened(uri="bmq://d/q", admin_count=1)),
    "rId after the choice": (
        element(0x30, element(0xA1, element(0xA2)), RID),
        ControlMessage(3, DisconnectResponse()),
    ),
    "a repeated value: the last": (open_queue(value(0x81, 1), value(0x81, 2)), opened(q_id=2)),
    "a repeated structure: merged": (
        control(element(0xAA, element(0xA0, URI, value(0x81, 1)), element(0xA0, value(0x81, 2)))),
        opened(uri="bmq://d/q", q_id=2),
    ),
    "a repeated array: appended": (
        configure(element(0xA1, subscription(1)), element(0xA1, subscription(2), subscription(3))),
        configured(1, 2, 3),
    ),
    "a repeated choice: the last": (
        element(0x30, RID, element(0xA1, element(0xA1)), element(0xA1, element(0xA2))),
        ControlMessage(3, DisconnectResponse()),
    ),
    "definite lengths": (
        definite(0x30, RID, definite(0xA1, definite(0xAA, definite(0xA0, URI, value(0x81, 1))))),
        opened(uri="bmq://d/q", q_id=1),
    ),
    "the long form of a short tag": (
        element(0x30, octets("9f 00 01 03"), element(0xA1, element(0xA2))),
        ControlMessage(3, DisconnectResponse()),
    ),
    "anything after the end": (
        control(element(0xA2)) + octets("00 00 00 30 80 ff"),
        ControlMessage(3, DisconnectResponse()),
    ),
    "a wrapper inside the choice: a status": (
        control(element(0xA0, element(0xAA, element(0xA0, URI)))),
        ControlMessage(3, Status()),
    ),
    "an unknown selection": (control(element(0xBE, value(0x80, 1))), ControlMessage(3, None)),
    "an empty choice": (control(), ControlMessage(3, None)),
    "no rId": (element(0x30, element(0xA1, element(0xA1))), ControlMessage(None, Disconnect())),
    "nothing at all": (element(0x30), ControlMessage()),
}


@sweep("body, expected", TOLERATED.values())
def test_irregular_encodings_are_tolerated(body: bytes, expected: ControlMessage) -> None:
    assert decode_ber(body, MessageKind.CONTROL) == expected
    assert decode_ber(memoryview(body + b"\1"), MessageKind.CONTROL) == expected


INTEGERS = [
    # member, octets, value
    ("read_count", "00 00 00 05", 5),
    ("read_count", "ff", -1),
    ("read_count", "80", -128),
    ("read_count", "00 80", 128),
    ("read_count", "ff 7f", -129),
    ("read_count", "80 00 00 00", -2147483648),
    ("read_count", "7f ff ff ff", 2147483647),
    ("read_count", "04 93 e0", 300000),
    ("q_id", "ff", 4294967295),
    ("q_id", "ff ff ff f5", 4294967285),
    ("q_id", "00 ff ff ff ff", 4294967295),
    ("q_id", "00 00 00 00 05", 5),
    ("flags", "00 80 00 00 00 00 00 00 04", 2**63 + 4),
    ("flags", "00 80 00 00 00 00 00 00 00", 2**63),
    ("flags", "ff", 2**64 - 1),
    ("flags", "0e", 14),
]
TAGS = {"q_id": 0x81, "flags": 0x83, "read_count": 0x84}


@sweep("name, content, number", INTEGERS)
def test_integers_are_decoded(name: str, content: str, number: int) -> None:
    message = decode_ber(open_queue(value(TAGS[name], octets(content))), MessageKind.CONTROL)
    assert message == opened(**{name: number})


@sweep("octet, final", [("00", False), ("01", True), ("ff", True)])
def test_booleans_are_decoded(octet: str, final: bool) -> None:
    body = control(element(0xAC, value(0x81, octets(octet))))
    assert decode_ber(body, MessageKind.CONTROL) == ControlMessage(3, CloseQueue(is_final=final))


def test_strings_that_are_not_utf8_survive() -> None:
    message = decode_ber(open_queue(value(0x80, b"bar\xe9")), MessageKind.CONTROL)
    assert encode_ber(message).count(b"bar\xe9") == 1
    # JSON has no place for them.
    assert "bar\N{REPLACEMENT CHARACTER}".encode() in encode_event(message, Codec.JSON)


@sweep("name", ["a subscription", "expressions"])
def test_every_truncation_is_refused(name: str) -> None:
    data = octets(EXAMPLES[name][1])
    body = data[8 : -data[-1]]
    decode_ber(body, MessageKind.CONTROL)
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_ber(body[:length], MessageKind.CONTROL)


# ---- refused

HANDLE = "openQueue.handleParameters"
REFUSED = {
    # name: (body, field, offset in the event)
    "a universal tag in a structure": (open_queue(octets("02 01 05")), HANDLE, 19),
    "top tag not constructed": (octets("10 00"), "ControlMessage", 8),
    "an array element with a context tag": (
        configure(element(0xA1, element(0xA0))),
        "configureStream.streamParameters.subscriptions[0]",
        24,
    ),
    "a primitive structure": (control(element(0xAA, octets("80 00"))), HANDLE, 17),
    "a primitive array": (
        configure(octets("81 00")), "configureStream.streamParameters.subscriptions", 22,
    ),
    "a constructed integer": (open_queue(element(0xA1, octets("02 01 05"))), f"{HANDLE}.qId", 19),
    "a chunked string": (open_queue(element(0xA0, octets("0c 01 61"))), f"{HANDLE}.uri", 19),
    "an unknown primitive of indefinite length": (open_queue(octets("98 80 61 00 00")), HANDLE, 21),
    "one zero where contents end": (octets("30 80 80 01 03 00 01"), "ControlMessage", 13),
    "a definite length too short": (octets("30 80 a1 05 a2 80 00 00 00 00 00"), "body", 16),
    "a definite length too long": (octets("30 06 80 01 03 a1 04 a2 00 00 00"), "ControlMessage", 13),
    "two selections": (control(element(0xA1), element(0xA2)), "body", 19),
    "a length of five octets": (open_queue(octets("81 85 0000000001 05")), HANDLE, 19),
    "a length of 2^32 - 1": (open_queue(octets("80 84 ffffffff 61")), HANDLE, 19),
    "a reserved length octet": (open_queue(octets("81 ff")), HANDLE, 19),
    "a tag number of six octets": (open_queue(octets("9f 81 81 81 81 81 01 01 05")), HANDLE, 19),
    "a zero-length integer": (element(0x30, octets("80 00"), element(0xA1, element(0xA1))), "rId", 10),
    "an int of five octets": (open_queue(octets("84 05 00 00 00 00 05")), f"{HANDLE}.readCount", 19),
    "an unsignedInt of five octets, not zero": (
        open_queue(octets("81 05 01 00 00 00 05")), f"{HANDLE}.qId", 19,
    ),
    "a boolean of two octets": (control(element(0xAC, octets("81 02 00 01"))), "closeQueue.isFinal", 17),
    "an unknown enumerator": (control(element(0xA0, octets("80 01 07"))), "status.category", None),
    "unknown elements nested too deep": (
        open_queue(octets("b9 80") * 600 + b"\0\0" * 600), HANDLE, 19 + 2 * 513,
    ),
}  # fmt: skip


@sweep("body, field, offset", REFUSED.values())
def test_malformed_messages_are_refused(body: bytes, field: str, offset: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_ber(body, MessageKind.CONTROL)
    assert (caught.value.field, caught.value.offset) == (field, offset), str(caught.value)


NOT_NEGOTIATION = {
    "no wrapper": element(0x30, element(0xA1, value(0x81, 1))),
    "another wrapper": element(0x30, element(0xA1, element(0xA0))),
    "a primitive wrapper": element(0x30, octets("80 00")),
    "empty": element(0x30),
    "an empty choice": element(0x30, element(0xA0)),
    "an unknown selection": element(0x30, element(0xA0, element(0xBE))),
    "the dead selection": element(0x30, element(0xA0, element(0xA2))),
    "something after the choice": element(0x30, element(0xA0, element(0xA0)), element(0xA0)),
    "a control message": control(element(0xA1)),
    "no bytes": b"",
}


@sweep("body", NOT_NEGOTIATION.values())
@sweep("kind", [MessageKind.NEGOTIATION, MessageKind.AUTHENTICATION])
def test_negotiation_and_authentication_need_their_selection(body: bytes, kind: MessageKind) -> None:
    with pytest.raises(ProtocolError):
        decode_ber(body, kind)


@sweep(
    "flood",
    [
        configure(element(0xA1, octets("30 00") * 131_072)),
        configure(element(0xA1, element(0x30, element(0xA2, octets("30 00") * 33_000)) * 4)),
        control(element(0xAA, octets("a0 00") * 131_072)),
        element(0x30, octets("98 00") * 131_072),
        element(0x30, element(0xB9, octets("b9 80 00 00") * 131_072)),
    ],
)
def test_excessive_elements_are_refused(flood: bytes) -> None:
    with pytest.raises(ProtocolError, match="more than 131072 elements in one message"):
        decode_ber(flood, MessageKind.CONTROL)


def test_an_excessive_body_is_refused() -> None:
    with pytest.raises(ProtocolError, match="at most 16777216 bytes"):
        decode_ber(bytes(16 * 1024 * 1024 + 1), MessageKind.CONTROL)


@sweep(
    "message, path",
    [
        (ControlMessage(2**31, Disconnect()), "rId"),
        (ControlMessage(True, Disconnect()), "rId"),
        (opened(uri=b"bytes"), "openQueue.handleParameters.uri"),
        (opened(q_id=-1), "openQueue.handleParameters.qId"),
        (ControlMessage(1, CloseQueue(is_final=1)), "closeQueue.isFinal"),  # type: ignore[arg-type]
        (ControlMessage(1, Status(category=5)), "status.category"),  # type: ignore[arg-type]
        (ControlMessage(1, RoutingConfiguration()), "body"),  # type: ignore[arg-type]
        (
            ControlMessage(1, ConfigureStream(0, StreamParameters(subscriptions=5))),  # type: ignore[arg-type]
            "configureStream.streamParameters.subscriptions",
        ),
        (AuthenticationRequest("BASIC", "secret"), "authenticationRequest.data"),  # type: ignore[arg-type]
    ],
)
@sweep("codec", list(Codec))
def test_our_own_values_are_checked_before_they_are_sent(
    message: ControlMessage, path: str, codec: Codec
) -> None:
    with pytest.raises(UsageError) as caught:
        encode_event(message, codec)
    assert str(caught.value).startswith(f"{path}: ")
    assert "secret" not in str(caught.value)
