# SPDX-License-Identifier: Apache-2.0
"""Input of later versions, and wrong input: the client goes on, on this connection or on a new one."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from bmq.wire.constants import Compression, EventType
from bmq.wire.event import HEADER_SIZE, pack_event_header, pack_schema_event
from conformance.case import Cases, Check, Level, check
from conformance.stage import Opened, Stage, pushed

__all__ = ["CASES"]

CASES = Cases(26, "Later versions and wrong input")
ORDERS = "bmq://bmq.test.mem.priority/conform-orders"


def _event(event_type: int, body: bytes) -> bytes:
    return pack_event_header(HEADER_SIZE + len(body), event_type) + body


#: Number, statement, title, level, what is sent, the bytes from the open queue.
_WRONG: list[tuple[str, str, str, Level, str, Callable[[Opened], bytes]]] = [
    ("26.1.1", "2.7", "An event of an unknown type is survived.", Level.MUST,
     "an event of type 60",
     lambda _: _event(60, b"\0" * 8)),
    ("26.1.2", "2.13", "A control message of an unknown kind is survived.", Level.MUST,
     "a control message with the choice fromTheFuture",
     lambda _: pack_schema_event(EventType.CONTROL, 1, b'{"rId":5,"fromTheFuture":{"a":1}}')),
    ("26.1.3", "1.8", "An event with a longer header is survived.", Level.SHOULD,
     "an ACK event without acknowledgements, with a header of 12 bytes",
     lambda _: (16).to_bytes(4, "big") + bytes((0x40 | EventType.ACK, 3, 0, 0)) + b"\0" * 4 + b"\x16\0\0\0"),
    ("26.2.1", "2.14", "Bytes that are no event are survived.", Level.SHOULD,
     "200 bytes, of which no eight are a header",
     lambda _: bytes(range(7, 207))),
    ("26.2.2", "2.14", "An event whose length is too large is survived.", Level.SHOULD,
     "a header with a length of 2 GiB",
     lambda _: (0x7FFF_FFFC).to_bytes(4, "big") + bytes((0x40 | EventType.PUSH, 2, 0, 0)) + b"\0" * 64),
    ("26.2.3", "2.13", "An event whose length is smaller than its header is survived.", Level.MUST,
     "a header with a length of 4",
     lambda _: (4).to_bytes(4, "big") + bytes((0x40 | EventType.ACK, 2, 0, 0))),
    ("26.2.4", "2.13", "A control message that is no JSON is survived.", Level.MUST,
     "a control event with broken JSON",
     lambda _: pack_schema_event(EventType.CONTROL, 1, b'{"rId": 5, "status": {')),
    ("26.2.5", "2.13", "A PUSH message longer than its event is survived.", Level.MUST,
     "a PUSH event cut in the middle of its message",
     lambda queue: _event(EventType.PUSH, pushed(queue, 1, b"x" * 400)[:64])),
    ("26.2.6", "2.13", "An ACK event that is cut is survived.", Level.MUST,
     "an ACK event with half an acknowledgement",
     lambda _: _event(EventType.ACK, b"\x16\0\0\0" + b"\0" * 12)),
]  # fmt: skip


def _survival_check(make: Callable[[Opened], bytes]) -> Check:
    async def run(stage: Stage) -> None:
        line = await stage.started()
        queue = await stage.opened(line, ORDERS, read=True, write=True)
        line.send(make(queue))
        await line.flushed()
        await stage.alive(line, queue)

    return run


for _number, _statement, _title, _level, _sends, _make in _WRONG:
    CASES.case(
        _number,
        _title,
        level=_level,
        sends=_sends,
        expects="a post is accepted, on this connection or on a new one",
        statement=_statement,
        seconds=45.0,
    )(_survival_check(_make))


def _bad_message(number: str, title: str, sends: str, make: Callable[[Opened], bytes]) -> None:
    @CASES.case(
        number,
        title,
        sends=sends,
        expects="the next message arrives, on this connection or on a new one",
        statement="12.15",
        seconds=45.0,
    )
    async def goes_on(stage: Stage) -> None:
        line = await stage.started()
        queue = await stage.opened(line, ORDERS, read=True, write=True)
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


_bad_message(
    "26.3.1",
    "A damaged property area does not stop the messages after it.",
    "a PUSH message whose flag promises properties that are not there",
    lambda queue: pushed(queue, 1, b"\xff" * 40, flags=2),
)
_bad_message(
    "26.3.2",
    "A compressed message that is no zlib stream does not stop the messages after it.",
    "a PUSH message with the compression ZLIB and other bytes",
    _damaged,
)
