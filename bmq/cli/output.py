# SPDX-License-Identifier: Apache-2.0
"""Where things are printed: data on stdout, all else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["emit", "emit_json", "note", "out", "printable", "stderr", "table"]

#: A pipe has no width: tables are as wide as what is in them.
_NO_TERMINAL = 10_000
#: However narrow a terminal is, so much of it is for the names of queues.
_NAME_WIDTH = 24


class _Output(Console):
    """A console that raises when nobody reads its output any more, instead of ending the process."""

    def on_broken_pipe(self) -> None:
        """Called by rich where writing failed."""
        raise BrokenPipeError


def out() -> Console:
    """Return the console for data."""
    terminal = sys.stdout.isatty()
    return _Output(file=sys.stdout, highlight=False, width=None if terminal else _NO_TERMINAL)


def stderr() -> Console:
    """Return the console for everything else."""
    return Console(file=sys.stderr, highlight=False)


def emit(line: str) -> None:
    """Print a line of data."""
    sys.stdout.write(line + "\n")


def emit_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    try:
        emit(orjson.dumps(value, default=_jsonable).decode())
    except TypeError:  # a lone surrogate in a text: json escapes it, orjson refuses it
        emit(json.dumps(value, default=_jsonable))


def _jsonable(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, tuple):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def note(text: str) -> None:
    """Tell the user something, on stderr."""
    sys.stderr.write(text + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """Return a table; a column whose name ends in ``>`` holds numbers.

    Cells are text as it is, never markup.
    """
    made = Table(
        box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, title=title or None, title_justify="left"
    )
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
        made.add_row(*(cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row))
    return made


def printable(text: str) -> str:
    """Return text that cannot do anything to a terminal: control characters are shown, not sent."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
