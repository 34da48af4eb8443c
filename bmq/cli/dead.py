# SPDX-License-Identifier: Apache-2.0
"""``bmq dead``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable

import bmq
from bmq._words import number, several, size
from bmq.cli.messages import MESSAGE_FIELDS, property_text, to_json
from bmq.cli.output import BadInput, ExitStatus, emit, note, printable
from bmq.cli.records import Form, Records, show
from bmq.cli.taking import FORCE, refuse_to_take
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.conventions import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_GUID, DEAD_PREFIX, DEAD_QUEUE

# Maximum number of letters to read: the command holds all letters until the end.
_MOST = 100_000
_MOST_BYTES = 2**30
_BATCH = 1000


@verb("dead")
async def dead(
    target: BrokerTarget,
    queue: str = argument("QUEUE", "The queue that contains the dead letters."),
    guids: list[str] | None = argument("GUID", "GUIDs of dead letters, as listed."),
    back: bool = option("--back", "Put the messages back into their original queues."),
    every: bool = option("--all", "With --back: put back all dead letters."),
    to: str | None = option("--to QUEUE", "Put the messages into this queue instead."),
    idle: float = option("--idle SECONDS", "End after this time without a message.", 1.0, min=0),
    force: FORCE = False,
    output: OUTPUT = Form.TABLE,
) -> int:
    """List dead letters, show single letters, or put letters back.

    Letters stay in the queue unless --back is given. Then the command posts each letter in its original form,
    and confirms the letter after the broker has accepted the post. A message that becomes a dead letter again
    meanwhile stays there. To read letters, the command receives the
    messages of the queue, and returns all messages that it did not put back. A broker may deliver nothing to
    other readers afterwards: the command refuses a queue with readers, unless --force is given.

    [bold]Examples[/]

    $ bmq dead bmq://bmq.test.mem.priority/orders.dead
    $ bmq dead QUEUE 4000000000003CA4F6B5B4C9F3B06D3F
    $ bmq dead QUEUE 4000000000003CA4F6B5B4C9F3B06D3F --back
    $ bmq dead QUEUE --all --back
    """
    wanted = [guid.upper() for guid in guids or ()]
    if every and wanted:
        raise BadInput("give GUIDs or --all, not both")
    if (every or to) and not back:
        raise BadInput("--all and --to need --back, which puts dead letters back")
    if back and not (every or wanted):
        raise BadInput("name the dead letters to put back, or --all")
    if not force:
        instead = f"Use bmq peek {queue}, which receives no message, or stop the readers"
        await refuse_to_take(target, queue, instead, may_be_new=False)
    async with target.connect() as session:
        opened = await session.open_queue(
            queue, read=True, max_unconfirmed_messages=_MOST, max_unconfirmed_bytes=_MOST_BYTES
        )
        letters = _letters(opened, idle, wanted)
        if back:
            return await _put_back(session, letters, to, wanted)
        found = [letter async for letter in letters]
        writer = Records.of(output, MESSAGE_FIELDS)
        if writer is None and not wanted:
            _list(found)
            return ExitStatus.OK
        for letter in found:
            try:
                if writer is not None:
                    writer.write(to_json(letter))
                else:
                    _show(letter)
            except bmq.ProtocolError as error:
                note(f"bmq dead: {letter.guid} cannot be read: {error}")
    return _missing(wanted, [letter.guid for letter in found])


async def _letters(queue: bmq.Queue, idle: float, wanted: list[str]) -> AsyncIterator[bmq.Message]:
    """Iterate over the letters of a queue: all letters, or the given GUIDs."""
    missing = set(wanted)
    while missing or not wanted:
        try:
            batch = await queue.receive_many(_BATCH, idle)
        except TimeoutError:
            return
        for letter in batch:
            if not wanted or letter.guid in missing:
                missing.discard(letter.guid)
                yield letter


async def _put_back(
    session: bmq.Session, letters: AsyncIterator[bmq.Message], to: str | None, wanted: list[str]
) -> int:
    """Post dead letters in the original form, and confirm each accepted letter."""
    from bmq.workers import original_of

    seen: list[str] = []
    back: set[tuple[str, str]] = set()  # destinations and original GUIDs of the letters put back
    done = failed = again = 0
    try:
        async for letter in letters:
            seen.append(letter.guid)
            origin = _text(letter, DEAD_GUID)
            if (_text(letter, DEAD_QUEUE).partition("?")[0], origin) in back:
                again += 1
                continue  # its handler has failed again, and another round might never end
            try:
                uri, original = original_of(letter, to)
                output = await session.open_output(uri)
                (await output.post_many([original])).raise_for_failures()
            except (
                bmq.PostError,
                bmq.UsageError,
                bmq.StateError,
                bmq.ProtocolError,
                bmq.RequestError,
            ) as error:
                if isinstance(error, bmq.SessionClosed):
                    raise
                note(f"bmq dead: {letter.guid} stays: {error}")
                failed += 1
            else:
                letter.confirm()
                back.add((uri, origin))
                done += 1
                emit(f"{letter.guid}  {uri}")
    finally:
        note(f"{several(done, 'dead letter')} put back" + (f", {number(failed)} not" if failed else ""))
        if again:
            note(f"bmq dead: {number(again)} came back, and stay: the handler still fails")
    return ExitStatus.FAILED if failed or again else _missing(wanted, seen)


def _missing(wanted: list[str], found: list[str]) -> int:
    missing = [guid for guid in wanted if guid not in found]
    for guid in missing:
        note(f"bmq dead: no dead letter has the GUID {guid}")
    return ExitStatus.FAILED if missing else ExitStatus.OK


def _list(letters: list[bmq.Message]) -> None:
    columns: dict[str, Callable[[bmq.Message], str]] = {
        "GUID": lambda letter: letter.guid,
        "came from": lambda letter: _text(letter, DEAD_QUEUE),
        "attempts>": lambda letter: _text(letter, DEAD_ATTEMPTS),
        "error": lambda letter: _text(letter, DEAD_ERROR),
        "size>": lambda letter: size(len(letter.raw)),
    }
    show(Form.TABLE, (), letters, columns)
    dead = sum(_text(letter, DEAD_QUEUE) not in ("", "?") for letter in letters)
    if dead == len(letters):
        note(several(dead, "dead letter"))
    else:
        share = number(dead) if dead else "none"
        note(f"{several(len(letters), 'message')}, {share} of them dead letters")
    if letters:
        note("bmq dead: the messages return to the queue; bmq peek takes no messages")


def _text(letter: bmq.Message, name: str) -> str:
    """Return a property; "?" for a letter whose properties cannot be read."""
    try:
        return printable(str("" if (value := letter.properties.get(name)) is None else value))
    except bmq.ProtocolError:
        return "?"


def _show(letter: bmq.Message) -> None:
    """Print a dead letter in full."""

    emit(f"GUID        {letter.guid}")
    for name in ("queue", "guid", "attempts", "error", "properties", "raw"):
        if text := _text(letter, DEAD_PREFIX + name):
            emit(f"{name:<11} {text}")
    own = {n: v for n, v in letter.properties.items() if not n.startswith(DEAD_PREFIX)}
    if own:
        emit(f"has         {property_text(own)}")
    emit("")
    sys.stdout.flush()
    emit(letter.data.decode("utf-8", "backslashreplace"))
