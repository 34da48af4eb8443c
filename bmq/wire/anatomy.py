# SPDX-License-Identifier: Apache-2.0
"""Dissect events field by field, using the declarations in :mod:`bmq.wire.layout`.

Malformed bytes do not raise: an unreadable part carries an error, and the following parts are still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, cast

from bmq._json import orjson
from bmq.errors import ProtocolError
from bmq.wire.codec import CODECS
from bmq.wire.constants import (
    ACK_STATUS_FROM_WIRE,
    Compression,
    EventType,
    OptionType,
    PropertyType,
    PushFlags,
    PutFlags,
)
from bmq.wire.control import Codec, Message, MessageKind, encode_json
from bmq.wire.control_event import codec_of, decode_event
from bmq.wire.crc import crc32c
from bmq.wire.event import MIN_HEADER_SIZE, Event, read_event
from bmq.wire.guid import guid_to_text
from bmq.wire.layout import LAYOUTS
from bmq.wire.message import split_application_data
from bmq.wire.padding import unpadded_length

# Size of each structure in bytes.
_SIZES = {name: codec.size for name, codec in CODECS.items()}
# The header of a message contains its own size.
_header_words = {name: CODECS[name].bytes_of("headerWords") for name in ("PutHeader", "PushHeader")}
_WORD = 4
_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an event: a structure, or a field of a structure.

    Attributes:
        offset: offset of the first byte in the event.
        depth: nesting depth.
        name: name of the field or structure in the protocol.
        value: the value as text; empty for a structure.
        error: whether the part reports an error.
    """

    offset: int
    depth: int
    name: str
    value: str = ""
    error: bool = False


def dissect(event: bytes) -> Iterator[Part]:
    """Iterate over all parts of an event."""
    fields, parts = _structure("EventHeader", event, 0, 0, {"type": EventType})
    yield from parts
    if not fields:
        return
    body = max(MIN_HEADER_SIZE, fields["headerWords"] * _WORD)
    try:
        kind = EventType(fields["type"])
    except ValueError:
        yield Part(body, 0, "body", f"{len(event) - body} bytes of an unknown type", error=True)
        return
    match kind:
        case EventType.CONTROL | EventType.AUTHENTICATION:
            yield from _control(event, body)
        case EventType.PUT | EventType.PUSH:
            yield from _messages(event, body, kind)
        case EventType.ACK:
            yield from _list(event, body, "AckHeader", "AckMessage")
        case EventType.CONFIRM:
            yield from _list(event, body, "ConfirmHeader", "ConfirmMessage")
        case EventType.REJECT:
            yield from _list(event, body, "RejectHeader", "RejectMessage")
        case _:
            if body < len(event):
                yield Part(body, 0, "body", _bytes(event[body:]))


def summary(event: bytes, parts: Iterable[Part] | None = None) -> str:
    """Return a one-line summary of an event.

    Args:
        event: the event.
        parts: the result of :func:`dissect` for this event, if available.
    """
    parts = list(dissect(event) if parts is None else parts)
    kind = next((part.value for part in parts if part.name == "type"), "?")
    counted = ("PutHeader", "PushHeader", "AckMessage", "ConfirmMessage", "RejectMessage")
    count = sum(1 for part in parts if part.name in counted)
    control = next((part.value for part in parts if part.name == "message"), "")
    wrong = next((f"  !! {part.name}: {part.value}" for part in parts if part.error), "")
    told = f"{count} messages" if count > 1 else "1 message" if count else control
    return f"{kind.partition(' ')[2].strip('()') or kind:<14} {len(event):>7} bytes  {told}{wrong}".rstrip()


# ---- structures


