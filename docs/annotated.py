# SPDX-License-Identifier: Apache-2.0
"""Annotate whole events byte by byte, from the declarations behind the codecs.

Every byte of an event is in exactly one row. The events must be sound: recorded, or encoded here.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from pathlib import Path
from typing import Any

from bmq.wire.constants import (
    ACK_STATUS_FROM_WIRE,
    Compression,
    EventType,
    OptionType,
    PropertyType,
    PushFlags,
    PutFlags,
)
from bmq.wire.control import (
    SELECTIONS,
    Codec,
    Member,
    MessageKind,
    Structure,
    members,
    selection_name,
)
from bmq.wire.guid import guid_to_text
from bmq.wire.layout import LAYOUTS

__all__ = ["Row", "annotate", "annotate_area", "drawn", "recording"]

RECORDINGS = Path(__file__).parent.parent / "tests" / "data" / "transcripts"
WORD = 4
PER_LINE = 8
#: Of longer data only the beginning is drawn.
LINES = 12

MEANINGS: dict[tuple[str, str], Any] = {
    ("EventHeader", "type"): EventType,
    ("PutHeader", "flags"): PutFlags,
    ("PushHeader", "flags"): PushFlags,
    ("PutHeader", "compressionAlgorithmType"): Compression,
    ("PushHeader", "compressionAlgorithmType"): Compression,
    ("OptionHeader", "type"): OptionType,
    ("MessagePropertyHeader", "type"): PropertyType,
}


@dataclass(frozen=True)
class Row:
    """Some bytes of an event and their meaning.

    Attributes:
        offset: of the first byte in the event.
        data: the bytes; empty for a heading.
        depth: level of nesting.
        text: the meaning.
        plain: whether the bytes are text, to be shown as text.
    """

    offset: int
    data: bytes
    depth: int
    text: str
    plain: bool = False


def recording(name: str) -> list[tuple[str, bytes]]:
    """Return a recorded conversation: the sender ("c2b": the client) and the event, in order."""
    lines = (RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [(entry["dir"], bytes.fromhex(entry["hex"])) for entry in entries if "hex" in entry]


def annotate(event: bytes, kind: MessageKind | None = None) -> list[Row]:
    """Annotate one event.

    Args:
        event: all bytes of the event.
        kind: the kind of message in an event of type CONTROL, which the bytes do not contain.
    """
    return list(_event(event, kind or MessageKind.CONTROL))


def annotate_area(area: bytes, *, new: bool) -> list[Row]:
    """Annotate a message properties area, including its padding."""
    return list(_properties(area, 0, 0, new=new))


def drawn(rows: Iterable[Row]) -> str:
    """Return rows as a block of text: offset, bytes, meaning."""
    lines: list[str] = []
    for row in rows:
        indent = "  " * row.depth
        if row.plain:
            lines += _quoted(row)
            continue
        pieces = [row.data[at : at + PER_LINE].hex(" ") for at in range(0, len(row.data), PER_LINE)] or [""]
        left = f"{row.offset:>5}" if row.data else " " * 5
        lines.append(f"{left}  {pieces[0]:<{PER_LINE * 3}} {indent}{row.text}".rstrip())
        lines += [f"       {piece}" for piece in pieces[1:LINES]]
        if len(pieces) > LINES:
            lines.append(f"       ... {len(row.data) - LINES * PER_LINE} more bytes")
    return "\n".join(lines)


def _quoted(row: Row) -> Iterator[str]:
    text = row.data.decode()
    yield f"{row.offset:>5}  {len(row.data)} bytes of text:"
    spaced = text.replace(",", ", ").replace("{", "{ ") if " " not in text else text
    width = PER_LINE * 3 + 48
    for line in textwrap.wrap(spaced, width, break_on_hyphens=False, break_long_words=False):
        yield f"       {line.replace(', ', ',').replace('{ ', '{') if spaced != text else line}"


# ---- structures


def _structure(
    name: str, data: bytes, start: int, depth: int, size: int | None = None
) -> tuple[dict[str, Any], list[Row]]:
    """Read a declared structure: the values, and a row for each group of fields that share bytes."""
    layout: Any = LAYOUTS[name]
    whole = layout.sizeof()
    raw = data[start : start + min(whole, whole if size is None else size)]
    values: dict[str, Any] = layout.parse(raw.ljust(whole, b"\0"))
    rows = [Row(start, b"", depth, name)]
    said: list[str] = []
    begin = bit = 0
    for member in layout.subcon.subcons:
        said.append(f"{member.name} {_value(values[member.name], MEANINGS.get((name, member.name)))}")
        bit += member.sizeof()
        if bit % 8 == 0:
            piece = raw[begin : bit // 8]
            if piece:
                rows.append(Row(start + begin, piece, depth + 1, ", ".join(said)))
            begin, said = bit // 8, []
    if size is not None and size > whole:
        rows.append(Row(start + whole, data[start + whole : start + size], depth + 1, "not known here"))
    return values, rows


def _value(value: Any, meaning: type[Enum] | None) -> str:
    if isinstance(value, bytes):
        return guid_to_text(value) if len(value) == 16 else value.hex()
    if meaning is not None and issubclass(meaning, IntFlag):
        return f"{value} ({' | '.join(str(f.name) for f in meaning if f and value & f) or 'none'})"
    if meaning is not None and issubclass(meaning, IntEnum):
        return f"{value} ({meaning(value).name})"
    return str(value)


def _padding(data: bytes, stop: int, depth: int, text: str) -> Row:
    count = data[stop - 1]
    return Row(stop - count, data[stop - count : stop], depth, text)


# ---- events


def _event(event: bytes, kind: MessageKind) -> Iterator[Row]:
    header, rows = _structure("EventHeader", event, 0, 0)
    yield from rows
    body = header["headerWords"] * WORD
    what = EventType(header["type"])
    match what:
        case EventType.CONTROL | EventType.AUTHENTICATION:
            kind = MessageKind.AUTHENTICATION if what is EventType.AUTHENTICATION else kind
            stop = len(event) - event[-1]
            if Codec(header["typeSpecific"] >> 5) is Codec.JSON:
                yield Row(body, event[body:stop], 0, "message", plain=True)
            else:
                yield from _Ber(event, body, stop).message(kind)
            yield _padding(event, len(event), 0, "padding")
        case EventType.PUT | EventType.PUSH:
            position = body
            while position < len(event):
                position = yield from _message(event, position, what)
        case EventType.ACK:
            yield from _list(event, body, "AckHeader", "AckMessage")
        case EventType.CONFIRM:
            yield from _list(event, body, "ConfirmHeader", "ConfirmMessage")
        case EventType.REJECT:
            yield from _list(event, body, "RejectHeader", "RejectMessage")
        case _:
            pass


def _list(event: bytes, body: int, header: str, message: str) -> Iterator[Row]:
    fields, rows = _structure(header, event, body, 0)
    yield from rows
    step = fields["perMessageWords"] * WORD
    for position in range(body + fields["headerWords"] * WORD, len(event), step):
        values, rows = _structure(message, event, position, 0, step)
        for row in rows:
            if "status" in row.text:
                name = ACK_STATUS_FROM_WIRE[values["status"]].name
                row = Row(row.offset, row.data, row.depth, f"{row.text} (status: {name})")
            yield row


def _message(event: bytes, position: int, kind: EventType) -> Any:
    name = "PutHeader" if kind is EventType.PUT else "PushHeader"
    size = (event[position + 7] & 31) * WORD
    fields, rows = _structure(name, event, position, 0, size)
    yield from rows
    options, stop = position + size, position + fields["messageWords"] * WORD
    start = options + fields["optionsWords"] * WORD
    yield from _options(event, options, start)
    end = stop - event[stop - 1]
    compressed, new = fields["compressionAlgorithmType"], fields["schemaId"]
    if fields["flags"] & PutFlags.MESSAGE_PROPERTIES and not (compressed and not new):
        area = LAYOUTS["MessagePropertiesHeader"].parse(event[start:])["areaWords"] * WORD
        yield from _properties(event[start : start + area], start, 0, new=bool(new))
        start += area
    what = "payload" if not compressed or new or not fields["flags"] & 2 else "properties and payload"
    yield Row(
        start,
        event[start:end],
        0,
        what + (", compressed with zlib" if compressed else _shown(event[start:end])),
    )
    yield _padding(event, stop, 0, "padding")
    return stop


def _shown(data: bytes) -> str:
    text = data.decode("ascii", "replace")
    return f" {text!r}" if text.isprintable() and "\ufffd" not in text and len(text) <= 40 else ""


def _options(event: bytes, start: int, stop: int) -> Iterator[Row]:
    while start < stop:
        fields, rows = _structure("OptionHeader", event, start, 0)
        yield from rows
        end = start + WORD if fields["packed"] else start + fields["words"] * WORD
        entry = "SubQueueInfo" if fields["type"] == OptionType.SUB_QUEUE_INFOS else "SubQueueId"
        size = LAYOUTS[entry].sizeof()
        for position in range(start + WORD, end, size):
            yield from _structure(entry, event, position, 1)[1]
        start = end


def _properties(area: bytes, offset: int, depth: int, *, new: bool) -> Iterator[Row]:
    header, rows = _structure("MessagePropertiesHeader", area, 0, depth)
    yield from _moved(rows, offset)
    position, step = header["headerSize2x"] * 2, header["propertyHeaderSize2x"] * 2
    heads: list[Any] = []
    for _ in range(header["numProperties"]):
        fields, rows = _structure("MessagePropertyHeader", area, position, depth, step)
        yield from _moved(rows, offset)
        heads.append(fields)
        position += step
    first, end = position, len(area) - area[-1]
    for number, head in enumerate(heads):
        at = first + head["valueField"] if new else position
        name = area[at : at + head["nameLength"]]
        value_at = at + head["nameLength"]
        if not new:
            position = value_at + head["valueField"]
            stop = position
        else:
            stop = first + heads[number + 1]["valueField"] if number + 1 < len(heads) else end
        yield Row(offset + at, name, depth, f"name {name.decode()!r}")
        if stop > value_at:
            value = area[value_at:stop]
            yield Row(offset + value_at, value, depth + 1, f"value {_property(value, head['type'])}")
    padding = _padding(area, len(area), depth, "padding of the properties")
    yield from _moved([padding], offset)


def _property(value: bytes, number: int) -> str:
    kind = PropertyType(number)
    if kind is PropertyType.STRING:
        return f"{value.decode('utf-8', 'backslashreplace')!r}"
    if kind is PropertyType.BOOL:
        return str(value == b"\1")
    if kind in (PropertyType.SHORT, PropertyType.INT32, PropertyType.INT64):
        return f"{int.from_bytes(value, 'big', signed=True)}"
    return f"({kind.name})"


def _moved(rows: Iterable[Row], offset: int) -> Iterator[Row]:
    return (Row(row.offset + offset, row.data, row.depth, row.text, row.plain) for row in rows)


# ---- BER


class _Ber:
    """Walks one message along the declarations, because BER contains no names."""

    def __init__(self, event: bytes, start: int, stop: int) -> None:
        self.event = event
        self.at = start
        self.stop = stop

    def message(self, kind: MessageKind) -> Iterator[Row]:
        yield self.take(2, 0, f"{kind.value}: a SEQUENCE of indefinite length")
        control = kind is MessageKind.CONTROL
        rows = []
        if control and self.event[self.at] == 0x80:
            r_id = Member(0, "rId", "", int, array=False, optional=True, bits=32, signed=True, default=None)
            rows.append(self.simple(r_id, 1))
        name = f"[{int(control)}] the choice"
        rows += [self.take(2, 1, name), *self.choice(kind, 2), self.take(2, 1, "end")]
        yield from _ends_together([*rows, self.take(2, 0, "end")])

    def take(self, count: int, depth: int, text: str) -> Row:
        row = Row(self.at, self.event[self.at : self.at + count], depth, text)
        self.at += count
        return row

    def open(self) -> bool:
        return self.event[self.at : self.at + 2] != b"\0\0"

    def members(self, cls: type[Structure], depth: int) -> Iterator[Row]:
        while self.open():
            tag = self.event[self.at]
            found = members(cls)[tag & 31]
            if not tag & 32:
                yield self.simple(found, depth)
                continue
            yield self.take(2, depth, f"[{found.number}] {found.name}")
            while found.array and self.open():
                yield self.take(2, depth + 1, "an element: a SEQUENCE")
                yield from self.members(found.kind, depth + 2)
                yield self.take(2, depth + 1, "end")
            if not found.array:
                yield from self.members(found.kind, depth + 1)
            yield self.take(2, depth, "end")

    def choice(self, kind: MessageKind, depth: int) -> Iterator[Row]:
        number = self.event[self.at] & 31
        cls = SELECTIONS[kind][number]
        yield self.take(2, depth, f"[{number}] {selection_name(cls)}")
        yield from self.members(cls, depth + 1)
        yield self.take(2, depth, "end")

    def simple(self, member: Member, depth: int) -> Row:
        length, head = self.event[self.at + 1], 2
        if length & 128:
            head += length & 127
            length = int.from_bytes(self.event[self.at + 2 : self.at + head], "big")
        content = self.event[self.at + head : self.at + head + length]
        number = int.from_bytes(content, "big", signed=True)
        if issubclass(member.kind, IntEnum):
            said = f"{number} ({member.kind(number).name})"
        elif member.kind is bool:
            said = str(bool(number)).lower()
        elif member.kind is int:
            said = str(number)
        else:
            said = f'"{content.decode()}"' if length <= 48 else f"{length} bytes of text"
        return self.take(head + length, depth, f"[{member.number}] {member.name} = {said}")


def _ends_together(rows: list[Row]) -> Iterator[Row]:
    """Draw the ends of several levels as a single row."""
    pending: list[Row] = []
    for row in [*rows, None]:
        if row is not None and row.text == "end" and row.data == b"\0\0":
            pending.append(row)
            continue
        if pending:
            last = pending[-1]
            text = "end" if len(pending) == 1 else f"end of {len(pending)} levels"
            yield Row(pending[0].offset, b"\0\0" * len(pending), last.depth, text)
            pending = []
        if row is not None:
            yield row
