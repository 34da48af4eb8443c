# SPDX-License-Identifier: Apache-2.0
"""The BER form of control messages: refused input, in both directions, and the errors."""

import pytest

from bmq.errors import ProtocolError, UsageError
from bmq.wire.ber import decode_ber, encode_ber
from bmq.wire.control import (
    AuthenticationRequest,
    CloseQueue,
    CloseQueueResponse,
    Codec,
    ConfigureStream,
    ControlMessage,
    Disconnect,
    MessageKind,
    RoutingConfiguration,
    Status,
    StreamParameters,
    Subscription,
)
from bmq.wire.control_event import encode_event
from tests.sweeps import sweep
from tests.wire.ber import (
    RID,
    configure,
    control,
    definite,
    element,
    octets,
    open_queue,
    opened,
    subscription,
    value,
)

HANDLE = "openQueue.handleParameters"
REFUSED = {
    # name: (body, field, offset in the event)
    "a universal tag in a structure": (open_queue(octets("02 01 05")), HANDLE, 19),
    "an application tag in a structure": (open_queue(octets("40 01 05")), HANDLE, 19),
    "a private tag in a structure": (open_queue(octets("c0 01 05")), HANDLE, 19),
    "a universal tag in a choice": (control(octets("30 80 00 00")), "body", 15),
    "top tag SET": (octets("31 80 00 00"), "ControlMessage", 8),
    "top tag of application class": (octets("60 80 00 00"), "ControlMessage", 8),
    "top tag not constructed": (octets("10 00"), "ControlMessage", 8),
    "an array element with a context tag": (
        configure(element(0xA1, element(0xA0))),
        "configureStream.streamParameters.subscriptions[0]",
        24,
    ),
    "an array element of another universal type": (
        configure(element(0xA1, subscription(1), element(0x31))),
        "configureStream.streamParameters.subscriptions[1]",
        31,
    ),
    "a primitive structure": (control(element(0xAA, octets("80 00"))), HANDLE, 17),
    "a primitive selection": (control(octets("8a 00")), "openQueue", 15),
    "a primitive choice": (element(0x30, RID, octets("81 00")), "body", 13),
    "a primitive array": (
        configure(octets("81 00")), "configureStream.streamParameters.subscriptions", 22,
    ),
    "a constructed integer": (open_queue(element(0xA1, octets("02 01 05"))), f"{HANDLE}.qId", 19),
    "a chunked string": (open_queue(element(0xA0, octets("0c 01 61"))), f"{HANDLE}.uri", 19),
    "a primitive of indefinite length": (open_queue(octets("80 80 61 00 00")), f"{HANDLE}.uri", 19),
    "an unknown primitive of indefinite length": (open_queue(octets("98 80 61 00 00")), HANDLE, 21),
    "one zero where contents end": (octets("30 80 80 01 03 00 01"), "ControlMessage", 13),
    "a definite length too short": (octets("30 80 a1 05 a2 80 00 00 00 00 00"), "body", 16),
    "a definite length too long": (octets("30 06 80 01 03 a1 04 a2 00 00 00"), "ControlMessage", 13),
    "two selections": (control(element(0xA1), element(0xA2)), "body", 19),
    "a definite choice with two selections": (
        element(0x30, definite(0xA1, definite(0xA1), definite(0xA2))), "body", 14,
    ),
    "a length of five octets": (open_queue(octets("81 85 0000000001 05")), HANDLE, 19),
    "a reserved length octet": (open_queue(octets("81 ff")), HANDLE, 19),
    "a length of 2^31 - 1": (open_queue(octets("80 84 7fffffff 61")), HANDLE, 19),
    "a length of 2^32 - 1": (open_queue(octets("80 84 ffffffff 61")), HANDLE, 19),
    "a tag number of six octets": (open_queue(octets("9f 81 81 81 81 81 01 01 05")), HANDLE, 19),
    "a zero-length integer": (element(0x30, octets("80 00"), element(0xA1, element(0xA1))), "rId", 10),
    "an int of five octets": (open_queue(octets("84 05 00 00 00 00 05")), f"{HANDLE}.readCount", 19),
    "an unsignedInt of five octets, not zero": (
        open_queue(octets("81 05 01 00 00 00 05")), f"{HANDLE}.qId", 19,
    ),
    "an unsignedInt of six octets": (open_queue(octets("81 06 00 00 00 00 00 05")), f"{HANDLE}.qId", 19),
    "an unsignedLong of nine octets, not zero": (
        open_queue(octets("83 09 01 00 00 00 00 00 00 00 05")), f"{HANDLE}.flags", 19,
    ),
    "a boolean of two octets": (control(element(0xAC, octets("81 02 00 01"))), "closeQueue.isFinal", 17),
    "an unknown enumerator": (control(element(0xA0, octets("80 01 07"))), "status.category", None),
    "unknown elements nested too deep": (
        open_queue(octets("b9 80") * 600 + b"\0\0" * 600), HANDLE, 19 + 2 * 513,
    ),
}  # fmt: skip


@sweep("body, field, offset", REFUSED.values())
def test_malformed_messages_are_refused(body: bytes, field: str, offset: int):
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
def test_negotiation_and_authentication_need_their_selection(body: bytes, kind: MessageKind):
    with pytest.raises(ProtocolError):
        decode_ber(body, kind)


def test_a_wrong_wrapper_is_named():
    with pytest.raises(ProtocolError) as caught:
        decode_ber(NOT_NEGOTIATION["another wrapper"], MessageKind.NEGOTIATION)
    assert caught.value.offset == 8 + 2


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
def test_excessive_elements_are_refused(flood: bytes):
    with pytest.raises(ProtocolError, match="more than 131072 elements in one message"):
        decode_ber(flood, MessageKind.CONTROL)


def test_an_excessive_body_is_refused():
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
def test_our_own_values_are_checked_before_they_are_sent(message: ControlMessage, path: str, codec: Codec):
    with pytest.raises(UsageError) as caught:
        encode_event(message, codec)
    assert str(caught.value).startswith(f"{path}: ")
    assert "secret" not in str(caught.value)


def test_a_body_alone_is_no_message():
    with pytest.raises(UsageError, match=r"ControlMessage\(r_id, CloseQueueResponse\(...\)\)"):
        encode_ber(CloseQueueResponse())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Subscription is not a whole message"):
        encode_ber(Subscription())  # type: ignore[arg-type]