def _structure(
    name: str,
    data: bytes,
    start: int,
    depth: int,
    meanings: dict[str, type[IntEnum] | type[IntFlag]],
    size: int | None = None,
) -> tuple[dict[str, Any], list[Part]]:
    """Read a declared structure. If ``size`` is smaller than the structure, the remaining fields are zero."""
    whole = _SIZES[name]
    raw = data[start : start + (whole if size is None else min(size, whole))]
    parts = [Part(start, depth, name)]
    if size is None and len(raw) < whole:
        parts.append(Part(start, depth + 1, name, f"cut: {len(raw)} of {whole} bytes present", error=True))
        return {}, parts
    values: dict[str, Any] = cast("Any", LAYOUTS[name]).parse(raw.ljust(whole, b"\0"))
    for member, field in CODECS[name].fields.items():
        at = field.start // 8
        if at < len(raw):
            parts.append(Part(start + at, depth + 1, member, _value(values[member], meanings.get(member))))
    return values, parts


def _value(value: Any, meaning: type[IntEnum] | type[IntFlag] | None) -> str:
    if isinstance(value, bytes):
        return guid_to_text(value) if len(value) == 16 else value.hex()
    if meaning is None:
        return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
    if issubclass(meaning, IntFlag):
        names = [flag.name or "" for flag in meaning if flag and value & flag]
        return f"{value} ({' | '.join(names)})" if names else str(value)
    try:
        return f"{value} ({meaning(value).name})"
    except ValueError:
        return f"{value} (unknown)"


def _bytes(data: bytes) -> str:
    shown = data[:_SHOWN].hex(" ")
    return f"{len(data)} bytes: {shown}{' ...' if len(data) > _SHOWN else ''}"


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _bytes(data)
    if not text.isprintable():
        return _bytes(data)
    return f'{len(data)} bytes: "{text[:_SHOWN]}{" ..." if len(text) > _SHOWN else ""}"'


# ---- events


def read_control(event: Event) -> tuple[Message, str, dict[str, Any]]:
    """Return the message of a control or authentication event, its name, and its content.

    Raises:
        ProtocolError: the event contains no readable message.
    """
    kinds = [MessageKind.CONTROL, MessageKind.NEGOTIATION]
    if event.type == EventType.AUTHENTICATION:
        kinds = [MessageKind.AUTHENTICATION]
    failure = ProtocolError("neither a request nor an answer", field="body", offset=event.body)
    for kind in kinds:
        try:
            message = decode_event(event, kind)
        except ProtocolError as error:
            failure = error
            continue
        content = cast("dict[str, Any]", orjson.loads(encode_json(message)))
        for name in content:
            if name != "rId":
                return message, name, content
    raise failure


def _control(event: bytes, body: int) -> Iterator[Part]:
    try:
        read = read_event(event)
        yield Part(body, 0, "codec", Codec(codec_of(read)).name)
        _, name, content = read_control(read)
    except ProtocolError as error:
        yield Part(error.offset or body, 0, error.field or "body", error.reason, error=True)
        return
    yield Part(body, 0, "message", name)
    yield from _json(content, body, 1)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).items()
    return enumerate(cast("list[Any]", value))


def _json(value: Any, offset: int, depth: int) -> Iterator[Part]:
    for name, item in _items(value):
        if item and isinstance(item, dict | list):
            yield Part(offset, depth, str(name))
            yield from _json(item, offset, depth + 1)
        else:
            shown = item if isinstance(item, str) else orjson.dumps(item).decode()
            yield Part(offset, depth, str(name), shown)


def _list(event: bytes, body: int, header: str, message: str) -> Iterator[Part]:
    fields, parts = _structure(header, event, body, 0, {})
    yield from parts
    if not fields:
        return
    position, step = body + fields["headerWords"] * _WORD, fields["perMessageWords"] * _WORD
    if step < _SIZES[message]:
        yield Part(body, 1, "perMessageWords", f"{step} bytes cannot hold a {message}", error=True)
        return
    while position + step <= len(event):
        values, parts = _structure(message, event, position, 0, {}, step)
        for part in parts:
            if part.name == "status":
                status = ACK_STATUS_FROM_WIRE[int(values["status"])]
                part = Part(part.offset, part.depth, part.name, f"{part.value} ({status.name})")
            yield part
        position += step
    if position < len(event):
        left = len(event) - position
        yield Part(position, 0, message, f"cut: {left} of {step} bytes present", error=True)


