"""Recorded events, byte by byte: what each byte is, from the declarations that the codecs are made of.

Every byte of an event is in exactly one row. What a structure's bytes are follows from its Construct
declaration, what a BER element is from the declaration of its member; the client runs on both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from bmq.errors import ProtocolError
from bmq.wire.anatomy import Part, dissect, read_control, summary
from bmq.wire.constants import EventType
from bmq.wire.control import Codec, codec_of
from bmq.wire.control.ber import encode_ber
from bmq.wire.control.json import encode_json
from bmq.wire.control.messages import CHOICES, ControlMessage, Message, MessageKind, kind_of
from bmq.wire.control.schema import (
    ArrayKind,
    BooleanKind,
    BytesKind,
    ChoiceKind,
    EnumerationKind,
    IntegerKind,
    Kind,
    SequenceKind,
    StringKind,
    Structure,
)
from bmq.wire.event import read_event
from bmq.wire.layout import LAYOUTS
from bmq.wire.padding import unpadded_length

RECORDINGS = Path(__file__).parent.parent / "tests" / "data" / "transcripts"
#: Bytes in one line of a dump.
WIDTH = 8
SECRET = "..."


@dataclass(frozen=True)
class Row:
    """Some bytes and what they are; a heading has no bytes.

    Attributes:
        start: the offset of the first byte in the event.
        data: the bytes.
        name: the field, or the structure that begins here.
        value: its value for people.
        depth: how deep it is inside others.
    """

    start: int
    data: bytes
    name: str
    value: str = ""
    depth: int = 0


def _number(part: Part) -> int:
    return int(part.value.partition(" ")[0].replace(",", ""))


def _fields(event: bytes, structure: Part, parts: Sequence[Part]) -> Iterator[Row]:
    """The fields of one structure; those that share a byte are one row."""
    declared: Any = LAYOUTS[structure.name]
    values = {part.name: part.value for part in parts}
    start, bit = 0, 0
    names: list[str] = []
    for member in declared.subcon.subcons:
        bit += member.sizeof()
        if member.name not in values:
            return  # the peer's structure is shorter than ours
        names.append(member.name)
        if bit % 8 == 0:
            data = event[structure.offset + start : structure.offset + bit // 8]
            yield Row(
                structure.offset + start,
                data,
                ", ".join(names),
                ", ".join(values[name] for name in names),
                structure.depth + 1,
            )
            start, names = bit // 8, []


def rows(event: bytes) -> list[Row]:
    """Take one event apart; the rows' bytes, one after the other, are the event."""
    parts = list(dissect(event))
    found: list[Row] = []
    messages: list[tuple[int, dict[str, Part]]] = []
    for number, part in enumerate(parts):
        if part.name not in LAYOUTS or part.value:
            continue
        own = []
        for each in parts[number + 1 :]:
            if each.depth <= part.depth or each.name in LAYOUTS or each.name.startswith("property "):
                break
            own.append(each)
        found.append(Row(part.offset, b"", part.name, depth=part.depth))
        found += _fields(event, part, own)
        if part.name in ("PutHeader", "PushHeader"):
            messages.append((part.offset, {each.name: each for each in own}))
    kind = next(part.value for part in parts if part.name == "type")
    if "CONTROL" in kind or "AUTHENTICATION" in kind:
        found += _body(event)
    for start, header in messages:
        found += _application_data(event, start, header, parts)
    return _complete(event, found)


def _application_data(event: bytes, start: int, header: dict[str, Part], parts: list[Part]) -> Iterator[Row]:
    stop = start + 4 * _number(header["messageWords"])
    data = start + 4 * (_number(header["headerWords"]) + _number(header["optionsWords"]))
    end = data + unpadded_length(event, data, stop, field="padding")
    inside = [part for part in parts if data <= part.offset < stop]
    properties = [part for part in inside if part.name.startswith("property ")]
    payload = next(part for part in inside if part.name == "payload")
    if _number(header["compressionAlgorithmType"]):
        headers = [part for part in inside if part.name == "MessagePropertyHeader"]
        begins = headers[-1].offset + 6 if headers else data
        told = [f"{part.name.removeprefix('property ')} = {part.value}" for part in properties]
        yield Row(begins, event[begins:end], "compressed", "; ".join([*told, payload.value]), 1)
    else:
        if properties:
            new = bool(_number(header["schemaId"]))
            yield from _properties(event, data, payload.offset, inside, properties, new=new)
        yield Row(payload.offset, event[payload.offset : end], "payload", payload.value, 1)
    yield Row(end, event[end:stop], "padding", f"{stop - end}, to a whole word", 1)


