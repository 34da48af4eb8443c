# SPDX-License-Identifier: Apache-2.0
"""The embedded broker ignores what a real broker ignores: a client of the future stays connected."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bmq.wire.constants import EventType
from bmq.wire.control import (
    SELECTIONS,
    Codec,
    ControlMessage,
    MessageKind,
    OpenQueueResponse,
    encode_json,
    selection_name,
)
from bmq.wire.event import HEADER_SIZE, pack_event_header, pack_schema_event
from tests.broker.core import PRIORITY, Core
from tests.fakes.newer import with_new_enumerators, with_new_members
from tests.sweeps import sweep

# The event types that a broker reads.
_READ = {
    EventType.CONTROL,
    EventType.PUT,
    EventType.CONFIRM,
    EventType.HEARTBEAT_REQ,
    EventType.AUTHENTICATION,
}


def news() -> Iterator[tuple[str, bytes]]:
    """Events that only a newer client sends."""
    for kind in sorted(set(range(64)) - _READ):
        yield f"event type {kind}", pack_event_header(HEADER_SIZE + 400, kind) + b"\xff" * 400
    for version in (0, 2, 3):
        yield f"version {version}", bytes((0, 0, 0, 8, version << 6 | EventType.HEARTBEAT_RSP, 2, 0, 0))
    for codec in range(8):
        yield f"codec {codec}", pack_schema_event(EventType.CONTROL, codec, b"?" * 9)
    for type in SELECTIONS[MessageKind.CONTROL].values():
        name = selection_name(type)
        if name in ("disconnect", "adminCommand"):
            continue
        document = json.loads(encode_json(ControlMessage(r_id=None, body=type())))  # type: ignore[arg-type]
        for edit in (with_new_members, with_new_enumerators):
            body = json.dumps(edit(document)).encode()
            yield f"{edit.__name__} {name}", pack_schema_event(EventType.CONTROL, Codec.JSON, body)
    yield "a new request", pack_schema_event(EventType.CONTROL, Codec.JSON, b'{"rId":9,"nextYears":{}}')
    header = bytes((0, 0, 0, 48, 0x40 | EventType.PUT, 2, 0, 0))
    for compression in range(2, 8):
        put = bytearray(b"\0\0\0\x0a\0\0\0\x09" + bytes(28) + b"abc\1")
        put[7] |= compression << 5
        yield f"compression {compression}", header + bytes(put)


NEWS = dict(news())


@sweep("what", sorted({name.split()[0] for name in NEWS}))
def test_unknown_input_of_a_newer_client_keeps_the_connection(what: str) -> None:
    for name, event in NEWS.items():
        if name.split()[0] != what:
            continue
        core = Core()
        reader, writer = core.client(), core.client()
        reader.consume(PRIORITY)
        assert isinstance(writer.open(PRIORITY, write=True), OpenQueueResponse)
        for number in range(3):
            writer.send(event)
            reader.send(event)
            assert writer.others == [], name
            writer.put(b"%d" % number)
            assert [ack.status for ack in writer.acks] == [0], name
            assert reader.payloads == [b"%d" % number], name
        assert not writer.session.closed
        assert not reader.session.closed