def _messages(event: bytes, body: int, kind: EventType) -> Iterator[Part]:
    name = "PutHeader" if kind is EventType.PUT else "PushHeader"
    meanings: dict[str, type[IntEnum] | type[IntFlag]] = {
        "flags": PutFlags if kind is EventType.PUT else PushFlags,
        "compressionAlgorithmType": Compression,
    }
    position = body
    while position < len(event):
        if len(event) - position < 28:
            yield Part(position, 0, name, f"cut: {len(event) - position} bytes present", error=True)
            return
        where, shift, mask = _header_words[name]
        size = (int.from_bytes(event[position:][where], "big") >> shift & mask) * _WORD
        fields, parts = _structure(name, event, position, 0, meanings, max(8, size))
        yield from parts
        options, stop = position + size, position + fields["messageWords"] * _WORD
        start = options + fields["optionsWords"] * _WORD
        if not position + size <= start <= stop <= len(event) or stop <= position:
            yield Part(
                position, 1, "messageWords", f"{stop - position} bytes do not fit the event", error=True
            )
            return
        yield from _options(event, options, start)
        yield from _application_data(event, start, stop, fields, put=kind is EventType.PUT)
        position = stop


def _options(event: bytes, start: int, stop: int) -> Iterator[Part]:
    while start + _WORD <= stop:
        fields, parts = _structure("OptionHeader", event, start, 1, {"type": OptionType})
        yield from parts
        if fields["packed"]:
            start += _WORD
            continue
        end = start + fields["words"] * _WORD
        if not start < end <= stop:
            yield Part(start, 2, "words", "does not fit the options", error=True)
            return
        entry = {OptionType.SUB_QUEUE_IDS_OLD: "SubQueueId", OptionType.SUB_QUEUE_INFOS: "SubQueueInfo"}.get(
            fields["type"]
        )
        position = start + _WORD
        while entry is not None and position + _SIZES[entry] <= end:
            yield from _structure(entry, event, position, 2, {})[1]
            position += _SIZES[entry]
        start = end


def _application_data(
    event: bytes, start: int, stop: int, fields: dict[str, Any], *, put: bool
) -> Iterator[Part]:
    try:
        length = unpadded_length(event, start, stop, field="padding")
        data = event[start : start + length]
        if put:
            right = crc32c(data)
            if right != fields["crc32c"]:
                yield Part(
                    start,
                    1,
                    "crc32c",
                    f"is {fields['crc32c']:,}, and the checksum of these bytes is {right:,}",
                    error=True,
                )
        has_properties = bool(fields["flags"] & PutFlags.MESSAGE_PROPERTIES)
        properties, payload = split_application_data(
            data,
            has_properties=has_properties,
            schema_id=fields["schemaId"],
            compression=fields["compressionAlgorithmType"],
        )
        values = dict(properties)
    except ProtocolError as error:
        yield Part(start, 1, error.field or "application data", error.reason, error=True)
        return
    if has_properties and not (fields["compressionAlgorithmType"] and not fields["schemaId"]):
        header, parts = _structure("MessagePropertiesHeader", event, start, 1, {})
        yield from parts
        position = start + header.get("headerSize2x", 0) * 2
        for _ in range(header.get("numProperties", 0)):
            yield from _structure("MessagePropertyHeader", event, position, 1, {"type": PropertyType})[1]
            position += header["propertyHeaderSize2x"] * 2
    for name, value in values.items():
        shown = value.hex() if isinstance(value, bytes) else repr(value)
        yield Part(start, 1, f"property {name}", f"{shown} ({properties.types[name].name})")
    compressed = fields["compressionAlgorithmType"]
    yield Part(start if compressed else start + length - len(payload), 1, "payload", _text(payload))
