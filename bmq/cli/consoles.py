# SPDX-License-Identifier: Apache-2.0
"""Tables and styled text on stdout and stderr, by rich; see :mod:`bmq.cli.output` for plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from bmq.cli.output import printable, printable_lines

__all__ = ["out", "stderr", "styled", "table"]

#: A pipe has no width: tables are as wide as their cells.
_NO_TERMINAL = 10_000
#: Least width for the names of queues, on narrow terminals too.
_NAME_WIDTH = 24


class _Output(Console):
    """A console without foreign escape sequences; writing raises an error after the reader has gone."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments to print, with control characters in texts as escapes."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Called by rich after a failed write."""
        raise BrokenPipeError


def out() -> Console:
    """Return the console for data."""
    terminal = sys.stdout.isatty()
    return _Output(file=sys.stdout, highlight=False, width=None if terminal else _NO_TERMINAL)


def stderr() -> Console:
    """Return the console for all other lines."""
    return _Output(file=sys.stderr, highlight=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; a column whose name ends in ``>`` holds numbers.

    Cells are plain text, never markup.
    """
    made = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None)
    made.pad_edge = False
    for name in columns:
        right = name.endswith(">")
        made.add_column(
            name.removesuffix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
            min_width=_NAME_WIDTH if name == "queue" else None,
            header_style="bold",
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else styled(cell) for cell in row))
    return made


def styled(content: object, style: str | Style = "") -> Text:
    """Return a single line of text for a console, never markup, with control characters as escapes."""
    return Text(printable(str(content)), style=style)
