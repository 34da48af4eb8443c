# SPDX-License-Identifier: Apache-2.0
"""What verbs tell a user beside the data, and ask: the answering node, progress, and a question."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bmq.cli.messages import BadInput
from bmq.cli.output import note
from bmq.cli.status import ExitStatus

if TYPE_CHECKING:
    from bmq.admin import Standing

__all__ = ["confirmed", "progress_bar", "tell", "tell_gap"]


def tell(standing: Standing) -> ExitStatus:
    """Print which node answers, and return the exit status: FAILED unless the node is the queue's primary."""
    if not standing.gap and standing.node:
        note(f"{standing.node} at {standing.broker}, the primary of this queue, answers")
    return tell_gap(standing.gap)


def tell_gap(gap: str) -> ExitStatus:
    """Print why an answer is incomplete, and return the exit status: OK if the answer is complete."""
    if not gap:
        return ExitStatus.OK
    note(gap)
    return ExitStatus.FAILED


def confirmed(question: str, consequences: Iterable[str] = ()) -> bool:
    """Show the consequences and ask on the terminal; only ``y`` and ``yes`` confirm.

    Raises:
        BadInput: there is no terminal to ask on; the error has the consequences.
    """
    lines = list(consequences)
    if not _terminal():
        raise BadInput("\n".join(["--yes is required without a terminal", *lines]))
    note("\n".join([*lines, f"{question} [y/N]"]), end=" ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _draw_nothing(finished: int) -> None:
    """Takes the place of the bar."""


@contextmanager
def progress_bar(what: str, total: int | None, *, quiet: bool) -> Generator[Callable[[int], None]]:
    """Show a progress bar on stderr until the end of the block, if stderr is a terminal.

    Args:
        what: text in front of the bar.
        total: number of messages; None if unknown.
        quiet: whether to show no bar on a terminal, either.

    Returns:
        A function that takes the number of finished messages.
    """
    if quiet or not sys.stderr.isatty():
        yield _draw_nothing  # without rich, whose import takes longer than a post
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn

    from bmq.cli.consoles import stderr

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
    )
    with Progress(*columns, console=stderr(), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda finished: progress.update(bar, completed=finished)
