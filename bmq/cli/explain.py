# SPDX-License-Identifier: Apache-2.0
"""``bmq explain``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import bmq
from bmq._words import age, listed, number, size
from bmq.admin import Internals, QueueAdmin, QueueStatistics, StoredMessage
from bmq.admin.explanation import Explanation, QueueReader
from bmq.admin.results import AppDepth
from bmq.admin.watch import BrokerWatch, QueueFigures
from bmq.cli.check import show_decision
from bmq.cli.consoles import out, styled, table
from bmq.cli.messages import assumed_types, parse_properties
from bmq.cli.output import ExitStatus, emit, note, tell, tell_gap
from bmq.cli.records import Form, Records
from bmq.cli.taking import check_application
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb
from bmq.groups.buckets import words_of_key
from bmq.subscriptions import Decision

#: Fields of the record.
FIELDS = ("queue", "gap", "oldest", "words", "applications")
# Number of empty queues to name.
_NAMED = 10
Found = dict[str, tuple[StoredMessage, str]]
_HINT = (
    "To see which consumer would receive a message, give its properties: --property NAME=VALUE, or --empty."
)


@verb("explain")
async def explain(
    target: BrokerTarget,
    queue: str | None = argument(
        "[QUEUE]",
        "bmq://DOMAIN/QUEUE, with ?id=APPID for one application; by default all queues with messages.",
    ),
    guid: str | None = argument("[GUID]", "GUID of a message, as listed by bmq peek."),
    properties: list[str] | None = option(
        "--property -p NAME[:TYPE]=VALUE", "A property of a message, to find the message's consumer."
    ),
    empty: bool = option("--empty", "Find the consumer of a message without properties."),
    group_key: str | None = option(
        "--group-key KEY", "Name the member of the group that holds a key, and why it waits."
    ),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Explain why a message is still in its queue: waiting messages, readers, and obstacles.

    Without QUEUE, the command explains all queues with messages: first those that lost messages or are
    full, then the deepest. The command asks the live broker and takes no message. The broker does not report
    the properties of a message this way: with --property, the command evaluates the subscriptions in the
    broker's order. In a cluster the queue's primary answers if --broker has the primary's address. An answer
    of another node covers only this node, and the exit status is 1. Readers behind other nodes have names if
    --broker has the nodes' addresses.

    [bold]Examples[/]

    $ bmq explain
    $ bmq explain bmq://bmq.test.mem.priority/orders
    $ bmq explain bmq://bmq.test.mem.fanout/orders?id=foo -p CustomerId=1234
    $ bmq explain bmq://bmq.test.mem.priority/orders --group-key 1234
    $ bmq explain bmq://bmq.test.mem.priority/orders 4000000000048D9D0B59A7F0C8ED8C4C
    """
    message = parse_properties(properties) if properties or empty else None
    if told := assumed_types(properties):
        note(told)
    records = Records.of(output, FIELDS)
    async with target.admin() as admin:
        if queue is None:
            watch = BrokerWatch(left_out=_note_left_out)
            queues = (await watch.look(admin)).queues
            waiting = sorted((each for each in queues if each.waits), key=_troubled, reverse=True)
            if not waiting:
                note("no queue has messages")
            explained = await watch.explain(admin, waiting)
            for each in waiting:
                if (found := explained[each.uri]) is not None:
                    found = replace(found, message=message)
                    _show(found, found.head(each.statistics), "", "", group_key, records)
                    if records is None:
                        emit("")
            if emptied := [each.uri for each in queues if not each.messages and _has_lost(each)]:
                note(f"bmq explain: empty queues have lost messages: {listed(emptied, _NAMED)}")
            status = tell_gap(await admin.gap())
            return ExitStatus.FAILED if watch.unreadable else status
        asked = admin.queue(queue)
        standing = await asked.standing()
        internals = await asked.internals()
        if asked.app_id:
            check_application(asked.uri, asked.app_id, tuple(app.app_id for app in internals.depth.apps))
        domain = await admin.domain(asked.domain)
        oldest = next(iter((await asked.messages(0, 1)).messages), None)
        counted = await _counted(asked)
        places = await _find(asked, internals, guid) if guid is not None else {}
    status = tell(standing)
    explanation = Explanation(internals, domain, oldest, message, _HINT)
    head = chain(explanation.head(counted), _about(guid, places))
    _show(explanation, head, standing.gap, asked.app_id, group_key, records)
    return ExitStatus.FAILED if guid is not None and not places else status


