# SPDX-License-Identifier: Apache-2.0
"""Negotiation, heartbeats and the end of a session."""

from __future__ import annotations

from bmq.wire.constants import EventType
from bmq.wire.control.messages import (
    ClientType,
    ControlMessage,
    Disconnect,
    StatusCategory,
)
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, pack_schema_event
from conformance.case import Cases, Check, Level, check, fail
from conformance.stage import FEATURES, Stage, codec_of

__all__ = ["CASES"]

CASES = Cases(21, "Connecting")


@CASES.case(
    "21.1.1",
    "The first message is a clientIdentity of a TCP client with protocol version 1.",
    sends="nothing",
    expects="a clientIdentity",
    statement="4.1",
)
async def introduces_itself(stage: Stage) -> None:
    stage.do("start")
    identity = await (await stage.connection()).introduction()
    check(identity.client_type, ClientType.E_TCPCLIENT, "clientType")
    check(identity.protocol_version, 1, "protocolVersion")


@CASES.case(
    "21.1.2",
    "The identity names the encodings of control messages that the client understands.",
    sends="nothing",
    expects="PROTOCOL_ENCODING with BER or JSON among the features",
    statement="4.20",
)
async def names_its_encodings(stage: Stage) -> None:
    stage.do("start")
    features = (await (await stage.connection()).introduction()).features
    encodings = {
        name
        for feature in features.split(";")
        if feature.startswith("PROTOCOL_ENCODING:")
        for name in feature.partition(":")[2].split(",")
    }
    if not encodings & {"BER", "JSON"}:
        raise fail("PROTOCOL_ENCODING:BER or JSON", features)


@CASES.case(
    "21.1.3",
    "The identity names the new encoding of properties.",
    level=Level.SHOULD,
    sends="nothing",
    expects="MPS:MESSAGE_PROPERTIES_EX among the features",
    statement="4.21",
)
async def names_new_properties(stage: Stage) -> None:
    stage.do("start")
    features = (await (await stage.connection()).introduction()).features
    if "MESSAGE_PROPERTIES_EX" not in features:
        raise fail("MPS:MESSAGE_PROPERTIES_EX", features)


def _start_check(features: str) -> Check:
    async def run(stage: Stage) -> None:
        await stage.started(features=features)

    return run


for _place, _statement, _title, _level, _sends, _features in (
    (4, "4.3", "A successful brokerResponse starts the session.", Level.MUST,
     "a brokerResponse with E_SUCCESS", FEATURES),
    (7, "4.25", "Features that the client does not know are ignored.", Level.MUST,
     "a brokerResponse with further features", FEATURES + ";FUTURE:ONE,TWO;ALONE"),
    (9, "4.26", "Missing features of the broker do not prevent the start.", Level.SHOULD,
     "a brokerResponse with PROTOCOL_ENCODING alone", "PROTOCOL_ENCODING:BER,JSON"),
):  # fmt: skip
    CASES.case(
        f"21.1.{_place}",
        _title,
        level=_level,
        sends=_sends,
        expects="the client reports success",
        statement=_statement,
    )(_start_check(_features))


@CASES.case(
    "21.1.5",
    "A refused negotiation does not start the session.",
    sends="a brokerResponse with E_NOT_SUPPORTED",
    expects="the client reports an error",
    statement="4.13",
    seconds=40.0,
)
async def reports_a_refusal(stage: Stage) -> None:
    asked = stage.do("start")
    line = await stage.negotiated(category=StatusCategory.E_NOT_SUPPORTED)
    await stage.failed(asked, 30.0)
    line.drop()


@CASES.case(
    "21.1.6",
    "A brokerResponse that arrives byte by byte is understood.",
    sends="a brokerResponse in single bytes",
    expects="the client reports success",
    statement="2.4",
)
async def reads_single_bytes(stage: Stage) -> None:
    asked = stage.do("start")
    line = await stage.connection()
    line.codec = codec_of(await line.introduction())
    for byte in line.welcome(codec=line.codec):
        line.send(bytes((byte,)))
        await line.flushed()
    await stage.done(asked)


@CASES.case(
    "21.1.8",
    "Unknown members of a brokerResponse are ignored.",
    level=Level.SHOULD,
    sends="a brokerResponse in JSON with members of a later version",
    expects="the client reports success",
    statement="4.28",
)
async def ignores_unknown_members(stage: Stage) -> None:
    asked = stage.do("start")
    line = await stage.connection()
    if "JSON" not in (await line.introduction()).features:
        line.send(line.welcome(codec=codec_of(line.identified)))
        await stage.done(asked)
        return
    text = (
        line.welcome()[8:]
        .rstrip(b"\x01\x02\x03\x04")
        .replace(b'"brokerResponse":{', b'"brokerResponse":{"fromTheFuture":{"a":[1]},')
    )
    line.send(pack_schema_event(EventType.CONTROL, 1, text))
    await stage.done(asked)


def _heartbeat_check(data: bytes) -> Check:
    async def run(stage: Stage) -> None:
        line = await stage.started()
        line.send(data)
        await line.event(EventType.HEARTBEAT_RSP)

    return run


for _place, _statement, _title, _sends, _data in (
    (1, "6.1", "A heartbeat request is answered.", "HEARTBEAT_REQ", HEARTBEAT_REQ),
    (3, "6.3", "A heartbeat response that was not asked for is ignored.", "HEARTBEAT_RSP, then HEARTBEAT_REQ",
     HEARTBEAT_RSP + HEARTBEAT_REQ),
):  # fmt: skip
    CASES.case(f"21.2.{_place}", _title, sends=_sends, expects="HEARTBEAT_RSP", statement=_statement)(
        _heartbeat_check(_data)
    )


@CASES.case(
    "21.2.2",
    "A heartbeat request is answered while a request waits for its answer.",
    sends="HEARTBEAT_REQ before the answer to openQueue",
    expects="HEARTBEAT_RSP",
    statement="6.1",
)
async def answers_heartbeats_meanwhile(stage: Stage) -> None:
    line = await stage.started()
    stage.do("open", queue="bmq://bmq.test.mem.priority/conform", write=True)
    await line.any_request()
    line.send(HEARTBEAT_REQ)
    await line.event(EventType.HEARTBEAT_RSP)


@CASES.case(
    "21.3.1",
    "A stopped session sends disconnect, and ends after the answer.",
    sends="disconnectResponse",
    expects="the request disconnect, and the client reports success",
    statement="15.9",
)
async def disconnects(stage: Stage) -> None:
    line = await stage.started()
    asked = stage.do("stop")
    requests = await stage.served(line, asked)
    check([type(body).__name__ for body in requests], ["Disconnect"], "requests")
    await stage.done(asked)


@CASES.case(
    "21.3.2",
    "The connection is closed after the disconnectResponse.",
    level=Level.SHOULD,
    sends="disconnectResponse",
    expects="the end of the connection",
    statement="15.9",
)
async def closes_the_connection(stage: Stage) -> None:
    line = await stage.started()
    asked = stage.do("stop")
    request, _ = await line.wanted(Disconnect)
    line.reply(request)
    await stage.done(asked)
    await line.closed()


@CASES.case(
    "21.4.1",
    "An answer to a request that was never made is ignored.",
    sends="a status for rId 77777",
    expects="a post is accepted",
    statement="3.28",
)
async def ignores_foreign_answers(stage: Stage) -> None:
    line = await stage.started()
    queue = await stage.opened(line, "bmq://bmq.test.mem.priority/conform", write=True)
    line.refuse(ControlMessage(r_id=77_777))
    await stage.alive(line, queue)
