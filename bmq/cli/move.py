# SPDX-License-Identifier: Apache-2.0
"""``bmq move``: moves messages between queues, without a loss and without a second copy.

A message is confirmed at the source after the destination has accepted the message. A death between the two
steps causes no loss: the source delivers the message again, to the next run.

The GUID at the destination derives from the GUID at the source and from the destination. The broker drops the
second post of the next run as a repetition, within the deduplication window (``deduplicationTimeMs`` of the
domain). The derived GUID also permits a move back: with the same GUID, the original queue would drop the
message.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import bmq
from bmq._words import number
from bmq.cli.completion import complete_contexts
from bmq.cli.output import BadInput, ExitStatus, emit, note, note_failure, progress_bar, work_done
from bmq.cli.records import Form, Records
from bmq.cli.taking import open_consumer, take
from bmq.cli.target import BrokerTarget, target_of
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.conventions import derived_guid

#: Fields of the record.
FIELDS = ("source", "destination", "moved", "bytes", "failed", "seconds")
# Messages between receipt and confirmation: as many may be posted again by a run after a kill.
_WINDOW = 1000
_BATCH = 250


@dataclass(slots=True)
class _Result:
    """Counts of a run.

    Attributes:
        source: queue to take from.
        destination: queue to post to.
        moved: messages confirmed at the source.
        bytes: payload bytes of the moved messages.
        failed: messages left in the source.
        seconds: duration of the run.
        full: whether the destination has no room.
    """

    source: str
    destination: str
    moved: int = 0
    bytes: int = 0
    failed: int = 0
    seconds: float = 0.0
    full: bool = False

    def refuse(self, guid: str, why: object) -> None:
        """Report a message left in the source."""
        self.failed += 1
        note_failure(
            self.failed,
            f"bmq move: {guid} stays: {why}",
            "bmq move: further messages stay and are not listed",
        )


@verb("move")
async def move(
    target: BrokerTarget,
    source: str = argument(
        "SOURCE", "Queue to take from: bmq://DOMAIN/QUEUE, with ?id=APPID for a fanout queue."
    ),
    destination: str = argument("DESTINATION", "Queue to post to: bmq://DOMAIN/QUEUE."),
    where: str | None = option("--where -w EXPR", "Only messages that match this expression."),
    limit: int | None = option("--limit -n", "Maximum number of messages to move.", min=1),
    rate: float | None = option("--rate -r", "Maximum number of messages per second.", min=0.001),
    to_broker: str | None = option(
        "--to-broker NAME|URI",
        "Broker of the destination, if it is another one.",
        autocompletion=complete_contexts,
    ),
    idle: float = option("--idle SECONDS", "End after this time without a message.", 1.0, min=0.01),
    quiet: bool = option("--quiet -q", "Print no progress bar and no summary."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Move messages between queues, with payload and properties.

    A message leaves the source after the destination has accepted the message: after an interruption or a
    death, no message is lost, and the same command continues. Within the deduplication window of the
    destination (five minutes by default), no message appears twice; later, at most 1,000 messages may.
    Consumers of the source do not receive the messages held by the command. After Ctrl-C, the command still
    moves the messages delivered so far. Messages that the destination refuses return to the source: the
    broker delivers them before all others, and nothing else while no subscription matches them.

    [bold]Examples[/]

    $ bmq move bmq://shop.orders/new bmq://shop.orders/express --where 'OrderType == "EXPRESS"'
    $ bmq move bmq://shop.orders/new bmq://shop.archive/orders --limit 1000 --rate 100
    $ bmq move bmq://shop.orders/new bmq://shop.orders/new --to-broker tcp://other.example.com
    """
    _check_queues(source, destination, to_broker)
    if where is not None:  # a broker would silently deliver all messages to a wrong expression
        bmq.subscriptions.plan(where)
    loop = asyncio.get_running_loop()
    result = _Result(source, destination)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(target.connect(reconnect_timeout=target.timeout))
        other = session
        if to_broker is not None:
            there = target_of("move", {"broker": to_broker}, timeout=target.timeout)
            other = await stack.enter_async_context(there.connect(reconnect_timeout=there.timeout))
        written = await other.open_queue(destination, write=True)
        # After Ctrl-C, the delivered messages still move: few beyond those of a second.
        window = min(_WINDOW, limit or _WINDOW, _WINDOW if rate is None else max(100, int(rate)))
        consumer = await open_consumer(session, source, where, window=window)
        started = loop.time()

        def left() -> int | None:
            done = result.moved + result.failed
            return 0 if result.full or result.failed >= window else None if limit is None else limit - done

        async def receive() -> bmq.MessageBatch:
            done, most = result.moved + result.failed, min(_BATCH, left() or _BATCH)
            if rate is not None:
                most = max(1, min(most, int(rate / 10)))
                await asyncio.sleep(max(started + done / rate - loop.time(), 0))
            return await consumer.receive_many(most, idle)

        async def handle(batch: list[bmq.Message]) -> list[bmq.Message]:
            done = await _pass_on(batch, written, result)
            show(result.moved)
            return done

        try:
            with progress_bar("moving", limit, quiet=quiet) as show:
                await take("move", consumer, receive, handle, left)
        finally:
            result.seconds = round(loop.time() - started, 3)
            if not quiet:
                _tell(result, output)
    if output is not Form.TABLE:
        Records(output, FIELDS).write(result)
    return ExitStatus.FAILED if result.failed else ExitStatus.OK


