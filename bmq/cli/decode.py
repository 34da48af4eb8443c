# SPDX-License-Identifier: Apache-2.0
"""``bmq decode``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from rich.text import Text

from bmq.cli import files
from bmq.cli.consoles import out
from bmq.cli.output import BadInput, ExitStatus, emit, note, printable
from bmq.cli.records import Form, Records
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.wire.anatomy import Part, dissect, summary
from bmq.wire.event import HEADER_SIZE, LENGTH

#: Fields of the records.
FIELDS = ("stream", "event", "parts")

# Pieces of text in one call of a console, because each call is expensive.
_AT_ONCE = 500
_HEXADECIMAL = set(b"0123456789abcdefABCDEF \t\r\n")


@verb("decode", broker=False)
async def decode(
    texts: list[str] | None = argument("[HEX]...", "Events as hexadecimal digits."),
    file: str | None = option(
        "--file -f FILE",
        "A file of raw bytes, of hexadecimal digits, or of recorded lines; - for standard input.",
    ),
    brief: bool = option("--brief -s", "Print one line for each event."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Decode bytes of the protocol, field by field: offset, name, value.

    Errors appear at their place in the bytes, and the exit status is 1.

    [bold]Examples[/]

    $ bmq decode 000000084b020000
    $ bmq decode --file conversation.ndjson --brief
    """
    if bool(texts) is (file is not None):
        raise BadInput("give hexadecimal digits, or a file")
    writer = Records.of(output, FIELDS)
    wrong = False
    async for title, events, complaint in _streams(texts or [], file):
        if title and writer is None:
            out().print(Text(printable(title), style="bold"))
        pieces: list[tuple[str, str]] = []
        for number, event in enumerate(events, 1):
            parts = list(dissect(event))
            wrong = wrong or any(part.error for part in parts)
            if writer is not None:
                writer.write({"stream": title, "event": number, "parts": [asdict(part) for part in parts]})
            elif brief:
                pieces.append((printable(f"{number:>5}  {summary(event, parts)}") + "\n", ""))
            else:
                pieces += _pieces(number, parts)
            if len(pieces) >= _AT_ONCE:
                _print(pieces)
                pieces = []
        _print(pieces)
        if complaint:
            wrong = True
            note(f"bmq decode: {title or 'the input'}: {complaint}")
    return ExitStatus.FAILED if wrong else ExitStatus.OK


async def _streams(texts: list[str], file: str | None) -> AsyncIterator[tuple[str, list[bytes], str]]:
    """Iterate over the streams of one side: title, events, and the error of the rest."""
    if file is None:
        yield "", *_cut(_unhex("".join(texts), "the argument"))
        return
    data = await files.whole(file)
    if data[:1] == b"{" and file != files.STDIN:
        events, complaint = read_recording(file)
        if complaint:
            note(f"bmq decode: {complaint}")
        for title, chosen in _turns(events):
            yield title, chosen, ""
    elif data and set(data) <= _HEXADECIMAL:
        yield "", *_cut(_unhex(data.decode(), file))
    else:
        yield "", *_cut(data)


def _turns(events: list[Recorded]) -> Iterator[tuple[str, list[bytes]]]:
    """Group successive events of one side."""
    for (connection, direction), group in groupby(events, key=lambda each: (each.connection, each.direction)):
        chosen = tuple(group)
        arrow = "client to broker" if direction == TO_BROKER else "broker to client"
        end = "" if chosen[-1].data else ", which ends here"
        yield (
            f"connection {connection}, {chosen[0].seconds:.4f} s, {arrow}{end}",
            [event.data for event in chosen if event.data],
        )


def _unhex(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        hint = f"; to read the file: --file {text}" if len(text) < 4096 and Path(text).is_file() else ""
        raise BadInput(f"{where}: no hexadecimal digits: {error}{hint}") from None


def _cut(data: bytes) -> tuple[list[bytes], str]:
    """Return the events of a stream, and the error of the rest."""
    events: list[bytes] = []
    start = 0
    while start < len(data):
        if len(data) - start < LENGTH.size:
            rest = len(data) - start
            return events, f"ends in the middle of a length, after {rest} of {LENGTH.size} bytes"
        length = LENGTH.unpack_from(data, start)[0] & LENGTH.mask("length")
        if length < HEADER_SIZE:
            return (
                events,
                f"the event at byte {start} claims to have {length} bytes: the input is not BlazingMQ's "
                "protocol",
            )
        if start + length > len(data):
            rest = len(data) - start
            return [*events, data[start:]], f"ends in the middle of an event, after {rest} of {length} bytes"
        events.append(data[start : start + length])
        start += length
    return events, ""


def _pieces(number: int, parts: list[Part]) -> list[tuple[str, str]]:
    """Return the lines of an event as texts with styles."""
    pieces = [(f"event {number}\n", "bold")]
    width = max((len(part.name) + 2 * part.depth for part in parts), default=0)
    for part in parts:
        name = printable("  " * part.depth + part.name)
        pieces.append((f"{part.offset:>6}  ", "dim"))
        if part.error:
            pieces.append((f"{name:<{width}}  !! {printable(part.value)}\n", "bold red"))
        elif part.value:
            pieces += [(f"{name:<{width}}  ", ""), (f"{printable(part.value)}\n", "cyan")]
        else:
            pieces.append((f"{name}\n", "bold"))
    return pieces


def _print(pieces: list[tuple[str, str]]) -> None:
    if sys.stdout.isatty():
        out().print(Text.assemble(*pieces), soft_wrap=True, end="")
    elif pieces:
        emit("".join(text for text, _ in pieces).removesuffix("\n"))


# ---- recordings

TO_BROKER, TO_CLIENT = "c2b", "b2c"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One event.

    Attributes:
        connection: number of the connection, from 1.
        seconds: seconds since the start of the recording.
        direction: "c2b" from the client, "b2c" from the broker.
        data: bytes of the event; empty at the end of the connection.
    """

    connection: int
    seconds: float
    direction: str
    data: bytes


class _Line(Struct):
    conn: int
    t: float
    dir: Literal["c2b", "b2c"]
    hex: str = ""


def read_recording(path: str) -> tuple[list[Recorded], str]:
    """Return the events of a recording, and the error at its end, if any.

    Raises:
        BadInput: the file is not a recording.
        OSError: the file cannot be read.
    """
    lines = Path(path).read_bytes().splitlines(keepends=True)
    events: list[Recorded] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_Line)
            events.append(Recorded(entry.conn, entry.t, entry.dir, bytes.fromhex(entry.hex)))
        except (msgspec.DecodeError, ValueError) as error:
            if number == len(lines) and not line.endswith(b"\n") and events:
                return events, f"{path} ends in the middle of line {number}, which is omitted"
            raise BadInput(f"{path}, line {number}: not a line of a recording: {error}") from None
    return events, ""
