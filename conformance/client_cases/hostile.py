# SPDX-License-Identifier: Apache-2.0
# The rows of a table take any arguments: pyright cannot know those of a lambda in a row.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
"""Input of later versions, and wrong input: the client goes on, on this connection or on a new one."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from bmq.wire.constants import Compression, EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header, pack_schema_event
from conformance.case import Cases, Level, check
from conformance.stage import ORDERS, Opened, Stage, pushed

__all__ = ["CASES"]

CASES = Cases(26, "Later versions and wrong input")


def _event(event_type: int, body: bytes) -> bytes:
    return pack_event_header(HEADER_SIZE + len(body), event_type) + body


async def _survival(stage: Stage, make: Callable[[Opened], bytes]) -> None:
    line, queue = await stage.queue(read=True, write=True)
    line.send(make(queue))
    await line.flushed()
    await stage.alive(line, queue)


CASES.rows(_survival, [
    ("26.1.1", "2.7", Level.MUST, "An event of an unknown type is survived", "an event of type 60", "a post is accepted, on this connection or on a new one",
     lambda _: _event(60, b"\0" * 8)),
    ("26.1.2", "2.13", Level.MUST, "A control message of an unknown kind is survived", "a control message with the choice fromTheFuture",
     "a post is accepted, on this connection or on a new one", lambda _: pack_schema_event(EventType.CONTROL, 1, b'{"rId":5,"fromTheFuture":{"a":1}}')),
    ("26.1.3", "1.8", Level.SHOULD, "An event with a longer header is survived", "an ACK event without acknowledgements, with a header of 12 bytes",
     "a post is accepted, on this connection or on a new one", lambda _: (16).to_bytes(4, "big") + bytes((0x40 | EventType.ACK, 3, 0, 0)) + b"\0" * 4 + b"\x16\0\0\0"),
    ("26.2.1", "2.14", Level.SHOULD, "Bytes that are no event are survived", "200 bytes, of which no eight are a header",
     "a post is accepted, on this connection or on a new one", lambda _: bytes(range(7, 207))),
    ("26.2.2", "2.14", Level.SHOULD, "An event whose length is too large is survived", "a header with a length of 2 GiB",
     "a post is accepted, on this connection or on a new one", lambda _: (0x7FFF_FFFC).to_bytes(4, "big") + bytes((0x40 | EventType.PUSH, 2, 0, 0)) + b"\0" * 64),
    ("26.2.3", "2.13", Level.MUST, "An event whose length is smaller than its header is survived", "a header with a length of 4",
     "a post is accepted, on this connection or on a new one", lambda _: (4).to_bytes(4, "big") + bytes((0x40 | EventType.ACK, 2, 0, 0))),
    ("26.2.4", "2.13", Level.MUST, "A control message that is no JSON is survived", "a control event with broken JSON",
     "a post is accepted, on this connection or on a new one", lambda _: pack_schema_event(EventType.CONTROL, 1, b'{"rId": 5, "status": {')),
    ("26.2.5", "2.13", Level.MUST, "A PUSH message longer than its event is survived", "a PUSH event cut in the middle of its message",
     "a post is accepted, on this connection or on a new one", lambda queue: _event(EventType.PUSH, pushed(queue, 1, b"x" * 400)[:64])),
    ("26.2.6", "2.13", Level.MUST, "An ACK event that is cut is survived", "an ACK event with half an acknowledgement",
     "a post is accepted, on this connection or on a new one", lambda _: _event(EventType.ACK, b"\x16\0\0\0" + b"\0" * 12)),
], seconds=45.0)  # fmt: skip


_NEXT = "the next message arrives, on this connection or on a new one"


async def _bad_message(stage: Stage, make: Callable[[Opened], bytes]) -> None:
    line, queue = await stage.queue(read=True, write=True)
    line.deliver(make(queue))
    await stage.alive(line, queue)
    line = stage.peers[-1]
    asked = stage.do("receive", queue=ORDERS)
    line.deliver(pushed(queue, 2, b"good"))
    # The client may hand out the bad message, as an error, before the good one.
    answer = await stage.answer(asked)
    if not answer.get("ok"):
        answer = await stage.answer(stage.do("receive", queue=ORDERS))
    check(bool(answer.get("ok")), True, "a message:")


def _damaged(queue: Opened) -> bytes:
    good = pushed(queue, 1, b"again and again " * 100, compression=Compression.ZLIB)
    at = good.find(zlib.compress(b"again and again " * 100)[:4])
    return good[:at] + b"\xff" * 8 + good[at + 8 :]


CASES.rows(_bad_message, [
    ("26.3.1", "12.15", Level.MUST, "A damaged property area does not stop the messages after it",
     "a PUSH message whose flag promises properties that are not there", _NEXT, lambda queue: pushed(queue, 1, b"\xff" * 40, flags=2)),
    ("26.3.2", "12.15", Level.MUST, "A compressed message that is no zlib stream does not stop the messages after it",
     "a PUSH message with the compression ZLIB and other bytes", _NEXT, _damaged),
], seconds=45.0)  # fmt: skip