def _has_lost(queue: QueueFigures) -> bool:
    return queue.statistics is not None and queue.statistics.expired + queue.statistics.rejected > 0


def _troubled(queue: QueueFigures) -> bool:
    """Whether a queue has lost messages, or is full."""
    return _has_lost(queue) or queue.use()[2]


def _note_left_out(name: str, error: bmq.ProtocolError) -> None:
    note(f"bmq explain: {name} is left out: {error}")


def _show(
    explanation: Explanation,
    head: Iterable[str],
    gap: str,
    app_id: str,
    group_key: str | None,
    records: Records | None,
) -> None:
    """Print an explanation, of one application or, without a name, of all."""
    internals = explanation.internals
    chosen = [app for app in internals.depth.apps if app_id in ("", app.app_id)]

    def words(app: AppDepth) -> list[str]:
        of_key = () if group_key is None else words_of_key(explanation.readers(app), group_key)
        return [*explanation.words(app), *of_key]

    if records is not None:
        applications = {
            app.app_id: {"words": words(app), "decision": _names(explanation.decide(app))} for app in chosen
        }
        values = internals, gap, explanation.oldest, [*head], applications
        records.write(dict(zip(FIELDS, values, strict=True)))
        return
    console = out()
    for line in head:
        console.print(styled(line))
    for app in chosen:
        emit("")
        for line in words(app):
            console.print(styled(line))
        _show_readers(explanation.readers(app))
        decision = explanation.decide(app)
        if decision is not None:
            emit("")
            show_decision(decision)


async def _counted(queue: QueueAdmin) -> QueueStatistics | None:
    """Return the queue's statistics; None from a broker that is too busy to make statistics."""
    try:
        return await queue.statistics()
    except (bmq.RequestTimeout, bmq.errors.AdminError):
        return None


async def _find(queue: QueueAdmin, internals: Internals, guid: str) -> Found:
    """Return a message, with its place, by the application for which it waits."""
    found: Found = {}
    for app in internals.depth.apps:
        place = 0
        async for message in queue.all_messages(app_id=app.app_id):
            place += 1
            if message.guid == guid.upper():
                found[app.app_id] = message, f"{number(place)} of {number(app.messages)}"
                break
    return found


def _about(guid: str | None, found: Found) -> Iterator[str]:
    if guid is None:
        return
    if not found:
        yield (
            f"The queue does not contain message {guid}: every application has confirmed the message, or "
            "the message expired, was purged, or was never accepted."
        )
        return
    message, _ = next(iter(found.values()))
    yield f"Message {message.guid} ({size(message.size)}) arrived {age(message.arrival)} ago."
    for app_id, (_, place) in found.items():
        whose = "" if app_id == "__default" else f" for {app_id}"
        yield f"The message is number {place} waiting messages{whose}."


def _names(decision: Decision | None) -> dict[str, object] | None:
    if decision is None:
        return None
    return {
        "candidates": decision.names,
        "waits": decision.waits,
        "stops": decision.stops,
        "spills": tuple(route.name for route in decision.spills),
        "also": tuple(route.name for route in decision.also),
        "text": str(decision),
    }


def _show_readers(readers: list[QueueReader]) -> None:
    """Print the subscriptions in the order of priority."""
    rows = [
        (number(reader.subscription.priority), reader.expression, reader.use, reader.name)
        for reader in readers
    ]
    if rows:
        emit("")
        out().print(table(["priority>", "expression", "unconfirmed", "subscription"], rows))
