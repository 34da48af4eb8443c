# SPDX-License-Identifier: Apache-2.0
"""Tables and styled text on stdout and stderr, by rich; see :mod:`bmq.cli.output` for plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from bmq.cli.output import printable, printable_lines

#: A pipe has no width: tables are as wide as their cells.
_NO_TERMINAL = 10_000
#: Least width of texts on narrow terminals; longer ones continue in the next line.
_NAME_WIDTH = 12
#: Spaces beside a cell, and the line between columns.
_MARGIN = 3


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


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, expendable: Sequence[int] = ()
) -> Table:
    """Return a table; a column whose name ends in ``>`` holds numbers.

    Cells are plain text, never markup. Numbers are never cut: a table that is too wide for the terminal has
    fewer columns, and says so. Columns are left out in the order of ``expendable``, then from the right.
    """
    cells = [[cell if isinstance(cell, Text) else styled(cell) for cell in row] for row in rows]
    least = [
        max(cell_len(name.removesuffix(">")), *(cell_len(row[index].plain) for row in cells), 1)
        if name.endswith(">")
        else min(max((cell_len(row[index].plain) for row in cells), default=0), _NAME_WIDTH)
        for index, name in enumerate(columns)
    ]
    shown, width = list(range(len(columns))), out().width
    for index in [*expendable, *reversed(shown[1:])]:
        if sum(least[each] + _MARGIN for each in shown) <= width or len(shown) == 1:
            break
        if index in shown:
            shown.remove(index)
    made = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None)
    made.pad_edge = False
    if left := len(columns) - len(shown):
        made.caption = f"{left} column{'s' if left > 1 else ''} left out: widen the terminal"
        made.caption_justify = "left"
    for index in shown:
        right = columns[index].endswith(">")
        made.add_column(
            columns[index].removesuffix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
            min_width=min(least[index], width),
            header_style="bold",
        )
    for row in cells:
        made.add_row(*(row[index] for index in shown))
    return made


def styled(content: object, style: str | Style = "") -> Text:
    """Return a single line of text for a console, never markup, with control characters as escapes."""
    return Text(printable(str(content)), style=style)
