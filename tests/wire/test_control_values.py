# SPDX-License-Identifier: Apache-2.0
"""The values of control messages: the schema they follow, and how they behave in Python."""

import re
from enum import IntEnum

import pytest

from bmq import errors
from bmq.wire import control
from bmq.wire.control import (
    SELECTIONS,
    AuthenticationRequest,
    ClientLanguage,
    ClientType,
    Disconnect,
    ExpressionVersion,
    Member,
    MessageKind,
    Status,
    StatusCategory,
    Structure,
    members,
    selection_name,
)
from tests.sweeps import sweep

# The protocol's own schema. Each member is `[id] tag name: kind`, the tag being its identifier octet; then
# the value assumed when it is missing: `=x` declared, `~x` not declared, `?` null; nothing where it is a
# structure's own defaults or an empty array.
SCHEMA = """
ClientIdentity
    [0] 80 protocolVersion: i32 ~0
    [1] 81 sdkVersion: i32 =999999
    [2] 82 clientType: ClientType ~E_UNKNOWN
    [3] 83 processName: string =""
    [4] 84 pid: i32 =0
    [5] 85 sessionId: i32 =1
    [6] 86 hostName: string =""
    [7] 87 features: string =""
    [8] 88 clusterName: string =""
    [9] 89 clusterNodeId: i32 =-1
    [10] 8a sdkLanguage: ClientLanguage =E_CPP
    [11] ab guidInfo: GuidInfo
    [12] 8c userAgent: string =""
GuidInfo
    [0] 80 clientId: string =""
    [1] 81 nanoSecondsFromEpoch: i64 =0
BrokerResponse
    [0] a0 result: Status
    [1] 81 protocolVersion: i32 ~0
    [2] 82 brokerVersion: i32 ~0
    [3] 83 isDeprecatedSdk: bool =false
    [4] a4 brokerIdentity: ClientIdentity
    [5] 85 heartbeatIntervalMs: i32 =3000
    [6] 86 maxMissedHeartbeats: i32 =10
Status
    [0] 80 category: StatusCategory ~E_SUCCESS
    [1] 81 code: i32 ~0
    [2] 82 message: string =""
AuthenticationRequest
    [0] 80 mechanism: string ~""
    [1] 81 data: bytes ?
AuthenticationResponse
    [0] a0 status: Status
    [1] 81 lifetimeMs: u64 ?
OpenQueue
    [0] a0 handleParameters: QueueHandleParameters
QueueHandleParameters
    [0] 80 uri: string ~""
    [1] 81 qId: u32 ~0
    [2] a2 subIdInfo: SubQueueIdInfo ?
    [3] 83 flags: u64 ~0
    [4] 84 readCount: i32 =0
    [5] 85 writeCount: i32 =0
    [6] 86 adminCount: i32 =0
SubQueueIdInfo
    [0] 80 subId: u32 =0
    [1] 81 appId: string =__default
OpenQueueResponse
    [0] a0 originalRequest: OpenQueue
    [1] a1 routingConfiguration: RoutingConfiguration
    [2] 82 deduplicationTimeMs: i32 =300000
RoutingConfiguration
    [0] 80 flags: u64 ~0
ConfigureStream
    [0] 80 qId: u32 ~0
    [1] a1 streamParameters: StreamParameters
StreamParameters
    [0] 80 appId: string =__default
    [1] a1 subscriptions: array of Subscription
Subscription
    [0] 80 sId: u32 ~0
    [1] a1 expression: Expression
    [2] a2 consumers: array of ConsumerInfo
Expression
    [0] 80 version: ExpressionVersion =E_UNDEFINED
    [1] 81 text: string ~""
ConsumerInfo
    [0] 80 maxUnconfirmedMessages: i64 =0
    [1] 81 maxUnconfirmedBytes: i64 =0
    [2] 82 consumerPriority: i32 =-2147483648
    [3] 83 consumerPriorityCount: i32 =0
ConfigureStreamResponse
    [0] a0 request: ConfigureStream
ConfigureQueueStream
    [0] 80 qId: u32 ~0
    [1] a1 streamParameters: QueueStreamParameters
QueueStreamParameters
    [0] a0 subIdInfo: SubQueueIdInfo ?
    [1] 81 maxUnconfirmedMessages: i64 =0
    [2] 82 maxUnconfirmedBytes: i64 =0
    [3] 83 consumerPriority: i32 =-2147483648
    [4] 84 consumerPriorityCount: i32 =0
ConfigureQueueStreamResponse
    [0] a0 request: ConfigureQueueStream
CloseQueue
    [0] a0 handleParameters: QueueHandleParameters
    [1] 81 isFinal: bool =false
AdminCommand
    [0] 80 command: string ~""
AdminCommandResponse
    [0] 80 text: string ~""
"""