def _properties(
    event: bytes, start: int, stop: int, inside: list[Part], properties: list[Part], *, new: bool
) -> Iterator[Row]:
    """Names and values, after the headers: the old encoding tells lengths, the new one where each begins."""
    headers = [part for part in inside if part.name == "MessagePropertyHeader"]
    names = [_number(part) for part in inside if part.name == "nameLength"]
    tells = [_number(part) for part in inside if part.name == "valueField"]
    begins = headers[-1].offset + 6
    end = stop - event[stop - 1]
    position = begins
    for number, (length, told, part) in enumerate(zip(names, tells, properties, strict=True)):
        following = begins + tells[number + 1] if new and number + 1 < len(tells) else end
        value_end = following if new else position + length + told
        name, value = part.name.removeprefix("property "), part.value
        yield Row(position, event[position : position + length], "name", name, 2)
        yield Row(position + length, event[position + length : value_end], "value", value, 2)
        position = value_end
    yield Row(end, event[end:stop], "padding", f"{stop - end}, to a whole word", 2)


def _complete(event: bytes, found: list[Row]) -> list[Row]:
    """In order, and with what nothing declares in its place."""
    result: list[Row] = []
    position = 0
    for row in sorted(found, key=lambda row: (row.start, bool(row.data), row.depth)):
        if row.start > position:
            result.append(Row(position, event[position : row.start], "words of a newer peer"))
        result.append(row)
        position = max(position, row.start + len(row.data))
    if position < len(event):
        result.append(Row(position, event[position:], "words of a newer peer"))
    return result


# ---- control messages


def _body(event: bytes) -> Iterator[Row]:
    read = read_event(event)
    end = read.body + unpadded_length(event, read.body, len(event), field="padding")
    try:
        message, name, _ = read_control(read)
    except ProtocolError as error:
        yield Row(read.body, event[read.body :], "refused", error.reason)
        return
    body = event[read.body : end]
    if codec_of(read) is Codec.JSON:
        yield Row(read.body, body, f"{name}, JSON", body.decode())
    else:
        yield from ber_rows(body, kind_of(message), read.body)
    yield Row(end, event[end:], "padding", f"{len(event) - end}, to a whole word")


def ber_rows(body: bytes, kind: MessageKind, start: int = 0) -> list[Row]:
    """Take a message in BER apart.

    Args:
        body: the message, without padding.
        kind: of which kind it is; the bytes do not say it.
        start: the offset of its first byte.
    """
    found: list[Row] = []

    def element(at: int, holds: Kind | type[Structure] | None, name: str, depth: int) -> int:
        tag, first = body[at], body[at + 1]
        content, length = at + 2, first
        if first & 0x80 and first != 0x80:
            octets = first & 0x7F
            content, length = at + 2 + octets, int.from_bytes(body[at + 2 : at + 2 + octets], "big")
        if not tag & 0x20:
            data = body[content : content + length]
            found.append(
                Row(start + at, body[at : content + length], name, _primitive(holds, data, name), depth)
            )
            return content + length
        found.append(Row(start + at, body[at:content], name, "", depth))
        position, end = content, None if first == 0x80 else content + length
        while (position < end) if end is not None else (body[position] or body[position + 1]):
            inner, inner_name = _inside(holds, body[position] & 0x1F)
            position = element(position, inner, inner_name, depth + 1)
        if end is None:
            found.append(Row(start + position, body[position : position + 2], f"end of {name}", "", depth))
            position += 2
        return position

    top: Kind | type[Structure] = ControlMessage
    if kind in CHOICES:
        top = CHOICES[kind]
        # The choice stands in an element of its own.
        found.append(Row(start, body[:2], kind.value, ""))
        found.append(Row(start + 2, body[2:4], "choice", "", 1))
        inner, name = _inside(top, body[4] & 0x1F)
        position = element(4, inner, name, 2)
        found.append(Row(start + position, body[position : position + 2], "end of choice", "", 1))
        found.append(Row(start + position + 2, body[position + 2 :], f"end of {kind.value}", ""))
        return found
    element(0, top, kind.value, 0)
    return found