def _check_queues(source: str, destination: str, to_broker: str | None) -> None:
    first, second = bmq.QueueUri.parse(source), bmq.QueueUri.parse(destination)
    if second.app_id:
        raise BadInput(
            f"the destination is a queue, and all its applications receive the messages: give "
            f"{second.canonical} without ?id="
        )
    if first.canonical == second.canonical and to_broker is None:
        raise BadInput(
            f"source and destination are the same queue, {second.canonical}: give another destination"
        )


async def _pass_on(messages: list[bmq.Message], written: bmq.Queue, result: _Result) -> list[bmq.Message]:
    """Post messages, and return the accepted messages."""
    done: list[bmq.Message] = []
    held: list[bmq.Message] = []
    copies: list[bmq.PutMessage] = []
    for message in messages:
        try:
            properties = message.properties.typed()
            data = message.data
        except bmq.ProtocolError as error:
            result.refuse(message.guid, f"the message cannot be read: {error}")
            continue
        held.append(message)
        guid = derived_guid(message.guid, result.destination, "move")
        copies.append(bmq.PutMessage(data, properties or None, guid))
    for message, reason in zip(held, await _post(written, copies), strict=True):
        if reason is None:
            done.append(message)
            result.moved += 1
            result.bytes += len(message.data)
            continue
        result.refuse(message.guid, reason)
        if isinstance(reason, bmq.PostError) and reason.status.name.startswith("LIMIT_"):
            result.full = True
    return done


async def _post(written: bmq.Queue, copies: list[bmq.PutMessage]) -> list[Exception | None]:
    """Post messages, and return the error of each."""
    errors: list[Exception | None] = [None] * len(copies)
    try:
        report = await written.post_many(copies)
    except bmq.UsageError as error:  # of one of the messages
        if len(copies) == 1:
            return [error]
        # The earlier messages are posted already: the broker drops the repetitions.
        return [found for copy in copies for found in await _post(written, [copy])]
    for failed in report.failures:
        errors[failed.index] = failed.error
    return errors


def _tell(result: _Result, output: Form) -> None:
    failed = f", {number(result.failed)} not" if result.failed else ""
    line = f"{work_done(result.moved, 'moved', result.bytes, result.seconds)}{failed}"
    if output is Form.TABLE and sys.exc_info()[0] is None:
        emit(line)
    else:
        note(line)
    if result.full:
        note(
            f"bmq move: {result.destination} has no room for more messages: make room, and repeat the command"
        )
    if sys.exc_info()[0] is not None:
        note(f"bmq move: the other messages are still in {result.source}; the same command continues")
