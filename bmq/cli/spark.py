# SPDX-License-Identifier: Apache-2.0
"""``bmq spark``."""

from __future__ import annotations

from bmq.cli.messages import BadInput
from bmq.cli.options import argument, option
from bmq.cli.output import emit, note
from bmq.cli.status import ExitStatus
from bmq.cli.verb import verb

__all__ = ["command"]


@verb("spark", broker=False)
async def command(
    what: str = argument("repair", "The action: repair."),
    checkpoint: str = argument("CHECKPOINT", "The option checkpointLocation."),
    log_path: str | None = option("--log-path PATH", "The stream's option logPath.", None),
    source_name: str | None = option("--source-name NAME", "The stream's option sourceName.", None),
    yes: bool = option("--yes -y", "Repair the problem; otherwise the problem is only shown.", False),
) -> int:
    """Find the problem that stops a Spark query or read with this checkpoint, and repair it with --yes.

    A stream continues without its missing log, takes over a log of another query, and abandons an unconfirmed
    batch read. The query must not run meanwhile.

    [bold]Examples[/]

    $ bmq spark repair /data/checkpoints/archive
    $ bmq spark repair /data/checkpoints/archive --yes
    """
    if what != "repair":
        raise BadInput(f"the action of bmq spark must be repair, not {what!r}")
    try:
        from bmq.spark import repair
    except ModuleNotFoundError as error:
        raise BadInput(str(error)) from None
    found = repair(checkpoint, log_path=log_path, source_name=source_name, really=yes)
    for sentence in found:
        emit(sentence)
    if not found:
        note("no problems found")
    elif not yes:
        note("nothing was changed: --yes repairs the problem")
        return ExitStatus.FAILED
    return ExitStatus.OK
