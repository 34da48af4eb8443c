# SPDX-License-Identifier: Apache-2.0
"""A broker of the future: all input that the declarations of the protocol leave open, found by walking them.

Each :class:`Novelty` is unknown to this version, and is sent as whole events. No novelty breaks the framing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from bmq.wire.ack import ACK_SIZE, encode_ack
from bmq.wire.codec import CODECS
from bmq.wire.constants import EventType, OptionType, PushFlags
from bmq.wire.control import (
    SELECTIONS,
    Codec,
    ControlMessage,
    MessageKind,
    Structure,
    encode_json,
    members,
    selection_name,
)
from bmq.wire.event import HEADER_SIZE, pack_event_header, pack_schema_event
from bmq.wire.options import encode_sub_queue_ids
from bmq.wire.padding import padding
from bmq.wire.push import encode_push

__all__ = [
    "Novelty",
    "edited",
    "enumerations",
    "longer_header",
    "novelties",
    "structures",
    "with_new_enumerators",
    "with_new_members",
]

#: A member, an enumerator and a choice of the next version.
NEW_MEMBER, NEW_ENUMERATOR, NEW_CHOICE = "sinceNextYear", "E_NEXT_YEAR", "nextYearsMessage"

# The event types that a client reads.
_UNDERSTOOD = {
    EventType.CONTROL,
    EventType.PUSH,
    EventType.ACK,
    EventType.HEARTBEAT_REQ,
    EventType.HEARTBEAT_RSP,
    EventType.AUTHENTICATION,
}


class Novelty(NamedTuple):
    """Events that only a newer broker sends.

    Attributes:
        name: a description.
        events: makes the bytes from the qId and the subscription id of a reader.
        readable: whether the message in the events can be read; None if they have no message.
    """

    name: str
    events: Callable[[int, int], bytes]
    readable: bool | None = None


def novelties() -> Iterator[Novelty]:
    """Iterate over all novelties except changed answers; :func:`edited` makes these."""
    for kind in sorted(set(range(64)) - _UNDERSTOOD):
        for body in (b"", b"next", b"\xff" * 400):
            yield Novelty(f"event type {kind} with {len(body)} bytes", _event(kind, body))
    for codec in range(8):
        yield Novelty(f"a control message in codec {codec}", _schema(EventType.CONTROL, codec, b"?" * 9))
        yield Novelty(f"credentials in codec {codec}", _schema(EventType.AUTHENTICATION, codec, b"?" * 9))
    yield from _controls()
    yield from _pushes()
    yield from _acks()


def _event(kind: int, body: bytes) -> Callable[[int, int], bytes]:
    return lambda _, __: pack_event_header(HEADER_SIZE + len(body), kind) + body


def _schema(kind: int, codec: int, body: bytes) -> Callable[[int, int], bytes]:
    return lambda _, __: pack_schema_event(kind, codec, body)


# control messages


def structures() -> list[type[Structure]]:
    """Every structure of the control schema."""
    found = dict.fromkeys(type for each in SELECTIONS.values() for type in each.values())
    waiting = list(found)
    while waiting:
        inner = [each.kind for each in members(waiting.pop()) if issubclass(each.kind, Structure)]
        waiting += [each for each in inner if each not in found]
        found.update(dict.fromkeys(inner))
    return list(found)


def enumerations() -> set[str]:
    """The names of all members that hold an enumerator."""
    return {
        member.name for each in structures() for member in members(each) if issubclass(member.kind, IntEnum)
    }


def _controls() -> Iterator[Novelty]:
    bodies = {selection_name(type): type() for type in SELECTIONS[MessageKind.CONTROL].values()}
    for r_id in (None, 1_000_000, -1):
        for name, body in bodies.items():
            document = json.loads(encode_json(ControlMessage(r_id=r_id, body=body)))  # type: ignore[arg-type]
            yield Novelty(f"{name} unasked, rId {r_id}", _document(document))
            if r_id is None:
                yield Novelty(f"{name} with new members", _document(with_new_members(document)))
                yield Novelty(f"{name} with new enumerators", _document(with_new_enumerators(document)))
        yield Novelty(f"a new message, rId {r_id}", _document({"rId": r_id, NEW_CHOICE: {"x": [1, {}]}}))
    yield Novelty("a message with two choices", _document({NEW_CHOICE: {}, "closeQueueResponse": {}}))
    yield Novelty("a message of nothing but a new member", _document({NEW_MEMBER: 1}))
    # rId 1,000,000 and the choices [40] and [900]: the tag of the second has several octets.
    r_id_octets = b"\x80\x03\x0f\x42\x40"
    for tag in (b"\xbf\x28\x80", b"\xbf\x87\x04\x80"):
        body = b"\x30\x80" + r_id_octets + b"\xa1\x80" + tag + b"\0\0" + b"\0\0" + b"\0\0"
        yield Novelty(f"a new message in BER {tag.hex()}", _schema(EventType.CONTROL, Codec.BER, body))


def _document(document: dict[str, Any]) -> Callable[[int, int], bytes]:
    return _schema(EventType.CONTROL, Codec.JSON, json.dumps(document).encode())


def with_new_members(document: Any) -> Any:
    """Return a JSON document with a new member in every object."""
    if isinstance(document, list):
        return [with_new_members(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {**{key: with_new_members(value) for key, value in document.items()}, NEW_MEMBER: {"deep": [1]}}


def with_new_enumerators(document: Any, value: Any = NEW_ENUMERATOR) -> Any:
    """Return a JSON document with a new enumerator in place of every enumerator except E_SUCCESS."""
    if isinstance(document, list):
        return [with_new_enumerators(each, value) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        key: value if key in enumerations() and inner != "E_SUCCESS" else with_new_enumerators(inner, value)
        for key, inner in document.items()
    }


def edited(event: bytes, edit: Callable[[Any], Any]) -> bytes:
    """Return a control event in JSON with its document changed."""
    body = event[HEADER_SIZE : len(event) - event[-1]]
    return pack_schema_event(event[4] & 0x3F, event[6] >> 5, json.dumps(edit(json.loads(body))).encode())


def longer_header(event: bytes, words: int) -> bytes:
    """Return an event with a longer header; all bits of the added words are set."""
    more = words * 4 - HEADER_SIZE
    length = (len(event) + more).to_bytes(4, "big")
    return length + event[4:5] + bytes((words,)) + event[6:HEADER_SIZE] + b"\xff" * more + event[HEADER_SIZE:]


# binary messages


def _pushes() -> Iterator[Novelty]:
    data = b"news" + padding(4)

    def push(options: bytes = b"", edit: Callable[[bytearray], Any] | None = None, **fields: int) -> Any:
        def make(q_id: int, s_id: int) -> bytes:
            guid = b"\x40" + bytes(7) + (1 << 40).to_bytes(8, "big")
            message = bytearray(
                encode_push(q_id, guid, data, encode_sub_queue_ids((s_id,)) + options, **fields)
            )
            if edit is not None:
                message = edit(message) or message
            return pack_event_header(HEADER_SIZE + len(message), EventType.PUSH) + bytes(message)

        return make

    for compression in range(8):
        # Plain data is no zlib stream.
        yield Novelty(f"compression {compression}", push(compression=compression), compression == 0)
        yield Novelty(f"compression {compression}, properties", push(compression=compression, flags=2), False)
    for flags in range(16):
        if not flags & (PushFlags.IMPLICIT_PAYLOAD | PushFlags.MESSAGE_PROPERTIES):
            yield Novelty(f"flags {flags} of a message", push(flags=flags), True)
    for kind in sorted(set(range(64)) - set(OptionType)):
        unpacked = (kind << 26 | 3).to_bytes(4, "big") + b"\xff" * 8
        packed = (kind << 26 | 1 << 25 | (1 << 21) - 1).to_bytes(4, "big")
        yield Novelty(f"option {kind}", push(unpacked), True)
        yield Novelty(f"packed option {kind}", push(packed), True)
    for words in range(8, 32):
        yield Novelty(f"a message header of {words} words", push(edit=_header_of(words)), True)
    yield Novelty("reserved bits of a message", push(edit=_reserved("PushHeader", 0)), True)
    yield Novelty("padding of no bytes", push(edit=_last_byte(0)), False)
    yield Novelty("padding of nine bytes", push(edit=_last_byte(9)), False)
    yield Novelty("options beyond the message", push(edit=_options_words(500)), False)
    yield Novelty("options that do not fit", push(b"\x04\x00\x00\x09" + bytes(4)), False)


def _header_of(words: int) -> Callable[[bytearray], bytearray]:
    def edit(message: bytearray) -> bytearray:
        more = words - 8
        first = int.from_bytes(message[:4], "big") + more
        shape = int.from_bytes(message[4:8], "big") + more
        head = first.to_bytes(4, "big") + shape.to_bytes(4, "big") + message[8:32]
        return bytearray(head + b"\xff" * (more * 4) + message[32:])

    return edit


def _reserved(structure: str, start: int) -> Callable[[bytearray], None]:
    """Set the reserved bits of a structure, which begins at an offset."""

    def edit(data: bytearray) -> None:
        codec = CODECS[structure]
        place = slice(start, start + codec.size)
        number = int.from_bytes(data[place], "big")
        for name, field in codec.fields.items():
            if name.startswith("reserved"):
                number |= field.mask << codec.shift(name)
        data[place] = number.to_bytes(codec.size, "big")

    return edit


def _last_byte(value: int) -> Callable[[bytearray], None]:
    def edit(message: bytearray) -> None:
        message[-1] = value

    return edit


def _options_words(words: int) -> Callable[[bytearray], None]:
    def edit(message: bytearray) -> None:
        shape = int.from_bytes(message[4:8], "big") & 0xFF | words << 8
        message[4:8] = shape.to_bytes(4, "big")

    return edit


def _acks() -> Iterator[Novelty]:
    """Acknowledgements of unknown posts, in every form that a header allows."""
    for header_words in range(1, 16):
        for item_words in range(ACK_SIZE // 4, 16):
            for status in range(16) if (header_words, item_words) == (1, ACK_SIZE // 4) else (0,):
                item = encode_ack(status, 0, b"\x41" * 16, 0) + b"\xff" * (item_words * 4 - ACK_SIZE)
                head = bytes((header_words << 4 | item_words,)) + b"\xff" * (header_words * 4 - 1)
                yield Novelty(
                    f"acks: {header_words} and {item_words} words, status {status}",
                    _event(EventType.ACK, head + item * 2),
                )
