# SPDX-License-Identifier: Apache-2.0
"""``bmq decode``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from rich.text import Text

from bmq.cli import files
from bmq.cli.consoles import out
from bmq.cli.messages import BadInput
from bmq.cli.options import argument, option
from bmq.cli.output import emit, note, printable
from bmq.cli.recording import TO_BROKER, Recorded, read_recording
from bmq.cli.records import OUTPUT, Form, Records
from bmq.cli.status import ExitStatus
from bmq.cli.verb import verb
from bmq.wire.anatomy import Part, dissect, summary
from bmq.wire.event import HEADER_SIZE, LENGTH

__all__ = ["FIELDS", "command"]

#: Fields of the records.
FIELDS = ("stream", "event", "parts")

_HEXADECIMAL = set(b"0123456789abcdefABCDEF \t\r\n")
_LINES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class _Stream:
    """Bytes of one side, complete events or not."""

    title: str
    events: tuple[bytes, ...] = ()
    data: bytes = b""


@verb("decode", broker=False)
async def command(
    texts: list[str] | None = argument("[HEX]...", "Events as hexadecimal digits.", None),
    file: str | None = option(
        "--file -f FILE",
        "A file of raw bytes, of hexadecimal digits, or of recorded lines; - for standard input.",
        None,
    ),
    brief: bool = option("--brief -s", "Print one line for each event.", False),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Decode bytes of the protocol, field by field: offset, name, value.

    Errors appear at their place in the bytes, and the exit status is 1.

    [bold]Examples[/]

    $ bmq decode 00000008410b0200
    $ bmq decode --file conversation.ndjson --brief
    """
    if bool(texts) is (file is not None):
        raise BadInput("give hexadecimal digits, or a file")
    writer = Records(output, FIELDS) if output is not Form.TABLE else None
    wrong = False
    async for stream in _streams(texts or [], file):
        if stream.title and writer is None:
            out().print(Text(printable(stream.title), style="bold"))
        events, complaint = _cut(stream)
        with _Printer() as printer:
            for number, event in enumerate(events, 1):
                parts = list(dissect(event))
                wrong = wrong or any(part.error for part in parts)
                if writer is not None:
                    whole = {"stream": stream.title, "event": number, "parts": list(map(asdict, parts))}
                    writer.write(whole)
                elif brief:
                    printer.add(printable(f"{number:>5}  {summary(event, parts)}"))
                else:
                    _show(printer, number, parts)
        if complaint:
            wrong = True
            note(f"bmq decode: {stream.title or 'the input'}: {complaint}")
    return ExitStatus.FAILED if wrong else ExitStatus.OK


async def _streams(texts: list[str], file: str | None) -> AsyncIterator[_Stream]:
    if file is None:
        yield _Stream("", data=_unhex("".join(texts), "the argument"))
        return
    data = await files.whole(file)
    if data[:1] == b"{" and file != files.STDIN:
        events, complaint = read_recording(file)
        if complaint:
            note(f"bmq decode: {complaint}")
        for title, chosen in _turns(events):
            yield _Stream(title, events=chosen)
    elif data and set(data) <= _HEXADECIMAL:
        yield _Stream("", data=_unhex(data.decode(), file))
    else:
        yield _Stream("", data=data)


def _turns(events: list[Recorded]) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """Group successive events of one side."""
    for (connection, direction), group in groupby(events, key=lambda each: (each.connection, each.direction)):
        chosen = tuple(group)
        arrow = "client to broker" if direction == TO_BROKER else "broker to client"
        end = "" if chosen[-1].data else ", which ends here"
        yield (
            f"connection {connection}, {chosen[0].seconds:.4f} s, {arrow}{end}",
            tuple(event.data for event in chosen if event.data),
        )


def _unhex(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        hint = f"; to read the file: --file {text}" if len(text) < 4096 and Path(text).is_file() else ""
        raise BadInput(f"{where}: no hexadecimal digits: {error}{hint}") from None


def _cut(stream: _Stream) -> tuple[list[bytes], str]:
    """Return the events of a stream, and the error of the rest."""
    if stream.events:
        return list(stream.events), ""
    events: list[bytes] = []
    data, start = stream.data, 0
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


class _Printer:
    """Prints lines of styled pieces, many at a time, because each call of a console is expensive."""

    def __init__(self) -> None:
        self._console = out()
        self._styled = self._console.is_terminal
        self._lines: list[tuple[tuple[str, str], ...]] = []

    def __enter__(self) -> _Printer:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def add(self, *pieces: str | tuple[str, str]) -> None:
        """Print a line: pieces of printable text, each with its style or without."""
        self._lines.append(tuple((piece, "") if isinstance(piece, str) else piece for piece in pieces))
        if len(self._lines) >= _LINES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        if not lines:
            return
        if not self._styled:
            emit(*("".join(text for text, _ in pieces) for pieces in lines))
            return
        whole = Text.assemble(*((text, style) for pieces in lines for text, style in (*pieces, ("\n", ""))))
        self._console.print(whole, soft_wrap=True, end="")


def _show(printer: _Printer, number: int, parts: list[Part]) -> None:
    printer.add((f"event {number}", "bold"))
    width = max((len(part.name) + 2 * part.depth for part in parts), default=0)
    for part in parts:
        offset = (f"{part.offset:>6}  ", "dim")
        name = printable("  " * part.depth + part.name)
        if part.error:
            printer.add(offset, (f"{name:<{width}}  !! {printable(part.value)}", "bold red"))
        elif part.value:
            printer.add(offset, f"{name:<{width}}  ", (printable(part.value), "cyan"))
        else:
            printer.add(offset, (name, "bold"))
