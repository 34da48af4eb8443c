# SPDX-License-Identifier: Apache-2.0
"""The progress bar of the verbs for many messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["progress_bar"]


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
