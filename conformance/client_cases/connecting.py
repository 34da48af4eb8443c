# SPDX-License-Identifier: Apache-2.0
"""Negotiation, heartbeats and the end of a session."""

from __future__ import annotations

from bmq.errors import StatusCategory
from bmq.wire.constants import EventType
from bmq.wire.control import (
    ClientType,
    ControlMessage,
    Disconnect,
)
from bmq.wire.event import HEARTBEAT_REQ, HEARTBEAT_RSP, pack_schema_event
from conformance.case import Cases, Level, check, fail
from conformance.stage import FEATURES, ORDERS, Stage, codec_of

__all__ = ["CASES"]

CASES = Cases(21, "Connecting")


@CASES.case("21.1.1", "4.1")
async def introduces_itself(stage: Stage) -> None:
    """The first message is a clientIdentity of a TCP client with protocol version 1.

    Sends: nothing.
    Expects: a clientIdentity.
    """
    stage.do("start")
    identity = await (await stage.connection()).introduction()
    check(identity.client_type, ClientType.E_TCPCLIENT, "clientType")
    check(identity.protocol_version, 1, "protocolVersion")


@CASES.case("21.1.2", "4.20")
async def names_its_encodings(stage: Stage) -> None:
    """The identity names the encodings of control messages that the client understands.

    Sends: nothing.
    Expects: PROTOCOL_ENCODING with BER or JSON among the features.
    """
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


@CASES.case("21.1.3", "4.21", Level.SHOULD)
async def names_new_properties(stage: Stage) -> None:
    """The identity names the new encoding of properties.

    Sends: nothing.
    Expects: MPS:MESSAGE_PROPERTIES_EX among the features.
    """
    stage.do("start")
    features = (await (await stage.connection()).introduction()).features
    if "MESSAGE_PROPERTIES_EX" not in features:
        raise fail("MPS:MESSAGE_PROPERTIES_EX", features)


async def _start(stage: Stage, features: str) -> None:
    await stage.started(features=features)


CASES.rows(_start, [
    ("21.1.4", "4.3", Level.MUST, "A successful brokerResponse starts the session", "a brokerResponse with E_SUCCESS", "the client reports success", FEATURES),
    ("21.1.7", "4.25", Level.MUST, "Features that the client does not know are ignored", "a brokerResponse with further features", "the client reports success",
     FEATURES + ";FUTURE:ONE,TWO;ALONE"),
    ("21.1.9", "4.26", Level.SHOULD, "Missing features of the broker do not prevent the start", "a brokerResponse with PROTOCOL_ENCODING alone",
     "the client reports success", "PROTOCOL_ENCODING:BER,JSON"),
])  # fmt: skip


@CASES.case("21.1.5", "4.13", seconds=40.0)
async def reports_a_refusal(stage: Stage) -> None:
    """A refused negotiation does not start the session.

    Sends: a brokerResponse with E_NOT_SUPPORTED.
    Expects: the client reports an error.
    """
    asked = stage.do("start")
    line = await stage.negotiated(category=StatusCategory.E_NOT_SUPPORTED)
    await stage.failed(asked, 30.0)
    line.drop()


@CASES.case("21.1.6", "2.4")
async def reads_single_bytes(stage: Stage) -> None:
    """A brokerResponse that arrives byte by byte is understood.

    Sends: a brokerResponse in single bytes.
    Expects: the client reports success.
    """
    asked = stage.do("start")
    line = await stage.connection()
    line.codec = codec_of(await line.introduction())
    for byte in line.welcome(codec=line.codec):
        line.send(bytes((byte,)))
        await line.flushed()
    await stage.done(asked)


@CASES.case("21.1.8", "4.28", Level.SHOULD)
async def ignores_unknown_members(stage: Stage) -> None:
    """Unknown members of a brokerResponse are ignored.

    Sends: a brokerResponse in JSON with members of a later version.
    Expects: the client reports success.
    """
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


async def _heartbeat(stage: Stage, data: bytes) -> None:
    line = await stage.started()
    line.send(data)
    await line.event(EventType.HEARTBEAT_RSP)


CASES.rows(_heartbeat, [
    ("21.2.1", "6.1", Level.MUST, "A heartbeat request is answered", "HEARTBEAT_REQ", "HEARTBEAT_RSP", HEARTBEAT_REQ),
    ("21.2.3", "6.3", Level.MUST, "A heartbeat response that was not asked for is ignored", "HEARTBEAT_RSP, then HEARTBEAT_REQ", "HEARTBEAT_RSP",
     HEARTBEAT_RSP + HEARTBEAT_REQ),
])  # fmt: skip


@CASES.case("21.2.2", "6.1")
async def answers_heartbeats_meanwhile(stage: Stage) -> None:
    """A heartbeat request is answered while a request waits for its answer.

    Sends: HEARTBEAT_REQ before the answer to openQueue.
    Expects: HEARTBEAT_RSP.
    """
    line = await stage.started()
    stage.do("open", queue=ORDERS, write=True)
    await line.any_request()
    line.send(HEARTBEAT_REQ)
    await line.event(EventType.HEARTBEAT_RSP)


@CASES.case("21.3.1", "15.9")
async def disconnects(stage: Stage) -> None:
    """A stopped session sends disconnect, and ends after the answer.

    Sends: disconnectResponse.
    Expects: the request disconnect, and the client reports success.
    """
    line = await stage.started()
    asked = stage.do("stop")
    requests = await stage.served(line, asked)
    check([type(body).__name__ for body in requests], ["Disconnect"], "requests")
    await stage.done(asked)


@CASES.case("21.3.2", "15.9", Level.SHOULD)
async def closes_the_connection(stage: Stage) -> None:
    """The connection is closed after the disconnectResponse.

    Sends: disconnectResponse.
    Expects: the end of the connection.
    """
    line = await stage.started()
    asked = stage.do("stop")
    request, _ = await line.wanted(Disconnect)
    line.reply(request)
    await stage.done(asked)
    await line.closed()


@CASES.case("21.4.1", "3.28")
async def ignores_foreign_answers(stage: Stage) -> None:
    """An answer to a request that was never made is ignored.

    Sends: a status for rId 77777.
    Expects: a post is accepted.
    """
    line, queue = await stage.queue(write=True)
    line.refuse(ControlMessage(r_id=77_777))
    await stage.alive(line, queue)
