# SPDX-License-Identifier: Apache-2.0
"""``bmq post``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import bmq
from bmq._words import number
from bmq.cli import files
from bmq.cli.messages import from_json, parse_properties
from bmq.cli.output import BadInput, ExitStatus, emit, note, note_failure, progress_bar, work_done
from bmq.cli.records import Form, Records
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

if TYPE_CHECKING:
    from bmq.cli.template import Row

#: Fields of the records of --guids: the GUID, and the origin of the message in the input.
FIELDS = ("guid", "message")

# Posts without an outcome, at most; beyond this number the command waits for the oldest.
_WINDOW = 5000


class _Run:
    """Posts of this run, and the outcomes."""

    def __init__(self, queue: bmq.Queue, *, guids: bool, form: Form) -> None:
        self._queue = queue
        self._writer = Records.of(form, FIELDS)
        self._guids = guids
        self._waiting: deque[tuple[str, asyncio.Future[bmq.Ack]]] = deque()
        self.accepted = 0
        self.bytes = 0
        self.failures = 0

    async def post(self, label: str, message: bmq.PutMessage) -> None:
        """Post a message; wait while too many posts have no outcome."""
        await self.settle(_WINDOW - 1)
        while True:
            try:
                future = self._queue.post_nowait(
                    message.data, properties=message.properties, tags=message.tags
                )
            except bmq.BufferFull:
                await self.settle(len(self._waiting) - 1)
            except bmq.UsageError as error:
                self.refuse(label, str(error))
                return
            else:
                self._waiting.append((label, future))
                self.bytes += len(message.data)
                return

    async def settle(self, left: int = 0) -> None:
        """Wait for the oldest outcomes, until at most this number of posts has none."""
        while len(self._waiting) > left:
            label, future = self._waiting.popleft()
            try:
                ack = await future
            except bmq.PostError as error:
                self.refuse(label, f"{error.status.name}: {error}")
            else:
                self.accepted += 1
                if self._writer is not None:
                    self._writer.write({"guid": ack.guid, "message": label})
                elif self._guids:
                    emit(ack.guid)

    def refuse(self, label: str, why: str) -> None:
        """List the refused messages."""
        self.failures += 1
        note_failure(
            self.failures,
            f"bmq post: {label}: {why}",
            "bmq post: further messages were not accepted and are not listed",
        )


@verb("post")
async def post(
    target: BrokerTarget,
    queue: str = argument("QUEUE", "bmq://DOMAIN/QUEUE"),
    payloads: list[str] | None = argument("[PAYLOAD]...", "Payloads: each is one message."),
    file: list[str] | None = option(
        "--file -f FILE", "A file with one message; - for standard input. Repeatable."
    ),
    lines: bool = option("--lines", "Each line of the input is one message."),
    ndjson: bool = option("--ndjson", "Each line is one message as JSON, in the form of bmq tail --json."),
    template: str | None = option(
        "--template TEXT|@FILE",
        "Text of each message, with placeholders, also in --property: {{counter}}, {{uuid}}, "
        "{{now}}, {{now:ms}}, {{random:1:6}}, {{row.COLUMN}}; with |json as a JSON value.",
    ),
    data: str | None = option(
        "--data FILE", "Rows for --template, one message for each: CSV with a header, or JSON lines (.jsonl)."
    ),
    properties: list[str] | None = option(
        "--property -p NAME[:TYPE]=VALUE",
        "A property of every message. Types: bool, char, short, int32, int64, string, binary (hex). "
        "Without a type, true, false and whole numbers are converted.",
    ),
    tags: list[str] | None = option("--tag -t TAG", "A tag of every message."),
    count: int = option("--count -n", "Post all messages this many times.", 1, min=1),
    rate: float | None = option("--rate -r", "Maximum number of messages per second.", min=0.001),
    compress: bool = option("--compress", "Compress payloads of 1,024 bytes or more."),
    guids: bool = option("--guids", "Print the GUID of each accepted message."),
    output: OUTPUT = Form.TABLE,
    quiet: bool = option("--quiet -q", "Print no progress bar and no summary."),
) -> int:
    """Post messages to a queue, and wait until the broker has accepted them.

    The command lists refused messages on stderr; the exit status is then 1.

    [bold]Examples[/]

    $ bmq post bmq://bmq.test.mem.priority/orders hello -p CustomerId=1234
    $ bmq post bmq://bmq.test.mem.priority/orders --file order.json --tag express
    $ generate | bmq post bmq://bmq.test.mem.priority/orders --lines --rate 1000
    $ bmq tail QUEUE --json | bmq post OTHER --ndjson
    $ bmq post QUEUE --template '{"id": {{counter}}, "at": "{{now}}"}' --count 1000 --rate 50
    $ bmq post QUEUE --template @order.json --data orders.csv -p 'CustomerId={{row.customer}}'
    """
    names = list(file or ())
    if output is not Form.TABLE and not guids:
        raise BadInput(f"--output {output} is the form of GUIDs: give --guids, too")
    if data is not None and template is None:
        raise BadInput("--data has the rows of a template: give --template, too")
    made = None
    if template is not None:
        if payloads or names or lines or ndjson:
            raise BadInput("--template makes the messages: give no payloads, files, --lines or --ndjson")
        made = _Made(template, data, properties or [])
        properties = None
    common = bmq.PutMessage(b"", parse_properties(properties) or None, tags=tuple(tags or ()))
    if payloads and names:
        raise BadInput("give payloads or files, not both")
    if lines and ndjson:
        raise BadInput("--lines and --ndjson exclude each other: give one of the two")
    if payloads == ["-"] and (lines or ndjson):
        raise BadInput("standard input is read without a PAYLOAD: leave out the -, or write --file -")
    if payloads and (lines or ndjson):
        raise BadInput("--lines and --ndjson are for files and standard input; each PAYLOAD is one message")
    if not payloads and not names and made is None:
        names = [files.STDIN]
    if count > 1 and files.STDIN in names:
        raise BadInput("standard input can be read only once: --count needs payloads or files")
    known = made.rows if made is not None else payloads
    total = len(known) * count if known else None
    options = {"compression": bmq.Compression.ZLIB if compress else bmq.Compression.NONE}
    loop = asyncio.get_running_loop()
    async with target.connect(reconnect_timeout=target.timeout, **options) as session:
        opened = await session.open_queue(queue, write=True)
        run = _Run(opened, guids=guids, form=output)
        started = loop.time()
        with progress_bar("posting", total, quiet=quiet) as show:
            posted = 0
            for turn in range(count):
                messages = _messages(payloads, names, lines=lines, ndjson=ndjson, run=run)
                async for label, message in made.messages(turn) if made is not None else messages:
                    if rate is not None and (early := started + posted / rate - loop.time()) > 0:
                        await asyncio.sleep(early)
                    await run.post(label, _with(message, common))
                    posted += 1
                    if not posted % 100 or rate is not None:
                        show(run.accepted + run.failures)
            await run.settle()
            show(run.accepted + run.failures)
        seconds = loop.time() - started
    if not quiet:
        failed = f", {number(run.failures)} not accepted" if run.failures else ""
        note(f"{work_done(run.accepted, 'accepted', run.bytes, seconds)}{failed}")
    return ExitStatus.FAILED if run.failures else ExitStatus.OK


class _Made:
    """Messages of a template. All placeholders and all rows are checked before the first post."""

    def __init__(self, text: str, data: str | None, properties: list[str]) -> None:
        from bmq.cli.template import Template, read_rows

        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        self._payload = Template(text, "--template")
        self._properties = [Template(each, f"--property {each}") for each in properties]
        columns = [name for each in (self._payload, *self._properties) for name in each.columns]
        if columns and data is None:
            raise BadInput(f"{{{{row.{columns[0]}}}}} needs rows: give --data")
        self.rows: list[Row] = read_rows(data, columns) if data is not None else [{}]
        for place, row in enumerate(self.rows):  # properties of every row must be legal
            if not place or columns:
                self._message(place, row)

    def _message(self, place: int, row: Row) -> bmq.PutMessage:
        given = parse_properties([each.fill(place, row) for each in self._properties])
        return bmq.PutMessage(self._payload.fill(place, row).encode(), given or None)

    async def messages(self, turn: int) -> AsyncIterator[tuple[str, bmq.PutMessage]]:
        """Iterate over the messages of a turn."""
        for place, row in enumerate(self.rows, turn * len(self.rows)):
            yield f"message {place + 1}", self._message(place, row)


async def _messages(
    payloads: list[str] | None, names: list[str], *, lines: bool, ndjson: bool, run: _Run
) -> AsyncIterator[tuple[str, bmq.PutMessage]]:
    """Iterate over the messages to post, with the origin of each message."""
    for index, text in enumerate(payloads or (), 1):
        yield f"payload {index}", bmq.PutMessage(text.encode())
    for name in names:
        shown = "standard input" if name == files.STDIN else name
        if not lines and not ndjson:
            yield shown, bmq.PutMessage(await files.whole(name))
            continue
        index = 0
        async for line in files.lines(name):
            index += 1
            label = f"{shown}, line {index}"
            if lines:
                yield label, bmq.PutMessage(line.removesuffix(b"\n").removesuffix(b"\r"))
            elif line.strip():
                try:
                    message = from_json(line)
                except BadInput as error:
                    run.refuse(label, str(error))
                else:
                    yield label, message


def _with(message: bmq.PutMessage, common: bmq.PutMessage) -> bmq.PutMessage:
    """Add the options of the command line; a message's own values take precedence."""
    properties = {**(common.properties or {}), **(message.properties or {})} or None
    return replace(message, properties=properties, tags=(*common.tags, *message.tags))
