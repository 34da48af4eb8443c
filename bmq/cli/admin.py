# SPDX-License-Identifier: Apache-2.0
"""``bmq admin``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from bmq.cli.output import emit, emit_json, note
from bmq.cli.status import ExitStatus
from bmq.cli.target import BrokerTarget, verb

__all__ = ["command"]

# The first words of answers, as the broker's printer writes them. A refusal is a free text without a mark.
_ANSWERS = re.compile(
    r"\s*(?:$|SUCCESS\s*$|This process responds to |HELP - |\{|Domain:\s|GUID  |Printing \d|Purged \d"
    r"|No queue purged|Queue Internals\s|DOMAINQUEUES\s|:::|The following clusters |Cluster\s*\n-|Cluster \('"
    r"|ClusterQueueHelper :|Storage Summary:|Partition \[\d|[\w.]+\.\.: |[\w.]+ = [^,;]*$"
    r"|[\w.]+ set to \S+ from \S+\s*$)"
)
# In front of the answer of each node, if a broker has asked several nodes.
_NODE = re.compile(r"^Response from node \".*\":$", re.MULTILINE)

# Refusals as brokers print them. Only the text distinguishes a refusal from an answer.
_REFUSALS = re.compile(
    r"Unable to decode command|Unknown command '|Domain '.*' doesn't exist\s*$|cluster '.*' not found"
    r"|Queue '.*' was not found on domain|(?s:.*)^Errors encountered:",
    re.MULTILINE,
)


@verb("admin")
async def command(
    target: BrokerTarget,
    words: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="With or without quotes; HELP lists the commands."),
    ],
    json: Annotated[
        bool,
        typer.Option(
            "--json", "-j", help="Request the answer as JSON; each failing command then has exit status 4."
        ),
    ] = False,
) -> int:
    """Send a command in the broker's own language and print the answer.

    A broker answers for itself alone, also as a node of a cluster or as a proxy. Without --json a refusal is
    a plain text: the exit status is 4 for each text that bmq does not know as an answer.

    [bold]Examples[/]

    $ bmq admin HELP
    $ bmq admin DOMAINS DOMAIN bmq.test.mem.priority INFOS
    $ bmq admin --json "CLUSTERS CLUSTER local STATUS" | jq .clusterStatus.isHealthy
    """
    text = " ".join(words)
    async with target.admin() as admin:
        if json:
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