def _inside(holds: Kind | type[Structure] | None, number: int) -> tuple[Kind | type[Structure] | None, str]:
    """What the element with this id is, inside of another."""
    if isinstance(holds, SequenceKind):
        holds = holds.type
    if isinstance(holds, ArrayKind):
        return holds.element, "element"
    if isinstance(holds, ChoiceKind):
        chosen = holds.by_id.get(number)
        return chosen, (chosen.__name__[0].lower() + chosen.__name__[1:]) if chosen else f"id {number}"
    if isinstance(holds, type) and number < len(holds.MEMBERS):
        member = holds.MEMBERS[number]
        return member.kind, SECRET if member.secret else (member.name if member.name != "body" else "choice")
    return None, f"id {number}, of a newer peer"


def _primitive(kind: Any, data: bytes, name: str) -> str:
    if name == SECRET or kind is None:
        return f"{len(data)} bytes"
    if isinstance(kind, EnumerationKind):
        return _enumerator(kind, int.from_bytes(data, "big", signed=True))
    if isinstance(kind, IntegerKind):
        return str(int.from_bytes(data, "big", signed=True))
    if isinstance(kind, BooleanKind):
        return "true" if data[0] else "false"
    if isinstance(kind, BytesKind):
        return data.hex(" ")
    return data.decode() if isinstance(kind, StringKind) else data.hex(" ")


def _enumerator(kind: Any, value: int) -> str:
    numbers: type[IntEnum] = kind.zero.__class__
    return f"{value} ({numbers(value).name})" if value in list(numbers) else str(value)


# ---- pages


def dump(found: Sequence[Row], indent: int = 1) -> str:
    """The rows as text: offset, bytes, field, value."""
    lines = []
    for row in found:
        label = " " * indent * row.depth + row.name
        if not row.data:
            if row.name in LAYOUTS:
                lines.append(f"{'':6}{'':{3 * WIDTH + 1}}{label}")
            continue
        as_text = row.name.endswith(", JSON") or (row.name == "payload" and len(row.data) > 2 * WIDTH)
        pieces = [row.data[at : at + WIDTH] for at in range(0, len(row.data), WIDTH)]
        if as_text and len(pieces) > 2:
            pieces = pieces[:2]
        for number, piece in enumerate(pieces):
            shown = piece.hex(" ") + (" .." if as_text and number == len(pieces) - 1 else "")
            said = f"{label:<34} {row.value}".rstrip() if number == 0 and not as_text else ""
            if number == 0 and as_text:
                said = label
            lines.append(f"{row.start + number * WIDTH:>5} {shown:<{3 * WIDTH + 3}} {said}".rstrip())
        if row.name.endswith(", JSON"):
            pretty = json.dumps(json.loads(row.value), indent=1)
            lines += [f"{'':9}{line}" for line in pretty.splitlines()]
        elif as_text:
            lines.append(f"{'':9}{row.value}")
    return "\n".join(lines)


