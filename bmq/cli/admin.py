# SPDX-License-Identifier: Apache-2.0
"""``bmq admin``."""

from __future__ import annotations

from typing import Annotated

import typer

from bmq.cli.output import emit, emit_json
from bmq.cli.target import BrokerTarget, verb

__all__ = ["command"]


@verb("admin")
async def command(
    target: BrokerTarget,
    words: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="In quotes or not; HELP lists what the broker knows."),
    ],
    json: Annotated[
        bool, typer.Option("--json", "-j", help="Ask for JSON; a command that fails has exit status 4 then.")
    ] = False,
) -> None:
    """Send a command in the broker's own language and print what it answers.

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
            emit((await admin.command(text)).rstrip("\n"))
