# SPDX-License-Identifier: Apache-2.0
"""``bmq admin``.

A command that deletes messages or interrupts clients asks first, and the question has the affected queues
and messages. The danger of a command is known without the broker; the amounts come from the broker.
"""

from __future__ import annotations

import re

import bmq
from bmq._words import number, several, size
from bmq.admin import Admin, Danger, danger_of
from bmq.admin.commands import find_command, without_encoding
from bmq.admin.results import StoredQueue
from bmq.cli.completion import admin_words
from bmq.cli.output import BadInput, ExitStatus, confirmed, emit, emit_json, note
from bmq.cli.records import Form
from bmq.cli.target import BrokerTarget
from bmq.cli.verb import OUTPUT, argument, option, verb

# The first words of answers, as the broker's printer writes them. A refusal is a free text without a mark.
_ANSWERS = re.compile(
    r"\s*(?:$|SUCCESS\s*$|This process responds to |HELP - |\{|Domain:\s|GUID  |Printing \d|Purged \d"
    r"|No queue purged|Queue Internals\s|DOMAINQUEUES\s|:::|The following clusters |Cluster\s*\n-|Cluster \('"
    r"|ClusterQueueHelper :| QueueKey    Partition |Storage Summary:|Partition \[\d|[\w.]+\.\.: "
    r"|[\w.]+ = [^,;]*$"
    r"|[\w.]+ set to \S+ from \S+\s*$)"
)
# In front of the answer of each node, if a broker has asked several nodes.
_NODE = re.compile(r"^Response from node \".*\":$", re.MULTILINE)

# Refusals as brokers print them. Only the text distinguishes a refusal from an answer.
_REFUSALS = re.compile(
    r"Unable to decode command|Unknown command '|Domain '.*' doesn't exist\s*$|cluster '.*' not found"
    r"|Queue '.*' was not found on domain|(?s:.*)^Errors encountered:|(?s:\{.*)^ +\"error\": \{",
    re.MULTILINE,
)


@verb("admin")
async def admin(
    target: BrokerTarget,
    words: list[str] = argument(
        "COMMAND...", "With or without quotes; HELP lists the commands.", autocompletion=admin_words
    ),
    yes: bool = option("--yes -y", "Do not ask before a dangerous command."),
    output: OUTPUT = Form.TABLE,
) -> int:
    """Send a command in the broker's own language and print the answer.

    A broker answers for itself alone, also as a node of a cluster or as a proxy. --json requests the answer
    as JSON, and a refusal then has exit status 4. Without --json a refusal is a plain text: the exit status
    is 4 for each text that bmq does not know as an answer. --output csv is refused, because the broker
    chooses the members of an answer.

    A command that deletes messages, stops posts or changes a quorum shows the affected queues and asks for
    confirmation on a terminal. Elsewhere, such a command requires --yes.

    [bold]Examples[/]

    $ bmq admin HELP
    $ bmq admin DOMAINS DOMAIN bmq.test.mem.priority INFOS
    $ bmq admin --json "CLUSTERS CLUSTER local STATUS" | jq .clusterStatus.isHealthy

    $ bmq admin DOMAINS REMOVE bmq.test.mem.priority --yes
    """
    if output is Form.CSV:
        raise BadInput("an answer of a broker has no columns for --output csv: give --output json")
    text = " ".join(words)
    async with target.admin() as admin:
        asks = danger_of(text) >= Danger.INTERRUPTS and not yes
        if asks and not confirmed("Execute the command?", await _consequences(admin, text)):
            return ExitStatus.FAILED
        if output is Form.JSON:
            emit_json(await admin.query(text))
        else:
            answer = (await admin.command(text)).rstrip("\n")
            if any(_REFUSALS.match(part.lstrip()) for part in _NODE.split(answer)):
                note(f"bmq admin: the broker did not execute {text!r}: {answer}")
                return ExitStatus.REFUSED
            emit(answer)
            if not all(_ANSWERS.match(part) for part in _NODE.split(answer)):
                note(
                    f"bmq admin: the answer to {text!r} has an unknown form and may be a refusal; --json "
                    "shows the difference"
                )
                return ExitStatus.REFUSED
    return ExitStatus.OK


# Queues named in a question.
_NAMED = 10


async def _consequences(admin: Admin, text: str) -> list[str]:
    """Return what a dangerous command would do, line by line; amounts are missing if the broker refuses."""
    known = find_command(text)
    if known is not None:
        effect = known.effect
    elif text.lstrip().startswith("{"):
        effect = "has members that delete messages or interrupt clients"
    else:
        effect = "is unknown to this bmq, and has a word that deletes messages or interrupts clients"
    lines = [f"{text!r} on {admin.broker} {effect}."]
    try:
        lines += await _amounts(admin, without_encoding(text))
    except bmq.errors.AdminError as error:
        lines.append(f"  the broker does not report the amounts: {error.broker_message}")
    except bmq.UsageError as error:
        lines.append(f"  the amounts are unknown: {error}")
    return lines


async def _amounts(admin: Admin, words: list[str]) -> list[str]:
    match [word.upper() for word in words]:
        case ["DOMAINS", "DOMAIN", _, "PURGE"]:
            return _queue_lines((await admin.domain(words[2])).queues)
        case ["DOMAINS", "REMOVE", _]:
            return _queue_lines((await admin.domain(words[2])).queues)
        case ["DOMAINS", "DOMAIN", _, "QUEUE", _, "PURGE", _]:
            depth = await admin.queue(f"bmq://{words[2]}/{words[4]}").depth()
            if words[6] == "*":
                return [f"  {depth.uri}: {several(depth.messages, 'message')}, {size(depth.bytes)}"]
            held = {app.app_id: app.messages for app in depth.apps}.get(words[6], 0)
            return [f"  {depth.uri}?id={words[6]}: {several(held, 'message')}"]
        case ["CLUSTERS", "CLUSTER", _, "STORAGE", "PARTITION", partition, _]:
            wanted = int(partition) if partition.isdecimal() else -1
            stored = await admin.cluster_storage(words[2])
            parts = [each for each in stored if partition == "ALL" or each.id == wanted]
            if not parts:
                raise bmq.UsageError(f"cluster {words[2]} has no partition {words[5]}")
            return _queue_lines(tuple(each for part in parts for each in part.queues))
        case ["CLUSTERS", "CLUSTER", _, _, "ELECTOR" | "REPLICATION", _, _, _]:
            nodes = len((await admin.cluster_status(words[2])).nodes)
            return [f"  the cluster has {several(nodes, 'node')}"]
        case _:
            return []


def _queue_lines(queues: tuple[StoredQueue, ...]) -> list[str]:
    """Return the sum and the largest queues."""
    total = sum(queue.messages for queue in queues)
    amount = sum(queue.bytes for queue in queues)
    lines = [f"  {several(len(queues), 'queue')}, {several(total, 'message')}, {size(amount)}"]
    largest = sorted(queues, key=lambda queue: (-queue.messages, queue.uri))
    lines += [f"  {each.uri}: {several(each.messages, 'message')}" for each in largest[:_NAMED]]
    if len(largest) > _NAMED:
        lines.append(f"  and {number(len(largest) - _NAMED)} more queues")
    return lines