def recording(name: str) -> dict[int, tuple[str, bytes]]:
    """The events of a recording by their line: who sent it, and its bytes."""
    found = {}
    with (RECORDINGS / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            entry = json.loads(line)
            if "hex" in entry:
                found[number] = entry["dir"], bytes.fromhex(entry["hex"])
    return found


WHO = {"c2b": "client to broker", "b2c": "broker to client"}
#: What of the recordings is shown: (heading, recording, lines).
CHAPTERS = [
    (
        "A session with JSON",
        "json-session",
        (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 42, 43, 44, 45, 50, 52, 53, 64, 65),
    ),
    ("The same with BER, by the official client", "official-basic", (1, 2, 3, 4, 5, 7, 12, 13, 23, 25)),
    ("Old properties, and a compressed payload", "json-old", (9, 11, 13, 14, 16)),
    ("Authentication", "json-authentication", (1, 2)),
]


def chapters() -> str:
    """Every chosen event of the recordings, byte by byte."""
    parts = []
    for heading, name, lines in CHAPTERS:
        parts.append(f"## {heading}")
        events = recording(name)
        for line in lines:
            direction, event = events[line]
            parts.append(f"### {_title(event)} {{ #{name}-{line} }}")
            parts.append(f"{WHO[direction]}, {len(event)} bytes")
            parts.append(f"```text\n{dump(rows(event))}\n```")
    return "\n\n".join(parts)


def _title(event: bytes) -> str:
    return re.sub(r"\s+\d+ bytes\s+", ": ", summary(event)).removesuffix(": ")


def _examples() -> dict[str, Message]:
    """One message of each name, from the recordings in JSON."""
    found: dict[str, Message] = {}
    for name in ("json-session", "json-old", "json-authentication"):
        for _, event in recording(name).values():
            if "!!" in summary(event):
                continue
            read = read_event(event)
            if read.type in (EventType.CONTROL, EventType.AUTHENTICATION):
                message, what, _ = read_control(read)
                found.setdefault(what, message)
    return found


def side_by_side() -> str:
    """Each control message of the recordings in both encodings."""
    parts = []
    for name, message in _examples().items():
        body = encode_ber(message)
        text = json.dumps(json.loads(encode_json(message)), indent=1)
        parts += [
            f"### {name}",
            f"JSON, {len(encode_json(message))} bytes:",
            f"```json\n{text}\n```",
            f"BER, {len(body)} bytes:",
            f"```text\n{dump(ber_rows(body, kind_of(message)))}\n```",
        ]
    return "\n\n".join(parts)


def members() -> str:
    """Every control message with all its members, as both codecs read them."""
    parts = [
        "A message is a *choice* of one of these, or, with `rId` (id 0), an element of a "
        "`ControlMessage` (id 1), by this id:"
    ]
    seen: list[type[Structure]] = []
    for kind in MessageKind:
        choice: Any = CHOICES[kind] if kind in CHOICES else ControlMessage.MEMBERS[1].kind
        lines = [f"| id | {kind.value} |", "| ---: | --- |"]
        lines += [
            f"| {number} | [`{_named(of)}`](#{_named(of).lower()}) |" for number, of in choice.by_id.items()
        ]
        parts.append("\n".join(lines))
        seen += choice.by_id.values()
    for of in seen:
        for each in of.MEMBERS:
            inner = getattr(each.kind, "element", each.kind)
            if isinstance(inner, SequenceKind) and inner.type not in seen:
                seen.append(inner.type)
        parts.append(f"### {_named(of)}")
        rows = []
        for each in of.MEMBERS:
            default = "" if each.optional else _default(each.default)
            may = "may be missing" if each.optional else ""
            rows.append(f"| {each.id} | `{each.name}` | {_holds(each.kind)} | {default} | {may} |")
        head = "| id | member | type | default | |\n| ---: | --- | --- | --- | --- |"
        parts.append("\n".join([head, *rows]) if rows else "It has no members.")
    return "\n\n".join(parts)


def _named(of: type[Structure]) -> str:
    return of.__name__[0].lower() + of.__name__[1:]


def _linked(of: type[Structure]) -> str:
    return f"[`{_named(of)}`](#{_named(of).lower()})"


def _holds(kind: Any) -> str:
    if isinstance(kind, EnumerationKind):
        numbers: type[IntEnum] = kind.zero.__class__
        return ", ".join(f"{each.name} {each.value}" for each in numbers)
    if isinstance(kind, ArrayKind):
        return f"any number of {_linked(kind.element.type)}"
    if isinstance(kind, SequenceKind):
        return _linked(kind.type)
    if isinstance(kind, ChoiceKind):
        return "one of " + ", ".join(f"`{each}`" for each in kind.by_name)
    return str(kind.expected)


def _default(value: object) -> str:
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, int | str) and value != "" else ""