SELECTED = """
[0] a0 status
[1] a1 disconnect
[2] a2 disconnectResponse
[7] a7 adminCommand
[8] a8 adminCommandResponse
[9] a9 clusterMessage
[10] aa openQueue
[11] ab openQueueResponse
[12] ac closeQueue
[13] ad closeQueueResponse
[14] ae configureQueueStream
[15] af configureQueueStreamResponse
[16] b0 configureStream
[17] b1 configureStreamResponse
"""


def declared() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    members: list[str] = []
    for line in SCHEMA.strip().splitlines():
        if line.startswith(" "):
            members.append(line.strip())
        else:
            members = found[line] = []
    return found


def describe(member: Member) -> str:
    """Word a member as the schema above does."""
    kind = member.kind
    nested = member.array or issubclass(kind, Structure)
    tag = (0xA0 if nested else 0x80) | member.number
    missing = ""
    if member.array:
        name = f"array of {kind.__name__}"
        assert member.default == ()
    elif nested:
        name = kind.__name__
        assert member.default == (None if member.optional else kind())
    elif issubclass(kind, IntEnum):
        name, missing = kind.__name__, member.default.name  # type: ignore[attr-defined]
    elif kind is int:
        name, missing = f"{'i' if member.signed else 'u'}{member.bits}", str(member.default)
    else:
        name = {bool: "bool", bytes: "bytes", str: "string"}[kind]
        missing = (
            '""'
            if member.default == ""
            else str(member.default).lower()
            if kind is bool
            else str(member.default)
        )
    missing = "?" if member.optional else missing
    return f"[{member.number}] {tag:02x} {member.name}: {name} {missing}".strip()


@sweep("name", declared())
@pytest.mark.statement("3.22")
def test_every_member_matches_the_schema(name: str):
    structure: type[Structure] = getattr(control, name)
    expected = [re.sub(r" [~=]", " ", line) for line in declared()[name]]
    assert [describe(m) for m in members(structure)] == expected


def test_the_selections_match_the_schema():
    selections = dict(re.findall(r"\[(\d+)\] \w\w (\w+)", SELECTED))
    del selections["9"]  # clusterMessage, between brokers only
    found = {
        kind: {str(number): selection_name(type) for number, type in of.items()}
        for kind, of in SELECTIONS.items()
    }
    assert found == {
        MessageKind.CONTROL: selections,
        MessageKind.NEGOTIATION: {"0": "clientIdentity", "1": "brokerResponse"},
        MessageKind.AUTHENTICATION: {"0": "authenticationRequest", "1": "authenticationResponse"},
    }


@pytest.mark.statement("3.22")
def test_the_enumerators_match_the_schema():
    assert [(e.name, e.value) for e in ClientType] == [
        ("E_UNKNOWN", 0), ("E_TCPCLIENT", 1), ("E_TCPBROKER", 2), ("E_TCPADMIN", 3),
    ]  # fmt: skip
    assert [(e.name, e.value) for e in ClientLanguage] == [("E_UNKNOWN", 0), ("E_CPP", 1), ("E_JAVA", 2)]
    assert [(e.name, e.value) for e in ExpressionVersion] == [("E_UNDEFINED", 0), ("E_VERSION_1", 1)]
    assert StatusCategory is errors.StatusCategory
    assert min(StatusCategory) == StatusCategory.E_NOT_READY == -8


def test_reprs_show_everything_but_credentials():
    assert repr(Status(StatusCategory.E_REFUSED, -1, "no")) == (
        "Status(category=<StatusCategory.E_REFUSED: -6>, code=-1, message='no')"
    )
    assert repr(AuthenticationRequest("BASIC", b"user:hunter2")) == (
        "AuthenticationRequest(mechanism='BASIC', data=...)"
    )
    assert repr(AuthenticationRequest("X")) == "AuthenticationRequest(mechanism='X', data=None)"
    assert repr(Disconnect()) == "Disconnect()"
