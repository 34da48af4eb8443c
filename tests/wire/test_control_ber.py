# SPDX-License-Identifier: Apache-2.0
"""The BER form of control messages: worked examples, and tolerated variants."""

import base64
import json

import pytest

from bmq.errors import ProtocolError
from bmq.wire.ber import decode_ber, encode_ber
from bmq.wire.control import (
    AuthenticationRequest,
    ClientIdentity,
    CloseQueue,
    Codec,
    ControlMessage,
    Disconnect,
    DisconnectResponse,
    GuidInfo,
    MessageKind,
    OpenQueue,
    QueueHandleParameters,
    Status,
    SubQueueIdInfo,
    decode_json,
)
from bmq.wire.control_event import decode_event, encode_event
from bmq.wire.event import read_event
from tests.sweeps import sweep
from tests.wire.ber import (
    RID,
    URI,
    configure,
    configured,
    control,
    definite,
    element,
    octets,
    open_queue,
    opened,
    subscription,
    value,
)

#: Name: (the message as JSON, bytes unencoded; the whole event). E were recorded, L exchanged live.
EXAMPLES = {
    "E1": (
        '{"rId":1,"openQueue":{"handleParameters":{"uri":"bmq://bmq.test.mem.priority/q-0371087d","qI'
        'd":0,"flags":6,"readCount":1,"writeCount":1,"adminCount":0}}}',
        "00000054 41020000 30808001 01a180aa 80a08080 26626d71 3a2f2f62 6d712e74 6573742e 6d656d2e "
        "7072696f 72697479 2f712d30 33373130 38376481 01008301 06840101 85010186 01000000 00000000 "
        "00000202",
    ),
    "E2": (
        '{"rId":1,"openQueueResponse":{"originalRequest":{"handleParameters":{"uri":"bmq://bmq.test.m'
        'em.priority/q-0371087d","qId":0,"flags":6,"readCount":1,"writeCount":1,"adminCount":0}},"rou'
        'tingConfiguration":{"flags":2},"deduplicationTimeMs":300000}}',
        "00000064 41020000 30808001 01a180ab 80a080a0 80802662 6d713a2f 2f626d71 2e746573 742e6d65 "
        "6d2e7072 696f7269 74792f71 2d303337 31303837 64810100 83010684 01018501 01860100 00000000 "
        "a1808001 02000082 030493e0 00000000 00000202",
    ),
    "E3": (
        '{"rId":1,"openQueue":{"handleParameters":{"uri":"bmq://bmq.test.mem.fanout/q-aa50b699?id=foo'
        '","qId":0,"subIdInfo":{"subId":1,"appId":"foo"},"flags":2,"readCount":1,"writeCount":0,"admi'
        'nCount":0}}}',
        "00000064 41020000 30808001 01a180aa 80a08080 2b626d71 3a2f2f62 6d712e74 6573742e 6d656d2e "
        "66616e6f 75742f71 2d616135 30623639 393f6964 3d666f6f 810100a2 80800101 8103666f 6f000083 "
        "01028401 01850100 86010000 00000000 00000001",
    ),
    "E4": (
        '{"rId":2,"configureStream":{"qId":0,"streamParameters":{"appId":"__default","subscriptions":'
        '[{"sId":1,"expression":{"version":"E_UNDEFINED","text":""},"consumers":[{"maxUnconfirmedMess'
        'ages":1000,"maxUnconfirmedBytes":33554432,"consumerPriority":0,"consumerPriorityCount":1}]}]'
        "}}}",
        "00000058 41020000 30808001 02a180b0 80800100 a1808009 5f5f6465 6661756c 74a18030 80800101 "
        "a1808001 00810000 00a28030 80800203 e8810402 00000082 01008301 01000000 00000000 00000000 "
        "00000000 00030303",
    ),
    "E5": (
        '{"rId":2,"configureStream":{"qId":0,"streamParameters":{"appId":"foo","subscriptions":[{"sId'
        '":1,"expression":{"version":"E_UNDEFINED","text":""},"consumers":[{"maxUnconfirmedMessages":'
        '1000,"maxUnconfirmedBytes":33554432,"consumerPriority":0,"consumerPriorityCount":1}]}]}}}',
        "00000050 41020000 30808001 02a180b0 80800100 a1808003 666f6fa1 80308080 0101a180 80010081 "
        "000000a2 80308080 0203e881 04020000 00820100 83010100 00000000 00000000 00000000 00000001",
    ),
    "E6": (
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
    "E7": (
        '{"rId":3,"configureStream":{"qId":0,"streamParameters":{"appId":"__default","subscriptions":'
        '[{"sId":3,"expression":{"version":"E_VERSION_1","text":"exists(CustomerId)"},"consumers":[{"'
        'maxUnconfirmedMessages":100,"maxUnconfirmedBytes":1048576,"consumerPriority":0,"consumerPrio'
        'rityCount":1}]}]}}}',
        "00000068 41020000 30808001 03a180b0 80800100 a1808009 5f5f6465 6661756c 74a18030 80800103 "
        "a1808001 01811265 78697374 73284375 73746f6d 65724964 290000a2 80308080 01648103 10000082 "
        "01008301 01000000 00000000 00000000 00000000 00030303",
    ),
    "E8": (
        '{"rId":3,"configureStream":{"qId":0,"streamParameters":{"appId":"__default","subscriptions":[]}}}',
        "00000030 41020000 30808001 03a180b0 80800100 a1808009 5f5f6465 6661756c 74a18000 00000000 "
        "00000000 00030303",
    ),
    "E9": (
        '{"rId":3,"configureStreamResponse":{"request":{"qId":0,"streamParameters":{"appId":"__defaul'
        't","subscriptions":[]}}}}',
        "00000034 41020000 30808001 03a180b1 80a08080 0100a180 80095f5f 64656661 756c74a1 80000000 "
        "00000000 00000000 00030303",
    ),
    "E10": (
        '{"rId":4,"closeQueue":{"handleParameters":{"uri":"bmq://bmq.test.mem.priority/q-0371087d","q'
        'Id":0,"flags":6,"readCount":1,"writeCount":1,"adminCount":0},"isFinal":true}}',
        "00000058 41020000 30808001 04a180ac 80a08080 26626d71 3a2f2f62 6d712e74 6573742e 6d656d2e "
        "7072696f 72697479 2f712d30 33373130 38376481 01008301 06840101 85010186 01000000 81010100 "
        "00000000 00030303",
    ),
    "E11": (
        '{"rId":4,"closeQueueResponse":{}}',
        "00000018 41020000 30808001 04a180ad 80000000 00000001",
    ),
    "E12": (
        '{"rId":5,"disconnectResponse":{}}',
        "00000018 41020000 30808001 05a180a2 80000000 00000001",
    ),
    "L1": (
        '{"clientIdentity":{"protocolVersion":1,"sdkVersion":999999,"clientType":"E_TCPCLIENT","proce'
        'ssName":"probe","pid":1,"sessionId":1,"hostName":"","features":"PROTOCOL_ENCODING:BER;MPS:ME'
        'SSAGE_PROPERTIES_EX","clusterName":"","clusterNodeId":-1,"sdkLanguage":"E_UNKNOWN","guidInfo'
        '":{"clientId":"CD8101020304","nanoSecondsFromEpoch":1767225600000000000},"userAgent":"bmq-py'
        ':0.1.0"}}',
        "00000094 41020000 3080a080 a0808001 0181030f 423f8201 01830570 726f6265 84010185 01018600 "
        "872f5052 4f544f43 4f4c5f45 4e434f44 494e473a 4245523b 4d50533a 4d455353 4147455f 50524f50 "
        "45525449 45535f45 58880089 01ff8a01 00ab8080 0c434438 31303130 32303330 34810818 867251ed "
        "fa000000 008c0c62 6d712d70 793a302e 312e3000 00000000 00030303",
    ),
    "L2": (
        '{"brokerResponse":{"result":{"category":"E_SUCCESS","code":0,"message":""},"protocolVersion"'
        ':1,"brokerVersion":999999,"isDeprecatedSdk":false,"brokerIdentity":{"protocolVersion":1,"sdk'
        'Version":999999,"clientType":"E_TCPBROKER","processName":"bmqbrkr","pid":519,"sessionId":76,'
        '"hostName":"localhost","features":"PROTOCOL_ENCODING:BER,JSON;HA:GRACEFUL_SHUTDOWN,GRACEFUL_'
        'SHUTDOWN_V2,BROADCAST_TO_PROXIES;MPS:MESSAGE_PROPERTIES_EX;SUBSCRIPTIONS:CONFIGURE_STREAM","'
        'clusterName":"","clusterNodeId":-1,"sdkLanguage":"E_CPP","guidInfo":{"clientId":"","nanoSeco'
        'ndsFromEpoch":0},"userAgent":"bmqbrkr:99.99.99"},"heartbeatIntervalMs":3000,"maxMissedHeartb'
        'eats":0}}',
        "00000118 41020000 3080a080 a180a080 80010081 01008200 00008101 0182030f 423f8301 00a48080 "
        "01018103 0f423f82 01028307 626d7162 726b7284 02020785 014c8609 6c6f6361 6c686f73 74878192 "
        "50524f54 4f434f4c 5f454e43 4f44494e 473a4245 522c4a53 4f4e3b48 413a4752 41434546 554c5f53 "
        "48555444 4f574e2c 47524143 4546554c 5f534855 54444f57 4e5f5632 2c42524f 41444341 53545f54 "
        "4f5f5052 4f584945 533b4d50 533a4d45 53534147 455f5052 4f504552 54494553 5f45583b 53554253 "
        "43524950 54494f4e 533a434f 4e464947 5552455f 53545245 414d8800 8901ff8a 0101ab80 80008101 "
        "0000008c 10626d71 62726b72 3a39392e 39392e39 39000085 020bb886 01000000 00000000 04040404",
    ),
    "L3": (
        '{"authenticationRequest":{"mechanism":"BASIC","data":"bertest:scratch"}}',
        "00000030 4f020000 3080a080 a0808005 42415349 43810f62 65727465 73743a73 63726174 63680000 "
        "00000000 04040404",
    ),
    "L4": (
        '{"authenticationResponse":{"status":{"category":"E_SUCCESS","code":0,"message":""},"lifetime'
        'Ms":600000}}',
        "00000028 4f020000 3080a080 a180a080 80010081 01008200 00008103 0927c000 00000000 00030303",
    ),
    "L5": (
        '{"rId":5,"status":{"category":"E_UNKNOWN","code":0,"message":"No queue with specified Id"}}',
        "0000003c 41020000 30808001 05a180a0 808001ff 81010082 1a4e6f20 71756575 65207769 74682073 "
        "70656369 66696564 20496400 00000000 00030303",
    ),
    "L6": (
        '{"rId":3,"configureQueueStreamResponse":{"request":{"qId":0,"streamParameters":{"subIdInfo":'
        '{"subId":1,"appId":"foo"},"maxUnconfirmedMessages":0,"maxUnconfirmedBytes":0,"consumerPriori'
        'ty":-2147483648,"consumerPriorityCount":0}}}}',
        "00000040 41020000 30808001 03a180af 80a08080 0100a180 a0808001 01810366 6f6f0000 81010082 "
        "01008304 80000000 84010000 00000000 00000000 00030303",
    ),
}


def kind_of_example(fields: dict[str, object]) -> MessageKind:
    if "rId" in fields:
        return MessageKind.CONTROL
    if any(name.startswith("authentication") for name in fields):
        return MessageKind.AUTHENTICATION
    return MessageKind.NEGOTIATION


@sweep("name", EXAMPLES)
def test_worked_examples_are_decoded_and_encoded(name: str):
    text, hexadecimal = EXAMPLES[name]
    data = octets(hexadecimal)
    fields = json.loads(text)
    kind = kind_of_example(fields)
    if "authenticationRequest" in fields:
        request = fields["authenticationRequest"]
        request["data"] = base64.b64encode(request["data"].encode()).decode()
    message = decode_json(json.dumps(fields).encode(), kind)

    assert decode_event(read_event(data), kind) == message
    assert encode_event(message, Codec.BER) == data


def test_example_values_are_decoded():
    message = decode_event(read_event(octets(EXAMPLES["E3"][1])), MessageKind.CONTROL)
    assert message == ControlMessage(
        1,
        OpenQueue(
            QueueHandleParameters(
                uri="bmq://bmq.test.mem.fanout/q-aa50b699?id=foo",
                q_id=0,
                sub_id_info=SubQueueIdInfo(sub_id=1, app_id="foo"),
                flags=2,
                read_count=1,
            )
        ),
    )
    identity = decode_event(read_event(octets(EXAMPLES["L1"][1])), MessageKind.NEGOTIATION)
    assert isinstance(identity, ClientIdentity)
    assert identity.guid_info == GuidInfo("CD8101020304", 1767225600000000000)
    request = decode_event(read_event(octets(EXAMPLES["L3"][1])), MessageKind.AUTHENTICATION)
    assert request == AuthenticationRequest("BASIC", b"bertest:scratch")


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
def test_unknown_members_are_skipped(unknown: bytes):
    assert decode_ber(open_queue(unknown, URI, unknown), MessageKind.CONTROL) == opened(uri="bmq://d/q")
    assert decode_ber(control(element(0xA2, unknown)), MessageKind.CONTROL) == ControlMessage(
        3, DisconnectResponse()
    )


TOLERATED = {
    "members missing": (open_queue(), opened()),
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
    "a repeated optional structure: the last": (
        open_queue(element(0xA2, value(0x80, 5)), element(0xA2, value(0x81, "a"))),
        opened(sub_id_info=SubQueueIdInfo(0, "a")),
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
    "definite inside indefinite": (
        control(definite(0xAA, element(0xA0, URI))),
        opened(uri="bmq://d/q"),
    ),
    "a definite array element": (
        configure(definite(0xA1, definite(0x30, value(0x80, 1)), subscription(2))),
        configured(1, 2),
    ),
    "long forms of short lengths": (
        open_queue(octets("81 81 01 05"), octets("84 84 00000001 06")),
        opened(q_id=5, read_count=6),
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
    "a retired selection": (control(element(0xA3)), ControlMessage(3, None)),
    "an empty choice": (control(), ControlMessage(3, None)),
    "no choice": (element(0x30, RID), ControlMessage(3, None)),
    "no rId": (element(0x30, element(0xA1, element(0xA1))), ControlMessage(None, Disconnect())),
    "nothing at all": (element(0x30), ControlMessage()),
}


@sweep("body, expected", TOLERATED.values())
def test_irregular_encodings_are_tolerated(body: bytes, expected: ControlMessage):
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
def test_integers_are_decoded(name: str, content: str, number: int):
    message = decode_ber(open_queue(value(TAGS[name], octets(content))), MessageKind.CONTROL)
    assert message == opened(**{name: number})


@sweep(
    "number, content",
    [
        (0, "00"), (-1, "ff"), (127, "7f"), (-128, "80"), (128, "00 80"), (-129, "ff 7f"), (255, "00 ff"),
        (300000, "04 93 e0"), (999999, "0f 42 3f"), (33554432, "02 00 00 00"),
        (2147483647, "7f ff ff ff"), (-2147483648, "80 00 00 00"),
    ],
)  # fmt: skip
def test_integers_are_written_in_the_shortest_form(number: int, content: str):
    written = encode_ber(ControlMessage(number, None))
    assert written == element(0x30, value(0x80, octets(content)), element(0xA1))


@sweep("octet, final", [("00", False), ("01", True), ("ff", True)])
def test_booleans_are_decoded(octet: str, final: bool):
    body = control(element(0xAC, value(0x81, octets(octet))))
    assert decode_ber(body, MessageKind.CONTROL) == ControlMessage(3, CloseQueue(is_final=final))


def test_strings_that_are_not_utf8_survive():
    message = decode_ber(open_queue(value(0x80, b"bar\xe9")), MessageKind.CONTROL)
    assert encode_ber(message).count(b"bar\xe9") == 1
    # JSON has no place for them.
    assert "bar\N{REPLACEMENT CHARACTER}".encode() in encode_event(message, Codec.JSON)


@sweep("name", ["E3", "E6", "L2"])
def test_every_truncation_is_refused(name: str):
    text, hexadecimal = EXAMPLES[name]
    data = octets(hexadecimal)
    kind = kind_of_example(json.loads(text))
    body = data[8 : -data[-1]]
    decode_ber(body, kind)
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_ber(body[:length], kind)
